//! Changes to ZAPs.
//!
//! A [`ZapMut`] adds, replaces and removes entries of the ZAP in a [`ZapStore`], which is an object bound to
//! a transaction. It keeps no state between calls: creating one costs nothing, and the next one sees the
//! changes of this one. **The caller serialises**: while a `ZapMut` of an object works, no other thread may
//! change or read that object. A directory's own lock ensures this. **Transactions come in the order of their
//! txgs**: begin the transaction under that lock. A change in an older txg made after one in a newer txg
//! would depend on content that is stored only with the newer one.
//!
//! A change reads and checks everything that it needs before it writes the first byte. A change that fails
//! because blocks are corrupt or unreadable, or because there is no room, leaves the ZAP unchanged.
//!
//! A change to a fat ZAP touches its leaf, its header and sometimes one block of the pointer table,
//! regardless of the number of entries. Pages: `docs/format/zap-micro.md`, `docs/format/zap-fat.md`.

mod fat;
mod fill;
mod grow;
mod merge;
mod micro;
mod object;
mod split;
mod stage;
mod store;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use object::{ObjectBlocks, allocate_zap};
pub use store::ZapStore;

use crate::zap::Shape;
use crate::{MicroIndex, NameMatch, Normalisation, Zap, ZapCursor, ZapEntry, ZapError, ZapValue};
use fat::Existing;
use millpond_env::Env;
use millpond_ondisk::zap::{
    ZAP_NAME_BYTES_MAX, ZapFlags, ZapHashing, ZapHeader, ZapKey, ZapLeafBuilder, encode_micro_zap,
};
use millpond_ondisk::{BlockId, DecodeError};
use stage::Stage;
use std::borrow::Cow;

/// The longest name in bytes if `longname` is not in use.
pub const NAME_BYTES_MAX_USUAL: usize = 255;
/// By default, a microzap grows to this many bytes before it becomes a fat ZAP.
pub const MICRO_BYTES_MAX_USUAL: u32 = 128 << 10;
/// log2 of the block size of a fat ZAP that was a microzap.
const UPGRADED_BLOCK_SHIFT: u32 = 14;

/// Parameters of a new ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewZap {
    /// The initial value of its hashes; not 0, see [`new_salt`].
    pub salt: u64,
    /// How names are folded.
    pub normalisation: Normalisation,
    /// Any flag makes it a fat ZAP at once, with the object's present block size.
    pub flags: ZapFlags,
}

impl NewZap {
    /// A microzap that does not fold names. Most ZAPs begin like this.
    #[must_use]
    pub fn plain(salt: u64) -> Self {
        Self {
            salt,
            normalisation: Normalisation::default(),
            flags: ZapFlags::empty(),
        }
    }
}

/// Returns a random salt, never 0.
#[must_use]
pub fn new_salt(env: &Env) -> u64 {
    let mut bytes = [0u8; 8];
    env.entropy.fill(&mut bytes);
    u64::from_le_bytes(bytes) | 1
}

/// Block sizes of an object for a ZAP, chosen by use as in OpenZFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapShape {
    /// Bytes of a data block. The block of a microzap grows as needed.
    pub block_bytes: u32,
    /// log2 of the bytes of an indirect block.
    pub indirect_shift: u8,
}

impl ZapShape {
    /// The default shape.
    pub const USUAL: Self = Self {
        block_bytes: 512,
        indirect_shift: 17,
    };
    /// Dedup tables.
    pub const DEDUP: Self = Self {
        block_bytes: 32 << 10,
        indirect_shift: 15,
    };
    /// Tables of cloned blocks.
    pub const CLONES: Self = Self {
        block_bytes: 4 << 10,
        indirect_shift: 12,
    };
    /// Tables of cloned blocks whose entries are integers of 8 bytes.
    pub const CLONES_ENDIAN: Self = Self {
        block_bytes: 8 << 10,
        indirect_shift: 13,
    };
}

/// What happens to an entry whose count drops to 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtZero {
    /// The entry is removed.
    Remove,
    /// The entry stays, with the value 0.
    Keep,
}

/// A ZAP that can be changed. See the module documentation.
#[derive(Debug, Clone)]
pub struct ZapMut<S> {
    store: S,
    name_bytes_max: usize,
    micro_bytes_max: u32,
}

