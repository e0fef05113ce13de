//! Splits a full leaf in two.

use super::ZapStore;
use super::stage::Stage;
use crate::{ZapError, ZapValue};
use millpond_env::mark;
use millpond_ondisk::zap::{LeafInsertError, ZapFlags, ZapKey, ZapLeafBuilder, leaf_entry_chunks};

/// An entry that moves to another leaf.
struct Moved {
    chunk: u16,
    hash: u64,
    cd: u32,
    key: Key,
    value: ZapValue,
    chunks: u16,
}

enum Key {
    Name(Vec<u8>),
    Words(Vec<u64>),
}

impl Key {
    fn get(&self) -> ZapKey<'_> {
        match self {
            Self::Name(name) => ZapKey::Name(name),
            Self::Words(words) => ZapKey::Words(words),
        }
    }
}

impl<S: ZapStore> Stage<'_, S> {
    /// Splits a leaf by the next bit of the hash, to make room for `needed` chunks under `hash`.
    ///
    /// The new chunks take the place of those of the entry in chunk `replaced`, if there is one. A single split
    /// may leave all entries on one side.
    ///
    /// # Errors
    /// [`ZapError::Full`] if no number of splits would make enough room.
    pub(super) fn split(
        &mut self,
        id: u64,
        hash: u64,
        needed: u16,
        replaced: Option<u16>,
    ) -> Result<(), ZapError> {
        mark::hit("zap-leaf-split");
        let (entries, prefix, prefix_bits, chunks) = self.take_apart(id, hash)?;
        self.check_that_it_helps(&entries, prefix_bits, chunks, hash, needed, replaced)?;
        if prefix_bits == self.header.table_shift {
            self.grow_whole()?;
        }
        let new_id = self.allocate(1)?;
        let bits = prefix_bits + 1;
        let is_cd_sorted = self.header.normflags != 0;
        let new_leaf = |prefix| {
            ZapLeafBuilder::new(self.header.block_shift, prefix, bits, is_cd_sorted)
                .map_err(|error| self.corrupt(id, error))
        };
        let mut lower = new_leaf(prefix * 2)?;
        let mut upper = new_leaf(prefix * 2 + 1)?;
        for entry in &entries {
            let is_upper = entry.hash >> (64 - bits) & 1 == 1;
            let leaf = if is_upper { &mut upper } else { &mut lower };
            leaf.insert(entry.hash, entry.cd, entry.key.get(), &entry.value)
                .map_err(|error| match error {
                    LeafInsertError::Corrupt(error) => self.corrupt(id, error),
                    _ => self.fail(id, "leaf holds more than it can", 28),
                })?;
        }
        let count = self.header.leaf_count.checked_add(1);
        self.header.leaf_count = count.ok_or_else(|| self.fail(0, "leaves miscounted", 64))?;
        let range_shift = self.header.table_shift - bits;
        self.point_to((prefix * 2 + 1) << range_shift, 1 << range_shift, new_id)?;
        self.put_block(id, lower.finish());
        self.put_block(new_id, upper.finish());
        Ok(())
    }

    /// Returns a leaf's entries in the order of their chains, its prefix, the length of the prefix in bits,
    /// and its chunks.
    fn take_apart(&self, id: u64, hash: u64) -> Result<(Vec<Moved>, u64, u32, u16), ZapError> {
        let bytes = self.read(id)?;
        let leaf = self.leaf(&bytes, id, hash)?;
        let corrupt = |error| self.corrupt(id, error);
        let has_word_keys = self.header.flags.contains(ZapFlags::UINT64_KEY);
        let mut entries = Vec::new();
        for entry in leaf.entries() {
            let entry = entry.map_err(corrupt)?;
            let key = if has_word_keys {
                Key::Words(leaf.words(&entry).map_err(corrupt)?)
            } else {
                Key::Name(leaf.name(&entry).map_err(corrupt)?)
            };
            let value = leaf.value(&entry).map_err(corrupt)?;
            let chunks = leaf_entry_chunks(key.get(), &value)
                .map_err(|_| self.fail(id, "entry is larger than any may be", 0))?;
            entries.push(Moved {
                chunk: entry.chunk,
                hash: entry.hash,
                cd: entry.cd,
                key,
                value,
                chunks,
            });
        }
        let chunks = leaf.chunk_count();
        Ok((entries, leaf.prefix, leaf.prefix_bits, chunks))
    }

    /// Checks that some leaf covering `hash` would have the room before the table becomes too large.
    fn check_that_it_helps(
        &self,
        entries: &[Moved],
        prefix_bits: u32,
        chunks: u16,
        hash: u64,
        needed: u16,
        replaced: Option<u16>,
    ) -> Result<(), ZapError> {
        // A growing table will have one more bit in any case.
        let growing = u32::from(self.header.next_table_block != 0);
        let bits_max = self
            .table_shift_max()
            .max(self.header.table_shift + growing);
        let used_at = |bits: u32| -> u32 {
            entries
                .iter()
                .filter(|entry| Some(entry.chunk) != replaced)
                .filter(|entry| (entry.hash ^ hash) >> (64 - bits) == 0)
                .map(|entry| u32::from(entry.chunks))
                .sum()
        };
        let fits = |bits| used_at(bits) + u32::from(needed) <= u32::from(chunks);
        if (prefix_bits + 1..=bits_max).any(fits) {
            Ok(())
        } else {
            Err(self.full())
        }
    }
}
