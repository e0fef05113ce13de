//! Writing a txg: its passes, sync tasks, and the blocks of the MOS.
//!
//! Pool-wide data (the MOS, free space, configuration, features, labels) changes only while a txg is written,
//! by the thread that holds a [`context::SyncContext`].

pub(crate) mod context;
mod frees;
mod invariants;
pub(crate) mod sink;
pub(crate) mod space;
pub(crate) mod tables;
pub(crate) mod tasks;
pub(crate) mod txg;
