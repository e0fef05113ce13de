//! Positions at which a traversal can stop and resume.

use millpond_block::BlockAddress;
use millpond_ondisk::{BlockBookmark, DNODE_SLOT_BYTES, Dnode, ObjectId};

/// A position of a traversal in order: everything before it is done, and its block is not.
///
/// Before it are the blocks that the order puts before its block, by object, then by data block. Blocks of
/// dnodes come where their objects do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bookmark {
    /// The object.
    pub object: ObjectId,
    /// The level of the block; 255 for the block of the object set.
    pub level: u8,
    /// Its id at this level.
    pub block: u64,
}

/// The level of the block of the object set.
pub(crate) const ROOT_LEVEL: u8 = 255;
/// An upper bound of the levels of all other blocks.
pub(crate) const LEVEL_MAX: u8 = 63;

impl Bookmark {
    /// The block of the object set.
    pub(crate) const ROOT: Self = Self {
        object: ObjectId(0),
        level: ROOT_LEVEL,
        block: 0,
    };

    /// The position of a block.
    #[must_use]
    pub fn at(address: BlockAddress) -> Self {
        Self {
            object: address.object,
            level: address.level.0,
            block: address.block.0,
        }
    }
    /// As it is stored in a pool. Page `docs/format/bpobj.md`.
    #[must_use]
    pub fn encode(&self, object_set: u64) -> BlockBookmark {
        BlockBookmark {
            object_set,
            object: self.object.0,
            level: match self.level {
                ROOT_LEVEL => -1,
                level => i64::from(level),
            },
            block_id: self.block,
        }
    }
    /// Decodes a stored position; `None` if no block can be there.
    #[must_use]
    pub fn decode(stored: &BlockBookmark) -> Option<Self> {
        let level = match stored.level {
            -1 => ROOT_LEVEL,
            level => u8::try_from(level)
                .ok()
                .filter(|level| *level <= LEVEL_MAX)?,
        };
        Some(Self {
            object: ObjectId(stored.object),
            level,
            block: stored.block_id,
        })
    }
}

/// Where a block is, seen from a bookmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    /// It and everything below it come before.
    Before,
    /// The bookmark is below it.
    Above,
    At,
    /// It is below the bookmark.
    Below,
    After,
}

/// A bookmark to resume at, and what is needed to compare blocks with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resume {
    pub(crate) bookmark: Bookmark,
    /// The binary logarithm of the count of pointers in indirect blocks of object 0.
    shift: u32,
    slots_per_block: u64,
}

/// The data blocks, or the objects, from the first up to the second.
type Range = (u128, u128);

fn data_blocks(level: u8, id: u64, shift: u32) -> Range {
    let span = 1u128 << shift.saturating_mul(u32::from(level)).min(64);
    let first = u128::from(id).saturating_mul(span);
    (first, first.saturating_add(span))
}

/// The first data block below a block; saturating.
pub(crate) fn first_data_block(level: u8, id: u64, shift: u32) -> u64 {
    u64::try_from(data_blocks(level, id, shift).0).unwrap_or(u64::MAX)
}

/// Count of objects that a block of dnodes has space for.
pub(crate) fn slots_per_block(dnode: &Dnode) -> u64 {
    (dnode.data_block_bytes() / DNODE_SLOT_BYTES as u64).max(1)
}

impl Resume {
    pub(crate) fn new(bookmark: Bookmark, dnodes: &Dnode) -> Self {
        Self {
            bookmark,
            shift: dnodes.pointers_shift(),
            slots_per_block: slots_per_block(dnodes),
        }
    }

    fn objects(&self, (first, end): Range) -> Range {
        let slots = u128::from(self.slots_per_block);
        (first.saturating_mul(slots), end.saturating_mul(slots))
    }

    /// Whether an object and all its blocks come before.
    pub(crate) fn is_after_object(&self, object: ObjectId) -> bool {
        let is_in_dnodes = self.bookmark.object.0 == 0;
        !is_in_dnodes && object.0 != 0 && object < self.bookmark.object
    }

    /// Where the block is; `shift` is that of its object.
    pub(crate) fn relation(&self, object: ObjectId, shift: u32, level: u8, id: u64) -> Relation {
        let bookmark = &self.bookmark;
        if bookmark.level == ROOT_LEVEL {
            return Relation::Before;
        }
        let own = data_blocks(level, id, shift);
        let (object, target) = (object.0, bookmark.object.0);
        let marked = |shift| data_blocks(bookmark.level, bookmark.block, shift);
        if object == target {
            let marked = marked(shift);
            return match () {
                () if own.1 <= marked.0 => Relation::Before,
                () if own.0 >= marked.1 => Relation::After,
                () if level > bookmark.level => Relation::Above,
                () if level == bookmark.level => Relation::At,
                () => Relation::Below,
            };
        }
        if object == 0 {
            let (first, end) = self.objects(own);
            return match u128::from(target) {
                target if end <= target => Relation::Before,
                target if first <= target => Relation::Above,
                _ => Relation::After,
            };
        }
        if target == 0 {
            let (first, end) = self.objects(marked(self.shift));
            return match u128::from(object) {
                object if object < first => Relation::Before,
                object if object < end => Relation::Below,
                _ => Relation::After,
            };
        }
        match object < target {
            true => Relation::Before,
            false => Relation::After,
        }
    }
}
