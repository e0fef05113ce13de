//! Packed name/value lists stored in objects of the pool.
//!
//! Page `docs/format/pool-config.md`.

use crate::PoolError;
use crate::error::Reading;
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_object::ObjectSetView;
use millpond_ondisk::{DecodeError, ObjectId, ObjectType};

/// The largest packed list that is read, in bytes. Enough for the configuration of some hundred thousand
/// vdevs.
pub const PACKED_LIST_BYTES_MAX: u64 = 64 << 20;

/// Reads a packed list. Allocates the size stored in its bonus, at most [`PACKED_LIST_BYTES_MAX`].
///
/// # Errors
/// If the object is not a packed list, its stored size is too large, it cannot be read, or it does not
/// decode.
pub fn read_packed_list(
    mos: &Arc<ObjectSetView>,
    id: ObjectId,
    what: &'static str,
) -> Result<NvList, PoolError> {
    let object = mos.object(id).reading(what)?;
    let invalid = |reason| Err(DecodeError::new("packed list", reason, 0)).reading(what);
    if object.dnode().object_type != ObjectType::PACKED_NVLIST {
        return invalid("the object is not a packed list");
    }
    let bonus = object.bonus().reading(what)?;
    let [length] = object
        .dnode()
        .endian
        .words("packed list size", bonus)
        .reading(what)?;
    if length > PACKED_LIST_BYTES_MAX {
        return Err(PoolError::TooLarge {
            object: id,
            bytes: length,
        });
    }
    if length > object.length_bytes() {
        return invalid("it is longer than its object");
    }
    let mut bytes = vec![0u8; length as usize];
    object.read(0, &mut bytes).reading(what)?;
    NvList::decode(&bytes).reading(what)
}
