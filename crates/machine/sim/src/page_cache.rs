//! The page cache in front of a disk, and the loss of dirty pages when write-back fails.

use crate::Content;
use crate::content::{Discarded, PAGE_BYTES, Page};
use millpond_env::sync::Arc;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

/// The disk's version of each page that differs in the cache; `None` for a page of zeros.
type Beneath = BTreeMap<u64, Option<Arc<Page>>>;

/// The page cache in front of a disk, as Linux has it: reads see the latest write.
///
/// A failed flush marks the pages clean all the same. Reads return the new bytes until the pages are
/// evicted, and no later flush writes them.
#[derive(Debug, Default)]
pub(crate) struct PageCache {
    /// The content that reads return.
    content: Content,
    dirty: Beneath,
    lost: Beneath,
}

/// The pages of a range; empty if the range is empty.
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
    /// Discards a range. Pages of which a part stays are dirty if they were.
    pub(crate) fn discard(&mut self, offset_bytes: u64, length_bytes: u64, leaves: Discarded) {
        self.content.discard(offset_bytes, length_bytes, leaves);
        let end = offset_bytes.saturating_add(length_bytes);
        let whole = offset_bytes.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
        self.dirty.retain(|page, _| !whole.contains(page));
        self.lost.retain(|page, _| !whole.contains(page));
    }
    /// Marks dirty pages as written, all or those of `part`.
    pub(crate) fn flushed(&mut self, part: Option<&Range<u64>>) {
        self.clean(part);
    }
    /// Marks dirty pages as lost, all or those of `part`: they never reach the disk.
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
    /// Evicts clean pages. Lost pages show the disk's old bytes from now on.
    pub(crate) fn evict(&mut self) {
        for (page, beneath) in std::mem::take(&mut self.lost) {
            self.content.set_page(page, beneath);
        }
    }
    /// The content after an eviction of the lost pages.
    pub(crate) fn without_lost(&self) -> Content {
        let mut content = self.content.clone();
        for (page, beneath) in &self.lost {
            content.set_page(*page, beneath.clone());
        }
        content
    }
}
