//! The errors of a leaf, one by one, for events. Only the first few since they were last taken are kept.

use crate::BlockAddress;
use millpond_env::rank;
use millpond_env::sync::Mutex;

/// The most errors to keep. OpenZFS makes as many events in a second.
const KEPT_MAX: usize = 20;

/// What a leaf did wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestErrorKind {
    /// A read failed.
    Read,
    /// A write or a flush failed.
    Write,
    /// A read returned wrong bytes.
    Checksum,
}

/// An error of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestError {
    /// What it did wrong.
    pub kind: RequestErrorKind,
    /// First byte on the device, including labels; 0 for a flush.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// The block, if one was read.
    pub address: Option<BlockAddress>,
}

impl RequestError {
    /// A flush that failed: which of the writes before it was lost is not known.
    pub(crate) fn of_flush() -> Self {
        Self {
            kind: RequestErrorKind::Write,
            offset_bytes: 0,
            length_bytes: 0,
            address: None,
        }
    }
}

/// Lock: one, held for a few instructions.
#[derive(Debug, Default)]
pub(crate) struct RequestErrors(Mutex<Vec<RequestError>, rank::Leaf>);

impl RequestErrors {
    pub(crate) fn note(&self, error: RequestError) {
        let mut kept = self.0.lock();
        if kept.len() < KEPT_MAX {
            kept.push(error);
        }
    }

    pub(crate) fn take(&self) -> Vec<RequestError> {
        std::mem::take(&mut *self.0.lock())
    }
}
