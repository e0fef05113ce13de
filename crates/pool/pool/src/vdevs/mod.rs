//! The vdevs of a pool: new ones, their state, and what they missed.

pub(crate) mod add;
pub(crate) mod dtl;
pub(crate) mod leaf_monitor;
pub(crate) mod leaf_states;
pub(crate) mod leaves;
pub(crate) mod new_vdev;
pub(crate) mod objects;
pub(crate) mod reopen;
pub(crate) mod replication;
pub(crate) mod topology;
