//! One object: its dnode and its tree of blocks.

use crate::prefetch::{CacheHint, Foreseen, Shape, before_read, piece_bytes};
use crate::stream_detection::Streams;
use crate::tree::Tree;
use crate::{ObjectError, ObjectSetView};
use millpond_block::{Block, BlockAddress, PointerValidity};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{BlockId, BlockPointer, Dnode, Level, ObjectId};

/// An open object. Cheap to clone. Keeps its object set open.
#[derive(Debug, Clone)]
pub struct ObjectView {
    set: Arc<ObjectSetView>,
    id: ObjectId,
    dnode: Arc<Dnode>,
    is_locked: bool,
    /// The sequential readers of the object, shared by all clones. `None` if the object has only one block,
    /// so that there is nothing to prefetch, and the block is kept.
    streams: Option<Arc<Mutex<Streams, rank::Leaf>>>,
}

impl ObjectView {
    pub(crate) fn new(
        set: Arc<ObjectSetView>,
        id: ObjectId,
        dnode: Arc<Dnode>,
        is_locked: bool,
    ) -> Self {
        let is_kept = set.caching().kept.contains(false);
        let streams = (dnode.block_id_max > BlockId(0) || !is_kept).then(Arc::default);
        Self {
            set,
            id,
            dnode,
            is_locked,
            streams,
        }
    }

    /// The object id.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// The dnode. Its bonus is ciphertext if [`ObjectView::bonus`] returns [`ObjectError::Locked`].
    #[must_use]
    pub fn dnode(&self) -> &Dnode {
        &self.dnode
    }
    /// The object set that the object belongs to.
    #[must_use]
    pub fn object_set(&self) -> &Arc<ObjectSetView> {
        &self.set
    }
    /// The bonus bytes, in the byte order of the dnode ([`Dnode::endian`]).
    ///
    /// # Errors
    /// [`ObjectError::Locked`] if they are ciphertext.
    pub fn bonus(&self) -> Result<&[u8], ObjectError> {
        if self.is_locked {
            return Err(ObjectError::Locked {
                dataset: self.set.dataset(),
                object: self.id,
            });
        }
        Ok(&self.dnode.bonus)
    }
    /// Size of a data block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.dnode.data_block_bytes()
    }
    /// Bytes up to the end of the last block that may hold data.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.dnode
            .block_id_max
            .0
            .saturating_add(1)
            .saturating_mul(self.block_bytes())
    }
    /// The largest data block id that may hold data.
    #[must_use]
    pub fn block_id_max(&self) -> BlockId {
        self.dnode.block_id_max
    }
    /// The address of one of its blocks, as errors name it.
    #[must_use]
    pub fn address(&self, level: Level, block: BlockId) -> BlockAddress {
        BlockAddress {
            dataset: self.set.dataset(),
            object: self.id,
            level,
            block,
        }
    }

    pub(crate) fn tree(&self) -> Tree<'_> {
        Tree {
            store: self.set.store(),
            key: self.set.key(),
            dataset: self.set.dataset(),
            object: self.id,
            dnode: &self.dnode,
            caching: self.set.caching(),
            is_sequential: false,
            validity: PointerValidity::Current,
        }
    }

    /// Returns the pointer to block `id` at `level`. Beyond the tree this is a hole.
    ///
    /// # Errors
    /// If an indirect block above it cannot be read, or a pointer on the way contradicts the dnode.
    pub fn pointer(&self, level: Level, id: BlockId) -> Result<BlockPointer, ObjectError> {
        self.tree()
            .descend(level.0, id.0)
            .map(|(pointer, _)| pointer)
    }

    /// Returns the content of a data block. Holes and blocks beyond the end read as zeros.
    ///
    /// # Errors
    /// If the block or one above it cannot be read, or its pointer contradicts the dnode.
    pub fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        self.tree().read_block(id.0)
    }

    /// Fills `buffer` from `offset_bytes`. Holes and bytes beyond the end read as zeros.
    ///
    /// Other threads meanwhile prefetch the blocks after the first one of this read, and the blocks that a
    /// sequential reader will ask for next.
    ///
    /// # Errors
    /// As [`ObjectView::read_block`]; the buffer's content is then undefined.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), ObjectError> {
        self.read_with_hint(offset_bytes, buffer, CacheHint::Retain)
    }

    /// Reads as [`ObjectView::read`] does; `hint` says what happens to the cached content afterwards.
    ///
    /// # Errors
    /// As [`ObjectView::read`].
    pub fn read_with_hint(
        &self,
        offset_bytes: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<(), ObjectError> {
        self.read_until(offset_bytes, buffer, hint, false)
    }

    /// Reads as [`ObjectView::read_with_hint`] does; `is_end` says that the content ends with the buffer.
    pub(crate) fn read_until(
        &self,
        offset_bytes: u64,
        buffer: &mut [u8],
        hint: CacheHint,
        is_end: bool,
    ) -> Result<(), ObjectError> {
        let mut offset = offset_bytes;
        let mut left = buffer.len();
        for piece in buffer.chunks_mut(piece_bytes(self.set.store())) {
            left -= piece.len();
            let foreseen = self.prefetch(offset, piece.len() as u64);
            let has_next = left > 0 || foreseen.is_continued && !is_end;
            self.read_piece(offset, piece, has_next)?;
            if hint == CacheHint::DropBehind && !foreseen.behind.is_empty() {
                self.tree().evict(foreseen.behind);
            }
            offset = offset.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    fn prefetch(&self, offset: u64, length: u64) -> Foreseen {
        let Some(streams) = &self.streams else {
            return Foreseen::default();
        };
        let caching = self.set.caching();
        let shape = Shape::of(&self.dnode);
        let store = self.set.store();
        let range = (offset, length);
        before_read(store, streams, shape, range, caching, |bytes, request| {
            // A prefetch request must not keep a set alive that has no other user.
            let (set, dnode, object) = (Arc::downgrade(&self.set), self.dnode.clone(), self.id);
            store.queue_prefetch(bytes, move || {
                let Some(set) = set.upgrade() else { return };
                let tree = Tree {
                    store: set.store(),
                    key: set.key(),
                    dataset: set.dataset(),
                    object,
                    dnode: &dnode,
                    caching,
                    is_sequential: false,
                    validity: PointerValidity::Current,
                };
                request.run(&tree, |_| true);
            })
        })
    }

    /// `has_next` says that the reader will continue after the buffer.
    fn read_piece(
        &self,
        offset_bytes: u64,
        buffer: &mut [u8],
        has_next: bool,
    ) -> Result<(), ObjectError> {
        let size = self.block_bytes();
        let mut offset = offset_bytes;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = (offset % size) as usize;
            let count = rest.len().min(size as usize - within);
            let (now, later) = rest.split_at_mut(count);
            let id = BlockId(offset / size);
            if id > self.block_id_max() {
                now.fill(0);
                later.fill(0);
                return Ok(());
            }
            let has_rest = ((within + count) as u64) < size;
            let tree = Tree {
                is_sequential: has_next || !later.is_empty(),
                ..self.tree()
            };
            let block = tree.read_part(id.0, has_rest)?;
            now.copy_from_slice(&block.bytes[within..within + count]);
            offset = offset.saturating_add(count as u64);
            rest = later;
        }
        Ok(())
    }

    /// Returns the spill block, if the dnode has one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_spill(&self) -> Result<Option<Arc<Block>>, ObjectError> {
        self.tree().read_spill()
    }
}
