//! Detects sequential readers of an object.
//!
//! Each reader that continues where it stopped is a stream. One object can have several streams at once. The
//! next blocks of a stream are worth prefetching, and more of them the further the stream has come. Random
//! readers never become streams.
//!
//! This module only computes; it reads no blocks.

use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use std::ops::Range;

/// Maximum number of streams that are tracked for one object.
const STREAMS_MAX: usize = 8;
/// How far a recognised stream may step back or jump ahead, in bytes, within its prefetched range. Kernel
/// readers send several requests at once, and these overtake each other.
const DISORDER_BYTES_MAX: u64 = 1 << 20;
/// Distance behind a stream, in bytes, within which overtaken requests may still read blocks.
const LAG_BYTES: u64 = DISORDER_BYTES_MAX;
/// A stream accepts reads out of order only if it was met within this many reads of the object. After that,
/// an unrelated random read is more likely.
const DISORDER_READS_MAX: u64 = 64;

/// The readers of one object. Takes about 500 bytes.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: Vec<Stream>,
    reads: u64,
}

#[derive(Debug)]
struct Stream {
    /// The offset just past the last byte read.
    next: u64,
    /// Bytes read in order.
    run: u64,
    /// Reads that continued where an earlier read stopped.
    steps: u64,
    /// Prefetch window in bytes; 0 until the stream is recognised.
    window: u64,
    /// The block after the last one that was requested for prefetch.
    issued: u64,
    /// The block after the last one whose indirect block was requested.
    reached: u64,
    /// The first block that the reader may still ask for. Blocks from the stream's start up to here were
    /// already reported as left behind.
    left: u64,
    /// The count of reads when the stream was last met.
    met: u64,
    passed: Arc<AtomicU64>,
}

/// What a read predicts: which blocks will be read next, and which will not be read again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Noted {
    /// Blocks for other threads to prefetch.
    pub(crate) ahead: Option<Stretch>,
    /// Blocks that a stream has left behind. Each block is reported once. May be empty.
    pub(crate) behind: Range<u64>,
    /// Whether the read continues where an earlier one stopped.
    pub(crate) is_continued: bool,
}

/// Blocks that will be read soon.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    /// The first block.
    pub(crate) first: u64,
    /// The block after the last one.
    pub(crate) end: u64,
    /// The blocks whose indirect blocks are wanted now, so that these are cached when the blocks themselves
    /// are read: the first block and the one after the last. May be empty.
    pub(crate) reach: (u64, u64),
    /// The reader has already asked for blocks below this one.
    passed: Arc<AtomicU64>,
}

impl Stretch {
    /// A part of this stretch.
    pub(crate) fn part(&self, first: u64, end: u64) -> Self {
        Self {
            first,
            end,
            ..self.clone()
        }
    }

    /// Whether the reader has already passed a block of this stretch.
    pub(crate) fn is_passed(&self, block: u64) -> bool {
        block < self.passed.load(Ordering::Relaxed)
    }
}

/// A read and the properties of its object that stream detection needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    /// The first byte.
    pub(crate) offset: u64,
    /// The number of bytes.
    pub(crate) length: u64,
    /// Size of a block in bytes, never 0.
    pub(crate) block_bytes: u64,
    /// The object's last block.
    pub(crate) last_block: u64,
    /// The largest prefetch window, in bytes.
    pub(crate) window_max: u64,
}

impl Stream {
    /// Whether an out-of-order read belongs to this stream. `reads` is the number of reads of the object so
    /// far.
    fn fits(&self, read: &Read, reads: u64) -> bool {
        let is_fresh = reads.saturating_sub(self.met) < DISORDER_READS_MAX;
        let disorder = self.window.min(DISORDER_BYTES_MAX);
        let ahead = self.issued.saturating_mul(read.block_bytes);
        let highest = ahead.max(self.next).min(self.next.saturating_add(disorder));
        is_fresh
            && self.window > 0
            && (self.next.saturating_sub(disorder)..=highest).contains(&read.offset)
    }

