//! What the pipeline asks of an allocator.

use millpond_alloc::{AllocRequest, Placement, PoolAllocator};
use millpond_ondisk::{Dva, GANG_HEADER_BYTES, Txg};
use millpond_vdev::AllocationClass;

/// Space wanted for one block, or one piece of a gang block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceRequest<'a> {
    /// Bytes stored: a multiple of 512, at most 16 MiB. What that takes on a vdev is the vdev's matter.
    pub psize_bytes: u64,
    /// How many addresses, 1 to 3, on different vdevs if possible, never overlapping.
    pub copies: u8,
    /// Where to take it from. An allocator falls back to other classes as its policy says.
    pub class: AllocationClass,
    /// Whether the space is for a gang header, which takes a 512-byte block's space whatever its size.
    pub is_gang_header: bool,
    /// Addresses that failed to take the block just now: better somewhere else.
    pub avoid: &'a [Dva],
}

/// No run of the size wanted is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no space")]
pub struct NoSpace;

/// Gives space to the pipeline. Called from several threads; within one call of
/// [`crate::BlockStore::write`] in the order of the blocks, so that with one thread the same input
/// gives the same addresses.
pub trait Allocate: Send + Sync {
    /// Takes space in `txg`. The addresses come with their `asize_bytes` and `is_gang` false, as many
    /// as copies were wanted.
    ///
    /// # Errors
    /// [`NoSpace`] if not all copies found a run; then nothing is taken.
    fn allocate(&self, txg: Txg, request: &SpaceRequest<'_>) -> Result<Vec<Dva>, NoSpace>;
    /// Gives back what [`Allocate::allocate`] gave in the same txg and nothing refers to.
    ///
    /// # Errors
    /// In words, if the space was not taken: then two blocks may lie in one place, and nothing must be
    /// committed.
    fn release(&self, txg: Txg, dva: &Dva) -> Result<(), String>;
}

impl Allocate for PoolAllocator {
    fn allocate(&self, txg: Txg, request: &SpaceRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        let placement = match request.class {
            AllocationClass::Normal => Placement::Normal,
            AllocationClass::Special => Placement::Special,
            AllocationClass::Dedup => Placement::Dedup,
            AllocationClass::Log => Placement::Log,
        };
        // A gang header takes the space of a 512-byte block, at any width of a vdev the same.
        let psize_bytes = if request.is_gang_header {
            GANG_HEADER_BYTES as u64
        } else {
            request.psize_bytes
        };
        let request = AllocRequest {
            avoid: request.avoid,
            ..AllocRequest::new(placement, psize_bytes, request.copies)
        };
        PoolAllocator::allocate(self, txg, &request).map_err(|_| NoSpace)
    }
    fn release(&self, txg: Txg, dva: &Dva) -> Result<(), String> {
        self.free(txg, dva, true).map_err(|error| error.to_string())
    }
}
