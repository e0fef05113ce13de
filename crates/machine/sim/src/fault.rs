//! Contract violations of simulated disks.

use crate::Seed;

/// A way in which a request goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request fails and has no effect. For a flush see [`Scope::Flushes`].
    Fail,
    /// The disk reports success but writes nothing.
    Lose,
    /// The disk writes to, or reads from, a wrong offset.
    Misdirect,
    /// The disk flips a bit of what it writes or returns.
    Corrupt,
}

/// Which requests a fault may hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Reads only.
    Reads,
    /// Writes only.
    Writes,
    /// Flushes and durable writes only. With [`Fault::Fail`] the disk loses its unflushed writes, and only
    /// this request reports the error. With any other fault the flush reports success but does nothing.
    Flushes,
    /// Discards only. Every fault fails the request.
    Discards,
}

/// Which faults a disk has and how often, determined by a seed.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    pub(crate) seed: Seed,
    pub(crate) rates: Vec<(Scope, Fault, u32)>,
    pub(crate) spared_bytes: u64,
    /// Requests that succeed before one fails.
    pub(crate) good: Option<u64>,
    /// Flushes that succeed before some fail, and how many fail.
    pub(crate) flushes: (u64, u64),
    /// How many requests of a million are slow, and by how many nanoseconds at most.
    pub(crate) slow: (u32, u64),
}

/// Memory that flips a bit in data that is about to be written.
///
/// The flip happens after the checksum is computed and before the first copy is written. All copies of the
/// same bytes get the same wrong bit. Redundancy therefore cannot repair it; only a checksum detects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultyMemory {
    /// Determines which buffers are hit, and in which bit.
    pub seed: u64,
    /// How many buffers of a million are hit.
    pub per_million: u32,
    /// Buffers shorter than this, in bytes, are never hit.
    pub bytes_min: usize,
}

impl FaultyMemory {
    /// The bit that flips in these bytes, if any: index of the byte, and mask.
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
    /// A plan without faults; [`FaultPlan::with`] adds some.
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
    /// Adds a fault that hits `per_million` of a million requests.
    #[must_use]
    pub fn with(mut self, scope: Scope, fault: Fault, per_million: u32) -> Self {
        self.rates.push((scope, fault, per_million));
        self
    }
    /// Exempts requests that begin in the first `bytes` bytes (labels) from the faults added by
    /// [`FaultPlan::with`].
    #[must_use]
    pub fn sparing(mut self, bytes: u64) -> Self {
        self.spared_bytes = bytes;
        self
    }
    /// Fails every request of `scope`.
    #[must_use]
    pub fn failing(scope: Scope) -> Self {
        Self::new(Seed::new(1)).with(scope, Fault::Fail, 1_000_000)
    }
    /// Fails one request after `good` requests of any kind. All later ones succeed.
    #[must_use]
    pub fn failing_once_after(mut self, good: u64) -> Self {
        self.good = Some(good);
        self
    }
    /// Fails `count` flushes or durable writes after `good` of them. All later ones succeed.
    #[must_use]
    pub fn failing_flushes_after(mut self, good: u64, count: u64) -> Self {
        self.flushes = (good, count);
        self
    }
    /// Delays `per_million` of a million requests of any kind, each by up to `ns_max` nanoseconds of
    /// simulated time.
    ///
    /// Under a seeded scheduler other threads run during the delay. Otherwise the delay only advances the
    /// clock.
    #[must_use]
    pub fn slow(mut self, per_million: u32, ns_max: u64) -> Self {
        self.slow = (per_million, ns_max);
        self
    }
    /// The delay of the next request, in nanoseconds.
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
