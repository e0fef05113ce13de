//! Data of vdevs stored in MOS objects: dirty time logs, mappings of removed vdevs, allocation classes.
//!
//! Pages `docs/format/vdev-tree.md`, `docs/format/indirect-vdev.md`, `docs/format/space-map.md`.

use crate::PoolError;
use crate::error::Reading;
use millpond_env::sync::Arc;
use millpond_object::{ObjectSetView, ObjectView};
use millpond_ondisk::IndirectMappingPhys;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_ondisk::space_map::SpaceMapUnits;
use millpond_ondisk::{
    BlockId, DecodeError, ObjectId, SpaceAction, SpaceMapEntries, SpaceMapEntry, SpaceMapPhys,
};
use millpond_vdev::{AllocationClass, IndirectMapping};
use millpond_zap::Zap;
use std::ops::Range;

/// The largest mapping of a removed vdev that is loaded, in bytes: 20 million segments.
const MAPPING_BYTES_MAX: u64 = 512 << 20;

/// Loads a leaf's dirty time log: half-open ranges of txgs whose data the leaf lacks.
///
/// # Errors
/// If the object cannot be read or is not a space map.
pub(crate) fn load_dirty_time_log(
    mos: &Arc<ObjectSetView>,
    id: ObjectId,
) -> Result<Vec<Range<u64>>, PoolError> {
    let what = "dirty time log";
    let object = mos.object(id).reading(what)?;
    let bonus = object.bonus().reading(what)?;
    let phys = SpaceMapPhys::decode(bonus, object.dnode().endian).reading(what)?;
    let mut ranges = vec![];
    each_space_map_entry(&object, phys.length_bytes, what, &mut |entry| {
        if let SpaceMapEntry::Range {
            action: SpaceAction::Allocate,
            offset_units,
            run_units,
            ..
        } = entry
        {
            let units = SpaceMapUnits::DIRTY_TIME_LOG;
            ranges.push(units.range_bytes(offset_units, run_units).reading(what)?);
        }
        Ok(())
    })?;
    Ok(ranges)
}

/// Calls `each` for every entry in the first `length_bytes` of a space map, in order.
///
/// # Errors
/// If a block cannot be read, an entry is truncated, or `each` fails.
pub(crate) fn each_space_map_entry(
    object: &ObjectView,
    length_bytes: u64,
    what: &'static str,
    each: &mut dyn FnMut(SpaceMapEntry) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    if length_bytes > object.length_bytes() {
        let error = DecodeError::new("space map", "it is longer than its object", 8);
        return Err(error).reading(what);
    }
    let size = object.block_bytes();
    let mut at = 0;
    while at < length_bytes {
        let block = object.read_block(BlockId(at / size)).reading(what)?;
        let count = (length_bytes - at).min(size) as usize;
        for entry in
            SpaceMapEntries::new(&block.bytes[..count.min(block.bytes.len())], block.endian)
        {
            each(entry.reading(what)?)?;
        }
        at += size;
    }
    Ok(())
}

/// Loads the mapping that says where the data of a removed vdev is now.
///
/// # Errors
/// If its objects cannot be read, their stored sizes are too large, or they contradict each other.
pub(crate) fn load_indirect_mapping(
    mos: &Arc<ObjectSetView>,
    mapping: ObjectId,
    births: Option<ObjectId>,
) -> Result<IndirectMapping, PoolError> {
    let what = "mapping of a removed vdev";
    let object = mos.object(mapping).reading(what)?;
    let bonus = object.bonus().reading(what)?;
    let phys = IndirectMappingPhys::decode(bonus, object.dnode().endian).reading(what)?;
    let length = phys.entry_count.saturating_mul(24);
    let entries = read_all(&object, length, what)?;
    let births = match births {
        None => vec![],
        Some(id) => {
            let object = mos.object(id).reading(what)?;
            let bonus = object.bonus().reading(what)?;
            let [count] = object
                .dnode()
                .endian
                .words("indirect births", bonus)
                .reading(what)?;
            read_all(&object, count.saturating_mul(16), what)?
        }
    };
    let endian = object.read_block(BlockId(0)).reading(what)?.endian;
    IndirectMapping::decode(&entries, phys.entry_count, &births, endian).reading(what)
}

/// The first `length` bytes of an object with a mapping or what belongs to it.
pub(crate) fn read_all(
    object: &ObjectView,
    length: u64,
    what: &'static str,
) -> Result<Vec<u8>, PoolError> {
    if length > MAPPING_BYTES_MAX || length > object.length_bytes() {
        return Err(PoolError::TooLarge {
            object: object.id(),
            bytes: length,
        });
    }
    let mut bytes = vec![0u8; length as usize];
    object.read(0, &mut bytes).reading(what)?;
    Ok(bytes)
}

/// Reads the allocation class of a top-level vdev from its ZAP; `None` if the ZAP names none.
///
/// # Errors
/// If the ZAP cannot be read.
pub(crate) fn load_allocation_class(
    mos: &Arc<ObjectSetView>,
    zap_top: ObjectId,
) -> Result<Option<AllocationClass>, PoolError> {
    let what = "vdev ZAP";
    let zap = Zap::open(mos.object(zap_top).reading(what)?).reading(what)?;
    let value = zap
        .lookup(vdev_key::ALLOCATION_BIAS.as_bytes())
        .reading(what)?;
    Ok(value.and_then(|value| AllocationClass::from_bias(&value.text())))
}
