//! Prefetch of an object's next blocks before its reader asks for them.

use crate::caching::Caching;
use crate::stream_detection::{Read, Streams, Stretch};
use crate::tree::Tree;
use millpond_block::{BlockStore, PooledBuf};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_ondisk::{Dnode, ObjectType};
use std::ops::Range;

/// What happens to cached content after its reader has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheHint {
    /// It stays cached, subject to the cache's eviction.
    #[default]
    Retain,
    /// The reader keeps its own copy, as the kernel's page cache does for files. Blocks that a sequential
    /// reader has passed are evicted. A random reader may ask for another part of a block, so its blocks stay
    /// cached.
    DropBehind,
}

/// One prefetch request.
#[derive(Debug)]
pub(crate) enum PrefetchRequest {
    /// An indirect block of level 1, by its block id.
    Indirect(u64),
    /// Data blocks, with a buffer for each.
    Blocks(Stretch, Vec<PooledBuf>),
}

impl PrefetchRequest {
    /// Reads the blocks. Skips blocks for which `is_wanted` returns false.
    pub(crate) fn run(self, tree: &Tree<'_>, is_wanted: impl Fn(u64) -> bool) {
        match self {
            Self::Indirect(id) => {
                tree.prefetch(1, id, PooledBuf::default());
            }
            Self::Blocks(stretch, mut buffers) => {
                let left = (stretch.first..stretch.end)
                    .filter(|id| !stretch.is_passed(*id) && is_wanted(*id));
                let left = left.map(|id| (id, buffers.pop().unwrap_or_default()));
                tree.prefetch_data(left);
            }
        }
    }
}

/// What is known of a read before it is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Foreseen {
    /// The blocks that a sequential reader has left behind.
    pub(crate) behind: Range<u64>,
    /// Whether the read continues where an earlier one stopped.
    pub(crate) is_continued: bool,
}

/// Notes a read of `length` bytes that is about to be made and sends prefetch requests for the rest of it and
/// for what will follow, as far as the dataset's property permits.
///
/// `send` receives each request with the number of bytes that it reads, and returns whether it accepts more.
pub(crate) fn before_read(
    store: &BlockStore,
    streams: &Mutex<Streams, rank::Leaf>,
    shape: Shape,
    (offset, length): (u64, u64),
    caching: Caching,
    mut send: impl FnMut(u64, PrefetchRequest) -> bool,
) -> Foreseen {
    let window_max = store.ahead_bytes_max();
    if window_max == 0 && caching.kept.contains(false) {
        return Foreseen::default();
    }
    let noted = streams.lock().note(&Read {
        offset,
        length,
        block_bytes: shape.block_bytes.max(1),
        last_block: shape.last_block,
        window_max,
    });
    if window_max == 0 {
        // Nothing was prefetched, and nothing is dropped.
        return Foreseen {
            is_continued: noted.is_continued,
            ..Foreseen::default()
        };
    }
    if let Some(stretch) = &noted.ahead {
        if caching.prefetched.contains(true) {
            send_indirect(shape, stretch, &mut send);
        }
        if caching.prefetched.contains(shape.object_type.is_metadata()) {
            send_blocks(store, shape, stretch, &mut send);
        }
    }
    Foreseen {
        behind: noted.behind,
        is_continued: noted.is_continued,
    }
}

/// Sends requests for the indirect blocks that a stretch will need.
fn send_indirect(
    shape: Shape,
    stretch: &Stretch,
    send: &mut impl FnMut(u64, PrefetchRequest) -> bool,
) {
    if shape.has_indirect {
        // The reader itself reads the indirect block above its first block.
        let above = |block: u64| block.checked_shr(shape.pointers_shift).unwrap_or(0);
        let (known, reach) = stretch.reach;
        for id in above(known.saturating_sub(1)).saturating_add(1)..=above(reach.saturating_sub(1))
        {
            if !send(shape.indirect_bytes, PrefetchRequest::Indirect(id)) {
                return;
            }
        }
    }
}

/// Sends requests for the blocks of a stretch.
fn send_blocks(
    store: &BlockStore,
    shape: Shape,
    stretch: &Stretch,
    send: &mut impl FnMut(u64, PrefetchRequest) -> bool,
) {
    let step = (store.prefetch_request_bytes() / shape.block_bytes.max(1)).max(1);
    let mut first = stretch.first;
    while first < stretch.end {
        let end = stretch.end.min(first.saturating_add(step));
        let length = usize::try_from(shape.block_bytes).unwrap_or(0);
        let buffers = (first..end).map(|_| store.buffer(length));
        let request = PrefetchRequest::Blocks(stretch.part(first, end), buffers.collect());
        if !send((end - first).saturating_mul(shape.block_bytes), request) {
            return;
        }
        first = end;
    }
}

/// The properties of an object that prefetching needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) block_bytes: u64,
    pub(crate) last_block: u64,
    pub(crate) object_type: ObjectType,
    pub(crate) has_indirect: bool,
    pub(crate) indirect_bytes: u64,
    pub(crate) pointers_shift: u32,
}

impl Shape {
    pub(crate) fn of(dnode: &Dnode) -> Self {
        Self {
            block_bytes: dnode.data_block_bytes(),
            last_block: dnode.block_id_max.0,
            object_type: dnode.object_type,
            has_indirect: dnode.levels > 1,
            indirect_bytes: dnode.indirect_block_bytes(),
            pointers_shift: dnode.pointers_shift(),
        }
    }
}

/// Length of the pieces in which long reads are noted, in bytes. This bounds what one call of `before_read`
/// sends.
pub(crate) fn piece_bytes(store: &BlockStore) -> usize {
    match store.ahead_bytes_max() {
        0 => usize::MAX,
        // At most 16 MiB.
        bytes => bytes as usize,
    }
}
