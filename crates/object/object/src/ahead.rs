//! Errands that read the next blocks of an object before its reader asks for them.

use crate::streams::{Read, Streams, Stretch};
use crate::tree::Tree;
use millpond_block::{BlockStore, Room};
use millpond_env::sync::Mutex;
use millpond_ondisk::Dnode;
use std::ops::Range;

/// Content that one errand reads, in bytes: small blocks are read several at a time.
const ERRAND_BYTES: u64 = 128 << 10;

/// What becomes of content in memory when its reader has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keeping {
    /// It is kept for whoever asks next, as the cache decides.
    #[default]
    Here,
    /// The reader keeps what it gets, as the kernel does with the pages of files: blocks that it has read from front
    /// to back are let go of. Who jumps about may come back for another part of a block: those stay.
    ByReader,
}

/// One errand.
#[derive(Debug)]
pub(crate) enum Errand {
    /// An indirect block directly above data, by its number.
    Indirect(u64),
    /// Data blocks, with memory for each.
    Blocks(Stretch, Vec<Room>),
}

impl Errand {
    /// Reads, and gives up at the first trouble. Blocks that `is_wanted` says no to are left out.
    pub(crate) fn run(self, tree: &Tree<'_>, is_wanted: impl Fn(u64) -> bool) {
        match self {
            Self::Indirect(id) => {
                tree.read_ahead(1, id, Room::default());
            }
            Self::Blocks(stretch, mut rooms) => {
                for id in stretch.first..stretch.end {
                    let is_left = !stretch.is_passed(id) && is_wanted(id);
                    if is_left && !tree.read_ahead(0, id, rooms.pop().unwrap_or_default()) {
                        return;
                    }
                }
            }
        }
    }
}

/// Takes note of a read of `length` bytes, which is about to be made, and sends errands for what belongs to it and
/// what will follow. `send` is given each with the bytes that it reads, and tells whether there will be more of them.
/// Returns the blocks that a reader from front to back has left behind.
pub(crate) fn before_read(
    store: &BlockStore,
    streams: &Mutex<Streams>,
    shape: Shape,
    offset: u64,
    length: u64,
    send: impl FnMut(u64, Errand) -> bool,
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
    mut send: impl FnMut(u64, Errand) -> bool,
) {
    if shape.has_indirect {
        // The reader meets the indirect block above its first block itself.
        let above = |block: u64| block.checked_shr(shape.pointers_shift).unwrap_or(0);
        let (known, reach) = stretch.reach;
        for id in above(known.saturating_sub(1)).saturating_add(1)..=above(reach.saturating_sub(1))
        {
            if !send(shape.indirect_bytes, Errand::Indirect(id)) {
                return;
            }
        }
    }
    let step = (ERRAND_BYTES / shape.block_bytes.max(1)).max(1);
    let mut first = stretch.first;
    while first < stretch.end {
        let end = stretch.end.min(first.saturating_add(step));
        let length = usize::try_from(shape.block_bytes).unwrap_or(0);
        let rooms = (first..end).map(|_| store.room(length));
        let errand = Errand::Blocks(stretch.part(first, end), rooms.collect());
        if !send((end - first).saturating_mul(shape.block_bytes), errand) {
            return;
        }
        first = end;
    }
}

/// What of an object matters here.
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

/// Long reads are noted in pieces of this length, so that what is sent for one at a time is bounded.
pub(crate) fn piece_bytes(store: &BlockStore) -> usize {
    match store.ahead_bytes_max() {
        0 => usize::MAX,
        // At most 16 MiB.
        bytes => bytes as usize,
    }
}
