//! Structures of the dataset layer: the directory tree and its datasets.
//!
//! Pages `docs/format/dsl-directory.md`, `docs/format/dsl-dataset.md`, `docs/format/holds.md`.

mod dataset;
mod delegation;
mod directory;
pub mod keys;

pub use dataset::{DSL_DATASET_BYTES, DslDatasetFlags, DslDatasetPhys};
pub use delegation::{PermissionHolder, PermissionKey, PermissionReach};
pub use directory::{DSL_DIRECTORY_BYTES, DslDirectoryFlags, DslDirectoryPhys, UsedBreakdown};

/// Parses the key of an integer set; `None` if it is not lower-case hexadecimal without leading zeros.
///
/// Sets of objects (next clones, clones of a directory, vdev ZAPs), the scan queue and deadlists use such
/// keys.
#[must_use]
pub fn hex_key_number(key: &[u8]) -> Option<u64> {
    let first = key.first()?;
    if key.len() > 16 || (*first == b'0' && key.len() > 1) {
        return None;
    }
    key.iter().try_fold(0u64, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit.checked_sub(b'0')?,
            b'a'..=b'f' => digit.checked_sub(b'a')?.checked_add(10)?,
            _ => return None,
        };
        number.checked_mul(16)?.checked_add(u64::from(value))
    })
}

/// The key of `number` in an integer set.
#[must_use]
pub fn hex_key(number: u64) -> String {
    format!("{number:x}")
}

#[cfg(test)]
mod tests;