    /// Returns the blocks that have now fallen far enough behind, each of them once.
    fn leave(&mut self, block_bytes: u64) -> Range<u64> {
        let from = self.left;
        self.left = from.max(self.next.saturating_sub(LAG_BYTES) / block_bytes);
        from..self.left
    }

    fn stretch(&mut self, first: u64, end: u64, read: &Read) -> Option<Stretch> {
        let end_of_read = read.last_block.saturating_add(1);
        let end = end.min(end_of_read);
        if first >= end {
            return None;
        }
        let known = self.reached.max(first);
        let window = self.window / read.block_bytes.max(1);
        self.reached = known.max(end.saturating_add(window).min(end_of_read));
        Some(Stretch {
            first,
            end,
            reach: (known, self.reached),
            passed: Arc::clone(&self.passed),
        })
    }
}

impl Streams {
    /// Notes a read before it is made. Returns the blocks for other threads to read meanwhile: those of this
    /// read after its first block, and those that a stream will read next.
    pub(crate) fn note(&mut self, read: &Read) -> Noted {
        let Some(end) = read.offset.checked_add(read.length) else {
            return Noted::default();
        };
        let block = read.block_bytes.max(1);
        self.reads += 1;
        let first = read.offset / block;
        // The block after the last one of this read.
        let behind = end.div_ceil(block);
        // Recognised streams come first: a request that overtook others may have started a stream of its own.
        let (reads, at) = (self.reads, read.offset);
        let find = |is_it: &dyn Fn(&Stream) -> bool| self.streams.iter().position(is_it);
        let found = find(&|one| one.window > 0 && one.next == at)
            .or_else(|| find(&|one| one.fits(read, reads)))
            .or_else(|| find(&|one| one.next == at));
        let Some(index) = found else {
            let mut stream = Stream {
                next: end,
                run: read.length,
                steps: 0,
                window: 0,
                issued: behind,
                reached: first + 1,
                left: first,
                met: self.reads,
                passed: Arc::new(AtomicU64::new(first)),
            };
            let ahead = stream.stretch(first + 1, behind, read);
            self.take_in(stream);
            let behind = 0..0;
            return Noted {
                ahead,
                behind,
                is_continued: false,
            };
        };
        let Some(stream) = self.streams.get_mut(index) else {
            return Noted::default();
        };
        stream.next = stream.next.max(end);
        stream.run = stream.run.saturating_add(read.length);
        stream.steps += 1;
        stream.met = reads;
        stream.passed.fetch_max(first, Ordering::Relaxed);
        let from = stream.issued.max(first + 1);
        let left = stream.issued.saturating_sub(behind).saturating_mul(block);
        let is_stream = stream.steps > 1 || stream.run > block;
        let mut to = behind;
        if is_stream && left <= stream.window / 2 {
            let least = block.saturating_mul(2).max(read.length);
            let wider = stream.window.saturating_mul(2).max(least);
            stream.window = wider.min(read.window_max).max(block);
            to = behind.saturating_add(stream.window / block);
        }
        let to = to.min(read.last_block.saturating_add(1));
        stream.issued = stream.issued.max(to);
        let ahead = stream.stretch(from, to, read);
        let behind = match stream.window {
            0 => 0..0,
            _ => stream.leave(block),
        };
        Noted {
            ahead,
            behind,
            is_continued: true,
        }
    }

