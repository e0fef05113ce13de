//! Layer `object`: object sets and objects.
//!
//! An [`ObjectSet`] holds the objects of a dataset, or of the pool itself, by object id. An [`Object`] is one
//! of them: its dnode, its bonus bytes and its tree of blocks. This crate works on block pointers and block
//! trees. Names, datasets and files belong to the layers above.
//!
//! ```no_run
//! # fn example(set: std::sync::Arc<millpond_object::ObjectSet>) -> Result<(), millpond_object::ObjectError> {
//! use millpond_ondisk::ObjectId;
//! let object = set.object(ObjectId(1))?;
//! let mut head = vec![0u8; 512];
//! object.read(0, &mut head)?;
//! # Ok(()) }
//! ```
//!
//! Pages: `docs/format/object-set.md`, `docs/format/dnode.md`.
#![forbid(unsafe_code)]

mod claims;
mod error;
mod extent;
mod live;
mod object;
mod prefetch;
mod set;
mod stream_detection;
mod tree;

pub use error::ObjectError;
pub use live::{
    AccountingChange, BlockPolicy, BlockSink, BlockTraits, FeatureUse, FreeChunk, Leak, LiveObject,
    LiveObjectSet, LoggedBlock, NewObject, NewObjectSet, Owners, RedundantMetadata, SyncedSet,
    WriteJob, WritePolicy,
};
pub use millpond_block::{Block, BlockAddress, BlockError, unhurried};
pub use object::Object;
pub use prefetch::CacheHint;
pub use set::{Accounting, ObjectSet};
