//! Writing blocks of intent logs: in place, out of band, flushed at once.
//!
//! Page `docs/format/intent-log.md`, "Writing".

use super::issue::issue;
use super::place::Extent;
use crate::waits::IoClass;
use crate::{BlockAddress, BlockError, BlockStore};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Txg};
use millpond_vdev::{LeafId, VdevKind};
use std::collections::BTreeSet;

/// A log block with the place that was taken for it. At most 16 MiB.
#[derive(Debug, Clone)]
pub struct LogWrite {
    /// What errors name the block by.
    pub address: BlockAddress,
    /// Where it goes: one address, as many bytes as it says.
    pub pointer: BlockPointer,
    /// The sealed bytes: as many as are in use, rounded up to 4096.
    pub bytes: Arc<Vec<u8>>,
}

impl BlockStore {
    /// Writes blocks of an intent log and makes them durable; with `flushes_all` whatever was written before to
    /// any leaf, too. What other writes left unflushed stays noted for [`BlockStore::flush`] all the same.
    ///
    /// # Errors
    /// [`BlockError::Write`] if one of them cannot be read back, or a leaf that holds a part of one could
    /// not flush: then none of them may be relied on.
    pub fn write_log_blocks(
        &self,
        blocks: &[LogWrite],
        flushes_all: bool,
    ) -> Result<(), BlockError> {
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
            // Where columns depend on the block's size the whole of it is written.
            let mut bytes = Arc::clone(&block.bytes);
            if is_whole && bytes.len() < size {
                Arc::make_mut(&mut bytes).resize(size, 0);
            }
            let range = 0..bytes.len();
            extents.push(Extent { dva, bytes, range });
        }
        let class = IoClass::SyncWrite;
        let (processors, queues) = (&pools.processors, &pools.queues);
        let issued = issue(&topology, birth, class, extents, processors, queues);
        let (leaves, outcomes) = issued.finish();
        for (block, outcome) in blocks.iter().zip(outcomes) {
            if let Some(reason) = outcome.failure {
                // Nobody relies on this block, so that its leaves have missed nothing: the next txg must not be
                // judged by it.
                return Err(BlockError::Write {
                    address: block.address,
                    reason,
                });
            }
            self.note_missed(&topology, &outcome.missed, block.pointer.birth());
        }
        let mut leaves: BTreeSet<LeafId> = leaves.into_iter().collect();
        if flushes_all {
            leaves.extend(topology.leaves());
        }
        let flushed = {
            let topology = Arc::clone(&topology);
            pools
                .queues
                .map(leaves.into_iter().collect(), move |leaf: LeafId| {
                    let Some((device, counters)) = topology.writable_leaf(leaf) else {
                        // Its writes failed already, and were judged.
                        return Ok(());
                    };
                    let outcome = device.flush();
                    counters.count_flush(outcome.is_ok());
                    outcome.map_err(|error| format!("{}: {error}", topology.leaf_name(leaf)))
                })
        };
        let failure = flushed.into_iter().find_map(Result::err);
        match (failure, blocks.first()) {
            (Some(reason), Some(block)) => Err(BlockError::Write {
                address: block.address,
                reason,
            }),
            _ => Ok(()),
        }
    }
}
