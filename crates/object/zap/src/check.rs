//! Checks a whole ZAP for consistency. Lookups and listings check only the parts that they read.

use crate::zap::Shape;
use crate::{Zap, ZapError};
use millpond_ondisk::zap::{ZapHeader, ZapLeaf, ZapLeafEntry};
use millpond_ondisk::{BlockId, DecodeError};

/// The counts from [`Zap::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZapSummary {
    /// Entries.
    pub entries: u64,
    /// Leaves; 0 for a microzap.
    pub leaves: u64,
    /// Bytes of all keys, without NULs.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
}

impl Zap {
    /// Reads everything and checks that each hash matches its key, each leaf matches the pointer table, free
    /// chunks match used ones, and the header's counts match the content.
    ///
    /// # Errors
    /// The first mismatch, or the first block that cannot be read.
    pub fn check(&self) -> Result<ZapSummary, ZapError> {
        match &self.shape {
            Shape::Micro => self.check_micro(),
            Shape::Fat(header) => self.check_fat(header),
        }
    }

    fn check_micro(&self) -> Result<ZapSummary, ZapError> {
        let mut summary = ZapSummary::default();
        let micro = self.micro()?;
        if micro.salt == 0 {
            return Err(self.corrupt(BlockId(0), DecodeError::new("microzap", "no salt", 8)));
        }
        for entry in micro.entries() {
            let (_, entry) = entry.map_err(|error| self.corrupt(BlockId(0), error))?;
            if entry.cd > 0xffff {
                let reason = "differentiator above 16 bits";
                return Err(self.corrupt(BlockId(0), DecodeError::new("microzap entry", reason, 8)));
            }
            summary.entries += 1;
            summary.key_bytes += entry.name.len() as u64;
            summary.value_bytes += 8;
        }
        Ok(summary)
    }

    fn check_fat(&self, header: &ZapHeader) -> Result<ZapSummary, ZapError> {
        let mut summary = ZapSummary::default();
        if header.salt == 0 && !self.hashing.is_prehashed {
            return Err(self.corrupt(BlockId(0), DecodeError::new("zap header", "no salt", 80)));
        }
        let mut next = Some(0);
        while let Some(hash) = next {
            let id = self.leaf_block(header, hash)?;
            let block = self.source.read_block(id)?;
            let leaf = self.leaf(header, &block, id, hash)?;
            self.check_leaf(&leaf, id, &mut summary)?;
            next = leaf.next_hash();
            let last = next.map_or(u64::MAX, |next| next - 1);
            if leaf.first_hash() != hash || self.leaf_block(header, last)? != id {
                let error = DecodeError::new("zap leaf", "range contradicts the pointer table", 16);
                return Err(self.corrupt(id, error));
            }
        }
        let header_says =
            |reason| Err(self.corrupt(BlockId(0), DecodeError::new("zap header", reason, 64)));
        if summary.leaves != header.leaf_count {
            return header_says("leaves miscounted");
        }
        if summary.entries != header.entry_count {
            return header_says("entries miscounted");
        }
        Ok(summary)
    }

    fn check_leaf(
        &self,
        leaf: &ZapLeaf<'_>,
        id: BlockId,
        summary: &mut ZapSummary,
    ) -> Result<(), ZapError> {
        let corrupt = |error| self.corrupt(id, error);
        let fail = |reason| self.corrupt(id, DecodeError::new("zap leaf", reason, 28));
        let mut chunks = leaf.count_free().map_err(corrupt)?;
        if chunks != leaf.free_chunks {
            return Err(fail("free chunks miscounted"));
        }
        let mut entries = 0u16;
        for entry in leaf.entries() {
            let entry = entry.map_err(corrupt)?;
            let (hash, key_bytes, key_payload) = self.check_key(leaf, &entry, id)?;
            if hash != entry.hash {
                return Err(fail("hash contradicts the key"));
            }
            let value = leaf.value(&entry).map_err(corrupt)?;
            let used = 1 + key_payload.div_ceil(21) + value.bytes.len().div_ceil(21);
            chunks = chunks.saturating_add(u16::try_from(used).unwrap_or(u16::MAX));
            entries = entries.saturating_add(1);
            summary.key_bytes += key_bytes as u64;
            summary.value_bytes += value.bytes.len() as u64;
        }
        if chunks != leaf.chunk_count() {
            return Err(fail("chunks are neither used nor free"));
        }
        if entries != leaf.entry_count {
            return Err(fail("entries miscounted"));
        }
        summary.entries += u64::from(entries);
        summary.leaves += 1;
        Ok(())
    }

    /// Returns the hash of an entry's key, the key's length, and its stored length, in bytes.
    fn check_key(
        &self,
        leaf: &ZapLeaf<'_>,
        entry: &ZapLeafEntry,
        id: BlockId,
    ) -> Result<(u64, usize, usize), ZapError> {
        let corrupt = |error| self.corrupt(id, error);
        if self.has_word_keys() {
            let words = leaf.words(entry).map_err(corrupt)?;
            let bytes = words.len() * 8;
            return Ok((self.hashing.words(&words), bytes, bytes));
        }
        let name = leaf.name(entry).map_err(corrupt)?;
        let normalisation = self.normalisation()?;
        let form = normalisation
            .apply(&name)
            .ok_or_else(|| corrupt(DecodeError::new("zap leaf", "name has no hash form", 0)))?;
        Ok((self.hashing.name(&form), name.len(), name.len() + 1))
    }
}
