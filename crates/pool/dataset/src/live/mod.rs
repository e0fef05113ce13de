//! Datasets open for changes: created, snapshotted, cloned, destroyed, and written with every txg.
//!
//! [`LiveDatasets`] is the port through which [`millpond_pool::live::LivePool`] writes datasets, and the
//! interface for changing them. The metadata of directories and datasets is stored in the MOS, which
//! changes only in syncing context. Each operation is therefore one sync task that first checks whether it
//! is allowed and then applies it, so that it is atomic. [`LiveDataset`] is one head whose contents are
//! open for changes.
//!
//! Pages: `docs/format/dsl-directory.md`, `docs/format/dsl-dataset.md`, `docs/format/deadlist.md`,
//! `docs/format/space-accounting.md`, `docs/format/bookmarks.md`, `docs/format/properties.md`.

mod admission;
mod api;
mod background;
mod bookmarks;
mod change_property;
mod checks;
mod datasets;
mod deadlist;
mod destroy_head;
mod destroy_snapshot;
mod extend;
mod features;
mod head;
mod heads;
mod holds;
mod initializer;
mod livelist;
mod log;
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
mod sync_task_context;
mod tree;
mod view;
mod walk;
mod writability;
mod write;

pub use api::{DestroyOptions, PropertyChanges};
pub use datasets::LiveDatasets;
pub use head::{DatasetSpace, Estimate, LiveDataset};
pub use initializer::{DatasetInitializer, NewContents, NewFileSystem};
pub use log::{HeadLog, LogTrim, OtherLog, header_words};
pub use settings::Settings;
pub use walk::walk_destroyed_tree;
