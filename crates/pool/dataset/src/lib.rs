//! Layer `pool`: the tree of directories, datasets and snapshots, with their properties and keys.
//!
//! This crate knows names, snapshots and settings; it does not know files. [`Dataset`] and related types
//! read the committed state; [`live`] changes it.
//!
//! Pages: `docs/format/dsl-directory.md`, `docs/format/dsl-dataset.md`, `docs/format/properties.md`.
#![forbid(unsafe_code)]

mod dataset;
mod directory;
mod error;
mod keys;
pub mod live;
mod name;
pub mod properties;

pub use millpond_crypt::{CryptKey, DatasetKey, KeyFormat, WrappingKey};

pub use dataset::{Bookmark, Dataset, Hold};
pub use directory::Directory;
pub use error::{DatasetError, Refusal};
pub use name::{DatasetName, NAME_BYTES_MAX, NameTail};
pub use properties::{PropertyReader, PropertySource, PropertyValue, StoredProperties};
