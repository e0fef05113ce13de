//! Promises that a disk can be told to break.

use crate::Seed;

/// One way in which a request goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The disk says that the request failed, and nothing happened.
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
    /// Flushes only ([`Fault::Fail`] and [`Fault::Lose`]: the flush did nothing but said yes).
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
    pub(crate) fn draw(&mut self, scope: Scope, offset_bytes: u64) -> Option<Fault> {
        if let Some(good) = self.good {
            self.good = good.checked_sub(1);
            if self.good.is_none() {
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
