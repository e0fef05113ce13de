//! What of a dataset the cache keeps, and what is prefetched.

use millpond_block::Retention;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, Weak};
use millpond_ondisk::ObjectId;
use std::collections::HashMap;

/// Some blocks of a dataset, as the properties `primarycache`, `secondarycache` and `prefetch` name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BlockChoice {
    /// Data and metadata.
    #[default]
    All,
    /// Metadata only: indirect blocks, dnodes, directories, attributes.
    Metadata,
    /// None.
    None,
}

impl BlockChoice {
    /// The choice with this number of the properties; all blocks if there is none.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Metadata,
            _ => Self::All,
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Metadata => 1,
            Self::All => 2,
        }
    }

    /// Whether it contains blocks of metadata, or of data.
    #[must_use]
    pub fn contains(self, is_metadata: bool) -> bool {
        match self {
            Self::All => true,
            Self::Metadata => is_metadata,
            Self::None => false,
        }
    }
}

/// What of a dataset the cache keeps, and what is prefetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Caching {
    /// The blocks that stay in the cache after they were read or written (`primarycache`).
    pub kept: BlockChoice,
    /// Those of them that may be copied to cache devices (`secondarycache`).
    pub copied: BlockChoice,
    /// The blocks that are read before they are requested (`prefetch`).
    pub prefetched: BlockChoice,
}

impl Caching {
    /// What becomes of a block in the cache after it was read or written.
    #[must_use]
    pub fn retention(self, is_metadata: bool) -> Retention {
        match (
            self.kept.contains(is_metadata),
            self.copied.contains(is_metadata),
        ) {
            (false, _) => Retention::Drop,
            (true, true) => Retention::Keep,
            (true, false) => Retention::KeepInMemory,
        }
    }
}

/// The [`Caching`] of an open dataset. It can be changed at any time, and holds from the next read or write on.
#[derive(Debug)]
pub struct CachingCell(AtomicU64);

impl CachingCell {
    /// A cell with this value.
    #[must_use]
    pub fn new(caching: Caching) -> Self {
        Self(AtomicU64::new(bits(caching)))
    }
    /// The present value.
    #[must_use]
    pub fn get(&self) -> Caching {
        let bits = self.0.load(Ordering::Relaxed);
        Caching {
            kept: BlockChoice::from_number(bits & 3),
            prefetched: BlockChoice::from_number(bits >> 2 & 3),
            copied: BlockChoice::from_number(bits >> 4),
        }
    }
    /// Replaces the value.
    pub fn set(&self, caching: Caching) {
        self.0.store(bits(caching), Ordering::Relaxed);
    }
}

impl Default for CachingCell {
    fn default() -> Self {
        Self::new(Caching::default())
    }
}

fn bits(caching: Caching) -> u64 {
    caching.kept.number() | caching.prefetched.number() << 2 | caching.copied.number() << 4
}

/// The cells of the committed states that are open, by DSL directory: those of a file system or volume and of
/// its snapshots share one, so that a change of the property reaches all of them.
#[derive(Debug, Default)]
pub struct CachingCells {
    by_directory: Mutex<HashMap<ObjectId, Weak<CachingCell>>, rank::Leaf>,
}

impl CachingCells {
    /// The cell of a directory; one with this value if none is in use.
    #[must_use]
    pub fn get(&self, directory: ObjectId, caching: Caching) -> Arc<CachingCell> {
        let mut cells = self.by_directory.lock();
        if let Some(cell) = cells.get(&directory).and_then(Weak::upgrade) {
            return cell;
        }
        cells.retain(|_, cell| cell.strong_count() > 0);
        let cell = Arc::new(CachingCell::new(caching));
        cells.insert(directory, Arc::downgrade(&cell));
        cell
    }

    /// The cell of a directory, if one is in use.
    #[must_use]
    pub fn find(&self, directory: ObjectId) -> Option<Arc<CachingCell>> {
        self.by_directory.lock().get(&directory)?.upgrade()
    }

    /// The cells in use, each with its directory.
    #[must_use]
    pub fn in_use(&self) -> Vec<(ObjectId, Arc<CachingCell>)> {
        let cells = self.by_directory.lock();
        let pairs = cells.iter();
        pairs
            .filter_map(|(directory, cell)| Some((*directory, cell.upgrade()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICES: [BlockChoice; 3] = [BlockChoice::All, BlockChoice::Metadata, BlockChoice::None];

    #[test]
    fn a_cell_has_what_was_set() {
        let cell = CachingCell::default();
        assert_eq!(cell.get(), Caching::default());
        for kept in CHOICES {
            for prefetched in CHOICES {
                for copied in CHOICES {
                    let caching = Caching {
                        kept,
                        copied,
                        prefetched,
                    };
                    cell.set(caching);
                    assert_eq!(cell.get(), caching);
                }
            }
        }
    }

    #[test]
    fn only_kept_blocks_are_copied() {
        let caching = Caching {
            kept: BlockChoice::Metadata,
            copied: BlockChoice::None,
            ..Caching::default()
        };
        assert_eq!(caching.retention(true), Retention::KeepInMemory);
        assert_eq!(caching.retention(false), Retention::Drop);
        let all = Caching {
            copied: BlockChoice::All,
            ..caching
        };
        assert_eq!(
            [true, false].map(|is_metadata| all.retention(is_metadata)),
            [Retention::Keep, Retention::Drop]
        );
    }

    #[test]
    fn states_of_one_directory_share_a_cell() {
        let cells = CachingCells::default();
        let none = Caching {
            kept: BlockChoice::None,
            ..Caching::default()
        };
        let (one, other) = (ObjectId(1), ObjectId(2));
        let first = cells.get(one, none);
        let second = cells.get(one, Caching::default());
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(second.get(), none);
        let apart = cells.get(other, Caching::default());
        assert_eq!(apart.get(), Caching::default());
        assert_eq!(cells.in_use().len(), 2);
        drop((first, second));
        assert!(cells.find(one).is_none());
        let again = cells.get(one, Caching::default());
        assert_eq!(again.get(), Caching::default(), "its last user is gone");
    }
}
