//! Layer `pool`: finds, assembles and opens pools, and holds the state that belongs to a whole pool.
//!
//! [`import`] finds labels on devices. [`Pool::open`] leads from the labels to the meta object set, and
//! from there to the pool's features, configuration, history, error log and statistics. This crate does not
//! know datasets or files. [`live`] is the part that changes pools.
//!
//! Pages: `docs/format/import.md`, `docs/format/pool-config.md`, `docs/format/features.md`.
#![forbid(unsafe_code)]

mod error;
mod error_log;
mod features;
mod history;
pub mod import;
mod leaf_states;
pub mod live;
mod open;
mod packed;
mod pool;
pub mod properties;
mod space;
mod vdev_objects;

pub use error::PoolError;
pub use error_log::LoggedError;
pub use features::{Features, UnsupportedFeature};
pub use history::History;
pub use open::{OpenError, OpenOptions};
pub use packed::{PACKED_LIST_BYTES_MAX, read_packed_list};
pub use pool::Pool;
pub use space::{
    CloneTotals, DEDUP_BUCKETS, DedupBucket, DedupTotals, PoolSpace, PoolSpaceMaps, VdevSpace,
};
