//! Bytes written to a part of a block while the rest stays unchanged.
//!
//! When a large record is partly overwritten, only the new bytes are kept. They are merged into the record
//! when the txg is written. This way a txg can hold many small writes, and a record that is filled piece by
//! piece is not copied before it is complete.

use std::collections::BTreeMap;

/// With more runs than this, the block is kept as a whole.
const RUNS_MAX: usize = 256;

/// Runs of bytes by their start. They do not overlap but may touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PartialWrite {
    runs: BTreeMap<usize, Vec<u8>>,
    /// The sum of their lengths.
    bytes: usize,
}

impl PartialWrite {
    /// Writes bytes at `start` over what is held there. Returns by how many bytes the held total grows.
    pub(crate) fn put(&mut self, start: usize, bytes: &[u8]) -> usize {
        let before = self.bytes;
        let end = start + bytes.len();
        // The run that begins at or before the start, if it reaches the start.
        let left = self.runs.range_mut(..=start).next_back();
        if let Some((first, run)) = left
            && *first + run.len() >= start
        {
            let at = start - first;
            let inside = bytes.len().min(run.len() - at);
            if let Some(place) = run.get_mut(at..at + inside) {
                place.copy_from_slice(&bytes[..inside]);
            }
            let rest = &bytes[inside..];
            if rest.is_empty() {
                return 0;
            }
            let first = *first;
            self.cut(start + inside, end, Some(first));
            if let Some(run) = self.runs.get_mut(&first) {
                run.extend_from_slice(rest);
                self.bytes += rest.len();
            }
        } else {
            self.cut(start, end, None);
            self.runs.insert(start, bytes.to_vec());
            self.bytes += bytes.len();
        }
        self.bytes - before.min(self.bytes)
    }

    /// Removes the bytes between `start` and `end`, except from the run `kept`.
    fn cut(&mut self, start: usize, end: usize, kept: Option<usize>) {
        let inside: Vec<usize> = (self.runs.range(start..end))
            .map(|(first, _)| *first)
            .filter(|first| Some(*first) != kept)
            .collect();
        for first in inside {
            let Some(mut run) = self.runs.remove(&first) else {
                continue;
            };
            self.bytes -= run.len();
            if first + run.len() > end {
                let tail = run.split_off(end - first);
                self.bytes += tail.len();
                self.runs.insert(end, tail);
            }
        }
    }

    /// Whether there are too many runs to keep them apart from the rest of the block.
    pub(crate) fn is_shattered(&self) -> bool {
        self.runs.len() > RUNS_MAX
    }

    /// The number of bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the parts over a block's content. Bytes beyond the end of `content` are ignored.
    pub(crate) fn apply(&self, content: &mut [u8]) {
        self.apply_window(0, content);
    }

    /// As [`PartialWrite::apply`], for the part of the block that begins at `start`.
    pub(crate) fn apply_window(&self, start: usize, window: &mut [u8]) {
        let end = start + window.len();
        let before = self.runs.range(..start).next_back();
        let inside = self.runs.range(start..end);
        for (first, run) in before.into_iter().chain(inside) {
            let from = start.max(*first);
            let to = end.min(first + run.len());
            if from < to
                && let Some(place) = window.get_mut(from - start..to - start)
            {
                place.copy_from_slice(&run[from - first..to - first]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 64;

    proptest! {
        #[test]
        fn partial_writes_equal_one_whole_write(
            writes in prop::collection::vec((0..SIZE, 1..SIZE, any::<u8>()), 1..40),
            window in (0..SIZE, 1..SIZE),
        ) {
            let mut parts = PartialWrite::default();
            let mut whole = [None; SIZE];
            for (start, length, byte) in writes {
                let end = (start + length).min(SIZE);
                let bytes: Vec<u8> = (start..end).map(|at| byte ^ at as u8).collect();
                let held = parts.bytes();
                let more = parts.put(start, &bytes);
                for (at, byte) in (start..end).zip(bytes) {
                    whole[at] = Some(byte);
                }
                prop_assert_eq!(parts.bytes(), whole.iter().flatten().count());
                prop_assert_eq!(parts.bytes(), held + more);
                prop_assert_eq!(parts.runs.values().map(Vec::len).sum::<usize>(), parts.bytes());
            }
            let old = [7u8; SIZE];
            let mut now = old;
            parts.apply(&mut now);
            let expected: Vec<u8> = whole.iter().map(|byte| byte.unwrap_or(7)).collect();
            prop_assert_eq!(&now[..], &expected[..]);
            let (from, to) = (window.0, (window.0 + window.1).min(SIZE));
            let mut part = old[from..to].to_vec();
            parts.apply_window(from, &mut part);
            prop_assert_eq!(&part[..], &expected[from..to]);
        }
    }

    #[test]
    fn a_block_filled_from_front_to_back_is_one_run() {
        let mut parts = PartialWrite::default();
        for at in 0..16 {
            parts.put(at * 4, &[at as u8; 4]);
        }
        assert_eq!((parts.runs.len(), parts.bytes()), (1, 64));
    }
}
