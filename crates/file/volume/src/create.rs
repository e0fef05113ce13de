//! Creates volumes.

use crate::VolumeError;
use crate::error::Errors;
use crate::volume::{DATA, PROPERTIES, SIZE};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::{NewObject, ObjectSet};
use millpond_ondisk::ObjectType;
use millpond_txg::Transaction;
use millpond_zap::{NewZap, ZapMut, ZapShape, new_salt};

const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// Creates a volume of zeros in an empty object set of kind "volume".
///
/// `size_bytes` is a multiple of `block_bytes`, which is a power of two from 512 bytes to 16 MiB and never
/// changes (`volblocksize`). Page `docs/format/volume.md`.
///
/// # Errors
/// [`VolumeError::Refused`] for an invalid size or block size; if the objects cannot be created.
pub fn create_volume(
    name: &str,
    set: &Arc<ObjectSet>,
    tx: &Transaction,
    env: &Env,
    size_bytes: u64,
    block_bytes: u32,
) -> Result<(), VolumeError> {
    let errors = Errors(name);
    let is_block = block_bytes.is_power_of_two() && (512..=BLOCK_BYTES_MAX).contains(&block_bytes);
    if !is_block {
        return Err(errors.refused("blocks are a power of two from 512 bytes to 16 MiB"));
    }
    errors.check_size(size_bytes, u64::from(block_bytes))?;
    let data = NewObject::new(ObjectType::ZVOL).with_block_bytes(block_bytes);
    set.allocate_at(tx, DATA, data)
        .map_err(|error| errors.object(error))?;
    let table = ZapShape::USUAL.object(ObjectType::ZVOL_PROP);
    let table = set
        .allocate_at(tx, PROPERTIES, table)
        .map_err(|error| errors.object(error))?;
    let table = ZapMut::of(&table, tx);
    table
        .create(&NewZap::plain(new_salt(env)))
        .and_then(|()| table.insert_u64(SIZE, size_bytes))
        .map_err(|error| errors.zap(error))
}
