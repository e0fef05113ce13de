//! Lists entries in hash order.

use crate::zap::Shape;
use crate::{Zap, ZapEntry, ZapError, ZapSource};
use millpond_env::sync::Arc;
use millpond_object::Block;
use millpond_ondisk::zap::{
    COOKIE_END, ZapHeader, ZapLeaf, ZapPosition, ZapValue, pointer_table_entry,
};
use millpond_ondisk::{BlockId, DecodeError};

/// A listing ends after this many errors, because reading the rest is not worthwhile.
const ERRORS_MAX: u32 = 1024;

/// The entries of a ZAP from some position on, in hash order.
///
/// Holds one block, and 16 bytes for each of its entries. An error does not end the listing: it continues
/// with the next readable entry or leaf, up to 1024 errors. Each step advances in hash order, so a listing
/// ends on any input.
#[derive(Debug)]
pub struct ZapCursor {
    zap: Zap,
    /// Position of the next entry; `None` at the end.
    position: Option<ZapPosition>,
    window: Option<Window>,
    errors_left: u32,
    /// Whether block 0 is read again for each window.
    may_change: bool,
}

/// The remaining entries of one block, the next one last.
#[derive(Debug)]
struct Window {
    id: BlockId,
    block: Arc<Block>,
    /// Hash, differentiator, and the slot or chunk.
    entries: Vec<(u64, u32, u32)>,
    /// Reported after the last entry.
    error: Option<DecodeError>,
    /// Position at which the listing continues after this block.
    next: Option<ZapPosition>,
}

impl ZapCursor {
    pub(crate) fn new(zap: Zap, cookie: u64) -> Self {
        let position = ZapPosition::from_cookie(cookie, &zap.hashing);
        Self {
            zap,
            position,
            window: None,
            errors_left: ERRORS_MAX,
            may_change: false,
        }
    }

    /// Lists the entries from a cookie on, in a ZAP that may change meanwhile.
    ///
    /// An entry that exists from the first step to the last is returned exactly once. An entry that is added
    /// or removed meanwhile may or may not be returned. Entries come from a copy of one leaf (or of the whole
    /// microzap), so writers need not wait between two steps.
    ///
    /// # Errors
    /// As [`Zap::from_source`].
    pub fn of_changing(source: Arc<dyn ZapSource>, cookie: u64) -> Result<Self, ZapError> {
        let mut cursor = Self::new(Zap::from_source(source)?, cookie);
        cursor.may_change = true;
        Ok(cursor)
    }

