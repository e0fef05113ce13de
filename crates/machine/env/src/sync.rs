//! Locks, condition variables and channels for every crate above.
//!
//! Lock order is by layer, upper before lower; no lock is held across device I/O (the table is in
//! `ARCHITECTURE.md`).

pub use crossbeam_channel::{Receiver, Sender, bounded};
pub use parking_lot::{
    Condvar, MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub use std::sync::atomic;
pub use std::sync::{Arc, OnceLock, Weak};
