//! The vdevs of a pool: new ones, their state, and what they missed.

pub(crate) mod activity;
pub(crate) mod add;
pub(crate) mod attach;
pub(crate) mod cache_devices;
mod copy_limits;
pub(crate) mod detach;
pub(crate) mod dtl;
pub(crate) mod grow;
pub(crate) mod leaf_monitor;
pub(crate) mod leaf_states;
pub(crate) mod leaves;
pub(crate) mod new_vdev;
pub(crate) mod objects;
pub(crate) mod of_versions;
pub(crate) mod rearrange;
pub(crate) mod rebuild;
pub(crate) mod remove;
pub(crate) mod remove_log;
pub(crate) mod reopen;
pub(crate) mod replication;
pub(crate) mod returned;
pub(crate) mod spares;
pub(crate) mod split;
pub(crate) mod topology;
pub(crate) mod zaps;

pub use copy_limits::CopyLimits;
