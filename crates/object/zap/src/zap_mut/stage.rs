//! The blocks of a fat ZAP during one change.

use super::ZapStore;
use crate::{ZapError, ZapSource};
use millpond_env::sync::Arc;
use millpond_object::Block;
use millpond_ondisk::zap::{ZapHeader, ZapLeaf, zap_block_to_little};
use millpond_ondisk::{BlockId, DecodeError, Endian};
use std::collections::BTreeMap;

/// One change to a fat ZAP.
///
/// A change that must keep several blocks consistent is made in copies first. [`Stage::finish`] writes these
/// to the store when nothing can fail any more. A change to a single leaf goes directly into the store.
pub(super) struct Stage<'s, S> {
    pub(super) store: &'s S,
    source: Arc<dyn ZapSource>,
    pub(super) header: ZapHeader,
    before: ZapHeader,
    /// Changed copies, little-endian.
    copies: BTreeMap<u64, Vec<u8>>,
    /// Whether blocks are copied before they are changed.
    copies_all: bool,
    /// First block and number of blocks.
    freed: Vec<(u64, u64)>,
    /// The block size that the object receives before anything is written.
    new_block_bytes: Option<u32>,
}

/// A block's bytes, from a copy or from the store.
pub(super) enum Bytes<'b> {
    Copy(&'b [u8]),
    Stored(Arc<Block>),
}

impl Bytes<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Copy(bytes) => bytes,
            Self::Stored(block) => &block.bytes,
        }
    }
    pub(super) fn endian(&self) -> Endian {
        match self {
            Self::Copy(_) => Endian::Little,
            Self::Stored(block) => block.endian,
        }
    }
}

impl<'s, S: ZapStore> Stage<'s, S> {
    pub(super) fn new(store: &'s S, header: ZapHeader) -> Self {
        Self {
            store,
            source: store.source(),
            header,
            before: header,
            copies: BTreeMap::new(),
            copies_all: false,
            freed: Vec::new(),
            new_block_bytes: None,
        }
    }
    /// Creates the stage of a ZAP that is not in the store yet.
    pub(super) fn made_of(store: &'s S, header: ZapHeader, blocks: [Vec<u8>; 2]) -> Self {
        let mut stage = Self::new(store, header);
        stage.copies = (0..).zip(blocks).collect();
        stage.copies_all = true;
        stage
    }

    /// Sets the block size that the object receives before anything is written.
    pub(super) fn resize_first(&mut self, bytes: u32) {
        self.new_block_bytes = Some(bytes);
    }
    /// Makes all further changes in copies.
    pub(super) fn copy_from_here(&mut self) {
        self.copies_all = true;
    }

    pub(super) fn read(&self, id: u64) -> Result<Bytes<'_>, ZapError> {
        Ok(match self.copies.get(&id) {
            Some(copy) => Bytes::Copy(copy),
            None => Bytes::Stored(self.source.read_block(BlockId(id))?),
        })
    }

    /// Reads a leaf and checks its size and that it covers the hashes the table assigns to it.
    pub(super) fn leaf<'b>(
        &self,
        bytes: &'b Bytes<'_>,
        id: u64,
        hash: u64,
    ) -> Result<ZapLeaf<'b>, ZapError> {
        let leaf = ZapLeaf::decode(bytes.bytes(), bytes.endian())
            .map_err(|error| self.corrupt(id, error))?;
        if Some(bytes.bytes().len()) != 1usize.checked_shl(self.header.block_shift) {
            return Err(self.fail(id, "leaf of another size", 0));
        }
        if leaf.prefix_bits > self.header.table_shift || !leaf.covers(hash) {
            return Err(self.fail(id, "prefix contradicts the pointer table", 16));
        }
        Ok(leaf)
    }

    /// Changes a block, directly in the store unless copies are in use.
    pub(super) fn edit<R>(
        &mut self,
        id: u64,
        edit: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, ZapError> {
        if !self.copies.contains_key(&id) {
            let block = self.source.read_block(BlockId(id))?;
            let is_foreign = block.endian != Endian::Little;
            if !self.copies_all && !is_foreign {
                drop(block);
                return self.edit_in_store(id, edit);
            }
            let copy = zap_block_to_little(&block.bytes, block.endian)
                .map_err(|error| self.corrupt(id, error))?;
            self.copies.insert(id, copy);
        }
        let copy = self.copies.entry(id).or_default();
        Ok(edit(copy))
    }

    fn edit_in_store<R>(&self, id: u64, edit: impl FnOnce(&mut [u8]) -> R) -> Result<R, ZapError> {
        let mut edit = Some(edit);
        let mut outcome = None;
        self.store.edit_block(BlockId(id), &mut |bytes| {
            outcome = edit.take().map(|edit| edit(bytes));
        })?;
        outcome.ok_or_else(|| self.fail(id, "block was not lent out", 0))
    }

    /// Sets a block that has no content yet, or none that matters.
    pub(super) fn put_block(&mut self, id: u64, block: Vec<u8>) {
        self.copies.insert(id, block);
    }
    /// Marks blocks to become holes.
    pub(super) fn free(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        self.copies.retain(|id, _| !(first..end).contains(id));
        self.freed.push((first, count));
    }
    /// Allocates `count` blocks that were never used.
    pub(super) fn allocate(&mut self, count: u64) -> Result<u64, ZapError> {
        let first = self.header.free_block;
        let end = first.checked_add(count);
        self.header.free_block = end
            .filter(|end| end.leading_zeros() > self.header.block_shift)
            .ok_or_else(|| self.full())?;
        Ok(first)
    }

    /// Writes everything to the store.
    pub(super) fn finish(mut self) -> Result<(), ZapError> {
        if self.header != self.before || self.copies.contains_key(&0) {
            let header = self.header;
            self.edit(0, |block| header.put(block))?
                .map_err(|error| self.corrupt(0, error))?;
        }
        if let Some(bytes) = self.new_block_bytes {
            self.store.set_block_bytes(bytes)?;
        }
        for (first, count) in self.freed {
            self.store.free_blocks(BlockId(first), count)?;
        }
        for (id, block) in self.copies {
            self.store.write_block(BlockId(id), block)?;
        }
        Ok(())
    }

    pub(super) fn corrupt(&self, id: u64, error: DecodeError) -> ZapError {
        ZapError::Corrupt {
            address: self.source.address(BlockId(id)),
            error,
        }
    }
    pub(super) fn fail(&self, id: u64, reason: &'static str, offset: usize) -> ZapError {
        self.corrupt(id, DecodeError::new("zap", reason, offset))
    }
    pub(super) fn exists(&self) -> ZapError {
        ZapError::Exists {
            address: self.source.address(BlockId(0)),
        }
    }
    pub(super) fn refused(&self, reason: &'static str) -> ZapError {
        ZapError::Refused {
            address: self.source.address(BlockId(0)),
            reason,
        }
    }
    pub(super) fn full(&self) -> ZapError {
        ZapError::Full {
            address: self.source.address(BlockId(0)),
        }
    }
}