    /// The cookie of the position after the last returned entry. [`Zap::iter_from`] continues there, even
    /// after the ZAP was closed and reopened. [`COOKIE_END`] after the last entry.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.position
            .map_or(COOKIE_END, |position| position.to_cookie(&self.zap.hashing))
    }

    fn fail(&mut self, error: ZapError) -> Option<Result<ZapEntry, ZapError>> {
        self.errors_left = self.errors_left.saturating_sub(1);
        if self.errors_left == 0 {
            self.position = None;
            self.window = None;
        }
        Some(Err(error))
    }

    /// Takes the next entry from the window.
    fn take(&mut self, (hash, cd, slot): (u64, u32, u32)) -> Result<ZapEntry, ZapError> {
        self.position = ZapPosition::after(hash, cd, &self.zap.hashing);
        let Some(window) = &self.window else {
            return Err(self.zap.invalid("no entries are at hand"));
        };
        let entry = match self.zap.shape {
            Shape::Micro => self.micro_entry(slot),
            Shape::Fat(_) => leaf_entry(&window.block, slot, self.zap.has_word_keys()),
        };
        entry.map_err(|error| self.zap.corrupt(window.id, error))
    }
    fn micro_entry(&self, slot: u32) -> Result<ZapEntry, DecodeError> {
        let first = &self.zap.first;
        let micro = millpond_ondisk::zap::MicroZap::decode(&first.bytes, first.endian)?;
        let entry = micro
            .entry(slot as usize)?
            .ok_or_else(|| DecodeError::new("microzap", "entry is gone", 0))?;
        Ok(ZapEntry {
            name: entry.name.to_vec(),
            value: ZapValue::from_u64(entry.value),
        })
    }

    /// Reads the block that holds `position`.
    fn load(&mut self, position: ZapPosition) -> Result<Window, ZapError> {
        if self.may_change {
            let opened = Zap::from_source(Arc::clone(&self.zap.source));
            self.zap = opened.inspect_err(|_| self.position = None)?;
        }
        let mut window = match self.zap.shape {
            Shape::Micro => self.load_micro(position)?,
            Shape::Fat(header) => match self.load_leaf(&header, position) {
                Ok(window) => window,
                Err(error) => {
                    self.position = self.after_bad_leaf(&header, position.hash);
                    return Err(error);
                }
            },
        };
        window.entries.sort_unstable_by(|one, other| other.cmp(one));
        Ok(window)
    }

    fn load_micro(&self, position: ZapPosition) -> Result<Window, ZapError> {
        let normalisation = self.zap.normalisation()?;
        let mut entries = Vec::new();
        let mut error = None;
        for entry in self.zap.micro()?.entries() {
            match entry {
                Ok((slot, entry)) => {
                    // A name that cannot be normalised cannot have been stored. Hashing it unchanged keeps it
                    // in the listing.
                    let hash = match normalisation.apply(entry.name) {
                        Some(form) => self.zap.hashing.name(&form),
                        None => self.zap.hashing.name(entry.name),
                    };
                    let slot = u32::try_from(slot).unwrap_or(u32::MAX);
                    entries.push((hash, entry.cd, slot));
                }
                Err(found) => error = Some(found),
            }
        }
        entries.retain(|&(hash, cd, _)| ZapPosition { hash, cd } >= position);
        Ok(Window {
            id: BlockId(0),
            block: Arc::clone(&self.zap.first),
            entries,
            error,
            next: None,
        })
    }

    fn load_leaf(&self, header: &ZapHeader, position: ZapPosition) -> Result<Window, ZapError> {
        let id = self.zap.leaf_block(header, position.hash)?;
        let block = self.zap.source.read_block(id)?;
        let leaf = self.zap.leaf(header, &block, id, position.hash)?;
        let mut entries = Vec::new();
        let mut error = None;
        for entry in leaf.entries() {
            match entry {
                // A hash with more bits than its cookie keeps would be returned again and again.
                Ok(entry) if self.zap.hashing.keep(entry.hash) != entry.hash => {
                    error = Some(DecodeError::new("zap leaf", "hash has too many bits", 0));
                }
                Ok(entry) => entries.push((entry.hash, entry.cd, u32::from(entry.chunk))),
                Err(found) => error = Some(found),
            }
        }
        entries.retain(|&(hash, cd, _)| ZapPosition { hash, cd } >= position);
        let next = leaf.next_hash().map(|hash| ZapPosition { hash, cd: 0 });
        Ok(Window {
            id,
            block,
            entries,
            error,
            next,
        })
    }

    /// Returns where to continue when the leaf of `hash` is unreadable: at the first table entry that refers
    /// to another block, or at the next block of the table. Reads at most one block of the table.
    fn after_bad_leaf(&self, header: &ZapHeader, hash: u64) -> Option<ZapPosition> {
        let step = 1u64.checked_shl(64u32.saturating_sub(header.table_shift))?;
        let place = header.table_location(hash);
        let table = if place.block == 0 {
            Some(Arc::clone(&self.zap.first))
        } else {
            self.zap.source.read_block(BlockId(place.block)).ok()
        };
        let entry_at = |word| {
            let table = table.as_ref()?;
            pointer_table_entry(&table.bytes, table.endian, word).ok()
        };
        let bad = entry_at(place.word);
        let mut hash = hash & !(step - 1);
        loop {
            hash = hash.checked_add(step)?;
            let next = header.table_location(hash);
            if next.block != place.block || entry_at(next.word) != bad {
                return Some(ZapPosition { hash, cd: 0 });
            }
        }
    }
}

fn leaf_entry(block: &Block, chunk: u32, has_word_keys: bool) -> Result<ZapEntry, DecodeError> {
    let leaf = ZapLeaf::decode(&block.bytes, block.endian)?;
    let entry = leaf.entry(u16::try_from(chunk).unwrap_or(u16::MAX))?;
    let name = if has_word_keys {
        let words = leaf.words(&entry)?;
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    } else {
        leaf.name(&entry)?
    };
    let value = leaf.value(&entry)?;
    Ok(ZapEntry { name, value })
}

impl Iterator for ZapCursor {
    type Item = Result<ZapEntry, ZapError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(window) = &mut self.window else {
                let position = self.position?;
                match self.load(position) {
                    Ok(window) => self.window = Some(window),
                    Err(error) => {
                        if matches!(self.zap.shape, Shape::Micro) {
                            self.position = None;
                        }
                        return self.fail(error);
                    }
                }
                continue;
            };
            if let Some(entry) = window.entries.pop() {
                return match self.take(entry) {
                    Ok(entry) => Some(Ok(entry)),
                    Err(error) => self.fail(error),
                };
            }
            let error = window.error.take();
            let id = window.id;
            self.position = window.next;
            self.window = None;
            if let Some(error) = error {
                let error = self.zap.corrupt(id, error);
                return self.fail(error);
            }
        }
    }
}
