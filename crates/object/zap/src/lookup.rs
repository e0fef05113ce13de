//! Lookup of one entry.

use crate::zap::Shape;
use crate::{MicroIndex, Normalisation, Zap, ZapEntry, ZapError};
use millpond_ondisk::BlockId;
use millpond_ondisk::zap::{
    MICRO_NAME_BYTES_MAX, MicroZapEntry, ZAP_NAME_BYTES_MAX, ZapHeader, ZapLeaf, ZapLeafEntry,
    ZapValue,
};

/// How a stored name must match the requested one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NameMatch {
    /// Equal bytes.
    #[default]
    Exact,
    /// Equal after the ZAP's folding, as in case-insensitive and normalising file systems. The same as exact
    /// in a ZAP that does not fold names.
    Normalised,
    /// Equal in the ZAP's normal form without case folding: exact case in file systems of mixed case.
    NormalisedKeepingCase,
}

impl Zap {
    /// Returns the value under exactly this name.
    ///
    /// # Errors
    /// If a block cannot be read or is corrupt, or if keys are words.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<ZapValue>, ZapError> {
        let entry = self.lookup_entry(name, NameMatch::Exact)?;
        Ok(entry.map(|entry| entry.value))
    }

    /// Returns the first integer under exactly this name, widened to 64 bits.
    ///
    /// # Errors
    /// As [`Zap::lookup`], or if the value has no integers.
    pub fn lookup_u64(&self, name: &[u8]) -> Result<Option<u64>, ZapError> {
        let Some(value) = self.lookup(name)? else {
            return Ok(None);
        };
        let first = value.first();
        first
            .map(Some)
            .ok_or_else(|| self.invalid("value has no integers"))
    }

    /// As [`Zap::lookup_u64`], in ZAPs whose keys are numbers written in lower-case hexadecimal.
    ///
    /// # Errors
    /// As [`Zap::lookup_u64`].
    pub fn lookup_number(&self, key: u64) -> Result<Option<u64>, ZapError> {
        self.lookup_u64(format!("{key:x}").as_bytes())
    }

    /// Returns the entry whose name matches according to `name_match`, with its stored name.
    ///
    /// If several entries match, returns the one with the lowest differentiator, which is the oldest. A name
    /// longer than 1023 bytes never matches, and neither does one without the normal form that the ZAP needs.
    ///
    /// # Errors
    /// As [`Zap::lookup`], or if the ZAP requires a folding that does not exist.
    pub fn lookup_entry(
        &self,
        name: &[u8],
        name_match: NameMatch,
    ) -> Result<Option<ZapEntry>, ZapError> {
        self.lookup_entry_by(None, name, name_match)
    }

    /// As [`Zap::lookup_entry`], with an index if this is a microzap.
    ///
    /// # Errors
    /// As [`Zap::lookup_entry`].
    pub fn lookup_entry_by(
        &self,
        index: Option<&MicroIndex>,
        name: &[u8],
        name_match: NameMatch,
    ) -> Result<Option<ZapEntry>, ZapError> {
        if self.has_word_keys() {
            return Err(self.invalid("keys are words, not names"));
        }
        if name.len() > ZAP_NAME_BYTES_MAX {
            return Ok(None);
        }
        let normalisation = self.normalisation()?;
        let comparison = Comparison::new(name, name_match, normalisation);
        let (Some(comparison), Some(hash_form)) = (comparison, normalisation.apply(name)) else {
            return Ok(None);
        };
        match &self.shape {
            Shape::Micro => match index {
                Some(index) => self.lookup_indexed(index, &comparison, &hash_form),
                None => self.lookup_micro(&comparison),
            },
            Shape::Fat(header) => {
                let hash = self.hashing.name(&hash_form);
                self.lookup_fat(header, hash, |leaf, entry| {
                    let stored = leaf.name(entry)?;
                    Ok(comparison.holds(&stored).then_some(stored))
                })
            }
        }
    }

    /// Returns the value under a key of words.
    ///
    /// # Errors
    /// If a block cannot be read or is corrupt, or if keys are names.
    pub fn lookup_words(&self, words: &[u64]) -> Result<Option<ZapValue>, ZapError> {
        let header = match &self.shape {
            Shape::Fat(header) if self.has_word_keys() => header,
            _ => return Err(self.invalid("keys are names, not words")),
        };
        let hash = self.hashing.words(words);
        let entry = self.lookup_fat(header, hash, |leaf, entry| {
            let stored = leaf.words(entry)?;
            Ok((stored == words).then(Vec::new))
        })?;
        Ok(entry.map(|entry| entry.value))
    }

    fn lookup_indexed(
        &self,
        index: &MicroIndex,
        comparison: &Comparison<'_>,
        hash_form: &[u8],
    ) -> Result<Option<ZapEntry>, ZapError> {
        let hash = self.hashing.name(hash_form);
        let found = index.find(&self.micro()?, hash, |name| comparison.holds(name));
        let found = found.map_err(|error| self.corrupt(BlockId(0), error))?;
        let found = found.map(|(_, entry)| ZapEntry {
            name: entry.name.to_vec(),
            value: ZapValue::from_u64(entry.value),
        });
        debug_assert_eq!(Some(&found), self.lookup_micro(comparison).ok().as_ref());
        Ok(found)
    }

    fn lookup_micro(&self, comparison: &Comparison<'_>) -> Result<Option<ZapEntry>, ZapError> {
        if comparison.is_exact() && comparison.wanted.len() > MICRO_NAME_BYTES_MAX {
            return Ok(None);
        }
        if comparison.is_exact() {
            let found = self.micro()?.find(&comparison.wanted);
            let found = found.map_err(|error| self.corrupt(BlockId(0), error))?;
            return Ok(found.map(|(_, entry)| ZapEntry {
                name: entry.name.to_vec(),
                value: ZapValue::from_u64(entry.value),
            }));
        }
        let mut found: Option<MicroZapEntry<'_>> = None;
        for entry in self.micro()?.entries() {
            let (_, entry) = entry.map_err(|error| self.corrupt(BlockId(0), error))?;
            let is_older = found.is_none_or(|found| entry.cd < found.cd);
            if is_older && comparison.holds(entry.name) {
                found = Some(entry);
            }
        }
        Ok(found.map(|entry| ZapEntry {
            name: entry.name.to_vec(),
            value: ZapValue::from_u64(entry.value),
        }))
    }

    /// Walks the chain of `hash`. `key_if_equal` returns the stored key of an entry if it is the requested
    /// one.
    fn lookup_fat(
        &self,
        header: &ZapHeader,
        hash: u64,
        key_if_equal: impl Fn(
            &ZapLeaf<'_>,
            &ZapLeafEntry,
        ) -> Result<Option<Vec<u8>>, millpond_ondisk::DecodeError>,
    ) -> Result<Option<ZapEntry>, ZapError> {
        let id = self.leaf_block(header, hash)?;
        let block = self.source.read_block(id)?;
        let leaf = self.leaf(header, &block, id, hash)?;
        let corrupt = |error| self.corrupt(id, error);
        // The search covers the whole chain, because old writers did not sort leaves by differentiator.
        let mut found: Option<(ZapLeafEntry, Vec<u8>)> = None;
        for entry in leaf.chain(hash) {
            let entry = entry.map_err(corrupt)?;
            let is_older = found.as_ref().is_none_or(|(found, _)| entry.cd < found.cd);
            if entry.hash != hash || !is_older {
                continue;
            }
            if let Some(name) = key_if_equal(&leaf, &entry).map_err(corrupt)? {
                found = Some((entry, name));
            }
        }
        found
            .map(|(entry, name)| {
                let value = leaf.value(&entry).map_err(corrupt)?;
                Ok(ZapEntry { name, value })
            })
            .transpose()
    }
}

/// Compares stored names with the requested one.
struct Comparison<'a> {
    wanted: std::borrow::Cow<'a, [u8]>,
    normalisation: Normalisation,
}

impl<'a> Comparison<'a> {
    fn new(name: &'a [u8], name_match: NameMatch, zap: Normalisation) -> Option<Self> {
        let normalisation = match name_match {
            NameMatch::Exact => Normalisation::default(),
            NameMatch::Normalised => zap,
            NameMatch::NormalisedKeepingCase => zap.keeping_case(),
        };
        Some(Self {
            wanted: normalisation.apply(name)?,
            normalisation,
        })
    }
    fn is_exact(&self) -> bool {
        self.normalisation.is_identity()
    }
    fn holds(&self, stored: &[u8]) -> bool {
        self.normalisation
            .apply(stored)
            .is_some_and(|stored| stored == self.wanted)
    }
}
