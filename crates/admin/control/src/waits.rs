//! Latencies and queues of devices and intent logs.

/// A histogram of latencies by powers of two of nanoseconds, with their sum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Latencies {
    /// Bucket *n* counts latencies from 2^n up to 2^(n+1) ns. Bucket 0 also counts 0, and bucket 36 all
    /// longer ones. The vector ends at the last bucket that is not empty.
    pub counts: Vec<u64>,
    /// The sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
}

impl Latencies {
    /// The count of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The mean in nanoseconds; `None` if the count is 0.
    #[must_use]
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count())
    }

    /// The quantile for `per_mille` in nanoseconds, rounded up to the end of its bucket. `None` if the count
    /// is 0.
    #[must_use]
    pub fn quantile_ns(&self, per_mille: u64) -> Option<u64> {
        let count = u128::from(self.count());
        let wanted = (count * u128::from(per_mille.min(1000))).div_ceil(1000);
        let mut seen = 0u128;
        for (bucket, many) in (0u32..).zip(&self.counts) {
            seen += u128::from(*many);
            if *many > 0 && seen >= wanted {
                return Some(bucket_end_ns(bucket));
            }
        }
        None
    }

    /// Adds `other` to this histogram.
    pub fn add(&mut self, other: &Self) {
        add(&mut self.counts, &other.counts);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// The difference to an earlier state. If the counters were reset in between, a difference is at least 0.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            counts: since(&self.counts, &before.counts),
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
        }
    }

    fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.sum_ns == 0
    }
}

/// The longest latency in a bucket, in nanoseconds: 2^(n+1) - 1.
#[must_use]
pub fn bucket_end_ns(bucket: u32) -> u64 {
    2u64.checked_shl(bucket).map_or(u64::MAX, |end| end - 1)
}

fn add(counts: &mut Vec<u64>, others: &[u64]) {
    if counts.len() < others.len() {
        counts.resize(others.len(), 0);
    }
    for (count, other) in counts.iter_mut().zip(others) {
        *count = count.saturating_add(*other);
    }
}

fn since(counts: &[u64], before: &[u64]) -> Vec<u64> {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    let pairs = counts.iter().zip(before);
    pairs.map(|(now, old)| now.saturating_sub(old)).collect()
}

/// Index of reads.
pub const READ: usize = 0;
/// Index of writes.
pub const WRITE: usize = 1;
/// Count of request classes, in the order of `zpool iostat`'s columns: synchronous and asynchronous reads and
/// writes, scrub, trim, rebuild.
pub const CLASSES: usize = 7;

/// Latencies of a device's requests since the pool was opened, and the current queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IoWaits {
    /// Total latency of operations, from submission to completion: [`READ`], [`WRITE`].
    pub total: [Latencies; 2],
    /// Latency in the device, likewise.
    pub disk: [Latencies; 2],
    /// Time in the queue, from submission until issue to the device, by class: sync read, sync write, async
    /// read, async write, scrub, trim, rebuild.
    pub queue: [Latencies; CLASSES],
    /// Sizes of individual requests by class. Bucket *n* counts sizes from 2^n up to 2^(n+1) bytes, bucket 24
    /// all larger ones.
    pub asked_sizes: [Vec<u64>; CLASSES],
    /// Sizes of aggregated operations, likewise.
    pub joined_sizes: [Vec<u64>; CLASSES],
    /// Requests in the queue now.
    pub pending: [u64; CLASSES],
    /// Requests active in the device now.
    pub active: [u64; CLASSES],
}

