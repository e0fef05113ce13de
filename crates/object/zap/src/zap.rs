//! An open ZAP and its entries.

use crate::{Normalisation, ZapCursor, ZapError, ZapSource};
use millpond_env::sync::Arc;
use millpond_object::{Block, ObjectView};
use millpond_ondisk::zap::{
    MicroZap, ZapFlags, ZapForm, ZapHashing, ZapHeader, ZapLeaf, ZapValue, pointer_table_entry,
};
use millpond_ondisk::{BlockId, DecodeError};

/// An open ZAP in its state when it was opened. Cheap to clone.
///
/// Holds block 0 in memory (at most 1 MiB from a correct writer, 16 MiB in the worst case), and other blocks
/// only while it reads them.
#[derive(Clone)]
pub struct Zap {
    pub(crate) source: Arc<dyn ZapSource>,
    pub(crate) first: Arc<Block>,
    pub(crate) shape: Shape,
    pub(crate) hashing: ZapHashing,
    normflags: u64,
}

/// Distinguishes the two forms.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Micro,
    Fat(ZapHeader),
}

/// One entry of a ZAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapEntry {
    /// The stored name without NUL, at most 1023 bytes. In a ZAP keyed by words, the bytes of the words, each
    /// with its most significant byte first ([`ZapEntry::words`]).
    pub name: Vec<u8>,
    /// The value.
    pub value: ZapValue,
}

impl ZapEntry {
    /// The key in a ZAP keyed by words.
    #[must_use]
    pub fn words(&self) -> Vec<u64> {
        self.name
            .chunks_exact(8)
            .map(|word| {
                word.iter()
                    .fold(0, |value, byte| (value << 8) | u64::from(*byte))
            })
            .collect()
    }
}

impl std::fmt::Debug for Zap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zap")
            .field("at", &self.source.address(BlockId(0)))
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl Zap {
    /// Opens the ZAP in an object. Reads one block.
    ///
    /// # Errors
    /// If block 0 cannot be read or is not the beginning of a ZAP.
    pub fn open(object: ObjectView) -> Result<Self, ZapError> {
        Self::from_source(Arc::new(object))
    }

    /// Opens a ZAP from any source of blocks.
    ///
    /// # Errors
    /// As [`Zap::open`].
    pub fn from_source(source: Arc<dyn ZapSource>) -> Result<Self, ZapError> {
        let first = source.read_block(BlockId(0))?;
        let corrupt = |error| ZapError::Corrupt {
            address: source.address(BlockId(0)),
            error,
        };
        let form = ZapForm::of_first_block(&first.bytes, first.endian).map_err(corrupt)?;
        let (shape, hashing, normflags) = match form {
            ZapForm::Micro => {
                let micro = MicroZap::decode(&first.bytes, first.endian).map_err(corrupt)?;
                let hashing = ZapHashing::plain(micro.salt);
                (Shape::Micro, hashing, micro.normflags)
            }
            ZapForm::Fat => {
                let header = ZapHeader::decode(&first.bytes, first.endian).map_err(corrupt)?;
                (Shape::Fat(header), header.hashing(), header.normflags)
            }
        };
        Ok(Self {
            source,
            first,
            shape,
            hashing,
            normflags,
        })
    }

    /// The form of the ZAP, micro or fat.
    #[must_use]
    pub fn form(&self) -> ZapForm {
        match self.shape {
            Shape::Micro => ZapForm::Micro,
            Shape::Fat(_) => ZapForm::Fat,
        }
    }
    /// The header of a fat ZAP.
    #[must_use]
    pub fn header(&self) -> Option<&ZapHeader> {
        match &self.shape {
            Shape::Micro => None,
            Shape::Fat(header) => Some(header),
        }
    }
    /// The number of entries. A fat ZAP takes it from its header; a microzap counts its entries.
    ///
    /// # Errors
    /// If an entry of a microzap is corrupt.
    pub fn entry_count(&self) -> Result<u64, ZapError> {
        match &self.shape {
            Shape::Fat(header) => Ok(header.entry_count),
            Shape::Micro => self.micro()?.entries().try_fold(0u64, |count, entry| {
                entry.map_err(|error| self.corrupt(BlockId(0), error))?;
                Ok(count.saturating_add(1))
            }),
        }
    }
    /// Whether keys are arrays of words rather than names.
    #[must_use]
    pub fn has_word_keys(&self) -> bool {
        self.header()
            .is_some_and(|header| header.flags.contains(ZapFlags::UINT64_KEY))
    }
    /// How names are folded before they are hashed.
    ///
    /// # Errors
    /// If the ZAP requires a folding that does not exist. It can still be listed.
    pub fn normalisation(&self) -> Result<Normalisation, ZapError> {
        Normalisation::from_normflags(self.normflags)
            .ok_or_else(|| self.invalid("names are folded in an unknown way"))
    }

    /// All entries in hash order.
    #[must_use]
    pub fn iter(&self) -> ZapCursor {
        ZapCursor::new(self.clone(), 0)
    }
    /// The entries from a cookie on (see [`ZapCursor::cookie`]); 0 is the start.
    #[must_use]
    pub fn iter_from(&self, cookie: u64) -> ZapCursor {
        ZapCursor::new(self.clone(), cookie)
    }

    /// The microzap in block 0.
    pub(crate) fn micro(&self) -> Result<MicroZap<'_>, ZapError> {
        MicroZap::decode(&self.first.bytes, self.first.endian)
            .map_err(|error| self.corrupt(BlockId(0), error))
    }

    /// The block id of the leaf for `hash`. It is within the ZAP.
    pub(crate) fn leaf_block(&self, header: &ZapHeader, hash: u64) -> Result<BlockId, ZapError> {
        let place = header.table_location(hash);
        let id = BlockId(place.block);
        let entry = if place.block == 0 {
            pointer_table_entry(&self.first.bytes, self.first.endian, place.word)
        } else {
            let block = self.source.read_block(id)?;
            pointer_table_entry(&block.bytes, block.endian, place.word)
        };
        let entry = entry.map_err(|error| self.corrupt(id, error))?;
        if entry == 0 || entry >= header.free_block {
            let offset = place.word.saturating_mul(8);
            let error = DecodeError::new("zap pointer table", "points outside the zap", offset);
            return Err(self.corrupt(id, error));
        }
        Ok(BlockId(entry))
    }

    /// Decodes a leaf that the table names for `hash`.
    pub(crate) fn leaf<'b>(
        &self,
        header: &ZapHeader,
        block: &'b Block,
        id: BlockId,
        hash: u64,
    ) -> Result<ZapLeaf<'b>, ZapError> {
        let leaf =
            ZapLeaf::decode(&block.bytes, block.endian).map_err(|error| self.corrupt(id, error))?;
        if leaf.prefix_bits > header.table_shift || !leaf.covers(hash) {
            let error = DecodeError::new("zap leaf", "prefix contradicts the pointer table", 16);
            return Err(self.corrupt(id, error));
        }
        Ok(leaf)
    }

    pub(crate) fn corrupt(&self, id: BlockId, error: DecodeError) -> ZapError {
        ZapError::Corrupt {
            address: self.source.address(id),
            error,
        }
    }
    pub(crate) fn invalid(&self, reason: &'static str) -> ZapError {
        ZapError::Invalid {
            address: self.source.address(BlockId(0)),
            reason,
        }
    }
}
