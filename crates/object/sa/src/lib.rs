//! Layer `object`: file attributes in both on-disk forms.
//!
//! An [`SaRegistry`] holds the attributes and layouts that one object set has registered. It opens an
//! object's [`Attributes`], a view of bonus and spill block with a typed getter for each attribute of a file.
//! Old znodes have the same getters. This crate only finds and stores attributes; what they mean for a file
//! is decided above it.
//!
//! [`SaLayouts`] changes attributes. All threads that change files of one object set share it. It turns lists
//! of attributes into buffers for bonus and spill block, and adds what they need to the object set's tables.
//! Attributes are registered before the first buffer is built. A layout is stored in the transaction of the
//! first buffer that uses it. A change of equal length is made in place, without consulting the tables. The
//! caller must hold a file's lock while it changes that file's attributes. Different files need no order
//! between them.
//!
//! ```no_run
//! # fn example(set: std::sync::Arc<millpond_object::ObjectSetView>) -> Result<(), millpond_sa::SaError> {
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
mod convert;
mod error;
mod file;
mod form;
#[cfg(test)]
mod layout_tests;
mod layouts;
mod list;
mod object;
mod old_form;
mod registry;
mod tables;
#[cfg(test)]
mod tests;
pub mod value;

pub use attributes::Attributes;
pub use bytes::ObjectBytes;
pub use error::SaError;
pub use file::SaFile;
pub use layouts::{SaBuffers, SaChange, SaLayouts};
pub use millpond_ondisk::acl::{Ace, AceFlags, AceKind, AceWho, Fuid};
pub use millpond_ondisk::sa::{SaAttribute, SaClass, SaRegistration};
pub use millpond_ondisk::znode::{FileFlags, Timestamp};
pub use object::{ObjectTables, SaObject, create_sa_master};
pub use old_form::ZnodeAclForm;
pub use registry::SaRegistry;
pub use tables::SaTables;
