//! Prefetch of an object's next blocks before its reader asks for them.

use crate::stream_detection::{Read, Streams, Stretch};
use crate::tree::Tree;
use millpond_block::{BlockStore, PooledBuf};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_ondisk::Dnode;
use std::ops::Range;

/// Content that one prefetch request reads, in bytes. Small blocks are read several at a time.
const ERRAND_BYTES: u64 = 128 << 10;

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
    /// Reads the blocks and stops at the first failure. Skips blocks for which `is_wanted` returns false.
    pub(crate) fn run(self, tree: &Tree<'_>, is_wanted: impl Fn(u64) -> bool) {
        match self {
            Self::Indirect(id) => {
                tree.prefetch(1, id, PooledBuf::default());
            }
            Self::Blocks(stretch, mut buffers) => {
                for id in stretch.first..stretch.end {
                    let is_left = !stretch.is_passed(id) && is_wanted(id);
                    if is_left && !tree.prefetch(0, id, buffers.pop().unwrap_or_default()) {
                        return;
                    }
                }
            }
        }
    }
}

/// Notes a read of `length` bytes that is about to be made and sends prefetch requests for the rest of it and
/// for what will follow.
///
/// `send` receives each request with the number of bytes that it reads, and returns whether it accepts more.
/// Returns the blocks that a sequential reader has left behind.
pub(crate) fn before_read(
    store: &BlockStore,
    streams: &Mutex<Streams, rank::Leaf>,
    shape: Shape,
    offset: u64,
    length: u64,
    send: impl FnMut(u64, PrefetchRequest) -> bool,
) -> Range<u64> {
    let window_max = store.ahead_bytes_max();
    if window_max == 0 {
        return 0..0;
    }
    let noted = streams.lock().note(&Read {
        offset,
        length,
        block_bytes: shape.block_bytes.max(1),
        last_block: shape.last_block,
        window_max,
    });
    if let Some(stretch) = &noted.ahead {
        send_errands(store, shape, stretch, send);
    }
    noted.behind
}

fn send_errands(
    store: &BlockStore,
    shape: Shape,
    stretch: &Stretch,
    mut send: impl FnMut(u64, PrefetchRequest) -> bool,
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
    let step = (ERRAND_BYTES / shape.block_bytes.max(1)).max(1);
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
    pub(crate) has_indirect: bool,
    pub(crate) indirect_bytes: u64,
    pub(crate) pointers_shift: u32,
}

impl Shape {
    pub(crate) fn of(dnode: &Dnode) -> Self {
        Self {
            block_bytes: dnode.data_block_bytes(),
            last_block: dnode.block_id_max.0,
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
