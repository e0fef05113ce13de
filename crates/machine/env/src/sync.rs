//! Locks, condition variables and channels for every crate above.
//!
//! Locks have a rank from the table in [`rank`](crate::rank), and debug builds check their order. Under
//! `--cfg millpond_sim` all names refer to the types of `sim`, where a seed schedules the threads.

pub use crate::lock::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(millpond_sim)]
pub use crate::sim::{OnceLock, Receiver, Sender, bounded};
#[cfg(not(millpond_sim))]
pub use crossbeam_channel::{Receiver, Sender, bounded};
#[cfg(not(millpond_sim))]
pub use std::sync::OnceLock;
pub use std::sync::atomic;
pub use std::sync::{Arc, Weak};

/// The locks without ranks.
pub(crate) mod base {
    #[cfg(millpond_sim)]
    pub use crate::sim::{
        Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        WaitTimeoutResult,
    };
    #[cfg(not(millpond_sim))]
    pub use parking_lot::{
        Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        WaitTimeoutResult,
    };
}
