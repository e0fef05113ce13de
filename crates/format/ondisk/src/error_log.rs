//! Error logs: the blocks that could not be read.
//!
//! Page `docs/format/error-log.md`.

use crate::dsl::hex_key_number;
use crate::{BlockBookmark, Txg};

/// A key in the error log ZAP of one head dataset, with feature `com.delphix:head_errlog`. Page
/// `docs/format/error-log.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorLogEntry {
    /// The object.
    pub object: u64,
    /// Height in its block tree.
    pub level: u64,
    /// The block id in that level.
    pub block_id: u64,
    /// Physical birth of the bad block.
    pub birth: Txg,
}

impl ErrorLogEntry {
    /// Parses a key such as `1:0:1:13`; `None` if it has another form.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<Self> {
        let [object, level, block_id, birth] = four_numbers(key)?;
        Some(Self {
            object,
            level,
            block_id,
            birth: Txg(birth),
        })
    }
    /// Formats the key.
    #[must_use]
    pub fn key(&self) -> String {
        format!(
            "{:x}:{:x}:{:x}:{:x}",
            self.object, self.level, self.block_id, self.birth.0
        )
    }
}

/// Parses a key of an error log without feature `com.delphix:head_errlog`, such as `55:1:0:2` (dataset,
/// object, level, block). `None` if it has another form.
#[must_use]
pub fn parse_error_log_bookmark(key: &[u8]) -> Option<BlockBookmark> {
    four_numbers(key).map(BlockBookmark::from_words)
}

/// The key of a block in an error log without feature `com.delphix:head_errlog`.
#[must_use]
pub fn error_log_bookmark_key(bookmark: &BlockBookmark) -> String {
    let [object_set, object, level, block_id] = bookmark.to_words();
    format!("{object_set:x}:{object:x}:{level:x}:{block_id:x}")
}

fn four_numbers(key: &[u8]) -> Option<[u64; 4]> {
    let mut parts = key.split(|byte| *byte == b':');
    let mut numbers = [0u64; 4];
    for number in &mut numbers {
        *number = hex_key_number(parts.next()?)?;
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn real_keys_of_both_forms_are_read() {
        let old = parse_error_log_bookmark(b"55:1:0:2").unwrap();
        assert_eq!(old, BlockBookmark::from_words([85, 1, 0, 2]));
        assert_eq!(error_log_bookmark_key(&old), "55:1:0:2");
        let new = ErrorLogEntry::parse(b"1:0:1:13").unwrap();
        assert_eq!((new.block_id, new.birth), (1, Txg(19)));
        assert_eq!(new.key(), "1:0:1:13");
    }

    #[test]
    fn keys_of_other_forms_are_no_entries() {
        for key in [
            &b""[..],
            b"1:2:3",
            b"1:2:3:4:5",
            b"1:2:3:",
            b"g:0:0:0",
            b"1:2:3:4 ",
        ] {
            assert_eq!(parse_error_log_bookmark(key), None, "{key:?}");
        }
    }

    proptest! {
        #[test]
        fn keys_round_trip(object: u64, level: u64, block_id: u64, birth: u64) {
            let entry = ErrorLogEntry { object, level, block_id, birth: Txg(birth) };
            prop_assert_eq!(ErrorLogEntry::parse(entry.key().as_bytes()), Some(entry));
            let bookmark = BlockBookmark::from_words([object, level, block_id, birth]);
            prop_assert_eq!(parse_error_log_bookmark(error_log_bookmark_key(&bookmark).as_bytes()), Some(bookmark));
        }
    }
}
