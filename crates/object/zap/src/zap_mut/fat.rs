//! Adds and removes entries of a fat ZAP.

use super::stage::Stage;
use super::{ZapStore, lowest_unused};
use crate::{ZapError, ZapValue};
use millpond_ondisk::DecodeError;
use millpond_ondisk::zap::{
    LeafInsertError, ZapKey, ZapLeaf, ZapLeafEntry, ZapLeafMut, leaf_entry_chunks,
};

/// If a leaf that only one table entry points to has fewer free chunks than this, the table grows before it
/// has to.
const LOW_WATER_CHUNKS: u16 = 20;

/// What to do if the key already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Refuse,
    Replace,
}

/// The result of a search in the leaf.
struct Found {
    leaf_block: u64,
    prefix_bits: u32,
    free_chunks: u16,
    entry_count: u16,
    /// The entry's chunk.
    existing: Option<u16>,
    /// Differentiators of this hash.
    used: Vec<u32>,
}

fn holds(leaf: &ZapLeaf<'_>, entry: &ZapLeafEntry, key: ZapKey<'_>) -> Result<bool, DecodeError> {
    Ok(match key {
        // A name of another length cannot be equal.
        ZapKey::Name(name) => {
            usize::from(entry.name_integers) == name.len() + 1 && leaf.name(entry)? == name
        }
        ZapKey::Words(words) => {
            usize::from(entry.name_integers) == words.len() && leaf.words(entry)? == words
        }
    })
}

impl<S: ZapStore> Stage<'_, S> {
    /// Adds an entry or replaces its value.
    pub(super) fn put(
        mut self,
        hash: u64,
        key: ZapKey<'_>,
        value: &ZapValue,
        existing: Existing,
    ) -> Result<(), ZapError> {
        let needed = self.chunks_needed(key, value)?;
        // Each iteration but the last extends a prefix by one bit. There are at most 48.
        for _ in 0..64 {
            let found = self.find(hash, key)?;
            if let Some(chunk) = found.existing {
                if existing == Existing::Refuse {
                    return Err(self.exists());
                }
                if self.replace(&found, chunk, value)? {
                    return self.finish();
                }
            } else if found.free_chunks >= needed {
                let cd = lowest_unused(found.used, &self.header.hashing());
                let cd = cd.ok_or_else(|| self.full())?;
                let free = found.free_chunks - needed;
                let grows = self.header.next_table_block != 0
                    || (found.prefix_bits == self.header.table_shift && free < LOW_WATER_CHUNKS);
                if grows {
                    self.copy_from_here();
                }
                self.add(found.leaf_block, hash, cd, key, value)?;
                if grows {
                    self.grow_ahead()?;
                }
                return self.finish();
            }
            self.copy_from_here();
            self.split(found.leaf_block, hash, needed, found.existing)?;
        }
        Err(self.full())
    }

    /// Adds an entry that already has its differentiator and is known not to exist.
    pub(super) fn put_new(
        &mut self,
        hash: u64,
        cd: u32,
        key: ZapKey<'_>,
        value: &ZapValue,
    ) -> Result<(), ZapError> {
        let needed = self.chunks_needed(key, value)?;
        for _ in 0..64 {
            let id = self.leaf_block(hash)?;
            let bytes = self.read(id)?;
            let free = self.leaf(&bytes, id, hash)?.free_chunks;
            if free >= needed {
                return self.add(id, hash, cd, key, value);
            }
            self.split(id, hash, needed, None)?;
        }
        Err(self.full())
    }

    /// Removes the entry of `key`. Returns whether there was one.
    pub(super) fn remove(mut self, hash: u64, key: ZapKey<'_>) -> Result<bool, ZapError> {
        let found = self.find(hash, key)?;
        let Some(chunk) = found.existing else {
            return Ok(false);
        };
        self.header.entry_count = self
            .header
            .entry_count
            .checked_sub(1)
            .ok_or_else(|| self.fail(0, "entries miscounted", 72))?;
        let id = found.leaf_block;
        if found.entry_count <= 1 && found.prefix_bits > 0 {
            self.copy_from_here();
        }
        let left = self
            .edit(id, |bytes| {
                let mut leaf = ZapLeafMut::open(bytes)?;
                leaf.remove(chunk)?;
                Ok(leaf.entry_count())
            })?
            .map_err(|error| self.corrupt(id, error))?;
        if left == 0 && found.prefix_bits > 0 {
            self.merge(id, hash)?;
        }
        self.finish()?;
        Ok(true)
    }

    fn chunks_needed(&self, key: ZapKey<'_>, value: &ZapValue) -> Result<u16, ZapError> {
        let whole_leaf = (1u32 << self.header.block_shift) * 15 / 16 / 24 - 2;
        match leaf_entry_chunks(key, value) {
            Ok(needed) if u32::from(needed) <= whole_leaf => Ok(needed),
            Ok(_) => Err(self.refused("entry needs more chunks than a leaf has")),
            Err(LeafInsertError::Refused(reason)) => Err(self.refused(reason)),
            Err(_) => Err(self.full()),
        }
    }

    fn find(&self, hash: u64, key: ZapKey<'_>) -> Result<Found, ZapError> {
        let id = self.leaf_block(hash)?;
        let bytes = self.read(id)?;
        let leaf = self.leaf(&bytes, id, hash)?;
        let corrupt = |error| self.corrupt(id, error);
        let mut found = Found {
            leaf_block: id,
            prefix_bits: leaf.prefix_bits,
            free_chunks: leaf.free_chunks,
            entry_count: leaf.entry_count,
            existing: None,
            used: Vec::new(),
        };
        for entry in leaf.chain(hash) {
            let entry = entry.map_err(corrupt)?;
            if entry.hash != hash {
                continue;
            }
            found.used.push(entry.cd);
            if found.existing.is_none() && holds(&leaf, &entry, key).map_err(corrupt)? {
                found.existing = Some(entry.chunk);
            }
        }
        Ok(found)
    }

    fn add(
        &mut self,
        id: u64,
        hash: u64,
        cd: u32,
        key: ZapKey<'_>,
        value: &ZapValue,
    ) -> Result<(), ZapError> {
        let count = self.header.entry_count.checked_add(1);
        self.header.entry_count = count.ok_or_else(|| self.fail(0, "entries miscounted", 72))?;
        self.edit(id, |bytes| {
            ZapLeafMut::open(bytes)?.insert(hash, cd, key, value)
        })?
        .map_err(|error| self.leaf_error(id, error))
    }

    /// Replaces the value of an entry. Returns whether the leaf had room for it.
    fn replace(&mut self, found: &Found, chunk: u16, value: &ZapValue) -> Result<bool, ZapError> {
        let id = found.leaf_block;
        let replaced = self.edit(id, |bytes| {
            ZapLeafMut::open(bytes)?.replace_value(chunk, value)
        })?;
        match replaced {
            Ok(()) => Ok(true),
            Err(LeafInsertError::Full) => Ok(false),
            Err(error) => Err(self.leaf_error(id, error)),
        }
    }

    pub(super) fn leaf_error(&self, id: u64, error: LeafInsertError) -> ZapError {
        match error {
            LeafInsertError::Refused(reason) => self.refused(reason),
            LeafInsertError::Corrupt(error) => self.corrupt(id, error),
            _ => self.full(),
        }
    }
}
