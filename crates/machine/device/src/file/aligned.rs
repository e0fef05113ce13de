//! Memory for direct I/O.

use millpond_env::rank;
use millpond_env::sync::Mutex;

/// The alignment of the memory, in bytes. Devices ask for 4 to 4096.
pub(super) const ALIGNMENT_BYTES: usize = 4096;
/// The sizes of pooled buffers, in bytes. Larger ones are not pooled.
const SIZES: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];
/// How many idle buffers of each size are kept: 4, 8 and 8 MiB.
const IDLE_MAX: [usize; 3] = [256, 64, 8];

/// Idle memory by size. The locks are held only for a push or a pop.
static IDLE: [Mutex<Vec<Vec<u8>>, rank::Leaf>; 3] = [const { Mutex::new(Vec::new()) }; 3];

/// A buffer whose address is a multiple of 4096. Its content is arbitrary, but initialised.
#[derive(Debug)]
pub struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuf {
    /// A buffer of `length_bytes`, which the caller bounds.
    pub(crate) fn new(length_bytes: usize) -> Self {
        let class = SIZES.iter().position(|size| *size >= length_bytes);
        let idle = class.and_then(|class| IDLE.get(class)?.lock().pop());
        let memory = idle.unwrap_or_else(|| {
            let size = class.and_then(|class| SIZES.get(class)).copied();
            let size = size.unwrap_or(length_bytes);
            vec![0; size.saturating_add(ALIGNMENT_BYTES)]
        });
        // At most the alignment: the memory has that much more than the buffer.
        let start = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
        Self {
            memory,
            start,
            length: length_bytes,
        }
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let end = self.start.saturating_add(self.length);
        self.memory.get(self.start..end).unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let end = self.start.saturating_add(self.length);
        self.memory.get_mut(self.start..end).unwrap_or_default()
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let size = self.memory.len().saturating_sub(ALIGNMENT_BYTES);
        let Some(class) = SIZES.iter().position(|own| *own == size) else {
            return;
        };
        if let (Some(idle), Some(most)) = (IDLE.get(class), IDLE_MAX.get(class)) {
            let mut idle = idle.lock();
            if idle.len() < *most {
                idle.push(std::mem::take(&mut self.memory));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_every_size_are_aligned_and_complete() {
        for length in [
            0,
            1,
            512,
            16 << 10,
            128 << 10,
            (128 << 10) + 1,
            1 << 20,
            3 << 20,
        ] {
            for _ in 0..3 {
                let mut buffer = AlignedBuf::new(length);
                assert_eq!(buffer.bytes().as_ptr() as usize % ALIGNMENT_BYTES, 0);
                assert_eq!(buffer.bytes().len(), length);
                buffer.bytes_mut().fill(7);
                assert!(buffer.bytes().iter().all(|byte| *byte == 7));
            }
        }
    }
}
