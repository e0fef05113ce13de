//! Returns free memory that the allocator holds to the system.
//!
//! The C library keeps freed memory for later. After the cache has shrunk that can be gigabytes, which other
//! programs lack, and which the cache takes for memory in use: it would shrink further, in vain.

/// Memory beyond what the cache holds that is not worth a search, in bytes. Dirty data and tables are part of it.
const OTHER_BYTES_MAX: u64 = 256 << 20;
/// The same as a share of all memory of the process.
const OTHER_SHARE: u64 = 4;
/// By how much the process must have grown, or the cache shrunk, since the last time, in bytes.
const CHANGE_BYTES_MIN: u64 = 128 << 20;
/// The least time between two searches, in seconds.
const INTERVAL_S: u64 = 10;

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Memory {
    /// What the process has.
    resident: u64,
    /// What the cache holds of it.
    cached: u64,
}

#[derive(Debug, Default)]
pub(crate) struct HeapWatch {
    /// After the last search.
    last: Memory,
    seconds: u64,
}

impl HeapWatch {
    /// To be called once a second, with the size of the cache in bytes.
    pub(crate) fn tick(&mut self, cached: u64) {
        let Some(resident) = resident_bytes() else {
            return;
        };
        if self.is_due(Memory { resident, cached }) {
            return_free();
            self.last = Memory {
                resident: resident_bytes().unwrap_or(resident),
                cached,
            };
            let [before, after] = [resident, self.last.resident].map(|bytes| bytes >> 20);
            tracing::debug!(
                "free memory returned to the system: {before} MiB before, {after} MiB after"
            );
        }
    }

    fn is_due(&mut self, now: Memory) -> bool {
        self.seconds = self.seconds.saturating_add(1);
        let other = now.resident.saturating_sub(now.cached);
        let is_much = other > OTHER_BYTES_MAX.max(now.resident / OTHER_SHARE);
        let has_changed = now.resident > self.last.resident.saturating_add(CHANGE_BYTES_MIN)
            || now.cached.saturating_add(CHANGE_BYTES_MIN) < self.last.cached;
        // A cache that grew since can shrink by as much again, and a process that shrank can grow.
        self.last.cached = self.last.cached.max(now.cached);
        self.last.resident = self.last.resident.min(now.resident);
        let is_due = is_much && has_changed && self.seconds >= INTERVAL_S;
        if is_due {
            self.seconds = 0;
        }
        is_due
    }
}

/// The memory of this process in bytes.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "the standard library has no such call")]
fn return_free() {
    // SAFETY: glibc declares it with this signature.
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // SAFETY: glibc's function has no conditions, and any thread may call it at any time.
    let _ = unsafe { malloc_trim(0) };
}

/// Other C libraries return memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn return_free() {}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn after(watch: &mut HeapWatch, resident: u64, cached: u64) -> bool {
        watch.seconds = INTERVAL_S;
        watch.is_due(Memory { resident, cached })
    }

    #[test]
    fn memory_that_a_shrinking_cache_leaves_is_returned_once() {
        let mut watch = HeapWatch::default();
        assert!(!after(&mut watch, 4 * GIB, 4 * GIB));
        assert!(after(&mut watch, 4 * GIB, GIB));
        watch.last = Memory {
            resident: 4 * GIB,
            cached: GIB,
        };
        // Nothing could be returned: it is in use.
        assert!(!after(&mut watch, 4 * GIB, GIB));
        assert!(after(&mut watch, 4 * GIB, GIB / 2));
        watch.last.cached = GIB / 2;
        assert!(after(&mut watch, 5 * GIB, GIB / 2));
        watch.last.resident = 5 * GIB;
        assert!(!after(&mut watch, 2 * GIB, GIB / 2));
        assert!(after(&mut watch, 4 * GIB, GIB / 2));
    }

    #[test]
    fn little_memory_is_left_alone() {
        let mut watch = HeapWatch::default();
        assert!(!after(&mut watch, 200 << 20, 0));
        assert!(after(&mut watch, 400 << 20, 0));
        let now = Memory {
            resident: GIB,
            cached: 0,
        };
        assert!(!watch.is_due(now));
    }

    #[test]
    fn freed_memory_goes_back_to_the_system() {
        // Small pieces with something in use behind each, so that the heap cannot shrink by itself.
        let (mut freed, mut kept) = (vec![], vec![]);
        for _ in 0..8192 {
            freed.push(vec![1u8; 64 << 10]);
            kept.push(vec![1u8; 64]);
        }
        drop(freed);
        let before = resident_bytes().unwrap();
        return_free();
        let after = resident_bytes().unwrap();
        // Other tests use memory meanwhile.
        let returned = before.saturating_sub(after);
        assert!(returned > 256 << 20, "{before} {after} {}", kept.len());
    }
}
