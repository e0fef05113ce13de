//! Puts the blocks of a deduplicated stream where its records refer to them.

use super::{FilterError, RecordFilter};
use crate::{Begin, HEADER_BYTES, Record, StreamError, StreamFeatures, Write};
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

/// Makes a stream without references from one of `zfs send -D`, which no OpenZFS of today receives.
///
/// Keeps some 100 bytes for each block of the stream, and reads the blocks again from a second handle of the input.
#[derive(Debug)]
pub struct Redup<R> {
    input: R,
    /// Where the block of a stream, an object and an offset is, with its record.
    blocks: HashMap<(u64, u64, u64), (u64, Write)>,
    replaced: u64,
}

impl<R: Read + Seek> Redup<R> {
    /// With a second handle of the input, which begins at the same byte.
    pub fn new(input: R) -> Self {
        Self {
            input,
            blocks: HashMap::new(),
            replaced: 0,
        }
    }

    /// How many references were replaced.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    fn payload(&mut self, at: u64, length: u64) -> Result<Vec<u8>, FilterError> {
        let at = at.saturating_add(HEADER_BYTES as u64);
        let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
        let read = self.input.seek(SeekFrom::Start(at));
        let read = read.and_then(|_| self.input.read_exact(&mut payload));
        read.map_err(|error| FilterError::Stream(StreamError::from(error)))?;
        Ok(payload)
    }
}

impl<R: Read + Seek> RecordFilter for Redup<R> {
    fn begin(&mut self, begin: &mut Begin) -> Result<(), FilterError> {
        let references = StreamFeatures::DEDUP | StreamFeatures::DEDUP_PROPERTIES;
        begin.features.remove(references);
        Ok(())
    }

    fn change(
        &mut self,
        record: Record,
        payload: Vec<u8>,
        at: u64,
    ) -> Result<(Record, Vec<u8>), FilterError> {
        match record {
            Record::Write(write) => {
                let key = (write.to_guid, write.object, write.offset);
                self.blocks.insert(key, (at, write));
                Ok((Record::Write(write), payload))
            }
            Record::WriteByRef(reference) => {
                let key = (
                    reference.source_guid,
                    reference.source_object,
                    reference.source_offset,
                );
                let (object, offset) = (reference.object, reference.offset);
                let known = self.blocks.get(&key).copied();
                let (at, write) = known.ok_or(FilterError::MissingBlock { object, offset })?;
                let length = Record::Write(write).payload_bytes();
                let length = length.map_err(|reason| StreamError::Invalid { at, reason })?;
                let payload = self.payload(at, length)?;
                self.replaced = self.replaced.saturating_add(1);
                let write = Write {
                    object,
                    offset,
                    to_guid: reference.to_guid,
                    ..write
                };
                // Others may refer to this one.
                self.blocks
                    .insert((write.to_guid, object, offset), (at, write));
                Ok((Record::Write(write), payload))
            }
            record => Ok((record, payload)),
        }
    }
}
