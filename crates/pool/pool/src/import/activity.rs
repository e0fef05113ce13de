//! Checks whether another system is writing to the pool, and how long to watch for it.
//!
//! Page `docs/format/import.md`, "Multihost".

use crate::import::pools::PoolState;
use millpond_ondisk::Uberblock;

/// Settings of the check that do not come from the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivitySettings {
    /// This system's host id; 0 if it has none.
    pub hostid: u64,
    /// Whether an administrator has set it.
    pub is_hostid_set: bool,
    /// Milliseconds between this system's own heartbeats.
    pub interval_ms: u64,
    /// How many intervals to watch if the pool does not specify a number.
    pub import_intervals: u64,
}

impl ActivitySettings {
    /// The default intervals: 1000 ms, 20 of them.
    #[must_use]
    pub fn new(hostid: u64) -> Self {
        Self {
            hostid,
            is_hostid_set: hostid != 0,
            interval_ms: 1000,
            import_intervals: 20,
        }
    }
}

/// What must happen before the pool may be opened for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityCheck {
    /// No check: multihost is off, the pool was exported or destroyed, or this system used it last.
    NotNeeded,
    /// The pool has multihost on, and this system has no host id: refuse the import.
    HostidRequired,
    /// Reread the best uberblock about once a second for this duration plus up to a quarter at random.
    /// Refuse the import if the uberblock's rank changes.
    Watch {
        /// Nanoseconds.
        duration_ns: u64,
    },
}

/// The check that the uberblock and the configuration require.
///
/// `config_hostid` is the host id in the configuration, 0 if absent.
#[must_use]
pub fn activity_check(
    uberblock: &Uberblock,
    state: PoolState,
    config_hostid: u64,
    settings: ActivitySettings,
) -> ActivityCheck {
    let mmp = uberblock.mmp();
    if mmp.is_some_and(|mmp| mmp.delay_ns == 0) {
        return ActivityCheck::NotNeeded;
    }
    if mmp.is_some() && !settings.is_hostid_set {
        return ActivityCheck::HostidRequired;
    }
    if state != PoolState::Active || (config_hostid == settings.hostid && settings.hostid != 0) {
        return ActivityCheck::NotNeeded;
    }
    let ns = |ms: u64| ms.saturating_mul(1_000_000);
    let own_ns = ns(settings.interval_ms);
    let import_ns = settings
        .import_intervals
        .saturating_mul(own_ns)
        .max(1_000_000_000);
    let duration_ns = match mmp {
        None => import_ns,
        Some(mmp) => match (mmp.interval_ms, mmp.fail_intervals) {
            (Some(interval), Some(fails)) if fails > 0 => ns(u64::from(interval))
                .saturating_mul(u64::from(fails))
                .saturating_mul(2),
            (interval, _) => {
                let beat_ns = interval.map_or(own_ns, |interval| ns(u64::from(interval)));
                let slow_ns = beat_ns
                    .saturating_add(mmp.delay_ns)
                    .saturating_mul(settings.import_intervals);
                import_ns.max(slow_ns)
            }
        },
    };
    // A hostile pool must not delay an import without limit.
    ActivityCheck::Watch {
        duration_ns: duration_ns.min(WATCH_MAX_NS),
    }
}

/// One hour. No writer promises more.
pub(crate) const WATCH_MAX_NS: u64 = 3_600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::next_uberblock;
    use millpond_ondisk::{BlockPointer, Txg};

    const MS: u64 = 1_000_000;

    fn uberblock(mmp_magic: u64, mmp_delay_ns: u64, mmp_config: u64) -> Uberblock {
        let root = BlockPointer::default();
        Uberblock {
            mmp_magic,
            mmp_delay_ns,
            mmp_config,
            ..next_uberblock(None, 5000, Txg(9), root, 0, 0)
        }
    }

    fn check(
        uberblock: Uberblock,
        state: PoolState,
        config_hostid: u64,
        hostid: u64,
    ) -> ActivityCheck {
        activity_check(
            &uberblock,
            state,
            config_hostid,
            ActivitySettings::new(hostid),
        )
    }

    #[test]
    fn only_foreign_multihost_pools_are_watched() {
        let off = uberblock(Uberblock::MMP_MAGIC, 0, 0);
        let on = uberblock(Uberblock::MMP_MAGIC, 5, 0);
        for (uberblock, state, theirs) in [
            (off, PoolState::Active, 1),
            (on, PoolState::Exported, 1),
            (on, PoolState::Destroyed, 1),
            (on, PoolState::Active, 2),
        ] {
            assert_eq!(check(uberblock, state, theirs, 2), ActivityCheck::NotNeeded);
        }
        assert_eq!(
            check(on, PoolState::Active, 1, 0),
            ActivityCheck::HostidRequired
        );
        assert_eq!(
            check(on, PoolState::Exported, 1, 0),
            ActivityCheck::HostidRequired
        );
    }

    #[test]
    fn the_watch_lasts_as_long_as_the_pools_own_settings_ask() {
        let config = |interval: u64, fails: u64| 5 | (interval << 8) | (fails << 48);
        for (uberblock, expected_ms) in [
            (uberblock(Uberblock::MMP_MAGIC, 5, config(1000, 10)), 20_000),
            (
                uberblock(Uberblock::MMP_MAGIC, 1000 * MS, config(500, 0)),
                30_000,
            ),
            (uberblock(Uberblock::MMP_MAGIC, 1000 * MS, 0), 40_000),
            (uberblock(0, 0, 0), 20_000),
            (
                uberblock(Uberblock::MMP_MAGIC, u64::MAX, config(0xff_ffff, 0xffff)),
                3_600_000,
            ),
        ] {
            let expected = ActivityCheck::Watch {
                duration_ns: expected_ms * MS,
            };
            assert_eq!(check(uberblock, PoolState::Active, 1, 2), expected);
        }
    }
}
