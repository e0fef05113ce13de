//! The token for resuming an interrupted receive.
//!
//! Page `docs/format/properties.md`, "Resume tokens".

use crate::{Dataset, DatasetError};
use millpond_compress::{ZstdLevel, compress, decompress};
use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::CompressionKind;
use millpond_ondisk::dsl::keys::{RECEIVE_DATASET, resume};
use std::fmt::Write;

impl Dataset {
    /// The value of `receive_resume_token` for a dataset that was being received; `None` if there is
    /// nothing to resume.
    ///
    /// # Errors
    /// If the dataset's table cannot be read.
    pub fn resume_token(&self) -> Result<Option<String>, DatasetError> {
        match self.partly_received()? {
            Some(partial) => partial.own_resume_token(),
            None => Ok(None),
        }
    }

    /// The dataset that an interrupted receive into this one left: itself, or a hidden child. `None` if there is none.
    ///
    /// # Errors
    /// If the dataset's table cannot be read.
    pub fn partly_received(&self) -> Result<Option<Self>, DatasetError> {
        if self.extension(resume::TO_GUID)?.is_some() {
            return Ok(Some(self.clone()));
        }
        // A receive into an existing dataset uses a hidden child dataset.
        let hidden = match self.directory().child(RECEIVE_DATASET) {
            Ok(hidden) if !self.is_snapshot() => hidden.head()?,
            Ok(_) | Err(DatasetError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        match hidden {
            Some(hidden) if hidden.extension(resume::TO_GUID)?.is_some() => Ok(Some(hidden)),
            _ => Ok(None),
        }
    }

    fn own_resume_token(&self) -> Result<Option<String>, DatasetError> {
        let mut list = NvList::new();
        for (key, name) in [
            (resume::FROM_GUID, "fromguid"),
            (resume::OBJECT, "object"),
            (resume::OFFSET, "offset"),
            (resume::BYTES, "bytes"),
            (resume::TO_GUID, "toguid"),
        ] {
            if let Some([number, ..]) = self.extension(key)?.as_deref() {
                list.push(name, *number);
            }
        }
        if let Some(value) = self.extension_value(resume::TO_NAME)? {
            let text = value.bytes.split(|byte| *byte == 0).next().unwrap_or(&[]);
            list.push("toname", String::from_utf8_lossy(text).into_owned());
        }
        for (key, name) in [
            (resume::LARGE_BLOCK_OK, "largeblockok"),
            (resume::EMBED_OK, "embedok"),
            (resume::COMPRESS_OK, "compressok"),
            (resume::RAW_OK, "rawok"),
        ] {
            if self.extension(key)?.is_some() {
                list.push(name, NvValue::Boolean);
            }
        }
        if let Some(guids) = self.redacted_for()? {
            list.push("redact_snaps", NvValue::Uint64Array(guids));
        }
        if let Some(guids) = self.extension(resume::REDACT_BOOKMARK_SNAPSHOTS)? {
            list.push("book_redact_snaps", NvValue::Uint64Array(guids));
        }
        // Lists of numbers and one name always encode. They always compress, since most bytes are zero.
        let Ok(packed) = list.encode_native() else {
            return Ok(None);
        };
        let squeezed = compress(
            CompressionKind::Gzip(6),
            ZstdLevel::DEFAULT,
            &packed,
            packed.len(),
        );
        Ok(squeezed.map(|squeezed| format_token(&squeezed, packed.len())))
    }
}

/// What a token says of an interrupted receive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResumeToken {
    /// The guid of the snapshot.
    pub to_guid: u64,
    /// The full name of the snapshot at the sender.
    pub to_name: String,
    /// The guid of the older snapshot; 0 for none.
    pub from_guid: u64,
    /// The object from which the stream continues.
    pub object: u64,
    /// The offset in it, in bytes.
    pub offset: u64,
    /// The bytes of the streams before.
    pub bytes: u64,
    /// Whether blocks may be larger than 128 KiB.
    pub large_blocks: bool,
    /// Whether pointers may hold blocks.
    pub embedded: bool,
    /// Whether blocks may be compressed.
    pub compressed: bool,
    /// Whether blocks are encrypted.
    pub is_raw: bool,
    /// The guids of the snapshots with respect to which the stream is redacted; empty if it is whole.
    pub redacted: Vec<u64>,
    /// The guids of those with respect to which the older snapshot is redacted.
    pub redacted_from: Vec<u64>,
    /// All pairs, as OpenZFS prints them.
    pub text: String,
}

/// No token has a longer list, in bytes.
const LIST_BYTES_MAX: usize = 64 << 10;

impl ResumeToken {
    /// Parses a token.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(token: &str) -> Result<Self, String> {
        let format = || "invalid format".to_owned();
        let parts: Vec<&str> = token.split('-').collect();
        let [version, sum, length, data] = parts.as_slice() else {
            return Err(format());
        };
        match version.parse::<u32>() {
            Ok(1) => {}
            Ok(other) => return Err(format!("invalid version {other}")),
            Err(_) => return Err(format()),
        }
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| format());
        let (sum, length) = (number(sum)?, number(length)?);
        let digits = data.as_bytes().chunks(2).map(|pair| {
            let text = std::str::from_utf8(pair).unwrap_or_default();
            u8::from_str_radix(text, 16).map_err(|_| "payload is not hex-encoded".to_owned())
        });
        let squeezed = digits.collect::<Result<Vec<u8>, String>>()?;
        if sum != checksum(&squeezed) {
            return Err("incorrect checksum".to_owned());
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let mut packed = vec![0; length.min(LIST_BYTES_MAX)];
        let unpacked = decompress(CompressionKind::Gzip(6), &squeezed, &mut packed);
        if length > LIST_BYTES_MAX || unpacked.is_err() {
            return Err("decompression failed".to_owned());
        }
        let list = NvList::decode(&packed).map_err(|_| "nvlist_unpack failed".to_owned())?;
        let number = |key| list.u64(key).unwrap_or(0);
        let guids = |key| list.u64_array(key).map(<[u64]>::to_vec).unwrap_or_default();
        Ok(Self {
            to_guid: number("toguid"),
            to_name: list.string("toname").unwrap_or_default().to_owned(),
            from_guid: number("fromguid"),
            object: number("object"),
            offset: number("offset"),
            bytes: number("bytes"),
            large_blocks: list.contains("largeblockok"),
            embedded: list.contains("embedok"),
            compressed: list.contains("compressok"),
            is_raw: list.contains("rawok"),
            redacted: guids("redact_snaps"),
            redacted_from: guids("book_redact_snaps"),
            text: list.to_tool_text(1),
        })
    }
}

