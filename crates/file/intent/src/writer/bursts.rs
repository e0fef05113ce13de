//! The bursts of log blocks that are being written, in the order of their records.
//!
//! Several bursts are with the devices at the same time. A crash may keep a later one and lose an earlier one, and
//! a reader of the chain stops at the first block that is missing. So a burst counts only when all bursts before
//! it are on stable storage too.

use millpond_env::mark;
use millpond_ondisk::Txg;
use std::collections::VecDeque;

/// The number of bursts that are written at the same time.
pub(super) const IN_FLIGHT_MAX: usize = 4;
/// A burst begins beside another one when that has taken a quarter of the usual time, and at least this long.
///
/// Callers that arrive meanwhile share a burst. On fast devices sharing is worth more than starting at once: with
/// four writers on image files, four bursts in flight were half as fast as one. To wait, after a burst, for the callers
/// that it had was no gain: through FUSE they came back too late (measured with four and eight writers).
///
/// The seeded scheduler does not wait, so that its power cuts meet several bursts.
const PATIENCE_NS_MIN: u64 = 1_000_000;
const PATIENCE_SHARE: u64 = 4;
/// The usual time follows each new one by this fraction.
const SMOOTHING: u64 = 8;

/// The place of a burst in the order of all bursts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
struct Burst {
    /// The number of its first entry.
    first: u64,
    /// The last txg of its entries.
    last: Txg,
    begun_ns: u64,
    /// Its blocks are durable.
    is_written: bool,
    /// Its entries are on stable storage.
    is_stable: bool,
    /// It, or a burst before it, could not be written.
    is_failed: bool,
    /// Its thread has ended.
    is_over: bool,
}

#[derive(Debug, Default)]
pub(super) struct Bursts {
    /// The bursts whose threads work, and those that wait for an earlier one.
    bursts: VecDeque<Burst>,
    /// The ticket of the first of them.
    begin: u64,
    /// The ticket of the next burst that chooses its blocks.
    placing: u64,
    /// The first entry of bursts that failed, and the last txg of their entries, until these are committed.
    failed: Option<(u64, Txg)>,
    /// How long a burst takes.
    usual_ns: u64,
}

impl Bursts {
    pub(super) fn is_empty(&self) -> bool {
        self.bursts.is_empty()
    }
    pub(super) fn is_full(&self) -> bool {
        self.bursts.len() >= IN_FLIGHT_MAX
    }
    /// The first entry of a burst that failed, until its entries are committed. Nothing may follow it in the log.
    pub(super) fn first_failed(&self) -> Option<u64> {
        self.failed.map(|(first, _)| first)
    }

    /// How long a further burst should wait for those that are being written, in nanoseconds. 0 if it should begin.
    pub(super) fn patience_ns(&self, now_ns: u64) -> u64 {
        let Some(last) = self.bursts.back().filter(|_| !cfg!(millpond_sim)) else {
            return 0;
        };
        let patience_ns = PATIENCE_NS_MIN.max(self.usual_ns / PATIENCE_SHARE);
        patience_ns.saturating_sub(now_ns.saturating_sub(last.begun_ns))
    }

    /// Adds a burst: the number of its first entry, and the last txg of its entries.
    pub(super) fn add(&mut self, first: u64, last: Txg, now_ns: u64) -> Ticket {
        if !self.bursts.is_empty() {
            mark::hit("log-bursts-in-flight");
        }
        self.bursts.push_back(Burst {
            first,
            last,
            begun_ns: now_ns,
            is_written: false,
            is_stable: false,
            is_failed: false,
            is_over: false,
        });
        Ticket(self.end().saturating_sub(1))
    }
    /// The ticket after the last one.
    fn end(&self) -> u64 {
        self.begin
            .saturating_add(u64::try_from(self.bursts.len()).unwrap_or(u64::MAX))
    }
    fn get(&mut self, ticket: Ticket) -> Option<&mut Burst> {
        let index = ticket.0.checked_sub(self.begin)?;
        self.bursts.get_mut(usize::try_from(index).ok()?)
    }

    /// Whether it is the turn of this burst to choose its blocks. `None` if it has failed with an earlier one.
    pub(super) fn may_place(&mut self, ticket: Ticket) -> Option<bool> {
        let is_next = self.placing == ticket.0;
        let burst = self.get(ticket)?;
        (!burst.is_failed).then_some(is_next)
    }
    /// The burst has its blocks, so the next one may choose.
    pub(super) fn placed(&mut self, ticket: Ticket) {
        self.placing = self.placing.max(ticket.0.saturating_add(1));
    }

    /// Ends a burst. If it could not be written, those after it fail, too. Returns whether its blocks are part of
    /// the chain.
    pub(super) fn finish(&mut self, ticket: Ticket, is_written: bool, now_ns: u64) -> bool {
        if !is_written {
            self.fail_from(ticket);
        }
        let mut is_part = false;
        if let Some(burst) = self.get(ticket) {
            let took_ns = now_ns.saturating_sub(burst.begun_ns);
            burst.is_over = true;
            burst.is_written = is_written && !burst.is_failed;
            is_part = burst.is_written;
            let kept_ns = self.usual_ns.saturating_sub(self.usual_ns / SMOOTHING);
            self.usual_ns = kept_ns.saturating_add(took_ns / SMOOTHING);
        }
        self.settle();
        is_part
    }