impl<S: ZapStore> ZapMut<S> {
    /// The ZAP in an object. Reads nothing yet.
    pub fn new(store: S) -> Self {
        Self {
            store,
            name_bytes_max: NAME_BYTES_MAX_USUAL,
            micro_bytes_max: MICRO_BYTES_MAX_USUAL,
        }
    }
    /// Permits names of up to 1023 bytes. Only for directories of datasets with the `longname` feature.
    #[must_use]
    pub fn with_long_names(mut self) -> Self {
        self.name_bytes_max = ZAP_NAME_BYTES_MAX;
        self
    }
    /// Permits a microzap to grow to this many bytes (at most 1 MiB). More than 128 KiB requires the feature
    /// `large_microzap`, which the caller activates in the dataset.
    #[must_use]
    pub fn with_micro_bytes_max(mut self, bytes: u32) -> Self {
        self.micro_bytes_max = bytes.min(1 << 20);
        self
    }
    /// The store of the ZAP's blocks.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Turns an object without content into an empty ZAP.
    ///
    /// # Errors
    /// If flags contradict each other, or the form does not permit the block size.
    pub fn create(&self, new: &NewZap) -> Result<(), ZapError> {
        let block_bytes = self.store.block_bytes();
        let normflags = new.normalisation.normflags();
        if new.flags.is_empty() {
            let block = encode_micro_zap(block_bytes as usize, new.salt, normflags, &[])
                .map_err(|error| self.corrupt(error))?;
            self.store.write_block(BlockId(0), block)?;
            return Ok(());
        }
        if !block_bytes.is_power_of_two()
            || (new.flags.contains(ZapFlags::UINT64_KEY) && normflags != 0)
            || (new.flags.contains(ZapFlags::PREHASHED_KEY)
                && !new.flags.contains(ZapFlags::UINT64_KEY))
        {
            return Err(self.refused("no zap can be made like this"));
        }
        let shift = block_bytes.trailing_zeros();
        let made = ZapHeader::new(shift, new.salt, normflags, new.flags)
            .and_then(|header| first_blocks(&header))
            .map_err(|error| self.corrupt(error))?;
        for (id, block) in (0..).zip(made) {
            self.store.write_block(BlockId(id), block)?;
        }
        Ok(())
    }

    /// A read-only view of the ZAP's current state. Drop it before the next change: it holds block 0, which
    /// the change would then have to copy.
    ///
    /// # Errors
    /// As [`Zap::from_source`].
    pub fn view(&self) -> Result<Zap, ZapError> {
        Zap::from_source(self.store.source())
    }
    /// See [`Zap::lookup`].
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn lookup(&self, name: &[u8]) -> Result<Option<ZapValue>, ZapError> {
        self.view()?.lookup(name)
    }
    /// See [`Zap::lookup_u64`].
    ///
    /// # Errors
    /// As [`Zap::lookup_u64`].
    pub fn lookup_u64(&self, name: &[u8]) -> Result<Option<u64>, ZapError> {
        self.view()?.lookup_u64(name)
    }
    /// See [`Zap::lookup_entry`].
    ///
    /// # Errors
    /// As [`Zap::lookup_entry`].
    pub fn lookup_entry(
        &self,
        name: &[u8],
        name_match: NameMatch,
    ) -> Result<Option<ZapEntry>, ZapError> {
        self.view()?.lookup_entry(name, name_match)
    }
    /// See [`Zap::lookup_words`].
    ///
    /// # Errors
    /// As [`Zap::lookup_words`].
    pub fn lookup_words(&self, words: &[u64]) -> Result<Option<ZapValue>, ZapError> {
        self.view()?.lookup_words(words)
    }
    /// See [`Zap::entry_count`].
    ///
    /// # Errors
    /// As [`Zap::entry_count`].
    pub fn entry_count(&self) -> Result<u64, ZapError> {
        self.view()?.entry_count()
    }
    /// Lists the entries from a cookie on; 0 is the start. The ZAP may change while the cursor is in use, see
    /// [`ZapCursor::of_changing`].
    ///
    /// # Errors
    /// As [`Zap::from_source`].
    pub fn iter_from(&self, cookie: u64) -> Result<ZapCursor, ZapError> {
        ZapCursor::of_changing(self.store.source(), cookie)
    }

