//! Layer `admin`: inspection below the file level: objects, blocks and statistics of a pool.
//!
//! Functions read the current state and return plain values. Listings are iterators or callbacks, so memory
//! does not grow with the size of the pool. Labels and uberblocks are in [`millpond_pool::import`], space
//! maps in [`millpond_pool::PoolSpaceMaps`], records of intent logs in [`millpond_intent`], those of send streams in
//! [`millpond_stream`]; they are re-exported here.

#![forbid(unsafe_code)]

mod datasets;
mod object;
mod statistics;
mod tree;

pub use datasets::{DatasetSummary, Summaries, datasets};
pub use millpond_alloc::Metaslab;
pub use millpond_block::BlockError;
pub use millpond_intent::{
    ChainBlock, ChainEnd, IntentLog, LoggedRecord, RecordFate, record_type_name,
};
pub use millpond_nvlist as nvlist;
pub use millpond_ondisk as ondisk;
pub use millpond_pool::PoolSpaceMaps;
pub use millpond_pool::import::{
    FoundLeaf, FoundUberblock, LabelFault, LeafLabel, read_uberblocks,
};
pub use millpond_stream as stream;
pub use object::{ObjectSummary, object_summaries};
pub use statistics::{
    BlockStatistics, BlockTotals, ObjectTypeNumber, UNREADABLE_KEPT_MAX, block_statistics,
};
pub use tree::{TreeStep, visit_blocks};