    fn fail_from(&mut self, ticket: Ticket) {
        // All that are left have failed or have their blocks.
        self.placing = self.end();
        for (burst, number) in self.bursts.iter_mut().zip(self.begin..) {
            if number < ticket.0 || burst.is_failed {
                continue;
            }
            (burst.is_failed, burst.is_written) = (true, false);
            if !burst.is_stable {
                let (first, last) = self.failed.unwrap_or((burst.first, burst.last));
                self.failed = Some((first.min(burst.first), last.max(burst.last)));
            }
        }
    }

    fn settle(&mut self) {
        let mut is_whole = true;
        for burst in &mut self.bursts {
            is_whole &= burst.is_written;
            burst.is_stable |= is_whole;
        }
        while let Some(burst) = self.bursts.front() {
            if !burst.is_over {
                break;
            }
            self.bursts.pop_front();
            self.begin = self.begin.saturating_add(1);
        }
    }

    /// Notes a committed txg.
    pub(super) fn committed(&mut self, txg: Txg) {
        for burst in &mut self.bursts {
            burst.is_stable |= burst.last <= txg;
        }
        self.failed.take_if(|(_, last)| *last <= txg);
    }

    /// The lowest number of an entry that a burst has and that is not on stable storage.
    pub(super) fn first_unstable(&self) -> Option<u64> {
        let bursts = self.bursts.iter().filter(|burst| !burst.is_stable);
        let bursts = bursts.map(|burst| burst.first);
        bursts.chain(self.failed.map(|(first, _)| first)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_stable_when_all_before_it_are_written() {
        let mut bursts = Bursts::default();
        let (a, b) = (bursts.add(10, Txg(5), 0), bursts.add(20, Txg(5), 0));
        assert_eq!(bursts.may_place(b), Some(false));
        assert_eq!(bursts.may_place(a), Some(true));
        bursts.placed(a);
        assert_eq!(bursts.may_place(b), Some(true));
        bursts.placed(b);
        assert!(bursts.finish(b, true, 0));
        assert_eq!(bursts.first_unstable(), Some(10));
        assert!(bursts.finish(a, true, 0));
        assert_eq!(bursts.first_unstable(), None);
        assert!(bursts.is_empty());
        let c = bursts.add(30, Txg(6), 0);
        assert_eq!(bursts.may_place(c), Some(true));
    }

    #[test]
    fn what_follows_a_failed_burst_fails_with_it() {
        let mut bursts = Bursts::default();
        let tickets: Vec<_> = (1..=4).map(|n| bursts.add(n * 10, Txg(n + 4), 0)).collect();
        for ticket in &tickets[..3] {
            bursts.placed(*ticket);
        }
        assert!(bursts.finish(tickets[2], true, 0));
        assert!(!bursts.finish(tickets[1], false, 0));
        assert_eq!(bursts.may_place(tickets[3]), None);
        assert!(bursts.first_failed().is_some());
        // The one before it still counts.
        assert!(bursts.finish(tickets[0], true, 0));
        assert_eq!(bursts.first_unstable(), Some(20));
        assert!(!bursts.finish(tickets[3], true, 0));
        assert!(bursts.is_empty());
        bursts.committed(Txg(7));
        assert_eq!(bursts.first_unstable(), Some(20));
        bursts.committed(Txg(8));
        assert_eq!(
            (bursts.first_unstable(), bursts.first_failed().is_some()),
            (None, false)
        );
        let next = bursts.add(50, Txg(9), 0);
        assert_eq!(bursts.may_place(next), Some(true));
    }

    #[test]
    fn a_committed_burst_does_not_make_a_later_one_stable() {
        let mut bursts = Bursts::default();
        let (a, b) = (bursts.add(10, Txg(5), 0), bursts.add(20, Txg(6), 0));
        bursts.placed(a);
        bursts.placed(b);
        assert!(bursts.finish(b, true, 0));
        bursts.committed(Txg(5));
        // On disk the chain still breaks before the second.
        assert_eq!(bursts.first_unstable(), Some(20));
        bursts.committed(Txg(6));
        assert_eq!(bursts.first_unstable(), None);
        assert!(!bursts.is_empty());
        assert!(bursts.finish(a, true, 0));
        assert!(bursts.is_empty());
    }

    #[test]
    fn a_burst_begins_beside_one_that_takes_long() {
        let ms = 1_000_000;
        let mut bursts = Bursts::default();
        assert_eq!(bursts.patience_ns(0), 0);
        let a = bursts.add(10, Txg(5), 0);
        assert_eq!(bursts.patience_ns(0), ms);
        assert_eq!(bursts.patience_ns(ms), 0);
        bursts.finish(a, true, 80 * ms);
        assert_eq!(bursts.patience_ns(80 * ms), 0);
        // The usual time is 10 ms now, an eighth of the 80.
        bursts.add(20, Txg(5), 80 * ms);
        assert_eq!(bursts.patience_ns(81 * ms), 3 * ms / 2);
        assert_eq!(bursts.patience_ns(83 * ms), 0);
    }
}
