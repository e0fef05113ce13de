//! Requests that a disk does not answer.

use millpond_env::sync::{Condvar, Mutex};
use std::ops::Range;

/// Which requests a [`HangPlan`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hanging {
    /// Reads.
    Reads,
    /// Writes, including durable ones.
    Writes,
    /// Flushes.
    Flushes,
    /// Durable writes only.
    DurableWrites,
    /// All of these.
    Everything,
}

/// The kinds of requests of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    DurableWrite,
    Flush,
}

impl Hanging {
    fn holds(self, kind: Kind) -> bool {
        match self {
            Self::Everything => true,
            Self::Reads => kind == Kind::Read,
            Self::Writes => matches!(kind, Kind::Write | Kind::DurableWrite),
            Self::Flushes => kind == Kind::Flush,
            Self::DurableWrites => kind == Kind::DurableWrite,
        }
    }
}

/// A disk that stops answering.
///
/// From the first request that hangs, the disk answers no request of any kind until
/// [`crate::SimDisk::release`]. Then it executes the hung requests, in any order.
#[derive(Debug, Clone)]
pub struct HangPlan {
    kind: Hanging,
    good: u64,
    within: Option<Range<u64>>,
    passing_ns: u64,
    is_alone: bool,
}

impl HangPlan {
    /// The first request of this kind hangs.
    #[must_use]
    pub fn new(kind: Hanging) -> Self {
        Self {
            kind,
            good: 0,
            within: None,
            passing_ns: 0,
            is_alone: false,
        }
    }
    /// The first `good` requests of the kind succeed.
    #[must_use]
    pub fn after(mut self, good: u64) -> Self {
        self.good = good;
        self
    }
    /// Only counts requests that begin in this range, for instance in the labels. The range does not
    /// restrict flushes.
    #[must_use]
    pub fn within(mut self, bytes: Range<u64>) -> Self {
        self.within = Some(bytes);
        self
    }
    /// Each request that hangs advances the simulated clock by `ns`, so that its waiters see time pass.
    #[must_use]
    pub fn passing(mut self, ns: u64) -> Self {
        self.passing_ns = ns;
        self
    }
    /// Only the first request hangs; the disk answers all others.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.is_alone = true;
        self
    }
    /// Whether this request is the first that hangs.
    fn begins(&mut self, kind: Kind, offset_bytes: u64) -> bool {
        let is_place = |range: &Range<u64>| kind == Kind::Flush || range.contains(&offset_bytes);
        if !self.kind.holds(kind) || !self.within.as_ref().is_none_or(is_place) {
            return false;
        }
        match self.good.checked_sub(1) {
            Some(left) => self.good = left,
            None => return true,
        }
        false
    }
}

/// The hung requests of a disk.
#[derive(Debug, Default)]
pub(crate) struct Hung {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    plan: Option<HangPlan>,
    has_begun: bool,
    waiting: usize,
    releases: u64,
}

impl Hung {
    pub(crate) fn set(&self, plan: Option<HangPlan>) {
        let mut state = self.state.lock();
        state.plan = plan;
        state.has_begun = false;
        state.releases += 1;
        self.changed.notify_all();
    }
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
    /// Waits until a request hangs.
    pub(crate) fn wait_for_one(&self) {
        let mut state = self.state.lock();
        while state.waiting == 0 {
            self.changed.wait(&mut state);
        }
    }
    /// Called at the start of each request. Blocks if the plan says so; `pass` advances the clock.
    pub(crate) fn pass(&self, kind: Kind, offset_bytes: u64, pass: impl FnOnce(u64)) {
        let mut state = self.state.lock();
        let has_begun = state.has_begun;
        let Some(plan) = &mut state.plan else { return };
        let begins = !has_begun && plan.begins(kind, offset_bytes);
        let (passing_ns, is_alone) = (plan.passing_ns, plan.is_alone);
        if !begins && (!has_begun || is_alone) {
            return;
        }
        state.has_begun = true;
        state.waiting += 1;
        self.changed.notify_all();
        if passing_ns > 0 {
            pass(passing_ns);
        }
        let releases = state.releases;
        while state.releases == releases {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;
    use millpond_device::Device;
    use millpond_env::thread;

    #[test]
    fn a_disk_hangs_from_the_chosen_request_until_released() {
        let world = World::new(1);
        let (disk, other) = (world.disk(1 << 20, 512), world.disk(1 << 20, 512));
        let plan = HangPlan::new(Hanging::Writes).after(1).within(4096..8192);
        disk.hang(plan.passing(5_000_000_000));
        disk.write(4096, &[1; 512]).unwrap();
        disk.write(0, &[1; 512]).unwrap();
        disk.flush().unwrap();
        let before = world.env().clock.monotonic_ns();
        thread::scope(|scope| {
            let writing = scope.spawn(|| disk.write(4096, &[2; 512]));
            disk.await_hang();
            assert!(world.env().clock.monotonic_ns() - before >= 5_000_000_000);
            // This disk answers no further request; other disks do.
            let reading = scope.spawn(|| disk.read(0, &mut [0; 512]));
            while disk.hanging() < 2 {
                thread::yield_now();
            }
            other.write(4096, &[3; 512]).unwrap();
            assert_eq!(disk.content().first_bytes(4096, 1), [1]);
            disk.release();
            writing.join().unwrap().unwrap();
            reading.join().unwrap().unwrap();
        });
        assert_eq!(disk.hanging(), 0);
        assert_eq!(disk.content().first_bytes(4096, 1), [2]);
        disk.hang(HangPlan::new(Hanging::Flushes).once());
        thread::scope(|scope| {
            let flushing = scope.spawn(|| disk.flush());
            disk.await_hang();
            disk.write(0, &[4; 512]).unwrap();
            disk.flush().unwrap();
            disk.release();
            flushing.join().unwrap().unwrap();
        });
    }

    impl crate::Content {
        fn first_bytes(&self, at: u64, length: usize) -> Vec<u8> {
            let mut bytes = vec![0; length];
            self.read(at, &mut bytes);
            bytes
        }
    }
}
