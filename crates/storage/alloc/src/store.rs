//! The port for reading space maps, and the decoding shared by its implementations.

use core::ops::Range;

use millpond_ondisk::space_map::SpaceMapUnits;
use millpond_ondisk::{
    DecodeError, Endian, SpaceAction, SpaceMapEntries, SpaceMapEntry, Txg, VdevId,
};

use crate::{AllocError, MetaslabId, StoreError};

/// One change of a vdev's space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceRecord {
    /// Allocated or freed.
    pub action: SpaceAction,
    /// Byte range on the top-level vdev.
    pub range: Range<u64>,
}

/// One change of the pool's space, from the log of a txg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The txg of the change.
    pub txg: Txg,
    /// The top-level vdev.
    pub vdev: VdevId,
    /// The action and its range.
    pub record: SpaceRecord,
}

/// Storage of space maps, as objects of the pool, which this layer does not know.
///
/// The pool implements it: it reads the objects' blocks and passes them to [`decode_records`] and
/// [`decode_log_records`]. While the pool is being changed, it must return everything written so far,
/// synced or not. If a callback fails, the replay ends with its error. Pages `docs/format/space-map.md`,
/// `docs/format/log-space-map.md`.
pub trait SpaceMapStore {
    /// Calls `each` for every record of a metaslab's own map, oldest first. A metaslab without a map has no
    /// records: all of it is free.
    ///
    /// # Errors
    /// Errors of the store or of `each`.
    fn replay(
        &self,
        metaslab: MetaslabId,
        each: &mut dyn FnMut(SpaceRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError>;
    /// The first txg whose changes are in the logs and *not* in the metaslab's own map; 0 if it never had
    /// changes in logs.
    ///
    /// # Errors
    /// Errors of the store.
    fn unflushed_txg(&self, metaslab: MetaslabId) -> Result<Txg, AllocError>;
    /// Calls `each` for every record of every log, by ascending txg and oldest first. None without logs.
    ///
    /// # Errors
    /// Errors of the store or of `each`.
    fn replay_logs(
        &self,
        each: &mut dyn FnMut(LogRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError>;
}

/// Decodes part of a map without vdevs (of a metaslab, a checkpoint, obsolete or dirty times) and calls
/// `each` for every range. Parts are whole data blocks; the last one is cut at the header's length.
///
/// # Errors
/// [`StoreError::Corrupt`] through `wrap` for invalid entries and entries outside of the map; any error of
/// `each`.
pub fn decode_records<E>(
    bytes: &[u8],
    endian: Endian,
    units: &SpaceMapUnits,
    mut wrap: impl FnMut(StoreError) -> E,
    each: &mut dyn FnMut(SpaceRecord) -> Result<(), E>,
) -> Result<(), E> {
    for entry in SpaceMapEntries::new(bytes, endian) {
        if let SpaceMapEntry::Range {
            action,
            offset_units,
            run_units,
            ..
        } = entry.map_err(|error| wrap(error.into()))?
        {
            let range = units
                .range_bytes(offset_units, run_units)
                .map_err(|error| wrap(error.into()))?;
            each(SpaceRecord { action, range })?;
        }
    }
    Ok(())
}

/// Decodes part of the log space map of `txg` and calls `each` for every range. Parts are whole data
/// blocks; the last one is cut at the header's length.
///
/// # Errors
/// [`StoreError::Corrupt`] through `wrap` for invalid entries, entries without a vdev and debug words of
/// another txg; any error of `each`.
pub fn decode_log_records<E>(
    bytes: &[u8],
    endian: Endian,
    txg: Txg,
    mut wrap: impl FnMut(StoreError) -> E,
    each: &mut dyn FnMut(LogRecord) -> Result<(), E>,
) -> Result<(), E> {
    let fail = |reason| StoreError::from(DecodeError::new("log space map", reason, 0));
    for entry in SpaceMapEntries::new(bytes, endian) {
        match entry.map_err(|error| wrap(error.into()))? {
            SpaceMapEntry::Padding => {}
            // A debug word holds only the low 50 bits.
            SpaceMapEntry::Debug { txg: named, .. } if named.0 == txg.0 & ((1 << 50) - 1) => {}
            SpaceMapEntry::Debug { .. } => {
                return Err(wrap(fail("debug word names another txg")));
            }
            SpaceMapEntry::Range { vdev: None, .. } => {
                return Err(wrap(fail("entry without vdev")));
            }
            SpaceMapEntry::Range {
                action,
                vdev: Some(vdev),
                offset_units,
                run_units,
            } => {
                let range = SpaceMapUnits::LOG
                    .range_bytes(offset_units, run_units)
                    .map_err(|error| wrap(error.into()))?;
                each(LogRecord {
                    txg,
                    vdev,
                    record: SpaceRecord { action, range },
                })?;
            }
        }
    }
    Ok(())
}
