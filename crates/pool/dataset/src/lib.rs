//! Layer `pool`: the tree of directories, datasets and snapshots, with their properties and keys.
//!
//! This crate knows names, snapshots and settings; it does not know files. [`Dataset`] and [`Directory`] read a
//! committed state.
//!
//! [`Datasets`] is the port through which [`millpond_pool::Pool`] writes datasets, and the interface for
//! changing them. [`HeadDataset`] is one head whose contents are open for changes.
//!
//! Pages: `docs/format/dsl-directory.md`, `docs/format/dsl-dataset.md`, `docs/format/properties.md`,
//! `docs/format/deadlist.md`, `docs/format/space-accounting.md`, `docs/format/bookmarks.md`.
#![forbid(unsafe_code)]

mod dataset;
mod datasets;
mod directory;
mod error;
mod heads;
mod key_ring;
mod keys;
mod mos;
mod name;
mod permissions;
pub mod properties;
mod redaction;
mod root_key;
mod tasks;
mod writability;

pub use dataset::{Bookmark, Dataset, Hold};
pub use datasets::Datasets;
pub use directory::Directory;
pub use error::{DatasetError, KeyRefusal, Refusal};
pub use heads::head::{DatasetSpace, HeadDataset};
pub use heads::initializer::{DatasetInitializer, NewContents, NewFileSystem};
pub use heads::lending::InUse;
pub use heads::log::{HeadLog, LogTrim, OtherLog, header_words};
pub use heads::settings::Settings;
pub use key_ring::KeyRing;
pub use keys::lost_root_text;
pub use millpond_crypt::{CryptError, CryptKey, DatasetKey, KeyFormat, WrappingKey};
pub use millpond_txg::Estimate;
pub use name::{DatasetName, NAME_BYTES_MAX, NameTail};
pub use permissions::{
    Creator, PERMISSIONS, PermissionChain, PermissionGrant, PermissionSubject, PermissionTable,
    is_permission, is_permission_set,
};
pub use properties::{PropertyReader, PropertySource, PropertyValue, StoredProperties};
pub use redaction::RedactionList;
pub use root_key::{RootKey, is_key_location};
pub use tasks::background::StuckFreeing;
pub use tasks::{
    DestroyOptions, IncomingSnapshot, KeyChange, NewDataset, NewRedaction, ProgramDataset,
    ProgramMode, ProgramTasks, ProgramValue, PropertyChanges, ReceiveTarget, Receiving, Refused,
    RefusedProperty, ResumeAllowances, ResumePoint, SentKeys, UserProperty,
    traverse_destroyed_tree,
};
