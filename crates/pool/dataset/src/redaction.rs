//! Redaction lists: the blocks that a redacted stream leaves out.
//!
//! Page `docs/format/bookmarks.md`.

use crate::error::Named;
use crate::{DatasetError, Refusal};
use millpond_env::sync::Arc;
use millpond_object::ObjectView;
use millpond_ondisk::zap::ZAP_VALUE_BYTES_MAX;
use millpond_ondisk::{ObjectId, REDACTION_ENTRY_BYTES, RedactionEntry, RedactionListPhys};
use millpond_pool::PoolView;

const NAME: &str = "redaction list";
/// The most snapshots that a dataset can be redacted with respect to: they are the words of one value of a ZAP.
pub(crate) const REDACTION_SNAPSHOTS_MAX: usize = ZAP_VALUE_BYTES_MAX / size_of::<u64>();
/// Entries that are read at once.
const ENTRIES: u64 = 4096;

/// A redaction list that is read.
#[derive(Debug, Clone)]
pub struct RedactionList {
    object: ObjectView,
    phys: RedactionListPhys,
}

impl RedactionList {
    /// Opens the list of a bookmark.
    ///
    /// # Errors
    /// If its header cannot be read, or says that there are more entries than the object has.
    pub fn open(pool: &Arc<PoolView>, id: ObjectId) -> Result<Self, DatasetError> {
        let object = pool.mos().object(id).named(NAME)?;
        let phys = match object.read_spill().named(NAME)? {
            Some(block) => RedactionListPhys::decode(&block.bytes, block.endian),
            None => RedactionListPhys::decode(object.bonus().named(NAME)?, object.dnode().endian),
        };
        let phys = phys.named(NAME)?;
        let blocks = object.dnode().block_id_max.0.saturating_add(1);
        let bytes = blocks.saturating_mul(object.dnode().data_block_bytes());
        match phys.entry_count > bytes / REDACTION_ENTRY_BYTES as u64 {
            true => Err(Refusal::error(NAME, Refusal::UnfinishedList)),
            false => Ok(Self { object, phys }),
        }
    }

    /// The guids of the snapshots that all its blocks were changed in.
    #[must_use]
    pub fn snapshots(&self) -> Vec<u64> {
        self.phys.snapshots.iter().map(|guid| guid.0).collect()
    }

    /// Whether it is complete. Others must not be used.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.phys.is_complete()
    }

    /// The entries from number `first` on, some at once; none at the end. They should be in order.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn entries(&self, first: u64) -> Result<Vec<RedactionEntry>, DatasetError> {
        let count = self.phys.entry_count.saturating_sub(first).min(ENTRIES);
        let size = REDACTION_ENTRY_BYTES as u64;
        let mut bytes = vec![0; usize::try_from(count.saturating_mul(size)).unwrap_or(0)];
        let at = first.saturating_mul(size);
        self.object.read(at, &mut bytes).named(NAME)?;
        let endian = self.object.dnode().endian;
        let entries = bytes
            .chunks_exact(REDACTION_ENTRY_BYTES)
            .map(|entry| RedactionEntry::decode(entry, endian).named(NAME));
        entries.collect()
    }
}
