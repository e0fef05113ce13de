//! Blocks of which no copy is right any more, written again from bytes that were kept elsewhere.

use crate::audit::is_sound;
use crate::{BlockAddress, BlockAudit, BlockError, BlockStore};
use millpond_env::mark;
use millpond_ondisk::{BlockPointer, ChecksumKind};
use millpond_vdev::BlockRange;

/// What came of writing a block again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// A copy is right: nothing was written.
    Whole,
    /// The bytes are not those of the block: nothing was written.
    Different,
    /// It was written, and reads back.
    Written,
    /// Devices did not take it, or it does not read back; or the block is in pieces (gang blocks).
    Failed,
}

impl BlockStore {
    /// Writes the stored bytes of a block to all its addresses, if no copy is right and the bytes have its checksum.
    /// Durable after a flush of the store.
    ///
    /// The block must not be freed meanwhile.
    ///
    /// # Errors
    /// [`BlockError::Invalid`] if the pointer cannot be followed.
    pub fn replace_lost(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        stored: &[u8],
    ) -> Result<Replaced, BlockError> {
        if self.audit(pointer, address)?.is_readable {
            return Ok(Replaced::Whole);
        }
        // Without a checksum nothing says which bytes are right.
        let is_proven = pointer
            .checksum_kind()
            .is_some_and(|kind| kind != ChecksumKind::Off);
        if !is_proven || self.checksummer().verify(pointer, stored).is_err() {
            return Ok(Replaced::Different);
        }
        if pointer.is_gang() {
            return Ok(Replaced::Failed);
        }
        let topology = self.topology();
        is_sound(&topology, pointer, address)?;
        let mut audit = BlockAudit::default();
        for dva in pointer.dvas() {
            let range = BlockRange {
                vdev: dva.vdev,
                offset_bytes: dva.offset_bytes,
                size_bytes: pointer.psize_bytes(),
                birth: pointer.physical_birth(),
            };
            Self::plan_right_bytes(&topology, range, stored, None, &mut audit);
        }
        let group = self.begin_heal(&topology, vec![Ok(audit)]);
        let written = group.settle(&topology).into_iter().flatten();
        let has_written = written.map(|audit| audit.healed_bytes()).sum::<u64>() > 0;
        match has_written && self.audit(pointer, address)?.is_readable {
            true => {
                mark::hit("lost-block-replaced");
                Ok(Replaced::Written)
            }
            false => Ok(Replaced::Failed),
        }
    }
}
