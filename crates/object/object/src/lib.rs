//! Layer `object`: object sets and objects.
//!
//! An object set holds the objects of a dataset, or of the pool itself, by object id. An object is a dnode,
//! bonus bytes and a tree of blocks. This crate works on block pointers and block trees. Names, datasets and
//! files belong to the layers above.
//!
//! There are two ways to open an object set:
//!
//! - An [`ObjectSetView`] and its [`ObjectView`]s show what one block pointer leads to. They never change, take no
//!   locks, and also read encrypted and foreign-endian sets. Snapshots, read-only pools and checks use them.
//! - An [`ObjectSet`] and its [`Object`]s are open for change. Callers see the newest state. Changes of
//!   different txgs are kept apart until [`ObjectSet::sync`] writes a txg's changes through a [`BlockSink`].
//!
//! Both read through the same block tree and share prefetch and stream detection.
//!
//! ```no_run
//! # fn example(set: std::sync::Arc<millpond_object::ObjectSetView>) -> Result<(), millpond_object::ObjectError> {
//! use millpond_ondisk::ObjectId;
//! let object = set.object(ObjectId(1))?;
//! let mut head = vec![0u8; 512];
//! object.read(0, &mut head)?;
//! # Ok(()) }
//! ```
//!
//! Pages: `docs/format/object-set.md`, `docs/format/dnode.md`.
#![forbid(unsafe_code)]

mod accounting;
mod attributes;
mod byteswap;
mod caching;
mod claims;
mod clones;
mod core;
mod dnode_array;
mod dnode_prefetch;
mod error;
mod extent;
mod freeing;
mod logged;
mod new_object;
mod object;
mod object_ids;
mod object_view;
mod partial_write;
mod policy;
mod port;
mod prefetch;
mod range;
mod ranges;
mod raw;
mod readable;
mod rewrite;
mod set;
mod set_view;
mod state;
mod stream_detection;
mod sync;
mod tree;
mod writer;

pub use accounting::{AccountingChange, Owners};
pub use byteswap::to_native;
pub use caching::{BlockChoice, Caching, CachingCell, CachingCells};
pub use clones::is_clonable;
pub use error::ObjectError;
pub use freeing::FreeChunk;
pub use logged::LoggedBlock;
pub use millpond_block::{
    Block, BlockAddress, BlockError, EncodedContent, Seal, WriteKey, unhurried,
};
pub use new_object::{NewObject, NewObjectSet};
pub use object::{EdgeBlocks, Object};
pub use object_view::ObjectView;
pub use policy::{BlockPolicy, BlockTraits, DedupPolicy, RedundantMetadata, WritePolicy};
pub use port::{BlockSink, Leak, WriteJob};
pub use prefetch::CacheHint;
pub use raw::{RawDnode, RawHead};
pub use readable::ReadableObject;
pub use set::{FeatureUse, ObjectSet, SyncedSet};
pub use set_view::{Accounting, ObjectSetView};