    /// Adds an entry under a name that does not exist yet.
    ///
    /// Names are compared byte by byte, even in a ZAP that folds names. A caller that permits no two names
    /// with the same folding calls [`ZapMut::lookup_entry`] first.
    ///
    /// # Errors
    /// [`ZapError::Exists`]; [`ZapError::NameTooLong`], [`ZapError::Refused`] and [`ZapError::Full`] if the
    /// entry cannot be stored; otherwise if blocks cannot be read or are corrupt.
    pub fn insert(&self, name: &[u8], value: &ZapValue) -> Result<(), ZapError> {
        self.put_name(name, value, Existing::Refuse, &mut None)
    }
    /// As [`ZapMut::insert`], with one 64-bit integer.
    ///
    /// # Errors
    /// As [`ZapMut::insert`].
    pub fn insert_u64(&self, name: &[u8], value: u64) -> Result<(), ZapError> {
        self.insert(name, &ZapValue::from_u64(value))
    }
    /// As [`ZapMut::insert_u64`], with an index, which stays valid. It is `None` afterwards if this failed or
    /// the ZAP is no longer a microzap.
    ///
    /// # Errors
    /// As [`ZapMut::insert`].
    pub fn insert_u64_by(
        &self,
        index: &mut Option<MicroIndex>,
        name: &[u8],
        value: u64,
    ) -> Result<(), ZapError> {
        let mut own = index.take();
        let value = ZapValue::from_u64(value);
        self.put_name(name, &value, Existing::Refuse, &mut own)?;
        *index = own;
        Ok(())
    }
    /// Adds an entry, or replaces the value of the entry with exactly this name.
    ///
    /// # Errors
    /// As [`ZapMut::insert`], without [`ZapError::Exists`].
    pub fn update(&self, name: &[u8], value: &ZapValue) -> Result<(), ZapError> {
        self.put_name(name, value, Existing::Replace, &mut None)
    }
    /// As [`ZapMut::update`], with one 64-bit integer.
    ///
    /// # Errors
    /// As [`ZapMut::update`].
    pub fn update_u64(&self, name: &[u8], value: u64) -> Result<(), ZapError> {
        self.update(name, &ZapValue::from_u64(value))
    }
    /// Removes the entry of exactly this name. Returns whether there was one.
    ///
    /// # Errors
    /// If blocks cannot be read or are corrupt, or keys are words.
    pub fn remove(&self, name: &[u8]) -> Result<bool, ZapError> {
        self.remove_by(&mut None, name)
    }
    /// As [`ZapMut::remove`], with an index, which stays valid. It is `None` afterwards if this failed.
    ///
    /// # Errors
    /// As [`ZapMut::remove`].
    pub fn remove_by(&self, index: &mut Option<MicroIndex>, name: &[u8]) -> Result<bool, ZapError> {
        let mut own = index.take();
        let is_removed = self.remove_name(name, &mut own)?;
        *index = own;
        Ok(is_removed)
    }
    fn remove_name(&self, name: &[u8], index: &mut Option<MicroIndex>) -> Result<bool, ZapError> {
        let zap = self.view()?;
        if zap.has_word_keys() {
            return Err(zap.invalid("keys are words, not names"));
        }
        let Some(hash_form) = zap.normalisation()?.apply(name) else {
            return Ok(false);
        };
        let hash = zap.hashing.name(&hash_form);
        match zap.shape {
            Shape::Micro => self.remove_micro(zap, name, hash, index),
            Shape::Fat(header) => {
                *index = None;
                drop(zap);
                self.stage(header).remove(hash, ZapKey::Name(name))
            }
        }
    }
    /// Removes and returns the entry whose name matches according to `name_match`.
    ///
    /// # Errors
    /// As [`ZapMut::remove`].
    pub fn remove_entry(
        &self,
        name: &[u8],
        name_match: NameMatch,
    ) -> Result<Option<ZapEntry>, ZapError> {
        let Some(found) = self.lookup_entry(name, name_match)? else {
            return Ok(None);
        };
        self.remove(&found.name)?;
        Ok(Some(found))
    }

    /// Adds `delta` to the integer under a name, which counts as 0 if it is missing. Returns the sum.
    ///
    /// # Errors
    /// As [`ZapMut::update`], and [`ZapError::Refused`] if the sum is not an unsigned 64-bit integer.
    pub fn increment(&self, name: &[u8], delta: i64, at_zero: AtZero) -> Result<u64, ZapError> {
        let old = self.lookup_u64(name)?;
        let sum = old.unwrap_or(0).checked_add_signed(delta);
        let sum = sum.ok_or_else(|| self.refused("the sum is no 64-bit integer"))?;
        match (sum, at_zero) {
            (0, AtZero::Remove) if old.is_none() => {}
            (0, AtZero::Remove) => {
                self.remove(name)?;
            }
            _ if old == Some(sum) => {}
            _ => self.update_u64(name, sum)?,
        }
        Ok(sum)
    }
    /// As [`ZapMut::increment`], in ZAPs whose keys are numbers written in lower-case hexadecimal.
    ///
    /// # Errors
    /// As [`ZapMut::increment`].
    pub fn increment_number(&self, key: u64, delta: i64, at_zero: AtZero) -> Result<u64, ZapError> {
        self.increment(format!("{key:x}").as_bytes(), delta, at_zero)
    }
    /// Adds `key` = `value` in a ZAP whose keys are numbers.
    ///
    /// # Errors
    /// As [`ZapMut::insert`].
    pub fn insert_number(&self, key: u64, value: u64) -> Result<(), ZapError> {
        self.insert_u64(format!("{key:x}").as_bytes(), value)
    }
    /// Removes an entry from a ZAP whose keys are numbers. Returns whether there was one.
    ///
    /// # Errors
    /// As [`ZapMut::remove`].
    pub fn remove_number(&self, key: u64) -> Result<bool, ZapError> {
        self.remove(format!("{key:x}").as_bytes())
    }

