//! Datasets that change: made, snapshotted, cloned, destroyed, and written with every txg.
//!
//! [`LiveDatasets`] is the port through which [`millpond_pool::live::LivePool`] writes them, and what
//! programs change them with. Everything that belongs to directories and datasets lies in the MOS,
//! which changes in syncing context only: each operation is one sync task that first looks whether it
//! may be done and then does it, so that it happens wholly or not at all. [`LiveDataset`] is one head
//! open for changes of its contents.
//!
//! Pages: `docs/format/dsl-directory.md`, `docs/format/dsl-dataset.md`, `docs/format/deadlist.md`,
//! `docs/format/space-accounting.md`, `docs/format/bookmarks.md`, `docs/format/properties.md`.

mod admission;
mod api;
mod background;
mod bookmarks;
mod change_property;
mod checks;
mod contents;
mod datasets;
mod deadlist;
mod destroy_head;
mod destroy_snapshot;
mod extend;
mod features;
mod head;
mod heads;
mod holds;
mod livelist;
mod log;
mod may_write;
mod new_contents;
mod origin;
mod promote;
mod raw_header;
mod received;
mod rename;
mod root;
mod settings;
mod sink;
mod space;
mod syncing;
mod tree;
mod view;
mod walk;
mod write;

pub use api::{DestroyOptions, PropertyChanges};
pub use contents::{ContentsPort, NewContents, NewFileSystem};
pub use datasets::LiveDatasets;
pub use head::{DatasetSpace, Estimate, LiveDataset};
pub use log::{HeadLog, LogTrim, OtherLog, header_words};
pub use settings::Settings;
pub use walk::walk_destroyed_tree;
