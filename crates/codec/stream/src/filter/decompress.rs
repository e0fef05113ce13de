//! Decompresses single blocks of a stream whose records say something wrong about them.

use super::{CompressionKind, FilterError, RecordFilter, content};
use crate::{Begin, Record, StreamFeatures, Write};
use millpond_ondisk::BLOCK_BYTES_MAX;

/// A block to decompress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecompressTarget {
    /// The object.
    pub object: u64,
    /// Its offset in bytes.
    pub offset: u64,
    /// How it is really compressed; [`CompressionKind::Off`] if it is not.
    pub kind: CompressionKind,
}

/// What came of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecompressOutcome {
    /// How many records were changed: a package can have several.
    pub changed: u64,
    /// How many could not be decompressed in this way, and stayed as they were.
    pub failed: u64,
}

/// Decompresses blocks.
#[derive(Debug, Clone)]
pub struct Decompress {
    targets: Vec<(DecompressTarget, DecompressOutcome)>,
}

impl Decompress {
    /// These blocks, in all streams of a package.
    #[must_use]
    pub fn new(targets: &[DecompressTarget]) -> Self {
        let targets = targets.iter();
        Self {
            targets: targets
                .map(|target| (*target, DecompressOutcome::default()))
                .collect(),
        }
    }

    /// What came of each target so far.
    #[must_use]
    pub fn outcomes(&self) -> &[(DecompressTarget, DecompressOutcome)] {
        &self.targets
    }
}

/// The content, if the payload really has this form.
fn decompressed(write: &Write, kind: CompressionKind, payload: &[u8]) -> Option<Vec<u8>> {
    match kind {
        _ if write.logical_bytes > BLOCK_BYTES_MAX => None,
        CompressionKind::Off => {
            (payload.len() as u64 == write.logical_bytes).then(|| payload.to_vec())
        }
        kind => content(write, kind, payload).ok(),
    }
}

impl RecordFilter for Decompress {
    fn begin(&mut self, begin: &mut Begin) -> Result<(), FilterError> {
        match begin.features.contains(StreamFeatures::RAW) {
            true => Err(FilterError::Raw),
            false => Ok(()),
        }
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
        let mut targets = self.targets.iter_mut();
        let found = targets
            .find(|(target, _)| target.object == write.object && target.offset == write.offset);
        let Some((target, outcome)) = found else {
            return Ok((Record::Write(write), payload));
        };
        match decompressed(&write, target.kind, &payload) {
            Some(content) => {
                outcome.changed = outcome.changed.saturating_add(1);
                let write = Write {
                    compression: 0,
                    compressed_bytes: 0,
                    ..write
                };
                Ok((Record::Write(write), content))
            }
            None => {
                outcome.failed = outcome.failed.saturating_add(1);
                Ok((Record::Write(write), payload))
            }
        }
    }
}
