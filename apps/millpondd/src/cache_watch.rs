//! Lets the cache follow the memory of the machine while it is not used.
//!
//! A cache that is used looks at the memory itself. But other programs may need memory that an idle one
//! holds.

use crate::heap::HeapWatch;
use millpond_engine::BlockCache;
use millpond_env::sync::Arc;

/// The time without a look-up after which the cache begins to shrink, in seconds.
const IDLE_S: u64 = 300;
/// The interval in which it is then halved, in seconds.
const HALVED_EACH_S: u64 = 60;

pub(crate) struct CacheWatch {
    cache: Arc<BlockCache>,
    /// The look-ups at the last tick.
    lookups: u64,
    idle_s: u64,
    heap: HeapWatch,
}

impl CacheWatch {
    pub(crate) fn new(cache: Arc<BlockCache>) -> Self {
        Self {
            cache,
            lookups: 0,
            idle_s: 0,
            heap: HeapWatch::default(),
        }
    }

    /// To be called once a second.
    pub(crate) fn tick(&mut self) {
        let statistics = self.cache.statistics();
        let lookups = statistics.demand.count();
        self.idle_s = match lookups == self.lookups {
            true => self.idle_s.saturating_add(1),
            false => 0,
        };
        self.lookups = lookups;
        if self.idle_s >= IDLE_S && self.idle_s.is_multiple_of(HALVED_EACH_S) {
            self.cache.shrink_when_idle();
        }
        self.cache.follow_memory();
        self.heap.tick(statistics.weight_bytes);
    }
}

/// Parses a number of bytes with an optional suffix: `4G`, `512M`.
pub(crate) fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|letter: char| !letter.is_ascii_digit());
    let (digits, suffix) = text.split_at(split.unwrap_or(text.len()));
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_with_a_suffix() {
        assert_eq!(bytes_of("4G"), Some(4 << 30));
        assert_eq!(bytes_of("512m"), Some(512 << 20));
        assert_eq!(bytes_of("1000"), Some(1000));
        assert_eq!(bytes_of("1.5G"), None);
        assert_eq!(bytes_of("G"), None);
        assert_eq!(bytes_of("-1"), None);
        assert_eq!(bytes_of("99999999999T"), None);
    }
}
