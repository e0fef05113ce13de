//! What is asked of the allocator, and what it must know of a vdev to answer.

use core::fmt;
use core::ops::Range;

use millpond_env::sync::Arc;
use millpond_ondisk::{Dva, Txg, VdevId};
use millpond_vdev::VdevTree;

use crate::{AllocationClass, VdevGeometry};

/// Bytes of a gang header, for the space it takes.
const GANG_HEADER_BYTES: u64 = 512;

/// How much space blocks take on each vdev.
pub trait BlockSizes: Send + Sync {
    /// Bytes that a block of `psize_bytes` written in `txg` takes on `vdev`, parity and padding
    /// included; `None` where nothing can be written.
    fn asize(&self, vdev: VdevId, psize_bytes: u64, txg: Txg) -> Option<u64>;
    /// Bytes that a gang header takes on `vdev`, at its first width.
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

/// What the allocator must know of a concrete top-level vdev. Page `docs/allocator.md`.
#[derive(Clone)]
pub struct VdevSpace {
    /// How it is cut into metaslabs.
    pub geometry: VdevGeometry,
    /// What it is allocated for.
    pub class: AllocationClass,
    /// Useful bytes in each raw sector of 512, for the figures.
    pub deflate_ratio: u64,
    /// Children's worth of data: how much it is given before others get their turn.
    pub data_disks: u64,
    /// Whether anything may be allocated from it: not while it is removed, nor with `allocating=off`.
    pub is_allocating: bool,
    /// The first txg that may allocate from it: the one after that which adds it to the pool, 0 for
    /// the vdevs that a pool is made of or opened with.
    pub usable_from: Txg,
    /// How much blocks take on it.
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
    /// What the tree knows of a concrete top-level vdev whose geometry is `geometry`: class, ratio,
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

/// What a block is, as far as its place goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Data and metadata: normal vdevs.
    Normal,
    /// What special vdevs are for: those, else normal ones.
    Special,
    /// Dedup tables: dedup vdevs, or special ones in pools without; else normal ones.
    Dedup,
    /// The intent log: log vdevs, else the metaslabs lent to it, else normal ones.
    Log,
}

/// One block's wish for space. Page `docs/allocator.md`.
#[derive(Debug, Clone, Copy)]
pub struct AllocRequest<'a> {
    /// Which vdevs it belongs on.
    pub placement: Placement,
    /// Bytes to be stored, without parity: a multiple of 512, at most 16 MiB. 512 for a gang header.
    pub psize_bytes: u64,
    /// How many copies, 1 to 3.
    pub copies: u8,
    /// Addresses that the copies should not be near, such as those of the gang header above.
    pub avoid: &'a [Dva],
    /// Writers that run side by side give different numbers, so that they fill different metaslabs
    /// and do not wait for each other. Any number will do; equal ones put blocks side by side.
    pub lane: usize,
}

impl AllocRequest<'_> {
    /// A wish for `copies` of `psize_bytes`, near what came before.
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

/// No vdev that the block may lie on has that much free space in one piece (or, on a special or log
/// placement, neither have normal ones). Smaller pieces may fit: the block can be ganged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no {psize_bytes} contiguous bytes are free; the largest piece has {largest_free_bytes}")]
pub struct NoSpace {
    /// What was asked for.
    pub psize_bytes: u64,
    /// Raw bytes that the largest free piece on these vdevs has, or may have (metaslabs that are not
    /// loaded are judged by their histograms).
    pub largest_free_bytes: u64,
}

/// Bytes on a vdev that an address names: for gang blocks the header's.
pub(super) fn range_of(space: &VdevSpace, dva: &Dva) -> Option<Range<u64>> {
    let length = if dva.is_gang {
        space.sizes.gang_header_asize(dva.vdev)?
    } else {
        dva.asize_bytes
    };
    let end = dva.offset_bytes.checked_add(length)?;
    Some(dva.offset_bytes..end)
}
