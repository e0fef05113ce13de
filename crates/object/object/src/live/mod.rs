//! Live object sets: objects are created, written and freed here, one transaction group at a time.
//!
//! A [`LiveObjectSet`] is an object set open for change; a [`LiveObject`] is one of its objects. Callers see
//! the newest state. Changes of different txgs are kept apart until [`LiveObjectSet::sync`] writes a txg's
//! changes through a [`BlockSink`].

mod accounting;
mod attributes;
mod byteswap;
mod core;
mod dnode_array;
mod freeing;
mod logged;
mod object;
mod object_ids;
mod partial_write;
mod policy;
mod port;
mod range;
mod ranges;
mod set;
mod state;
mod sync;
mod writer;

pub use accounting::{AccountingChange, Owners};
pub use freeing::FreeChunk;
pub use logged::LoggedBlock;
pub use object::LiveObject;
pub use policy::{BlockPolicy, BlockTraits, RedundantMetadata, WritePolicy};
pub use port::{BlockSink, Leak, WriteJob};
pub use set::{FeatureUse, LiveObjectSet, NewObject, NewObjectSet, SyncedSet};
