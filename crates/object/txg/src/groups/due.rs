//! When the open group closes by itself.

use super::{Group, TxgGroups, nanoseconds};
use millpond_env::mark;

impl TxgGroups {
    /// The latest time at which the group closes, in nanoseconds: a period after its first transaction, or
    /// earlier if it has been idle for a while. [`u64::MAX`] while it is empty.
    pub(super) fn due_ns(&self, group: &Group) -> u64 {
        let Some(begun) = group.begun_ns else {
            return u64::MAX;
        };
        let period = begun.saturating_add(nanoseconds(self.limits.period));
        let idle = group
            .used_ns
            .saturating_add(nanoseconds(self.limits.idle_period));
        match group.active {
            0 => period.min(idle),
            _ => period,
        }
    }

    /// When the sync thread looks next whether the group is due. The end of a transaction does not wake it, so it looks once in
    /// an idle period while one is open: otherwise it would sleep for the whole period.
    pub(super) fn look_ns(&self, group: &Group, now_ns: u64) -> u64 {
        let due = self.due_ns(group);
        match group.active {
            0 => due,
            _ => {
                mark::hit("sync-thread-waits-for-idle");
                due.min(now_ns.saturating_add(nanoseconds(self.limits.idle_period)))
            }
        }
    }
}
