//! Changeable blocks in memory.

use crate::testing::MemoryBlocks;
use crate::{NewZap, Zap, ZapMut, ZapSource, ZapStore};
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{Block, BlockAddress, ObjectError};
use millpond_ondisk::{BlockId, Endian};

/// An object in memory, shared by several handles. Counts writes and edits.
#[derive(Clone)]
pub(crate) struct MemoryObject(Arc<Mutex<State>>);

pub(crate) struct State {
    pub(crate) blocks: MemoryBlocks,
    pub(crate) writes: usize,
    pub(crate) edits: usize,
}

impl MemoryObject {
    pub(crate) fn new(block_bytes: usize) -> Self {
        Self::of(MemoryBlocks {
            block_bytes,
            ..MemoryBlocks::default()
        })
    }
    pub(crate) fn of(blocks: MemoryBlocks) -> Self {
        Self(Arc::new(Mutex::new(State {
            blocks,
            writes: 0,
            edits: 0,
        })))
    }
    pub(crate) fn zap(&self) -> ZapMut<Self> {
        ZapMut::new(self.clone())
    }
    pub(crate) fn created(block_bytes: usize, new: &NewZap) -> ZapMut<Self> {
        let zap = Self::new(block_bytes).zap();
        zap.create(new).unwrap();
        zap
    }
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.0.lock())
    }
    /// A reader that opens the ZAP again.
    pub(crate) fn reader(&self) -> Zap {
        Zap::from_source(Arc::new(self.clone())).unwrap()
    }
    pub(crate) fn blocks(&self) -> MemoryBlocks {
        self.with(|state| state.blocks.clone())
    }
}

impl ZapSource for MemoryObject {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        self.0.lock().blocks.read_block(id)
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        self.0.lock().blocks.address(id)
    }
}

impl ZapStore for MemoryObject {
    fn source(&self) -> Arc<dyn ZapSource> {
        Arc::new(self.clone())
    }
    fn block_bytes(&self) -> u32 {
        self.0.lock().blocks.block_bytes as u32
    }
    fn set_block_bytes(&self, bytes: u32) -> Result<(), ObjectError> {
        let mut state = self.0.lock();
        let only_first = state.blocks.blocks.keys().all(|id| *id == 0);
        assert!(only_first, "an object of several blocks keeps their size");
        assert!(bytes.is_multiple_of(512));
        state.blocks.block_bytes = bytes as usize;
        if let Some(block) = state.blocks.blocks.get_mut(&0) {
            block.resize(bytes as usize, 0);
        }
        Ok(())
    }
    fn write_block(&self, id: BlockId, content: Vec<u8>) -> Result<(), ObjectError> {
        let mut state = self.0.lock();
        assert_eq!(content.len(), state.blocks.block_bytes);
        state.writes += 1;
        state.blocks.foreign.remove(&id.0);
        state.blocks.blocks.insert(id.0, content);
        Ok(())
    }
    fn edit_block(&self, id: BlockId, edit: &mut dyn FnMut(&mut [u8])) -> Result<(), ObjectError> {
        let endian = self.read_block(id)?.endian;
        assert_eq!(
            endian,
            Endian::Little,
            "only little-endian blocks are lent out"
        );
        let mut state = self.0.lock();
        state.edits += 1;
        let block_bytes = state.blocks.block_bytes;
        let block = state.blocks.blocks.entry(id.0);
        edit(block.or_insert_with(|| vec![0; block_bytes]));
        Ok(())
    }
    fn free_blocks(&self, first: BlockId, count: u64) -> Result<(), ObjectError> {
        let mut state = self.0.lock();
        let end = first.0 + count;
        state
            .blocks
            .blocks
            .retain(|id, _| !(first.0..end).contains(id));
        Ok(())
    }
}
