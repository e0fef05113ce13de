//! Layer `storage`: the way of a block.
//!
//! A [`BlockStore`] turns block pointers into bytes whose checksum held in this memory: it picks a
//! copy, asks the vdev tree which leaves to read, verifies, reassembles gang blocks, decrypts,
//! authenticates and decompresses, counts every lie against the device that told it, and keeps
//! what it read in a bounded cache. It knows pointers and devices; it knows no object.
//!
//! Pages: `docs/format/block-pointer.md`, `docs/format/gang-header.md`.
#![forbid(unsafe_code)]

mod address;
mod ahead;
mod audit;
mod copies;
mod damage;
mod error;
mod gang;
mod leaf_device;
mod leaf_status;
mod log;
mod many;
mod patience;
mod progress;
mod requests;
mod rooms;
mod store;
mod topology;
mod unflushed;
mod waits;
mod write;

pub use address::BlockAddress;
pub use ahead::AheadFigures;
pub use audit::BlockAudit;
pub use damage::DamagedBlock;
pub use error::{BlockError, CopyFailure};
pub use leaf_status::{LeafCondition, LeafMonitor, LeafReason, LeafRefusal, LeafState, LeafStatus};
pub use log::LogBlock;
pub use patience::{Patience, PatientThread};
pub use requests::{NoAnswer, RequestDeadline, unhurried};
pub use rooms::Room;
pub use store::BlockStore;
pub use topology::{LeafCounters, LeafFigures, Topology};
pub use waits::{IoClass, IoClock, SIZE_BUCKETS, TimeFigures, WAIT_BUCKETS, WaitFigures};
pub use write::{
    Allocate, BlockWrite, FlushError, LogWrite, Missed, NoSpace, SpaceRequest, WrittenBlock,
    WrittenForm,
};

use millpond_env::sync::Arc;
use millpond_ondisk::Endian;

/// A block's content: verified, decrypted and decompressed, still in its writer's byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The logical bytes (`lsize` of the pointer), shared with whoever wrote them.
    pub bytes: Arc<Vec<u8>>,
    /// The byte order of integers in `bytes`.
    pub endian: Endian,
    /// Set for blocks of dnodes of a locked dataset: everything but the bonus areas is plain.
    pub has_ciphertext: bool,
}