impl IoWaits {
    /// Whether all counters are zero and no requests are pending or active.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let sizes = |sizes: &[Vec<u64>; CLASSES]| sizes.iter().all(Vec::is_empty);
        self.total.iter().all(Latencies::is_empty)
            && self.disk.iter().all(Latencies::is_empty)
            && self.queue.iter().all(Latencies::is_empty)
            && sizes(&self.asked_sizes)
            && sizes(&self.joined_sizes)
            && self.pending == [0; CLASSES]
            && self.active == [0; CLASSES]
    }

    /// Adds the counters of another device.
    pub fn add(&mut self, other: &Self) {
        for way in [READ, WRITE] {
            self.total[way].add(&other.total[way]);
            self.disk[way].add(&other.disk[way]);
        }
        for class in 0..CLASSES {
            self.queue[class].add(&other.queue[class]);
            add(&mut self.asked_sizes[class], &other.asked_sizes[class]);
            add(&mut self.joined_sizes[class], &other.joined_sizes[class]);
            self.pending[class] = self.pending[class].saturating_add(other.pending[class]);
            self.active[class] = self.active[class].saturating_add(other.active[class]);
        }
    }

    /// The counters since `before`. The counts of pending and active requests are the current ones.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        use std::array::from_fn;
        Self {
            total: from_fn(|way| self.total[way].since(&before.total[way])),
            disk: from_fn(|way| self.disk[way].since(&before.disk[way])),
            queue: from_fn(|class| self.queue[class].since(&before.queue[class])),
            asked_sizes: from_fn(|at| since(&self.asked_sizes[at], &before.asked_sizes[at])),
            joined_sizes: from_fn(|at| since(&self.joined_sizes[at], &before.joined_sizes[at])),
            pending: self.pending,
            active: self.active,
        }
    }
}

/// Activity of the engine of a pool that is open for writing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EngineInfo {
    /// The open txg.
    pub open_txg: u64,
    /// The last synced txg.
    pub synced_txg: u64,
    /// Dirty data in memory, in bytes.
    pub dirty_bytes: u64,
    /// Cache hits, in blocks.
    pub cache_hits: u64,
    /// Cache misses, in blocks.
    pub cache_misses: u64,
    /// Memory used by the cache, in bytes.
    pub cache_bytes: u64,
    /// Latency of `fsync`.
    pub fsync: Latencies,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(counts: &[u64], sum_ns: u64) -> Latencies {
        Latencies {
            counts: counts.to_vec(),
            sum_ns,
        }
    }

    #[test]
    fn means_are_exact_and_quantiles_are_ends_of_buckets() {
        let all = latencies(&[0, 0, 97, 0, 2, 0, 0, 0, 0, 0, 1], 1597);
        assert_eq!((all.count(), all.mean_ns()), (100, Some(15)));
        assert_eq!(all.quantile_ns(500), Some(7));
        assert_eq!(all.quantile_ns(970), Some(7));
        assert_eq!(all.quantile_ns(990), Some(31));
        assert_eq!(all.quantile_ns(999), Some(2047));
        assert_eq!(all.quantile_ns(5000), Some(2047));
        let none = Latencies::default();
        assert_eq!((none.mean_ns(), none.quantile_ns(990)), (None, None));
        assert_eq!(bucket_end_ns(36), (1 << 37) - 1);
        assert_eq!(bucket_end_ns(200), u64::MAX);
    }

    #[test]
    fn adding_and_subtracting_gives_zero() {
        let (old, new) = (latencies(&[1, 2], 5), latencies(&[0, 0, 7], 40));
        let mut sum = old.clone();
        sum.add(&new);
        assert_eq!(sum, latencies(&[1, 2, 7], 45));
        assert_eq!(sum.since(&old), latencies(&[0, 0, 7], 40));
        // The counters were reset in between.
        assert_eq!(old.since(&sum), latencies(&[0, 0], 0));
        let mut waits = IoWaits::default();
        assert!(waits.is_empty());
        waits.pending[3] = 2;
        waits.queue[6] = new.clone();
        let mut twice = waits.clone();
        twice.add(&waits);
        assert_eq!(twice.since(&waits).queue[6], new);
        assert_eq!(twice.since(&waits).pending[3], 4);
        assert!(!twice.is_empty());
    }
}
