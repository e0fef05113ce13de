//! Changes the length of files.

use super::{FILE_BYTES_MAX, FREE_DIRTY_BYTES};
use crate::create::NewMode;
use crate::error::FileError;
use crate::open_node::OpenNode;
use crate::settings::Caller;
use crate::state::Lists;
use crate::writing::NODE_BYTES;
use crate::{FileKind, FileSystem};
use millpond_sa::FileFlags;

impl FileSystem {
    /// Changes a file's length. New bytes are zeros.
    pub(crate) fn set_size(
        &self,
        caller: &Caller,
        node: &OpenNode,
        size: u64,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        match node.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FileError::IsADirectory),
            _ => {
                return Err(FileError::invalid(
                    "only ordinary files have a length to set",
                ));
            }
        }
        if size > FILE_BYTES_MAX {
            return Err(FileError::TooLarge);
        }
        let _range = node.ranges.write(0..u64::MAX);
        let forbidding = FileFlags::IMMUTABLE | FileFlags::APPENDONLY | FileFlags::READONLY;
        if self.forbids(&node.state(), forbidding) {
            return Err(FileError::NotPermitted);
        }
        self.check_writable()?;
        let mut freed_blocks = 0;
        if size < node.state().size {
            freed_blocks = self.free_most(node, size, u64::MAX)?;
        }
        let now = writing.now();
        let _change = node.lock_changes();
        let mut state = node.state();
        let tx = if size < state.size {
            self.begin_freeing(NODE_BYTES + FREE_DIRTY_BYTES, freed_blocks)?
        } else {
            self.begin(NODE_BYTES + 2 * u64::from(self.record_bytes()))?
        };
        let old = state;
        if size == 0 {
            state.flags -= FileFlags::SPARSE;
        }
        if !caller.is_privileged {
            state.mode = NewMode::after_change(state.mode);
        }
        state.size = size;
        state.content_changed(now);
        self.store(&tx, node, state, &Lists::default())?;
        let resized = match self.grown_block(node, &old, size) {
            _ if size < old.size => node.object.free_range(&tx, size, u64::MAX),
            Some(block) => node.object.set_block_bytes(&tx, block, None),
            None => Ok(()),
        };
        resized.map_err(|error| self.undo_store(&tx, node, old, error.into()))?;
        if state.mode != old.mode {
            self.record_mode(&tx, node, &state);
        }
        self.record_truncate(&tx, node, size, 0);
        Ok(())
    }
}
