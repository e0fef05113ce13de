//! Damages disks: changes bytes without the pool's knowledge.

use crate::images::{self, HOLE_BYTES, SparseWriter};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies an image and changes `changes` bytes in blocks that are not empty. The caller removes the copy.
///
/// The labels are left alone: if they were damaged, an older uberblock could be chosen, and older content
/// would not be an error. The same seed changes the same bytes.
///
/// # Errors
/// If files cannot be read or written.
pub fn rotten_copy(image: &Path, seed: u64, changes: usize) -> Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("rotten-{}-{number}.img", std::process::id());
    let path = images::cache_folder().join(name);
    let mut bytes = std::fs::read(image).with_context(|| image.display().to_string())?;
    change(&mut bytes, seed, changes);
    let mut writer = SparseWriter::create(&path)?;
    writer.push(&bytes)?;
    writer.finish()?;
    Ok(path)
}

fn change(bytes: &mut [u8], seed: u64, changes: usize) {
    let first = LABELS_FRONT_BYTES / HOLE_BYTES;
    let last = bytes.len().saturating_sub(LABELS_BACK_BYTES) / HOLE_BYTES;
    let used: Vec<usize> = (first..last)
        .filter(|block| {
            bytes[block * HOLE_BYTES..][..HOLE_BYTES]
                .iter()
                .any(|byte| *byte != 0)
        })
        .collect();
    let mut rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |limit: usize| {
        rng ^= rng >> 12;
        rng ^= rng << 25;
        rng ^= rng >> 27;
        (rng.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    };
    for _ in 0..changes {
        let Some(block) = used.get(below(used.len())) else {
            return;
        };
        let at = block * HOLE_BYTES + below(HOLE_BYTES);
        bytes[at] ^= 1 << below(8);
    }
}

/// Size of labels 0 and 1 and the boot area.
const LABELS_FRONT_BYTES: usize = 4 << 20;
/// Size of labels 2 and 3, and of the remainder after them if the disk has an odd size.
const LABELS_BACK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_touch_only_used_blocks_and_follow_the_seed() {
        let mut bytes = vec![0; 8 << 20];
        bytes[100] = 1;
        bytes[5 << 20..(5 << 20) + 8192].fill(7);
        let before = bytes.clone();
        let mut again = bytes.clone();
        change(&mut bytes, 3, 10);
        change(&mut again, 3, 10);
        assert!(bytes == again && bytes != before);
        let changed: Vec<usize> = (0..bytes.len())
            .filter(|at| bytes[*at] != before[*at])
            .collect();
        assert!(
            changed
                .iter()
                .all(|at| (5 << 20..(5 << 20) + 8192).contains(at)),
            "{changed:?}"
        );
        let mut empty = vec![0; 8 << 20];
        change(&mut empty, 3, 10);
        assert!(empty.iter().all(|byte| *byte == 0));
    }
}