    fn take_in(&mut self, stream: Stream) {
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|one| one.met) {
            *oldest = stream;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u64 = 128 << 10;
    const WINDOW: u64 = 16 << 20;

    fn read(offset: u64, length: u64) -> Read {
        Read {
            offset,
            length,
            block_bytes: BLOCK,
            last_block: 9999,
            window_max: WINDOW,
        }
    }

    fn blocks(streams: &mut Streams, read: &Read) -> Option<(u64, u64)> {
        let stretch = streams.note(read).ahead?;
        Some((stretch.first, stretch.end))
    }

    #[test]
    fn a_sequential_reader_gets_each_block_prefetched_once() {
        let mut streams = Streams::default();
        assert_eq!(
            blocks(&mut streams, &read(0, BLOCK)),
            None,
            "the first read"
        );
        let (mut next, mut widest) = (2, 0);
        for block in 1..2000 {
            if let Some((first, end)) = blocks(&mut streams, &read(block * BLOCK, BLOCK)) {
                assert_eq!(first, next);
                (next, widest) = (end, widest.max(end - block - 1));
            }
            assert!(next > block + 1, "something is always ahead");
            assert!(next <= block + 1 + WINDOW / BLOCK);
        }
        assert_eq!(widest, WINDOW / BLOCK);
    }

    #[test]
    fn a_reader_of_small_pieces_becomes_a_stream_too() {
        let mut streams = Streams::default();
        assert_eq!(blocks(&mut streams, &read(0, 4096)), None);
        assert_eq!(blocks(&mut streams, &read(4096, 4096)), None);
        assert_eq!(blocks(&mut streams, &read(8192, 4096)), Some((1, 3)));
        assert_eq!(blocks(&mut streams, &read(12288, 4096)), None);
    }

    #[test]
    fn one_long_read_prefetches_only_its_own_rest() {
        let mut streams = Streams::default();
        let long = read(40 * BLOCK + 5, 8 * BLOCK);
        assert_eq!(blocks(&mut streams, &long), Some((41, 49)));
    }

    #[test]
    fn indirect_blocks_are_prefetched_once_before_their_children() {
        let mut streams = Streams::default();
        let mut reached = 2;
        for block in 0..1000 {
            let Some(stretch) = streams.note(&read(block * BLOCK, BLOCK)).ahead else {
                continue;
            };
            assert!(stretch.reach.0 == reached.max(stretch.first));
            assert!(stretch.reach.1 > stretch.end);
            reached = stretch.reach.1;
        }
        assert!(reached > 1000 + WINDOW / BLOCK);
    }

    #[test]
    fn random_reads_prefetch_nothing() {
        let mut streams = Streams::default();
        let mut at = 1u64;
        for _ in 0..5000 {
            at = at
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let offset = (at >> 20) % (9999 * BLOCK / 4096) * 4096;
            assert_eq!(blocks(&mut streams, &read(offset, 4096)), None);
        }
    }

    #[test]
    fn backward_reads_prefetch_nothing() {
        let mut streams = Streams::default();
        for block in (0..1000).rev() {
            assert_eq!(blocks(&mut streams, &read(block * BLOCK, BLOCK)), None);
        }
    }

    #[test]
    fn random_reads_do_not_continue_an_ended_stream() {
        let mut streams = Streams::default();
        (0..100).for_each(|block| drop(streams.note(&read(block * BLOCK, BLOCK))));
        // Random reads elsewhere, for a while.
        (0..100).for_each(|one| drop(streams.note(&read((5000 - one * 7) * BLOCK, 4096))));
        assert_eq!(blocks(&mut streams, &read(101 * BLOCK + 4096, 4096)), None);
    }

    #[test]
    fn two_readers_of_one_object_are_two_streams() {
        let mut streams = Streams::default();
        let mut seen = [vec![], vec![]];
        for step in 0..500 {
            for (which, start) in [0, 5000].into_iter().enumerate() {
                let own = read((start + step) * BLOCK, BLOCK);
                seen[which].extend(blocks(&mut streams, &own));
            }
        }
        for (start, seen) in [0, 5000].into_iter().zip(seen) {
            assert_eq!(seen[0].0, start + 2);
            assert!(seen.windows(2).all(|pair| pair[0].1 == pair[1].0));
            assert!(seen.last().unwrap().1 > start + 500);
        }
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_stream() {
        let mut streams = Streams::default();
        let mut reach = 0;
        for pair in 0..500u64 {
            for block in [pair * 2 + 1, pair * 2] {
                if let Some((first, end)) = blocks(&mut streams, &read(block * BLOCK, BLOCK)) {
                    assert!(first >= reach, "nothing is asked for twice");
                    reach = end;
                }
            }
        }
        assert!(reach > 1000);
    }

    #[test]
    fn no_block_past_the_end_is_prefetched_as_it_shrinks() {
        let mut streams = Streams::default();
        let mut end = 100;
        for block in 0..150 {
            if block == 50 {
                end = 60;
            }
            let own = Read {
                last_block: end,
                ..read(block * BLOCK, BLOCK)
            };
            if let Some((first, behind)) = blocks(&mut streams, &own) {
                assert!(first < behind && behind <= end + 1);
            }
        }
    }

    #[test]
    fn blocks_passed_by_the_reader_are_known() {
        let mut streams = Streams::default();
        streams.note(&read(0, BLOCK));
        let stretch = streams.note(&read(BLOCK, BLOCK)).ahead.unwrap();
        assert!(stretch.is_passed(0) && !stretch.is_passed(1));
        streams.note(&read(2 * BLOCK, BLOCK));
        assert!(stretch.is_passed(1) && !stretch.is_passed(2));
    }

    #[test]
    fn a_stream_drops_each_block_once_after_some_distance() {
        for length in [4096, BLOCK, 3 * BLOCK] {
            let mut streams = Streams::default();
            let (mut left, mut end) = (700, 0);
            for at in (700 * BLOCK..800 * BLOCK).step_by(length as usize) {
                let behind = streams.note(&read(at, length)).behind;
                if !behind.is_empty() {
                    assert_eq!(behind.start, left);
                    left = behind.end;
                }
                end = at + length;
                assert!(left == 700 || left * BLOCK + LAG_BYTES <= end);
            }
            assert_eq!(left, (end - LAG_BYTES) / BLOCK);
        }
    }

    #[test]
    fn reordered_reads_are_not_dropped_too_early() {
        let mut streams = Streams::default();
        for pair in 0..500u64 {
            for block in [pair * 2 + 1, pair * 2] {
                let behind = streams.note(&read(block * BLOCK, BLOCK)).behind;
                assert!(behind.is_empty() || behind.end + 4 < block);
            }
        }
    }

    #[test]
    fn random_reads_drop_nothing() {
        let mut streams = Streams::default();
        for step in 0..5000u64 {
            let at = step * 7919 % 9000 * BLOCK;
            assert!(streams.note(&read(at, 4096)).behind.is_empty());
        }
    }

    proptest! {
        #[test]
        fn any_reads_at_all_give_bounded_stretches(
            reads in prop::collection::vec(
                (any::<u64>(), any::<u32>(), 9u32..25, any::<u64>(), any::<u32>()), 1..200),
        ) {
            let mut streams = Streams::default();
            for (offset, length, shift, last_block, window) in reads {
                let own = Read {
                    offset: offset >> (offset % 64),
                    length: u64::from(length),
                    block_bytes: 1 << shift,
                    last_block: last_block >> (last_block % 64),
                    window_max: u64::from(window),
                };
                let noted = streams.note(&own);
                prop_assert!(noted.behind.start <= noted.behind.end);
                if let Some(stretch) = noted.ahead {
                    prop_assert!(stretch.first < stretch.end);
                    prop_assert!(stretch.end <= own.last_block.saturating_add(1));
                    let most = own.length / own.block_bytes + own.window_max / own.block_bytes + 3;
                    prop_assert!(stretch.end - stretch.first <= most);
                    prop_assert!(stretch.reach.0 <= stretch.reach.1);
                    prop_assert!(stretch.reach.1 - stretch.reach.0 <= 2 * most);
                }
                prop_assert!(streams.streams.len() <= STREAMS_MAX);
            }
        }
    }
}