    /// Adds an entry under a key of words that does not exist yet.
    ///
    /// # Errors
    /// As [`ZapMut::insert`], and if keys are names.
    pub fn insert_words(&self, words: &[u64], value: &ZapValue) -> Result<(), ZapError> {
        self.put_words(words, value, Existing::Refuse)
    }
    /// Adds an entry under a key of words, or replaces its value.
    ///
    /// # Errors
    /// As [`ZapMut::insert_words`], without [`ZapError::Exists`].
    pub fn update_words(&self, words: &[u64], value: &ZapValue) -> Result<(), ZapError> {
        self.put_words(words, value, Existing::Replace)
    }
    /// Removes the entry under a key of words. Returns whether there was one.
    ///
    /// # Errors
    /// If blocks cannot be read or are corrupt, or keys are names.
    pub fn remove_words(&self, words: &[u64]) -> Result<bool, ZapError> {
        let header = self.words_header()?;
        let hash = header.hashing().words(words);
        self.stage(header).remove(hash, ZapKey::Words(words))
    }

    fn put_words(
        &self,
        words: &[u64],
        value: &ZapValue,
        existing: Existing,
    ) -> Result<(), ZapError> {
        let header = self.words_header()?;
        let hash = header.hashing().words(words);
        self.stage(header)
            .put(hash, ZapKey::Words(words), value, existing)
    }
    fn words_header(&self) -> Result<ZapHeader, ZapError> {
        let zap = self.view()?;
        match zap.shape {
            Shape::Fat(header) if zap.has_word_keys() => Ok(header),
            _ => Err(zap.invalid("keys are names, not words")),
        }
    }

    fn put_name(
        &self,
        name: &[u8],
        value: &ZapValue,
        existing: Existing,
        index: &mut Option<MicroIndex>,
    ) -> Result<(), ZapError> {
        let zap = self.view()?;
        if zap.has_word_keys() {
            return Err(zap.invalid("keys are words, not names"));
        }
        let hash_form = self.hash_form(zap.normalisation()?, name)?;
        let hash = zap.hashing.name(&hash_form);
        match zap.shape {
            Shape::Micro => self.put_micro(zap, name, hash, value, existing, index),
            Shape::Fat(header) => {
                *index = None;
                drop(zap);
                self.stage(header)
                    .put(hash, ZapKey::Name(name), value, existing)
            }
        }
    }

    /// The form of a new name that is hashed.
    fn hash_form<'n>(
        &self,
        normalisation: Normalisation,
        name: &'n [u8],
    ) -> Result<Cow<'n, [u8]>, ZapError> {
        if name.len() > self.name_bytes_max {
            return Err(ZapError::NameTooLong {
                address: self.store.source().address(BlockId(0)),
                bytes_max: self.name_bytes_max,
            });
        }
        if name.contains(&0) {
            return Err(self.refused("a name has no NUL"));
        }
        normalisation
            .apply(name)
            .ok_or_else(|| self.refused("the name is not UTF-8 and has no normal form"))
    }

    fn stage(&self, header: ZapHeader) -> Stage<'_, S> {
        Stage::new(&self.store, header)
    }
    fn corrupt(&self, error: DecodeError) -> ZapError {
        ZapError::Corrupt {
            address: self.store.source().address(BlockId(0)),
            error,
        }
    }
    fn refused(&self, reason: &'static str) -> ZapError {
        ZapError::Refused {
            address: self.store.source().address(BlockId(0)),
            reason,
        }
    }
    fn exists(&self) -> ZapError {
        ZapError::Exists {
            address: self.store.source().address(BlockId(0)),
        }
    }
    fn full(&self) -> ZapError {
        ZapError::Full {
            address: self.store.source().address(BlockId(0)),
        }
    }
}

/// Builds the header and the leaf of a new fat ZAP.
fn first_blocks(header: &ZapHeader) -> Result<[Vec<u8>; 2], DecodeError> {
    let table_entries = 1usize << (header.block_shift - 4);
    let head = header.encode(&vec![1; table_entries])?;
    let is_cd_sorted = header.normflags != 0;
    let leaf = ZapLeafBuilder::new(header.block_shift, 0, 0, is_cd_sorted)?;
    Ok([head, leaf.finish()])
}

/// Returns the lowest differentiator that is not in `used`, if the ZAP permits it.
fn lowest_unused(mut used: Vec<u32>, hashing: &ZapHashing) -> Option<u32> {
    used.sort_unstable();
    used.dedup();
    let taken = (0u32..).zip(&used).take_while(|(n, cd)| n == *cd).count();
    u32::try_from(taken)
        .ok()
        .filter(|cd| *cd < hashing.cd_limit())
}
