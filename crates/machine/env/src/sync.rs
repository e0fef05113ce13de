//! Locks, condition variables and channels for every crate above.
//!
//! Lock order is by layer, upper before lower; no lock is held across device I/O (the table is in
//! `ARCHITECTURE.md`). Under `--cfg millpond_sim` the same names are those of `sim`, where a seed decides who goes on.

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
