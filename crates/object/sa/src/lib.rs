//! Layer `object`: file attributes in both on-disk forms.
//!
//! An [`SaRegistry`] holds the attributes and layouts that one object set has registered. It opens an
//! object's [`Attributes`], a view of bonus and spill block with a typed getter for each attribute of a file.
//! [`SaLayouts`] changes attributes. Old znodes have the same getters. This crate only finds and stores
//! attributes; what they mean for a file is decided above it.
//!
//! ```no_run
//! # fn example(set: std::sync::Arc<millpond_object::ObjectSet>) -> Result<(), millpond_sa::SaError> {
//! use millpond_ondisk::ObjectId;
//! use millpond_sa::SaRegistry;
//! let registry = SaRegistry::open(&set)?;
//! let file = registry.attributes(&set.object(ObjectId(34))?)?;
//! let (mode, size) = (file.mode()?, file.size()?);
//! # let _ = (mode, size); Ok(()) }
//! ```
//!
//! Pages: `docs/format/system-attributes.md`, `docs/format/znode.md`, `docs/format/acl.md`.
#![forbid(unsafe_code)]

mod attributes;
mod bytes;
mod error;
mod form;
mod live;
mod registry;
#[cfg(test)]
mod tests;

pub use attributes::Attributes;
pub use bytes::ObjectBytes;
pub use error::SaError;
pub use live::value;
pub use live::{
    LiveTables, SaBuffers, SaChange, SaFile, SaLayouts, SaObject, SaTables, create_sa_master,
};
pub use millpond_ondisk::acl::{Ace, AceFlags, AceKind, AceWho, Fuid};
pub use millpond_ondisk::sa::{SaAttribute, SaClass, SaRegistration};
pub use millpond_ondisk::znode::{FileFlags, Timestamp};
pub use registry::SaRegistry;
