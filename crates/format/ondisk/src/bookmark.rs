//! Bookmarks of snapshots, and their redaction lists.
//!
//! Page `docs/format/bookmarks.md`.

use crate::{DecodeError, Endian, Guid, ObjectId, Reader, Txg, Writer};

bitflags::bitflags! {
    /// Flags of a bookmark. Page `docs/format/bookmarks.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct BookmarkFlags: u64 {
        /// `freed_before_next` is maintained.
        const HAS_FREED_BEFORE_NEXT = 0x1;
        /// The snapshot still exists.
        const SNAPSHOT_EXISTS = 0x2;
        const _ = !0;
    }
}

/// Three sizes of the same set of blocks, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BookmarkSizes {
    /// Deflated allocated bytes.
    pub referenced: u64,
    /// Physical bytes.
    pub compressed: u64,
    /// Logical bytes.
    pub uncompressed: u64,
}

/// A bookmark: 3 to 12 words in the bookmark ZAP. Page `docs/format/bookmarks.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BookmarkPhys {
    /// Guid of the snapshot.
    pub guid: Guid,
    /// The snapshot's creation txg.
    pub creation_txg: Txg,
    /// The snapshot's creation, seconds since 1970.
    pub creation_time: u64,
    /// Its redaction list.
    pub redaction_list: Option<ObjectId>,
    /// See [`BookmarkFlags`].
    pub flags: BookmarkFlags,
    /// Sizes of the blocks that the snapshot references.
    pub sizes: BookmarkSizes,
    /// Sizes of the blocks freed between the snapshot and the next one ("FBN").
    pub freed_before_next: BookmarkSizes,
    /// Identity of an encrypted snapshot's set of IVs; 0 for none.
    pub ivset_guid: Guid,
}

impl BookmarkPhys {
    /// Reads a bookmark from its words (native integers, as read from a ZAP); missing ones are 0.
    ///
    /// # Errors
    /// If there are fewer than 3 or more than 12.
    pub fn from_words(words: &[u64]) -> Result<Self, DecodeError> {
        if !(3..=12).contains(&words.len()) {
            return Err(DecodeError::new("bookmark", "not 3 to 12 words", 0));
        }
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        let sizes = |first: [usize; 3]| {
            let [referenced, compressed, uncompressed] = first.map(word);
            BookmarkSizes {
                referenced,
                compressed,
                uncompressed,
            }
        };
        Ok(Self {
            guid: Guid(word(0)),
            creation_txg: Txg(word(1)),
            creation_time: word(2),
            redaction_list: ObjectId(word(3)).some(),
            flags: BookmarkFlags::from_bits_retain(word(4)),
            sizes: sizes([5, 6, 7]),
            freed_before_next: sizes([8, 9, 10]),
            ivset_guid: Guid(word(11)),
        })
    }
    /// Encodes the bookmark: 3 words, or 12 if a later field is needed (feature `com.datto:bookmark_v2`).
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![
            self.guid.0,
            self.creation_txg.0,
            self.creation_time,
            ObjectId::number(self.redaction_list),
            self.flags.bits(),
            self.sizes.referenced,
            self.sizes.compressed,
            self.sizes.uncompressed,
            self.freed_before_next.referenced,
            self.freed_before_next.compressed,
            self.freed_before_next.uncompressed,
            self.ivset_guid.0,
        ];
        let long = self.redaction_list.is_some()
            || self.ivset_guid.0 != 0
            || self.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT);
        if !long {
            words.truncate(3);
        }
        words
    }
}

/// The header of a redaction list: the bonus of its object, or its spill block.
/// Page `docs/format/bookmarks.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedactionListPhys {
    /// The last object that the list covers; all ones once it is complete.
    pub last_object: u64,
    /// The last block that the list covers; all ones once it is complete.
    pub last_block_id: u64,
    /// The number of entries in the object's data.
    pub entry_count: u64,
    /// The redaction snapshots, whose changes a redacted stream omits.
    pub snapshots: Vec<Guid>,
}

impl RedactionListPhys {
    /// Reads a header. Allocates at most the length of `bytes`.
    ///
    /// # Errors
    /// If it is shorter than 32 bytes, or its snapshot count exceeds the bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("redaction list", bytes, endian);
        let last_object = reader.u64()?;
        let last_block_id = reader.u64()?;
        let entry_count = reader.u64()?;
        let count = reader.u64()?;
        let available = u64::try_from(reader.remaining() >> 3).unwrap_or(0);
        if count > available {
            return Err(DecodeError::new(
                "redaction list",
                "more snapshots than fit",
                24,
            ));
        }
        let snapshots = (0..count)
            .map(|_| reader.u64().map(Guid))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            last_object,
            last_block_id,
            entry_count,
            snapshots,
        })
    }
    /// Encodes the header, little-endian and without padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let count = u64::try_from(self.snapshots.len()).unwrap_or(u64::MAX);
        writer.put_words(&[
            self.last_object,
            self.last_block_id,
            self.entry_count,
            count,
        ]);
        for snapshot in &self.snapshots {
            writer.put_u64(snapshot.0);
        }
        writer.finish()
    }
    /// Whether the list is complete; an incomplete one must not be used.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.last_object == u64::MAX && self.last_block_id == u64::MAX
    }
}

/// Size of an entry of a redaction list in bytes.
pub const REDACTION_ENTRY_BYTES: usize = 32;

