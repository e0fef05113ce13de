//! The content of a simulated disk.

use millpond_env::sync::Arc;
use std::collections::BTreeMap;

pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) type Page = [u8; PAGE_BYTES as usize];

/// What a disk has in a range that was discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// Zeros.
    Zeros,
    /// What was there before.
    Old,
    /// This number, again and again.
    Noise(u64),
}

/// A sparse byte array of any size.
///
/// Pages that were never written, or written with zeros as a whole, read as zeros and take no memory. A clone shares its pages with the
/// original (copy on write).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    /// Reads into `buffer` from `offset_bytes`.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) {
        each_page(offset_bytes, buffer.len(), |page, within, part| {
            let count = part.len();
            match self.pages.get(&page) {
                Some(bytes) => buffer[part].copy_from_slice(&bytes[within..within + count]),
                None => buffer[part].fill(0),
            }
        });
    }
    /// Writes `bytes` at `offset_bytes`.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) {
        each_page(offset_bytes, bytes.len(), |page, within, part| {
            let count = part.len();
            let new = &bytes[part];
            if count as u64 == PAGE_BYTES && new.iter().all(|byte| *byte == 0) {
                self.pages.remove(&page);
                return;
            }
            let held = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(held)[within..within + count].copy_from_slice(new);
        });
    }
    /// Zeroes a range and frees the memory of whole pages.
    pub fn clear(&mut self, offset_bytes: u64, length_bytes: u64) {
        let end = offset_bytes.saturating_add(length_bytes);
        let first_whole = offset_bytes.div_ceil(PAGE_BYTES);
        let end_whole = end / PAGE_BYTES;
        if first_whole < end_whole {
            let mut later = self.pages.split_off(&first_whole);
            self.pages.append(&mut later.split_off(&end_whole));
        }
        for page in [offset_bytes / PAGE_BYTES, end / PAGE_BYTES] {
            let start = offset_bytes.max(page * PAGE_BYTES);
            let stop = end.min((page + 1) * PAGE_BYTES);
            if let Some(held) = self.pages.get_mut(&page)
                && start < stop
            {
                let within = |at: u64| usize::try_from(at - page * PAGE_BYTES).unwrap_or(0);
                Arc::make_mut(held)[within(start)..within(stop)].fill(0);
            }
        }
    }
    /// Discards a range, and leaves in it what the disk leaves.
    pub(crate) fn discard(&mut self, offset_bytes: u64, length_bytes: u64, leaves: Discarded) {
        match leaves {
            Discarded::Zeros => self.clear(offset_bytes, length_bytes),
            Discarded::Old => {}
            Discarded::Noise(word) => {
                let noise = word.to_le_bytes().repeat(PAGE_BYTES as usize / 8);
                let end = offset_bytes.saturating_add(length_bytes);
                let mut at = offset_bytes;
                while at < end {
                    let next = (at / PAGE_BYTES + 1).saturating_mul(PAGE_BYTES).min(end);
                    let count = usize::try_from(next - at).unwrap_or(0);
                    self.write(at, noise.get(..count).unwrap_or_default());
                    at = next;
                }
            }
        }
    }
    /// The page of this number; `None` if it was never written.
    pub(crate) fn page(&self, number: u64) -> Option<Arc<Page>> {
        self.pages.get(&number).cloned()
    }
    /// Sets a page to a value that [`Content::page`] returned.
    pub(crate) fn set_page(&mut self, number: u64, page: Option<Arc<Page>>) {
        match page {
            Some(page) => self.pages.insert(number, page),
            None => self.pages.remove(&number),
        };
    }
    /// The approximate memory of the pages, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }
    /// Every page that takes memory: its offset in bytes, and its bytes.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages
            .iter()
            .map(|(page, bytes)| (page * PAGE_BYTES, bytes.as_slice()))
    }
}

/// Calls `each` with the page number, the offset of the part in the page, and the part of the buffer.
fn each_page(
    offset_bytes: u64,
    length: usize,
    mut each: impl FnMut(u64, usize, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < length {
        let at = offset_bytes + done as u64;
        let within = usize::try_from(at % PAGE_BYTES).unwrap_or(0);
        let count = (length - done).min(PAGE_BYTES as usize - within);
        each(at / PAGE_BYTES, within, done..done + count);
        done += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn content_equals_a_flat_array(steps in proptest::collection::vec((0u64..40_000, 0usize..9000, any::<Option<u8>>()), 1..20)) {
            let mut flat = vec![0u8; 50_000];
            let mut content = Content::default();
            let untouched = content.clone();
            for (offset, length, what) in steps {
                let place = usize::try_from(offset).unwrap();
                match what {
                    Some(byte) => {
                        content.write(offset, &vec![byte; length]);
                        flat[place..place + length].fill(byte);
                    }
                    None => {
                        content.clear(offset, length as u64);
                        flat[place..place + length].fill(0);
                    }
                }
                let mut found = vec![1; flat.len()];
                content.read(0, &mut found);
                prop_assert_eq!(&found, &flat);
            }
            prop_assert_eq!(untouched.memory_bytes(), 0);
        }
    }
}
