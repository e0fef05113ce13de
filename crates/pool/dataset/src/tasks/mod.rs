//! Operations on the dataset tree, each one sync task.
//!
//! The metadata of directories and datasets is stored in the MOS, which changes only in syncing context. Each
//! operation is therefore one sync task that first checks whether it is allowed and then applies it, so that
//! it is atomic.

mod api;
pub(crate) mod background;
pub(crate) mod bookmarks;
pub(crate) mod change_key;
pub(crate) mod change_property;
pub(crate) mod checks;
pub(crate) mod context;
pub(crate) mod create;
pub(crate) mod deadlist;
pub(crate) mod deadlist_cache;
pub(crate) mod destroy_head;
mod destroy_plan;
pub(crate) mod destroy_progress;
pub(crate) mod destroy_snapshot;
mod destroyed_tree;
pub(crate) mod directories;
pub(crate) mod encryption;
pub(crate) mod extend;
pub(crate) mod holds;
pub(crate) mod key_uses;
pub(crate) mod livelist;
mod new_dataset;
mod old_deadlist;
pub(crate) mod origin;
mod permissions;
mod program;
pub(crate) mod promote;
pub(crate) mod raise;
pub(crate) mod receive;
pub(crate) mod received;
mod redact;
pub(crate) mod remapped;
mod rename;
pub(crate) mod root;

pub use api::{DestroyOptions, PropertyChanges};
pub use change_key::KeyChange;
pub use destroyed_tree::traverse_destroyed_tree;
pub use new_dataset::NewDataset;
pub use program::{ProgramDataset, ProgramMode, ProgramTasks, ProgramValue, Refused, UserProperty};
pub use receive::{
    IncomingSnapshot, ReceiveTarget, Receiving, RefusedProperty, ResumeAllowances, ResumePoint,
    SentKeys,
};
pub use redact::NewRedaction;
