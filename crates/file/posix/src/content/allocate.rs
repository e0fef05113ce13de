//! `fallocate`: reserves space and punches holes.

use super::{FILE_BYTES_MAX, FREE_DIRTY_BYTES};
use crate::error::FileError;
use crate::open_node::OpenNode;
use crate::state::Lists;
use crate::transaction_source::TransactionError;
use crate::writing::NODE_BYTES;
use crate::{FileKind, FileSystem, Node};
use millpond_object::ObjectError;
use millpond_sa::FileFlags;
use millpond_txg::Estimate;

/// What [`FileSystem::allocate`] does with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Checks that there is space for the range. It reserves nothing, because copy-on-write file systems
    /// cannot. Extends the file unless `keeps_size`.
    Reserve {
        /// Whether the file keeps its size.
        keeps_size: bool,
    },
    /// Makes the range a hole.
    PunchHole,
    /// Makes the range zeros, as a hole. Extends the file unless `keeps_size`.
    ZeroRange {
        /// Whether the file keeps its size.
        keeps_size: bool,
    },
}

impl FileSystem {
    /// Implements `fallocate`.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for an empty range, [`FileError::TooLarge`], [`FileError::NotPermitted`] by the
    /// file's flags, space and quotas.
    pub fn allocate(
        &self,
        node: &Node,
        what: Allocate,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), FileError> {
        let node = node.for_change()?;
        if node.kind() != FileKind::Regular {
            return Err(FileError::NotSupported);
        }
        if length_bytes == 0 {
            return Err(FileError::invalid("an empty range"));
        }
        let end = offset_bytes.checked_add(length_bytes);
        let end = end
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(FileError::TooLarge)?;
        self.check_writable()?;
        self.try_allocate(node, what, offset_bytes, length_bytes, end)?;
        self.settle()
    }

    fn try_allocate(
        &self,
        node: &OpenNode,
        what: Allocate,
        offset_bytes: u64,
        length_bytes: u64,
        end: u64,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let _range = node.ranges.write(0..u64::MAX);
        let is_punching = !matches!(what, Allocate::Reserve { .. });
        let forbidding = match is_punching {
            true => FileFlags::IMMUTABLE | FileFlags::APPENDONLY,
            false => FileFlags::IMMUTABLE,
        };
        if self.forbids(&node.state(), forbidding) {
            return Err(FileError::NotPermitted);
        }
        let new_size = match what {
            Allocate::Reserve { keeps_size: true }
            | Allocate::PunchHole
            | Allocate::ZeroRange { keeps_size: true } => None,
            _ => Some(end),
        };
        if !is_punching {
            let wanted = u128::from(length_bytes) * 110 / 100;
            if wanted > u128::from(writing.source().space().available_bytes) {
                return Err(TransactionError::NoSpace.into());
            }
        }
        let mut freed_blocks = 0;
        if is_punching {
            freed_blocks = self.free_most(node, offset_bytes, end)?;
        }
        let now = writing.now();
        let _change = node.lock_changes();
        let mut state = node.state();
        let extends = new_size.is_some_and(|size| size > state.size);
        if !is_punching && !extends {
            return Ok(());
        }
        self.check_writable()?;
        let tx = writing.source().begin(Estimate {
            bytes: NODE_BYTES + FREE_DIRTY_BYTES,
            // A hole can be made where nothing more can be written. So can what is replayed.
            is_freeing: is_punching && !extends || self.is_replaying(),
            freed_blocks,
            ..Estimate::default()
        })?;
        let old = state;
        if let Some(size) = new_size.filter(|_| extends) {
            state.size = size;
        }
        state.content_changed(now);
        self.store(&tx, node, state, &Lists::default())?;
        let undo = |error: ObjectError| self.undo_store(&tx, node, old, error.into());
        if is_punching && offset_bytes < old.size {
            let length = length_bytes.min(old.size - offset_bytes);
            let freed = node.object.free_range(&tx, offset_bytes, length);
            freed.map_err(undo)?;
            self.record_truncate(&tx, node, offset_bytes, length);
        }
        if extends {
            if let Some(block) = self.grown_block(node, &old, state.size) {
                let grown = node.object.set_block_bytes(&tx, block, None);
                // Freeing the range again is harmless.
                grown.map_err(undo)?;
            }
            self.record_truncate(&tx, node, state.size, 0);
        }
        Ok(())
    }
}
