//! Writes intent log blocks: in place, outside of a txg, durable at once.
//!
//! Page `docs/format/intent-log.md`, "Writing".

use super::issue::{Durability, How, issue};
use super::place::Extent;
use crate::io_stats::IoClass;
use crate::topology::Topology;
use crate::{BlockAddress, BlockError, BlockStore, evacuate};
use millpond_env::rank;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Dva, Txg};
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

/// Bytes for allocated space of a txg.
pub(crate) struct ExtentWrite {
    pub(crate) dva: Dva,
    pub(crate) bytes: Arc<Vec<u8>>,
}

impl BlockStore {
    /// Writes one extent as part of a txg: durable once its leaves are flushed. Returns why it cannot be read back.
    pub(crate) fn write_extent(
        &self,
        topology: &Arc<Topology>,
        txg: Txg,
        write: ExtentWrite,
    ) -> Result<(), String> {
        rank::check_io();
        let ExtentWrite { dva, bytes } = write;
        let range = 0..bytes.len();
        let how = How {
            class: evacuate::CLASS,
            durability: Durability::WhenFlushed,
            in_background: false,
        };
        let pools = self.writing.pools(topology);
        let (processors, queues) = (&pools.processors, &pools.queues);
        let extents = vec![Extent { dva, bytes, range }];
        self.make_way(topology, txg, &extents);
        let issued = issue(topology, txg, how, extents, processors, queues);
        let (outcomes, _place) = issued.finish(&self.writing);
        for outcome in outcomes {
            match outcome.failure {
                Some(reason) => return Err(reason),
                None => self.note_missed(topology, &outcome.missed, txg),
            }
        }
        self.bound_unflushed();
        Ok(())
    }

    /// Writes blocks of an intent log durably. Nothing else is flushed: [`BlockStore::write_durable`] wrote
    /// what their records point to, and this function wrote the earlier blocks of the chain.
    ///
    /// # Errors
    /// [`BlockError::Write`] if one of them cannot be read back without the leaves that missed it. None of
    /// them may be relied on then.
    pub fn write_log_blocks(&self, blocks: &[LogWrite]) -> Result<(), BlockError> {
        let topology = self.writing_topology();
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
            in_background: false,
        };
        self.make_way(&topology, birth, &extents);
        let (processors, queues) = (&pools.processors, &pools.queues);
        let issued = issue(&topology, birth, how, extents, processors, queues);
        let (outcomes, _place) = issued.finish(&self.writing);
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
