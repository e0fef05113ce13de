//! Memory for keys: a separate page, kept out of swap and core files where the system permits that.

use memmap2::{Advice, MmapMut};
use zeroize::{Zeroize, Zeroizing};

/// Secret bytes of a fixed length, wiped on drop.
///
/// Locking the memory is best effort: `RLIMIT_MEMLOCK` limits it for unprivileged users, and some systems do
/// not support it. The bytes are stored in any case.
pub(crate) struct LockedBytes {
    memory: Memory,
    length: usize,
}

enum Memory {
    Page(MmapMut),
    Heap(Zeroizing<Vec<u8>>),
}

impl LockedBytes {
    /// Copies `parts`, one after the other.
    pub(crate) fn concat(parts: &[&[u8]]) -> Self {
        let bytes = Zeroizing::new(parts.concat());
        let length = bytes.len();
        let memory = match MmapMut::map_anon(length.max(1)) {
            Ok(mut page) => {
                // If these calls are refused, the page remains an ordinary one.
                let _ = page.lock();
                #[cfg(target_os = "linux")]
                let _ = page.advise(Advice::DontDump);
                page.iter_mut()
                    .zip(bytes.iter())
                    .for_each(|(to, from)| *to = *from);
                Memory::Page(page)
            }
            Err(_) => Memory::Heap(bytes),
        };
        Self { memory, length }
    }

    /// The bytes in their original order.
    pub(crate) fn as_slice(&self) -> &[u8] {
        let bytes: &[u8] = match &self.memory {
            Memory::Page(page) => page,
            Memory::Heap(bytes) => bytes,
        };
        bytes.get(..self.length).unwrap_or_default()
    }
}

impl Clone for LockedBytes {
    fn clone(&self) -> Self {
        Self::concat(&[self.as_slice()])
    }
}

impl Drop for LockedBytes {
    fn drop(&mut self) {
        if let Memory::Page(page) = &mut self.memory {
            page.as_mut().zeroize();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The locked memory of this process in KiB, as reported by the system.
    fn locked_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let words = line.unwrap().split_whitespace().next();
        words.unwrap().parse().unwrap()
    }

    #[test]
    fn bytes_are_held_and_copied() {
        let one = LockedBytes::concat(&[b"first ", b"", b"second"]);
        assert_eq!(one.as_slice(), b"first second");
        let other = one.clone();
        drop(one);
        assert_eq!(other.as_slice(), b"first second");
        assert_eq!(LockedBytes::concat(&[]).as_slice(), b"");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn secret_memory_is_locked() {
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let limit = limits.lines().find(|line| line.contains("locked memory"));
        let soft = limit.unwrap().split_whitespace().nth(3).unwrap();
        if soft != "unlimited" && soft.parse::<u64>().unwrap() < 1 << 20 {
            println!("not tried: at most {soft} bytes may be locked here");
            return;
        }
        // Other tests lock memory at the same time, but not this much.
        let before = locked_kib();
        let many: Vec<LockedBytes> = (0..64).map(|_| LockedBytes::concat(&[&[7; 32]])).collect();
        assert!(locked_kib() >= before + 200, "{} KiB", locked_kib());
        drop(many);
        assert!(locked_kib() < before + 100, "{} KiB", locked_kib());
    }
}
