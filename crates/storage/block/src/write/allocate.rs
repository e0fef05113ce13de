//! The write pipeline's interface to an allocator.

use millpond_alloc::{AllocRequest, Placement, PoolAllocator};
use millpond_ondisk::{Dva, GANG_HEADER_BYTES, Txg};
use millpond_vdev::AllocationClass;

/// A request for the space of one block, or of one piece of a gang block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceRequest<'a> {
    /// Stored bytes: a multiple of 512, at most 16 MiB. Each vdev determines how much space that takes.
    pub psize_bytes: u64,
    /// The number of addresses, 1 to 3: on different vdevs if possible, never overlapping.
    pub copies: u8,
    /// The allocation class. The allocator's policy decides about the fallback to other classes.
    pub class: AllocationClass,
    /// Whether the space is for a gang header, which takes the space of a 512-byte block at any size.
    pub is_gang_header: bool,
    /// Addresses where writing the block just failed; the allocator should choose others.
    pub avoid: &'a [Dva],
}

/// No free run has the requested size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no space")]
pub struct NoSpace;

/// Allocates space for the write pipeline. Called from several threads, but within one call of
/// [`crate::BlockStore::write`] in the order of the blocks, so that with one thread the same input gets the
/// same addresses.
pub trait Allocate: Send + Sync {
    /// Allocates space in `txg`. Returns as many addresses as copies were requested, with `asize_bytes` set
    /// and `is_gang` false.
    ///
    /// # Errors
    /// [`NoSpace`] if not all copies found a run; nothing is allocated then.
    fn allocate(&self, txg: Txg, request: &SpaceRequest<'_>) -> Result<Vec<Dva>, NoSpace>;
    /// Returns unused space that [`Allocate::allocate`] allocated in the same txg.
    ///
    /// # Errors
    /// A message if the space was not allocated. Two blocks may then share an address, and nothing must be
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
        // A gang header takes the space of a 512-byte block, for any width of its vdev.
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
        self.free(txg, dva, txg, true)
            .map_err(|error| error.to_string())
    }
}
