//! Pools, datasets, snapshots and files of ZFS without a kernel module. This is the crate that programs use.
#![forbid(unsafe_code)]

pub use millpond_engine::*;
