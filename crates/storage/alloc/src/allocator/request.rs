//! Allocation requests, and the allocator's settings of a vdev.

use core::fmt;
use core::ops::Range;

use millpond_env::sync::Arc;
use millpond_ondisk::{Dva, Txg, VdevId};
use millpond_vdev::VdevTree;

use crate::{AllocationClass, VdevGeometry};

/// Size of a gang header, for the space that it takes.
const GANG_HEADER_BYTES: u64 = 512;

/// How much space blocks take on each vdev.
pub trait BlockSizes: Send + Sync {
    /// The bytes that a block of `psize_bytes` written in `txg` takes on `vdev`, including parity and
    /// padding; `None` if the vdev cannot hold blocks.
    fn asize(&self, vdev: VdevId, psize_bytes: u64, txg: Txg) -> Option<u64>;
    /// The bytes that a gang header takes on `vdev`, at its original width.
    fn gang_header_asize(&self, vdev: VdevId) -> Option<u64> {
        self.asize(vdev, GANG_HEADER_BYTES, Txg(0))
    }
}

impl BlockSizes for VdevTree {
    fn asize(&self, vdev: VdevId, psize_bytes: u64, txg: Txg) -> Option<u64> {
        VdevTree::asize(self, vdev, psize_bytes, txg)
    }
    fn gang_header_asize(&self, vdev: VdevId) -> Option<u64> {
        VdevTree::gang_header_asize(self, vdev)
    }
}

/// The allocator's settings of a concrete top-level vdev. Page `docs/allocator.md`.
#[derive(Clone)]
pub struct VdevSpace {
    /// How it is divided into metaslabs.
    pub geometry: VdevGeometry,
    /// Its allocation class.
    pub class: AllocationClass,
    /// Useful bytes in each raw sector of 512 bytes, for reporting space usage.
    pub deflate_ratio: u64,
    /// Children's worth of data: weights its share in the rotation of vdevs.
    pub data_disks: u64,
    /// Whether it may be allocated from: not during removal, nor with `allocating=off`.
    pub is_allocating: bool,
    /// The first txg that may allocate from it: the one after the txg that adds it to the pool; 0 for the
    /// vdevs that a pool is created or opened with. The txg before it must be committed too: the intent log of
    /// an open txg is on the disks earlier than its tree, and after a crash it must lie in space that the pool has.
    pub usable_from: Txg,
    /// How much space blocks take on it.
    pub sizes: Arc<dyn BlockSizes>,
}

impl fmt::Debug for VdevSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VdevSpace")
            .field("geometry", &self.geometry)
            .field("class", &self.class)
            .field("is_allocating", &self.is_allocating)
            .field("usable_from", &self.usable_from)
            .finish_non_exhaustive()
    }
}

impl VdevSpace {
    /// The top-level vdev.
    #[must_use]
    pub fn vdev(&self) -> VdevId {
        self.geometry.vdev()
    }
    /// Derives the settings of a concrete top-level vdev with this geometry from the tree: class, ratio,
    /// disks, sizes. Usable at once.
    #[must_use]
    pub fn from_tree(tree: &Arc<VdevTree>, geometry: VdevGeometry) -> Self {
        let vdev = geometry.vdev();
        let node = tree.top(vdev);
        let class = node.map_or(AllocationClass::Normal, |node| match node.class {
            _ if node.config.is_log => AllocationClass::Log,
            millpond_vdev::AllocationClass::Normal => AllocationClass::Normal,
            millpond_vdev::AllocationClass::Log => AllocationClass::Log,
            millpond_vdev::AllocationClass::Special => AllocationClass::Special,
            millpond_vdev::AllocationClass::Dedup => AllocationClass::Dedup,
        });
        Self {
            geometry,
            class,
            deflate_ratio: tree.deflate_ratio(vdev).unwrap_or(512),
            data_disks: tree.data_disks(vdev).unwrap_or(1),
            is_allocating: node
                .is_some_and(|node| !node.config.non_allocating && !node.config.removing),
            usable_from: Txg(0),
            sizes: tree.clone(),
        }
    }
}

/// The kind of a block, which determines where it is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Data and metadata: normal vdevs.
    Normal,
    /// Blocks for special vdevs: special vdevs, else normal ones.
    Special,
    /// Dedup tables: dedup vdevs, or special ones in pools without dedup vdevs; else normal ones.
    Dedup,
    /// The intent log: log vdevs, else the metaslabs reserved for it, else normal vdevs.
    Log,
}

/// A request for the space of one block. Page `docs/allocator.md`.
#[derive(Debug, Clone, Copy)]
pub struct AllocRequest<'a> {
    /// The vdevs to allocate from.
    pub placement: Placement,
    /// Bytes to store, without parity: a multiple of 512, at most 16 MiB. 512 for a gang header.
    pub psize_bytes: u64,
    /// The number of copies, 1 to 3.
    pub copies: u8,
    /// Addresses that the copies should not be near, such as those of the gang header above.
    pub avoid: &'a [Dva],
    /// Concurrent writers use different lanes, so that they fill different metaslabs and do not contend.
    /// Any number is valid; blocks of equal lanes are adjacent.
    pub lane: usize,
}

impl AllocRequest<'_> {
    /// A request for `copies` of `psize_bytes`, in lane 0 and with nothing to avoid.
    #[must_use]
    pub fn new(placement: Placement, psize_bytes: u64, copies: u8) -> Self {
        Self {
            placement,
            psize_bytes,
            copies,
            avoid: &[],
            lane: 0,
        }
    }
}

/// No vdev for this placement has this much contiguous free space, including normal vdevs as the fallback
/// of special or log placement. Smaller pieces may fit: the block can be ganged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no {psize_bytes} contiguous bytes are free; the largest piece has {largest_free_bytes}")]
pub struct NoSpace {
    /// The requested size.
    pub psize_bytes: u64,
    /// Raw bytes of the largest free piece on these vdevs, as an upper bound: metaslabs that are not loaded
    /// are estimated from their histograms.
    pub largest_free_bytes: u64,
}

/// The byte range of an address on its vdev; for a gang block that of the header.
pub(super) fn range_of(space: &VdevSpace, dva: &Dva) -> Option<Range<u64>> {
    let length = if dva.is_gang {
        space.sizes.gang_header_asize(dva.vdev)?
    } else {
        dva.asize_bytes
    };
    let end = dva.offset_bytes.checked_add(length)?;
    Some(dva.offset_bytes..end)
}
