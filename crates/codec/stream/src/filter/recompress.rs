//! Compresses all blocks of a stream with another function.

use super::{CompressionKind, FilterError, RecordFilter, ZstdLevel, content};
use crate::{Begin, Record, StreamFeatures, StreamKind, Write};
use millpond_ondisk::BLOCK_BYTES_MAX;

/// Stored blocks have a multiple of this length, in bytes, as in pools with the smallest sectors.
const UNIT_BYTES: usize = 512;

/// Compresses the blocks of files with one function. A block that does not become smaller is sent plain.
#[derive(Debug, Clone, Copy)]
pub struct Recompress {
    kind: CompressionKind,
    zstd_level: ZstdLevel,
}

impl Recompress {
    /// With this function; [`CompressionKind::Off`] decompresses. Only zstd uses the level.
    #[must_use]
    pub fn new(kind: CompressionKind, zstd_level: ZstdLevel) -> Self {
        let kind = match kind {
            CompressionKind::On => CompressionKind::Lz4,
            kind => kind,
        };
        Self { kind, zstd_level }
    }

    /// The features that the changed stream needs.
    fn features(self) -> StreamFeatures {
        match self.kind {
            CompressionKind::Off => StreamFeatures::empty(),
            CompressionKind::Lz4 => StreamFeatures::COMPRESSED | StreamFeatures::LZ4,
            CompressionKind::Zstd => StreamFeatures::COMPRESSED | StreamFeatures::ZSTD,
            _ => StreamFeatures::COMPRESSED,
        }
    }

    fn compressed(self, content: &[u8]) -> Option<Vec<u8>> {
        let limit = content.len().checked_sub(UNIT_BYTES)?;
        let mut bytes = millpond_compress::compress(self.kind, self.zstd_level, content, limit)?;
        bytes.resize(bytes.len().next_multiple_of(UNIT_BYTES), 0);
        (bytes.len() < content.len()).then_some(bytes)
    }
}

impl RecordFilter for Recompress {
    fn begin(&mut self, begin: &mut Begin) -> Result<(), FilterError> {
        if begin.features.contains(StreamFeatures::RAW) {
            return Err(FilterError::Raw);
        }
        if begin.kind == StreamKind::Stream {
            // Blocks in pointers stay as they are, and may be compressed by lz4 or zstd.
            let embedded = match begin.features.contains(StreamFeatures::EMBEDDED) {
                true => begin.features & (StreamFeatures::LZ4 | StreamFeatures::ZSTD),
                false => StreamFeatures::empty(),
            };
            let compression =
                StreamFeatures::COMPRESSED | StreamFeatures::LZ4 | StreamFeatures::ZSTD;
            begin.features.remove(compression);
            begin.features |= self.features() | embedded;
        }
        Ok(())
    }

    fn change(
        &mut self,
        record: Record,
        payload: Vec<u8>,
        _at: u64,
    ) -> Result<(Record, Vec<u8>), FilterError> {
        let Record::Write(write) = record else {
            return Ok((record, payload));
        };
        if write.logical_bytes > BLOCK_BYTES_MAX {
            return Err(super::refused(&write, "a block of more than 16 MiB"));
        }
        let content = match CompressionKind::from_number(write.compression) {
            _ if write.compression == 0 => payload,
            Some(kind) => content(&write, kind, &payload)?,
            None => return Err(super::refused(&write, "an unknown compression function")),
        };
        let plain = Write {
            compression: 0,
            compressed_bytes: 0,
            ..write
        };
        Ok(match self.compressed(&content) {
            Some(bytes) => {
                let write = Write {
                    compression: self.kind.number(),
                    compressed_bytes: bytes.len() as u64,
                    ..plain
                };
                (Record::Write(write), bytes)
            }
            None => (Record::Write(plain), content),
        })
    }
}
