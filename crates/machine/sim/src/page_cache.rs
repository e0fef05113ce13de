//! What a system keeps of a disk in memory, and what it forgets when a write-back fails.

use crate::Content;
use crate::content::{PAGE_BYTES, Page};
use millpond_env::sync::Arc;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

/// What lies on the disk where the cache has something else; `None` for a page of zeros.
type Beneath = BTreeMap<u64, Option<Arc<Page>>>;

/// The page cache before a disk, as Linux has it: reads see what was written last. When a flush fails the pages count as
/// clean all the same: reads give the new bytes until the pages are evicted, and no later flush writes them.
#[derive(Debug, Default)]
pub(crate) struct PageCache {
    /// What reads see.
    content: Content,
    dirty: Beneath,
    lost: Beneath,
}

/// The pages of a range; empty if it is.
pub(crate) fn pages(offset_bytes: u64, length_bytes: u64) -> RangeInclusive<u64> {
    match (offset_bytes.saturating_add(length_bytes)).checked_sub(1) {
        Some(last) if length_bytes > 0 => offset_bytes / PAGE_BYTES..=last / PAGE_BYTES,
        _ => RangeInclusive::new(1, 0),
    }
}

pub(crate) fn pages_of(bytes: &Range<u64>) -> RangeInclusive<u64> {
    pages(bytes.start, bytes.end.saturating_sub(bytes.start))
}

impl PageCache {
    pub(crate) fn new(content: Content) -> Self {
        Self {
            content,
            ..Self::default()
        }
    }
    pub(crate) fn content(&self) -> &Content {
        &self.content
    }
    pub(crate) fn write(&mut self, offset_bytes: u64, bytes: &[u8]) {
        for page in pages(offset_bytes, bytes.len() as u64) {
            if self.dirty.contains_key(&page) {
                continue;
            }
            let beneath = self.lost.remove(&page);
            let beneath = beneath.unwrap_or_else(|| self.content.page(page));
            self.dirty.insert(page, beneath);
        }
        self.content.write(offset_bytes, bytes);
    }
    pub(crate) fn discard(&mut self, offset_bytes: u64, length_bytes: u64) {
        self.content.clear(offset_bytes, length_bytes);
        let range = pages(offset_bytes, length_bytes);
        self.dirty.retain(|page, _| !range.contains(page));
        self.lost.retain(|page, _| !range.contains(page));
    }
    /// What is dirty, everywhere or in the pages of some bytes, is on the disk.
    pub(crate) fn flushed(&mut self, part: Option<&Range<u64>>) {
        self.clean(part);
    }
    /// What is dirty, everywhere or in the pages of some bytes, never gets to the disk.
    pub(crate) fn flush_failed(&mut self, part: Option<&Range<u64>>) {
        let mut lost = self.clean(part);
        self.lost.append(&mut lost);
    }
    fn clean(&mut self, part: Option<&Range<u64>>) -> Beneath {
        match part {
            None => std::mem::take(&mut self.dirty),
            Some(part) => {
                let hit: Vec<u64> = (self.dirty.range(pages_of(part)))
                    .map(|(page, _)| *page)
                    .collect();
                let taken = hit.iter().filter_map(|page| self.dirty.remove_entry(page));
                taken.collect()
            }
        }
    }
    /// Drops clean pages: of those that were lost the disk's old bytes are seen from now on.
    pub(crate) fn evict(&mut self) {
        for (page, beneath) in std::mem::take(&mut self.lost) {
            self.content.set_page(page, beneath);
        }
    }
    /// What would be seen had the lost pages been evicted.
    pub(crate) fn without_lost(&self) -> Content {
        let mut content = self.content.clone();
        for (page, beneath) in &self.lost {
            content.set_page(*page, beneath.clone());
        }
        content
    }
}
