//! The port through which space maps are written.

use millpond_ondisk::{ObjectId, SpaceMapPhys, Txg};

use crate::{MetaslabId, StoreError};

/// Which space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MapName {
    /// A metaslab's own.
    Metaslab(MetaslabId),
    /// The log of a txg.
    Log(Txg),
}

/// What an object that holds a space map looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapShape {
    /// The object, for the header's first word.
    pub object: ObjectId,
    /// Bytes of its data blocks: two-word entries never straddle them.
    pub block_bytes: u64,
    /// Whether its header is the long one, with a histogram.
    pub has_histogram: bool,
}

/// Where space maps are written: objects of the pool, which this layer does not know.
///
/// Called by the thread that syncs only. Everything written belongs to the txg under sync and is
/// seen at once by [`crate::SpaceMapStore::replay`]; none of it may be read through a committed
/// state instead. Pages `docs/format/space-map.md`, `docs/format/log-space-map.md`.
pub trait SpaceMapWriter {
    /// Makes the map of a metaslab that has none, and notes it in the vdev's metaslab array; or the
    /// log of a txg, and notes it in the ZAP of logs (which the first log makes, with the feature's
    /// count). With feature `spacemap_histogram` its header is long, and the feature counts it.
    ///
    /// # Errors
    /// What the store reports.
    fn create(&self, map: MapName) -> Result<MapShape, StoreError>;
    /// Frees all data of a metaslab's map, since it is going to be written anew. May put a new
    /// object of another shape in its place.
    ///
    /// # Errors
    /// What the store reports.
    fn truncate(&self, metaslab: MetaslabId) -> Result<MapShape, StoreError>;
    /// Writes `bytes` at `offset_bytes` of the map.
    ///
    /// # Errors
    /// What the store reports.
    fn append(&self, map: MapName, offset_bytes: u64, bytes: &[u8]) -> Result<(), StoreError>;
    /// Writes the map's header.
    ///
    /// # Errors
    /// What the store reports.
    fn put_header(&self, map: MapName, header: &SpaceMapPhys) -> Result<(), StoreError>;
    /// Notes the first txg whose changes are not in the metaslab's own map; makes the vdev's array
    /// if it has none.
    ///
    /// # Errors
    /// What the store reports.
    fn set_unflushed_txg(&self, metaslab: MetaslabId, txg: Txg) -> Result<(), StoreError>;
    /// Frees the log of a txg and takes it out of the ZAP of logs.
    ///
    /// # Errors
    /// What the store reports.
    fn remove_log(&self, txg: Txg) -> Result<(), StoreError>;
}

/// Which forms the pool's features allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceMapForms {
    /// Feature `com.delphix:spacemap_v2`: entries of two words.
    pub has_two_words: bool,
    /// Feature `com.delphix:log_spacemap`: changes go to the log of their txg first. Needs two-word
    /// entries.
    pub has_logs: bool,
}

/// How long changes stay in logs before they are written to the metaslabs' own maps.
///
/// More logs mean fewer scattered writes, and more to read when the pool is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPolicy {
    /// Logs are kept at no more than this number, the present one included.
    pub logs_max: usize,
    /// Blocks in all logs are kept below four for each metaslab in them, but at least this.
    pub blocks_min: u64,
    /// And at most this.
    pub blocks_max: u64,
    /// Ranges of unflushed changes kept in memory, in all metaslabs (about 200 bytes each).
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
