//! Devices that come back are used again, and with `autoreplace=on` a new device at the path of a failed one replaces it.
//!
//! Only a blank device replaces another: it must hold zeros wherever labels, partition tables and file systems have their
//! marks, and in samples of the rest.

use super::ImportedPools;
use crate::change::checks::{open_to_look, open_to_write};
use millpond_control::{ChangeError, Changed, NewSide, PoolChange};
use millpond_device::{Device, DeviceError};
use millpond_engine::{NewDevice, Pool};
use millpond_ondisk::LeafLayout;
use millpond_pool::properties::PropertyValue;
use std::collections::BTreeSet;

/// The stored number of `on`.
const ON: u64 = 1;
/// How much is read at both ends of a device.
const END_BYTES: u64 = 4 << 20;
/// The samples between the ends.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: usize = 64 << 10;

/// What was refused before, so that it is not tried again until the device is another one.
#[derive(Debug, Default)]
pub struct AutoReplace {
    refused: BTreeSet<(u64, u64)>,
}

/// A device that was replaced, or could not be.
#[derive(Debug)]
pub struct AutoReplaced {
    /// The pool.
    pub pool: String,
    /// The path of both devices.
    pub path: String,
    /// What became of it.
    pub outcome: Result<(), ChangeError>,
}

impl ImportedPools {
    /// Takes devices into use again that are UNAVAIL or REMOVED and have come back at their paths. Returns their pools and
    /// paths. Reads devices, so the caller must be able to wait.
    ///
    /// Their resilvers start by themselves. Devices that an administrator took out of use, and faulted ones, stay so.
    pub fn take_back_returned(&self) -> Vec<(String, String)> {
        let mut back = vec![];
        for (name, imported_pool) in self.all() {
            let Some(live) = imported_pool.live() else {
                continue;
            };
            for (leaf, path) in live.inner().absent_leaves() {
                // Opening it for writing would be noticed by others.
                let looked = open_to_look(&path);
                let is_back =
                    |looked: NewDevice| live.inner().is_its_own(leaf, looked.device.as_ref());
                if !looked.is_ok_and(is_back) {
                    continue;
                }
                let found = open_to_write(&path);
                let taken = found.map(|found| live.inner().reopen_leaf(leaf, &found.device));
                if matches!(taken, Ok(Ok(true))) {
                    back.push((name.clone(), path));
                }
            }
        }
        back
    }

    /// Replaces failed devices of pools with `autoreplace=on` by blank ones at the same paths. Reads devices, so the
    /// caller must be able to wait.
    pub fn replace_failed(&self, known: &mut AutoReplace) -> Vec<AutoReplaced> {
        let mut done = vec![];
        let before = std::mem::take(&mut known.refused);
        for (name, imported_pool) in self.all() {
            let Some(live) = imported_pool.live() else {
                continue;
            };
            let failed = live.inner().failed_leaves();
            let is_there = |(_, path): &(_, String)| std::fs::exists(path).unwrap_or(false);
            let is_suspended = live.inner().suspension().is_some();
            if is_suspended || !failed.iter().any(is_there) || !is_on(live) {
                continue;
            }
            for (leaf, path) in failed {
                let Some(size_bytes) = blank_bytes(&path) else {
                    continue;
                };
                let key = (leaf.0, size_bytes);
                if before.contains(&key) {
                    known.refused.insert(key);
                    continue;
                }
                let change = PoolChange::Attach(NewSide {
                    old: leaf.0,
                    path: path.clone(),
                    is_replacement: true,
                    is_sequential: false,
                    may_take_used: false,
                });
                let outcome = self.apply(&name, &change, &mut Changed::default());
                if outcome.is_err() {
                    known.refused.insert(key);
                }
                done.push(AutoReplaced {
                    pool: name.clone(),
                    path,
                    outcome,
                });
            }
        }
        done
    }
}

fn is_on(pool: &Pool) -> bool {
    let found = pool
        .committed()
        .ok()
        .and_then(|view| view.inner().property("autoreplace").ok().flatten());
    found.and_then(|found| found.value) == Some(PropertyValue::Number(ON))
}

/// The size of the device at a path, if there is one and it is blank.
fn blank_bytes(path: &str) -> Option<u64> {
    let device = open_to_look(path).ok()?.device;
    let size_bytes = device.size_bytes();
    LeafLayout::new(size_bytes)?;
    matches!(is_blank(device.as_ref(), size_bytes), Ok(true)).then_some(size_bytes)
}

fn is_blank(device: &dyn Device, size_bytes: u64) -> Result<bool, DeviceError> {
    let end = END_BYTES.min(size_bytes / 2);
    let is_zero = |at: u64, count: usize| -> Result<bool, DeviceError> {
        let mut bytes = vec![0; count];
        device.read(at, &mut bytes)?;
        Ok(bytes.iter().all(|byte| *byte == 0))
    };
    for at in (0..end).step_by(SAMPLE_BYTES) {
        let behind = size_bytes - end + at;
        if !is_zero(at, SAMPLE_BYTES)? || !is_zero(behind, SAMPLE_BYTES)? {
            return Ok(false);
        }
    }
    let between = (size_bytes - 2 * end) / SAMPLES;
    for sample in 0..SAMPLES {
        // At a multiple of 4096, for devices with sectors of that size.
        let at = (end + sample * between) & !4095;
        if !is_zero(at, SAMPLE_BYTES)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_mark_anywhere_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let path = path.to_str().unwrap();
        assert_eq!(blank_bytes(path), None);
        let size_bytes = 128 << 20;
        let file = std::fs::File::create(path).unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(blank_bytes(path), None, "too small");
        file.set_len(size_bytes).unwrap();
        assert_eq!(blank_bytes(path), Some(size_bytes));
        // Boot sector, GPT, ext4, labels and GPT at the end.
        let ends = [512, 256 << 10].map(|behind| size_bytes - behind);
        for at in [0, 512, 1024, 16 << 10].into_iter().chain(ends) {
            file.write_all_at(&[1; 512], at).unwrap();
            assert_eq!(blank_bytes(path), None, "{at}");
            file.write_all_at(&[0; 512], at).unwrap();
        }
        file.write_all_at(&vec![1; 4 << 20], 60 << 20).unwrap();
        assert_eq!(blank_bytes(path), None);
    }
}
