//! Changes to attributes.
//!
//! [`SaLayouts`] is shared by all threads that change files of one object set. It turns lists of attributes
//! into buffers for bonus and spill block, and adds what they need to the object set's tables. Attributes are
//! registered before the first buffer is built. A layout is stored in the transaction of the first buffer
//! that uses it. A change of equal length is made in place, without consulting the tables.
//!
//! The caller must hold a file's lock while it changes that file's attributes. Different files need no order
//! between them. Page: `docs/format/system-attributes.md`, "Writing".

mod convert;
mod file;
mod layouts;
mod list;
mod object;
mod tables;
#[cfg(test)]
mod tests;
pub mod value;

pub use file::SaFile;
pub use layouts::{SaBuffers, SaChange, SaLayouts};
pub use object::{LiveTables, SaObject, create_sa_master};
pub use tables::SaTables;
