//! Promises that a disk can be told to break.

use crate::Seed;

/// One way in which a request goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The disk says that the request failed, and nothing happened. (Of a flush see [`Scope::Flushes`].)
    Fail,
    /// The disk says that it wrote, and did not.
    Lose,
    /// The disk writes the right bytes in a wrong place (or reads them from one).
    Misdirect,
    /// The disk changes a bit of what it writes or returns.
    Corrupt,
}

/// Which requests a fault may hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Reads only.
    Reads,
    /// Writes only.
    Writes,
    /// Flushes and durable writes only. [`Fault::Fail`]: what was not durable is lost, and only this request is told. Others:
    /// the flush did nothing but said yes.
    Flushes,
}

/// How often a disk breaks which promise, decided by a seed.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    pub(crate) seed: Seed,
    pub(crate) rates: Vec<(Scope, Fault, u32)>,
    pub(crate) spared_bytes: u64,
    /// Requests that go well before one that fails.
    pub(crate) good: Option<u64>,
    /// Flushes that go well before some that fail, and how many of those.
    pub(crate) flushes: (u64, u64),
    /// How many of a million requests take up to so many nanoseconds longer.
    pub(crate) slow: (u32, u64),
}

/// Memory that flips a bit in what is about to be written: after the checksum was made, and before the first copy goes out. All
/// copies of the same bytes have the same wrong bit, so that no redundancy helps: a checksum must tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvilMemory {
    /// Which bytes are hit, and where.
    pub seed: u64,
    /// How many of a million different buffers.
    pub per_million: u32,
    /// Shorter ones are spared, in bytes.
    pub bytes_min: usize,
}

impl EvilMemory {
    /// The bit that flips in these bytes, if one does: byte and mask.
    pub(crate) fn flip(&self, bytes: &[u8]) -> Option<(usize, u8)> {
        if bytes.len() < self.bytes_min.max(1) {
            return None;
        }
        let mut seed = Seed::new(self.seed ^ crate::trace::hash(bytes));
        let is_hit = seed.happens(self.per_million);
        let at = usize::try_from(seed.below(bytes.len() as u64)).unwrap_or(0);
        is_hit.then(|| (at, 1 << seed.below(8)))
    }
}

impl FaultPlan {
    /// A disk that keeps its promises until [`FaultPlan::with`] says otherwise.
    #[must_use]
    pub fn new(seed: Seed) -> Self {
        Self {
            seed,
            rates: vec![],
            spared_bytes: 0,
            good: None,
            flushes: (0, 0),
            slow: (0, 0),
        }
    }
    /// A fault that hits `per_million` of a million requests.
    #[must_use]
    pub fn with(mut self, scope: Scope, fault: Fault, per_million: u32) -> Self {
        self.rates.push((scope, fault, per_million));
        self
    }
    /// Leaves requests alone that begin in the first so many bytes (labels).
    #[must_use]
    pub fn sparing(mut self, bytes: u64) -> Self {
        self.spared_bytes = bytes;
        self
    }
    /// So many requests of any kind go well, then one fails, and then all go well again.
    #[must_use]
    pub fn failing_once_after(mut self, good: u64) -> Self {
        self.good = Some(good);
        self
    }
    /// So many flushes and durable writes go well, then `count` of them fail, and then all go well again.
    #[must_use]
    pub fn failing_flushes_after(mut self, good: u64, count: u64) -> Self {
        self.flushes = (good, count);
        self
    }
    /// So many of a million requests of any kind take longer, each up to so many nanoseconds of the world's time. Other
    /// threads go on meanwhile where a seed decides their turns; else the clock is just put forward.
    #[must_use]
    pub fn slow(mut self, per_million: u32, ns_max: u64) -> Self {
        self.slow = (per_million, ns_max);
        self
    }
    /// How much longer the next request takes, in nanoseconds.
    pub(crate) fn delay_ns(&mut self) -> u64 {
        let (per_million, ns_max) = self.slow;
        match self.seed.happens(per_million) {
            true => self.seed.below(ns_max),
            false => 0,
        }
    }
    pub(crate) fn draw(&mut self, scope: Scope, offset_bytes: u64) -> Option<Fault> {
        if let Some(good) = self.good {
            self.good = good.checked_sub(1);
            if self.good.is_none() {
                return Some(Fault::Fail);
            }
        }
        if scope == Scope::Flushes {
            let (good, bad) = &mut self.flushes;
            if let Some(left) = good.checked_sub(1) {
                *good = left;
            } else if let Some(left) = bad.checked_sub(1) {
                *bad = left;
                return Some(Fault::Fail);
            }
        }
        if scope != Scope::Flushes && offset_bytes < self.spared_bytes {
            return None;
        }
        let Self { seed, rates, .. } = self;
        let mut mine = rates.iter().filter(|(of, ..)| *of == scope);
        mine.find(|(_, _, rate)| seed.happens(*rate))
            .map(|(_, fault, _)| *fault)
    }
}
