//! The port for writing space maps.

use millpond_ondisk::{ObjectId, SpaceMapPhys, Txg};

use crate::{MetaslabId, StoreError};

/// Identifies a space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MapName {
    /// A metaslab's own map.
    Metaslab(MetaslabId),
    /// The log of a txg.
    Log(Txg),
}

/// Properties of an object that holds a space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapShape {
    /// The object, for the header's first word.
    pub object: ObjectId,
    /// Size of its data blocks in bytes; two-word entries never cross a block boundary.
    pub block_bytes: u64,
    /// Whether it has the long header, with a histogram.
    pub has_histogram: bool,
}

/// Writing of space maps, as objects of the pool, which this layer does not know.
///
/// Only the sync thread calls it. All writes belong to the syncing txg and are visible at once to
/// [`crate::SpaceMapStore::replay`], which must not read a committed state instead.
///
/// Pages `docs/format/space-map.md`, `docs/format/log-space-map.md`.
pub trait SpaceMapWriter {
    /// Creates a space map.
    ///
    /// The map of a metaslab is entered into the vdev's metaslab array. The log of a txg is entered into
    /// the ZAP of logs; the first log creates the ZAP and counts the feature. With feature
    /// `spacemap_histogram` the header is long, and the feature counts it.
    ///
    /// # Errors
    /// Errors of the store.
    fn create(&self, map: MapName) -> Result<MapShape, StoreError>;
    /// Frees all data of a metaslab's map, because it will be rewritten. May replace it by a new object of
    /// another shape.
    ///
    /// # Errors
    /// Errors of the store.
    fn truncate(&self, metaslab: MetaslabId) -> Result<MapShape, StoreError>;
    /// Writes `bytes` at `offset_bytes` of the map.
    ///
    /// # Errors
    /// Errors of the store.
    fn append(&self, map: MapName, offset_bytes: u64, bytes: &[u8]) -> Result<(), StoreError>;
    /// Writes the map's header.
    ///
    /// # Errors
    /// Errors of the store.
    fn put_header(&self, map: MapName, header: &SpaceMapPhys) -> Result<(), StoreError>;
    /// Records the first txg whose changes are not in the metaslab's own map. Creates the vdev's array if
    /// it has none.
    ///
    /// # Errors
    /// Errors of the store.
    fn set_unflushed_txg(&self, metaslab: MetaslabId, txg: Txg) -> Result<(), StoreError>;
    /// Frees the log of a txg and removes it from the ZAP of logs.
    ///
    /// # Errors
    /// Errors of the store.
    fn remove_log(&self, txg: Txg) -> Result<(), StoreError>;
}

/// The forms of space maps that the pool's features allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceMapForms {
    /// Feature `com.delphix:spacemap_v2`: two-word entries.
    pub has_two_words: bool,
    /// Feature `com.delphix:log_spacemap`: changes go to the log of their txg first. Requires two-word
    /// entries.
    pub has_logs: bool,
}

/// How long changes stay in logs before they are flushed to the metaslabs' own maps.
///
/// More logs mean fewer scattered writes, but more to read when the pool is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPolicy {
    /// The most logs, including the current one.
    pub logs_max: usize,
    /// The least limit on blocks in all logs. The limit is four for each metaslab with changes in logs, but
    /// at least this.
    pub blocks_min: u64,
    /// The greatest limit on blocks in all logs.
    pub blocks_max: u64,
    /// The most ranges of unflushed changes in memory, over all metaslabs (about 200 bytes each).
    pub ranges_max: usize,
}

impl Default for LogPolicy {
    fn default() -> Self {
        Self {
            logs_max: 1000,
            blocks_min: 1000,
            blocks_max: 131_072,
            ranges_max: 1 << 20,
        }
    }
}