/// A run of redacted blocks of one object. Page `docs/format/bookmarks.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedactionEntry {
    /// The object.
    pub object: ObjectId,
    /// The first block.
    pub block_id: u64,
    /// The number of consecutive blocks, at least 1.
    pub block_count: u64,
    /// Size of each block in sectors of 512 bytes.
    pub block_sectors: u16,
}

impl RedactionEntry {
    /// Reads an entry.
    ///
    /// # Errors
    /// If there are fewer than 32 bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [object, block_id, size_and_count, _] = endian.words("redaction list entry", bytes)?;
        Ok(Self {
            object: ObjectId(object),
            block_id,
            block_count: (size_and_count & ((1 << 48) - 1)).saturating_add(1),
            block_sectors: u16::try_from(size_and_count >> 48).unwrap_or(u16::MAX),
        })
    }
    /// Encodes the entry as 32 little-endian bytes. The count is clamped to the range 1 to 2^48.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = self.block_count.clamp(1, 1 << 48).saturating_sub(1);
        let mut writer = Writer::with_capacity(REDACTION_ENTRY_BYTES);
        writer.put_words(&[
            self.object.0,
            self.block_id,
            (u64::from(self.block_sectors) << 48) | count,
            0,
        ]);
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_real_bookmark_with_freed_sizes_reads_as_its_words() {
        let words = [
            77, 28, 1795254000, 0, 3, 145408, 138240, 138240, 63488, 56320, 56320, 0,
        ];
        let bookmark = BookmarkPhys::from_words(&words).unwrap();
        assert_eq!(bookmark.creation_txg, Txg(28));
        assert_eq!(bookmark.sizes.referenced, 145408);
        assert_eq!(bookmark.freed_before_next.referenced, 63488);
        assert_eq!(bookmark.to_words(), words);
    }

    #[test]
    fn any_length_from_3_to_12_is_accepted_and_no_other() {
        for length in 0..20 {
            let words = vec![1; length];
            assert_eq!(
                BookmarkPhys::from_words(&words).is_ok(),
                (3..=12).contains(&length)
            );
        }
        let short = BookmarkPhys::from_words(&[1, 2, 3]).unwrap();
        assert_eq!(short.to_words(), [1, 2, 3]);
        assert_eq!(short.redaction_list, None);
    }

    #[test]
    fn a_redaction_list_with_too_many_snapshots_is_refused() {
        let list = RedactionListPhys {
            last_object: u64::MAX,
            last_block_id: u64::MAX,
            entry_count: 9,
            snapshots: vec![Guid(5), Guid(6)],
        };
        let bytes = list.encode();
        assert_eq!(
            RedactionListPhys::decode(&bytes, Endian::Little).unwrap(),
            list
        );
        assert!(list.is_complete());
        let error = RedactionListPhys::decode(&bytes[..40], Endian::Little).unwrap_err();
        assert_eq!(error.reason, "more snapshots than fit");
        let mut huge = bytes.clone();
        huge[24..32].fill(0xff);
        assert!(RedactionListPhys::decode(&huge, Endian::Little).is_err());
    }

    #[test]
    fn a_bookmark_is_long_if_it_has_any_one_of_three_things() {
        let short = BookmarkPhys {
            guid: Guid(1),
            creation_txg: Txg(2),
            creation_time: 3,
            ..BookmarkPhys::default()
        };
        assert_eq!(short.to_words(), [1, 2, 3]);
        for long in [
            BookmarkPhys {
                redaction_list: Some(ObjectId(5)),
                ..short
            },
            BookmarkPhys {
                ivset_guid: Guid(6),
                ..short
            },
            BookmarkPhys {
                flags: BookmarkFlags::HAS_FREED_BEFORE_NEXT,
                ..short
            },
        ] {
            let words = long.to_words();
            assert_eq!(words.len(), 12);
            assert_eq!(BookmarkPhys::from_words(&words), Ok(long));
        }
        // The short form contains the flag for the snapshot's existence.
        let exists = BookmarkPhys {
            flags: BookmarkFlags::SNAPSHOT_EXISTS,
            ..short
        };
        assert_eq!(exists.to_words().len(), 3);
    }

    #[test]
    fn redaction_lists_with_spare_space_are_accepted() {
        let list = |last_object, last_block_id| RedactionListPhys {
            last_object,
            last_block_id,
            entry_count: 1,
            snapshots: vec![Guid(7)],
        };
        let mut bytes = list(1, 2).encode();
        bytes.resize(64, 0);
        assert_eq!(
            RedactionListPhys::decode(&bytes, Endian::Little),
            Ok(list(1, 2))
        );
        assert!(list(u64::MAX, u64::MAX).is_complete());
        assert!(!list(u64::MAX, 2).is_complete() && !list(1, u64::MAX).is_complete());
    }

    proptest! {
        #[test]
        fn redaction_entries_round_trip(object: u64, block_id: u64, count in 1u64..=1 << 48, block_sectors: u16) {
            let entry = RedactionEntry { object: ObjectId(object), block_id, block_count: count, block_sectors };
            prop_assert_eq!(RedactionEntry::decode(&entry.encode(), Endian::Little).unwrap(), entry);
        }
        #[test]
        fn any_bytes_are_a_list_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = RedactionListPhys::decode(&bytes, Endian::Big);
            let _ = RedactionEntry::decode(&bytes, Endian::Big);
        }
    }
}
