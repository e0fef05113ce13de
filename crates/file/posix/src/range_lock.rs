//! Locks on byte ranges of one file.

use millpond_env::rank::{self, Held, LockRank};
use millpond_env::sync::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;

/// The locked byte ranges of a file or volume.
///
/// Requests are served in order of arrival, so neither readers nor writers starve.
#[derive(Debug, Default)]
pub struct RangeLocks {
    requests: Mutex<Requests, rank::Leaf>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Requests {
    next_ticket: u64,
    /// Granted and waiting requests, in order of arrival. A request is granted when no earlier one conflicts
    /// with it.
    by_ticket: BTreeMap<u64, Request>,
}

#[derive(Debug)]
struct Request {
    range: Range<u64>,
    is_exclusive: bool,
}

impl Request {
    fn conflicts_with(&self, other: &Request) -> bool {
        (self.is_exclusive || other.is_exclusive)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// A lock that is held until dropped.
#[derive(Debug)]
pub struct RangeGuard<'l> {
    locks: &'l RangeLocks,
    ticket: u64,
    _held: Held,
}

impl RangeLocks {
    /// Locks `range` for reading: waits for writers of it, and keeps writers out.
    pub fn read(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, false)
    }
    /// Locks `range` for writing: waits for readers and writers of it, and keeps both out.
    pub fn write(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, true)
    }

    fn lock(&self, range: Range<u64>, is_exclusive: bool) -> RangeGuard<'_> {
        let held = Held::waiting(rank::FileRanges::RANK);
        let mut requests = self.requests.lock();
        let ticket = requests.next_ticket;
        requests.next_ticket += 1;
        requests.by_ticket.insert(
            ticket,
            Request {
                range,
                is_exclusive,
            },
        );
        while requests.must_wait(ticket) {
            self.released.wait(&mut requests);
        }
        RangeGuard {
            locks: self,
            ticket,
            _held: held,
        }
    }
}

impl Requests {
    fn must_wait(&self, ticket: u64) -> bool {
        let Some(request) = self.by_ticket.get(&ticket) else {
            return false;
        };
        self.by_ticket
            .range(..ticket)
            .any(|(_, earlier)| earlier.conflicts_with(request))
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.locks.requests.lock().by_ticket.remove(&self.ticket);
        self.locks.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::sync::atomic::{AtomicU64, Ordering};
    use millpond_env::thread;

    #[test]
    fn readers_share_and_writers_of_other_ranges_do_not_wait() {
        let locks = RangeLocks::default();
        let _one = locks.read(0..100);
        let _two = locks.read(50..150);
        let _three = locks.write(200..u64::MAX);
        let _four = locks.write(150..200);
    }

    #[test]
    fn a_reader_queues_behind_a_waiting_writer() {
        let mut requests = Requests::default();
        let request = |range, is_exclusive| Request {
            range,
            is_exclusive,
        };
        requests.by_ticket.insert(0, request(0..10, false));
        requests.by_ticket.insert(1, request(0..10, true));
        requests.by_ticket.insert(2, request(5..6, false));
        assert!(!requests.must_wait(0));
        assert!(requests.must_wait(1));
        assert!(requests.must_wait(2));
        requests.by_ticket.remove(&0);
        assert!(!requests.must_wait(1));
        assert!(requests.must_wait(2));
    }

    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let locks = RangeLocks::default();
        let cells: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for start in 0..4u64 {
                let (locks, cells) = (&locks, &cells);
                scope.spawn(move || {
                    for round in 0..200 {
                        let from = (start + round) % 6;
                        let _guard = locks.write(from..from + 3);
                        for cell in &cells[from as usize..from as usize + 3] {
                            let value = cell.load(Ordering::Relaxed);
                            std::hint::spin_loop();
                            cell.store(value + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let total: u64 = cells.iter().map(|cell| cell.load(Ordering::Relaxed)).sum();
        assert_eq!(total, 4 * 200 * 3);
    }
}
