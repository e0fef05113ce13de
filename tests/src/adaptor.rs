//! The library `millpond` as a [`PoolReader`].

use crate::images::Disks;
use crate::reader::{Answer, PoolReader, ReadError};
use crate::record::Key;
use std::collections::BTreeMap;

/// Opens the pool on these images read-only, with the keys of its encryption roots.
///
/// # Errors
/// What the library says; [`ReadError::NotOffered`] while it opens no pools.
pub fn open(_disks: &Disks, _keys: &BTreeMap<String, Key>) -> Answer<Box<dyn PoolReader>> {
    Err(ReadError::NotOffered("opening a pool with the library"))
}