/// The first sum of fletcher4: the words of a token, little-endian, without an incomplete one at the end.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(4).fold(0u64, |sum, word| {
        let word = word.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        sum.wrapping_add(word)
    })
}

fn format_token(squeezed: &[u8], packed_bytes: usize) -> String {
    let sum = checksum(squeezed);
    let mut token = format!("1-{sum:x}-{packed_bytes:x}-");
    for byte in squeezed {
        // Writing to a String cannot fail.
        let _ = write!(token, "{byte:02x}");
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token of OpenZFS.
    const KNOWN: &str = "1-a7f760925-b8-789c636064000310a500c4ec50360710e72765a52697303088429460caa7a515a79630c001489e0d493ea9b224b518482f982386557f497e7a69660a0343e346a638def5b77e6b20c97382e5f312735319180a8a528b4b7353f58b8b921d0ca17601002f9e17a3";

    #[test]
    fn a_token_of_openzfs_is_parsed() {
        let token = ResumeToken::parse(KNOWN).unwrap();
        assert_eq!((token.object, token.offset), (0x15, 0));
        assert_eq!(token.bytes, 0x0016_9ca0);
        assert_eq!(token.to_guid, 0xfbda_af0d_5e02_b181);
        assert_eq!(token.to_name, "presume/src@1");
        assert_eq!(token.from_guid, 0);
        assert_eq!(token.text.lines().count(), 1 + 5);
    }

    #[test]
    fn damaged_tokens_are_refused_with_the_reason() {
        for (token, reason) in [
            ("bogustoken", "invalid format"),
            ("1-abc-def-0123", "incorrect checksum"),
            ("2-0-0-", "invalid version 2"),
            ("1-0-0-zz", "payload is not hex-encoded"),
            ("1-0-8-", "decompression failed"),
            ("1-0-ffffffffffffffff-", "decompression failed"),
        ] {
            assert_eq!(ResumeToken::parse(token), Err(reason.to_owned()), "{token}");
        }
    }
}
