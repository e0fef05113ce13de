//! Writes intent log blocks: in place, outside of a txg, durable at once.
//!
//! Page `docs/format/intent-log.md`, "Writing".

use super::issue::{Durability, How, issue};
use super::place::Extent;
use crate::io_stats::IoClass;
use crate::{BlockAddress, BlockError, BlockStore};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Txg};
use millpond_vdev::VdevKind;

/// An intent log block with its allocated space. At most 16 MiB.
#[derive(Debug, Clone)]
pub struct LogWrite {
    /// The address for error messages.
    pub address: BlockAddress,
    /// Where it goes: one address with its size.
    pub pointer: BlockPointer,
    /// The sealed bytes: those in use, rounded up to 4096.
    pub bytes: Arc<Vec<u8>>,
}

impl BlockStore {
    /// Writes blocks of an intent log durably. Nothing else is flushed: [`BlockStore::write_durable`] wrote
    /// what their records point to, and this function wrote the earlier blocks of the chain.
    ///
    /// # Errors
    /// [`BlockError::Write`] if one of them cannot be read back without the leaves that missed it. None of
    /// them may be relied on then.
    pub fn write_log_blocks(&self, blocks: &[LogWrite]) -> Result<(), BlockError> {
        let topology = self.topology();
        let pools = self.writing.pools(&topology);
        let mut extents = vec![];
        let mut birth = Txg(0);
        for block in blocks {
            birth = birth.max(block.pointer.birth());
            let failed = |reason: &str| BlockError::Write {
                address: block.address,
                reason: reason.to_owned(),
            };
            let dva = block.pointer.dvas().next();
            let dva = dva.ok_or_else(|| failed("a log block without an address"))?;
            let size = usize::try_from(block.pointer.psize_bytes()).unwrap_or(usize::MAX);
            if block.bytes.is_empty() || block.bytes.len() > size {
                return Err(failed("a log block of another size than its place"));
            }
            let top = topology.tree.top(dva.vdev);
            let is_whole = top.is_none_or(|top| !matches!(top.kind, VdevKind::Mirror));
            // Where columns depend on the block size, the whole block is written.
            let mut bytes = Arc::clone(&block.bytes);
            if is_whole && bytes.len() < size {
                Arc::make_mut(&mut bytes).resize(size, 0);
            }
            let range = 0..bytes.len();
            extents.push(Extent { dva, bytes, range });
        }
        let how = How {
            class: IoClass::SyncWrite,
            durability: Durability::AtOnce,
        };
        let (processors, queues) = (&pools.processors, &pools.queues);
        let issued = issue(&topology, birth, how, extents, processors, queues);
        let (outcomes, _place) = issued.finish();
        for (block, outcome) in blocks.iter().zip(outcomes) {
            if let Some(reason) = outcome.failure {
                // The block does not become part of the chain, so its leaves have missed nothing, and the
                // next txg must not be judged by it.
                return Err(BlockError::Write {
                    address: block.address,
                    reason,
                });
            }
            self.note_missed(&topology, &outcome.missed, block.pointer.birth());
        }
        Ok(())
    }
}
