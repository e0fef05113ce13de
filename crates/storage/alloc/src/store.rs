//! The port through which space maps are read, and the decoding that its implementers share.

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
    /// Bytes on the top-level vdev.
    pub range: Range<u64>,
}

/// One change of the pool's space, from the log of a txg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The txg that made it.
    pub txg: Txg,
    /// The top-level vdev.
    pub vdev: VdevId,
    /// What and where.
    pub record: SpaceRecord,
}

/// Where space maps are kept: objects of the pool, which this layer does not know.
///
/// Implemented by the pool, which reads the objects' blocks and gives them to [`decode_records`]
/// and [`decode_log_records`]. Of a changing pool it must show everything written so far, synced or
/// not. Callbacks may fail; the replay then ends with that error.
/// Pages `docs/format/space-map.md`, `docs/format/log-space-map.md`.
pub trait SpaceMapStore {
    /// Every record of a metaslab's own map, oldest first. None if it has no map: all is free.
    ///
    /// # Errors
    /// What the store or `each` reports.
    fn replay(
        &self,
        metaslab: MetaslabId,
        each: &mut dyn FnMut(SpaceRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError>;
    /// The first txg whose changes are *not* in the metaslab's own map but in the logs; 0 if it
    /// never took part in them.
    ///
    /// # Errors
    /// What the store reports.
    fn unflushed_txg(&self, metaslab: MetaslabId) -> Result<Txg, AllocError>;
    /// Every record of every log, by ascending txg and oldest first. None without logs.
    ///
    /// # Errors
    /// What the store or `each` reports.
    fn replay_logs(
        &self,
        each: &mut dyn FnMut(LogRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError>;
}

/// Decodes a piece of a map without vdevs (a metaslab's, a checkpoint's, an obsolete or dirty time
/// map) and calls `each` for every range. Pieces are whole data blocks, the last one cut at the
/// header's length.
///
/// # Errors
/// [`StoreError::Corrupt`] through `wrap` for bytes that are no entries or leave the map's bounds;
/// whatever `each` returns.
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

/// Decodes a piece of the log space map of `txg` and calls `each` for every range. Pieces are whole
/// data blocks, the last one cut at the header's length.
///
/// # Errors
/// [`StoreError::Corrupt`] through `wrap` for bytes that are no entries, entries without vdev and
/// debug words of another txg; whatever `each` returns.
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
            // A debug word has room for the low 50 bits only.
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
