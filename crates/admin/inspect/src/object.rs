//! Summaries of dnodes.

use millpond_env::sync::Arc;
use millpond_object::{Accounting, ObjectError, ObjectSetView, ObjectView};
use millpond_ondisk::{BlockPointer, DnodeFlags, ObjectId, ObjectType};

/// Summary of a dnode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The object id: 0 for the array of dnodes, -1 to -3 for accounting by user, group and project.
    pub number: i64,
    /// Its type.
    pub object_type: ObjectType,
    /// Levels of its block tree.
    pub levels: u8,
    /// Size of an indirect block in bytes.
    pub indirect_block_bytes: u64,
    /// Size of a data block in bytes.
    pub data_block_bytes: u64,
    /// Space that its blocks use, in bytes.
    pub used_bytes: u64,
    /// Size of the dnode itself in bytes.
    pub dnode_bytes: u64,
    /// Bytes up to the end of the last block that may hold data.
    pub length_bytes: u64,
    /// Count of blocks that are not holes; for the array of dnodes, count of objects.
    pub fill: u64,
    /// Type of the bonus content.
    pub bonus_type: ObjectType,
    /// Size of the bonus in bytes.
    pub bonus_bytes: usize,
    /// Checksum function by number, 0 to inherit.
    pub checksum: u8,
    /// Compression function by number, 0 to inherit.
    pub compression: u8,
    /// The dnode's flags.
    pub flags: DnodeFlags,
    /// The largest id of a block that may not be a hole.
    pub block_id_max: u64,
    /// The roots of the block tree.
    pub block_pointers: Vec<BlockPointer>,
    /// The spill block.
    pub spill: Option<BlockPointer>,
    /// Whether the bonus is encrypted and the key is not loaded.
    pub is_locked: bool,
}

impl ObjectSummary {
    /// Describes an object.
    #[must_use]
    pub fn of(object: &ObjectView) -> Self {
        let dnode = object.dnode();
        let ObjectId(id) = object.id();
        Self {
            number: i64::from_ne_bytes(id.to_ne_bytes()),
            object_type: dnode.object_type,
            levels: dnode.levels,
            indirect_block_bytes: dnode.indirect_block_bytes(),
            data_block_bytes: dnode.data_block_bytes(),
            used_bytes: dnode.used_bytes(),
            dnode_bytes: dnode.slots().saturating_mul(512),
            length_bytes: object.length_bytes(),
            fill: dnode
                .block_pointers
                .iter()
                .fold(0, |sum, pointer| sum.saturating_add(pointer.fill())),
            bonus_type: dnode.bonus_type,
            bonus_bytes: dnode.bonus.len(),
            checksum: dnode.checksum,
            compression: dnode.compression,
            flags: dnode.flags,
            block_id_max: dnode.block_id_max.0,
            block_pointers: dnode.block_pointers.clone(),
            spill: dnode.spill,
            is_locked: object.bonus().is_err(),
        }
    }

    /// The share of its length that is not a hole, in hundredths of a per cent. For the array of dnodes, the
    /// share of slots in use.
    #[must_use]
    pub fn full_hundredths(&self) -> u64 {
        let unit = if self.object_type == ObjectType::DNODE {
            512
        } else {
            self.data_block_bytes
        };
        let filled = u128::from(self.fill) * u128::from(unit) * 10_000;
        let share = filled.checked_div(u128::from(self.length_bytes));
        share.map_or(0, |share| u64::try_from(share).unwrap_or(u64::MAX))
    }
}

/// Iterates over all objects of a set: the array of dnodes, the accounting objects, then the others in order
/// of id. One block of dnodes is in memory at a time. A block that cannot be read yields an error.
pub fn object_summaries(
    set: &Arc<ObjectSetView>,
) -> impl Iterator<Item = Result<ObjectSummary, ObjectError>> + use<> {
    let special: Vec<_> = std::iter::once(set.meta_object())
        .chain(
            [Accounting::User, Accounting::Group, Accounting::Project]
                .into_iter()
                .filter_map(|which| set.accounting(which)),
        )
        .map(|object| Ok(ObjectSummary::of(&object)))
        .collect();
    let rest = set
        .objects()
        .map(|object| object.map(|object| ObjectSummary::of(&object)));
    special.into_iter().chain(rest)
}
