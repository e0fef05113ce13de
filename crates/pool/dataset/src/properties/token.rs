//! The token for resuming an interrupted receive.
//!
//! Page `docs/format/properties.md`, "Resume tokens".

use crate::{Dataset, DatasetError};
use millpond_compress::{ZstdLevel, compress};
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
        if self.extension(resume::TO_GUID)?.is_some() {
            return self.own_resume_token();
        }
        // A receive into an existing dataset uses a hidden child dataset.
        let hidden = match self.directory().child(RECEIVE_DATASET) {
            Ok(hidden) if !self.is_snapshot() => hidden.head()?,
            Ok(_) | Err(DatasetError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        match hidden {
            Some(hidden) if hidden.extension(resume::TO_GUID)?.is_some() => {
                hidden.own_resume_token()
            }
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

fn format_token(squeezed: &[u8], packed_bytes: usize) -> String {
    let sum = squeezed.chunks_exact(4).fold(0u64, |sum, word| {
        let word = word.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        sum.wrapping_add(word)
    });
    let mut token = format!("1-{sum:x}-{packed_bytes:x}-");
    for byte in squeezed {
        // Writing to a String cannot fail.
        let _ = write!(token, "{byte:02x}");
    }
    token
}
