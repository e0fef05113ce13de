//! Older committed states of a pool that its labels still name, and what is whole in each.
//!
//! The blocks of an older state may have been freed and overwritten since. A read finds that by the checksum.

use crate::Dataset;
use millpond_ondisk::{BlockPointer, Txg};
use millpond_pool::import::{PoolCandidate, Rewind, RewindError};
use millpond_verify::LostMetadata;
use std::collections::HashMap;

/// A committed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastState {
    /// Its transaction group. [`Rewind::Exactly`] opens it.
    pub txg: Txg,
    /// When it was committed, in seconds since 1970.
    pub time_s: u64,
    /// How many labels name it.
    pub labels: usize,
}

/// All states that the labels of a pool name, newest first.
///
/// # Errors
/// If no label names any.
pub fn past_states(pool: &PoolCandidate) -> Result<Vec<PastState>, RewindError> {
    let found = pool.uberblock_choices(Rewind::Extreme)?.into_iter();
    Ok(found
        .map(|found| PastState {
            txg: found.uberblock.txg,
            time_s: found.uberblock.timestamp_s,
            labels: found.places.len(),
        })
        .collect())
}

/// Finds out which datasets of several states are whole. A dataset that did not change between them is read once.
#[derive(Debug, Default)]
pub struct Survey {
    known: HashMap<BlockPointer, LostMetadata>,
}

impl Survey {
    /// Reads all metadata of a dataset, as [`LostMetadata::of`] says.
    pub fn of(&mut self, dataset: &Dataset) -> LostMetadata {
        let root = dataset.inner().phys().block_pointer;
        if let Some(known) = self.known.get(&root) {
            return known.clone();
        }
        let lost = LostMetadata::of(dataset.pool().inner(), dataset.inner().id().0, root);
        self.known.insert(root, lost.clone());
        lost
    }
}
