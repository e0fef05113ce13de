//! Pins: keep blocks of a committed state from being reused while a view of it is open.
//!
//! A view of txg C reads blocks that were written up to C and that later txgs free. Such space is not reused
//! while the view is open, so the view never meets a reused block. Blocks written after C are not held back.
//!
//! Pins are bounded in number and in time. They hold back nothing while the pool is short of space, and end
//! when what they hold back takes too much memory. A pin that reaches a bound expires, and its view reports
//! [`PoolError::ViewExpired`](crate::PoolError::ViewExpired).

use millpond_block::ViewExpiry;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::Txg;
use std::collections::{BTreeMap, BTreeSet};

/// The most pins at a time. One more expires the oldest.
const PINS_MAX: usize = 256;
/// The age, in nanoseconds since the view was opened, at which a pin no longer holds back freed space.
const AGE_NS_MAX: u64 = 3600 * 1_000_000_000;

/// The pinned txgs of a pool.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    table: Mutex<Table, rank::PinnedViews>,
}

#[derive(Debug, Default)]
struct Table {
    /// By serial number, so the oldest pin is first.
    pins: BTreeMap<u64, Entry>,
    next: u64,
    /// Space freed up to this txg may be in use again.
    released: Txg,
}

#[derive(Debug)]
struct Entry {
    txg: Txg,
    since_ns: u64,
    expiry: Arc<ViewExpiry>,
}

/// Keeps the blocks of one committed txg until it is dropped or expires.
#[derive(Debug)]
pub(crate) struct TxgPin {
    pins: Arc<Pins>,
    serial: u64,
    expiry: Arc<ViewExpiry>,
}

impl TxgPin {
    /// Whether blocks of the txg may be in use again.
    pub(crate) fn has_expired(&self) -> bool {
        self.expiry.has_expired()
    }
    /// Tells when the pin expires. It does not any more once the pin is dropped.
    pub(crate) fn expiry(&self) -> Arc<ViewExpiry> {
        Arc::clone(&self.expiry)
    }
}

impl Drop for TxgPin {
    fn drop(&mut self) {
        self.pins.table.lock().pins.remove(&self.serial);
    }
}

impl Pins {
    /// Pins a committed txg; `None` if space that it uses may be in use again, because a newer txg is
    /// committed already.
    pub(crate) fn pin(self: &Arc<Self>, txg: Txg, now_ns: u64) -> Option<TxgPin> {
        let mut table = self.table.lock();
        if table.released > txg {
            return None;
        }
        if table.pins.len() >= PINS_MAX
            && let Some((_, oldest)) = table.pins.pop_first()
        {
            oldest.expiry.expire();
        }
        let serial = table.next;
        table.next += 1;
        let expiry = Arc::new(ViewExpiry::default());
        let entry = Entry {
            txg,
            since_ns: now_ns,
            expiry: Arc::clone(&expiry),
        };
        table.pins.insert(serial, entry);
        Some(TxgPin {
            pins: Arc::clone(self),
            serial,
            expiry,
        })
    }

    /// The pinned txgs, ascending.
    pub(crate) fn txgs(&self) -> Vec<Txg> {
        self.table.lock().txgs()
    }

    /// Notes that space freed up to `until` is reused from now on, except blocks of the pinned txgs, which it
    /// returns, ascending. Pins that have reached their age expire first.
    ///
    /// With `must_expire`, no pin holds back anything. It is set while a pool has no more free space than the
    /// slop: writers are admitted by the space that datasets use, which says nothing of freed space that waits.
    /// The sync thread needs it. It is also set if the allocator holds back too many ranges.
    pub(crate) fn release(&self, until: Txg, must_expire: bool, now_ns: u64) -> Vec<Txg> {
        let mut table = self.table.lock();
        table.pins.retain(|_, entry| {
            let is_young = now_ns.saturating_sub(entry.since_ns) < AGE_NS_MAX;
            let stays = entry.txg >= until || is_young && !must_expire;
            if !stays {
                mark::hit("view-expired");
                entry.expiry.expire();
            }
            stays
        });
        table.released = table.released.max(until);
        table.txgs()
    }
}

impl Table {
    fn txgs(&self) -> Vec<Txg> {
        let txgs: BTreeSet<Txg> = self.pins.values().map(|entry| entry.txg).collect();
        txgs.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_pin_lasts_until_it_is_dropped() {
        let pins = Arc::new(Pins::default());
        let pin = pins.pin(Txg(10), 0).unwrap();
        let same = pins.pin(Txg(10), 0).unwrap();
        let newer = pins.pin(Txg(12), 0).unwrap();
        assert_eq!(pins.release(Txg(14), false, SECOND_NS), [Txg(10), Txg(12)]);
        drop((pin, newer));
        assert_eq!(pins.release(Txg(15), false, SECOND_NS), [Txg(10)]);
        assert!(!same.has_expired());
        drop(same);
        assert_eq!(pins.release(Txg(16), false, SECOND_NS), []);
    }

    #[test]
    fn a_state_whose_space_is_released_cannot_be_pinned() {
        let pins = Arc::new(Pins::default());
        pins.release(Txg(14), false, 0);
        assert!(pins.pin(Txg(13), 0).is_none());
        assert!(pins.pin(Txg(14), 0).is_some());
    }

    #[test]
    fn pins_expire_by_age() {
        let _mark = mark::expect("view-expired");
        let pins = Arc::new(Pins::default());
        let old = pins.pin(Txg(10), 0).unwrap();
        let young = pins.pin(Txg(11), 7 * SECOND_NS).unwrap();
        assert_eq!(pins.release(Txg(14), false, 3599 * SECOND_NS).len(), 2);
        assert_eq!(pins.release(Txg(14), false, 3606 * SECOND_NS), [Txg(11)]);
        assert!(old.has_expired() && !young.has_expired());
        assert_eq!(pins.release(Txg(14), false, 3607 * SECOND_NS), []);
        assert!(young.has_expired());
    }

    #[test]
    fn pins_expire_at_once_if_they_must() {
        let _mark = mark::expect("view-expired");
        let pins = Arc::new(Pins::default());
        let old = pins.pin(Txg(10), 0).unwrap();
        let newest = pins.pin(Txg(14), 0).unwrap();
        assert_eq!(pins.release(Txg(14), true, 0), [Txg(14)]);
        assert!(old.has_expired() && !newest.has_expired());
    }

    #[test]
    fn one_pin_too_many_expires_the_oldest() {
        let pins = Arc::new(Pins::default());
        let mut open: Vec<_> = (0..PINS_MAX as u64)
            .map(|txg| pins.pin(Txg(txg), 0).unwrap())
            .collect();
        assert!(!open[0].has_expired());
        open.push(pins.pin(Txg(1000), 0).unwrap());
        assert!(open[0].has_expired() && !open[1].has_expired());
    }
}
