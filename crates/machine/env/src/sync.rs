//! Locks, condition variables and channels for every crate above.
//!
//! Locks are ordered by layer, upper before lower. No lock is held across device I/O (`ARCHITECTURE.md` has
//! the table). Under `--cfg millpond_sim` these names refer to the types of `sim`, where a seed schedules
//! the threads.

#[cfg(millpond_sim)]
pub use crate::sim::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, OnceLock, Receiver, RwLock, RwLockReadGuard,
    RwLockWriteGuard, Sender, bounded,
};
#[cfg(not(millpond_sim))]
pub use crossbeam_channel::{Receiver, Sender, bounded};
#[cfg(not(millpond_sim))]
pub use parking_lot::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(not(millpond_sim))]
pub use std::sync::OnceLock;
pub use std::sync::atomic;
pub use std::sync::{Arc, Weak};
