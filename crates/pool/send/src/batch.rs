//! Reads the blocks of a batch, and writes its records.

use crate::error::SendError;
use crate::send::SendProgress;
use millpond_block::{Block, BlockAddress, BlockStore};
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_object::to_native;
use millpond_ondisk::{BlockPointer, ChecksumKind, Endian, ObjectType};
use millpond_stream::{Record, Spill, StreamWriter, Write};
use std::io;

/// Readers without large blocks take no more in one record.
pub(crate) const SMALL_BLOCK_BYTES: u64 = 128 << 10;

/// A record, perhaps without its payload.
pub(crate) enum Entry {
    Record(Record, Vec<u8>),
    Block(Box<(BlockPointer, BlockAddress, Part)>),
}

/// What becomes of a block.
pub(crate) enum Part {
    /// Its content.
    Plain(Write),
    /// Its content in several records.
    Split(Write),
    /// What is stored.
    Stored(Write),
    Spill(Spill, ObjectType),
}

pub(crate) struct Reader<'a, W> {
    pub(crate) store: &'a Arc<BlockStore>,
    pub(crate) key: Option<&'a Arc<DatasetKey>>,
    pub(crate) stream: StreamWriter<W>,
    pub(crate) progress: &'a SendProgress,
}

impl<W: io::Write> Reader<'_, W> {
    pub(crate) fn write(&mut self, batch: Vec<Entry>) -> Result<(), SendError> {
        let plain = batch.iter().filter_map(|entry| match entry {
            Entry::Block(block) => {
                let (pointer, address, part) = block.as_ref();
                (!matches!(part, Part::Stored(_))).then_some((*pointer, *address))
            }
            Entry::Record(..) => None,
        });
        let wanted: Vec<_> = plain.collect();
        let mut found = self.store.read_batch(&wanted, self.key).into_iter();
        for entry in batch {
            match entry {
                Entry::Record(record, payload) => self.stream.record(&record, &payload)?,
                Entry::Block(block) => {
                    let (pointer, address, part) = *block;
                    match part {
                        Part::Stored(write) => {
                            let stored = self.store.read_stored(&pointer, address)?;
                            self.stream.record(&Record::Write(write), &stored)?;
                        }
                        part => {
                            if let Some(content) = found.next() {
                                let content = content?;
                                self.content(&content, part, address)?;
                            }
                            // Nothing reads it soon.
                            self.store.evict(&pointer, self.key);
                        }
                    }
                }
            }
            self.progress.set_sent(self.stream.written_bytes());
            if self.progress.is_cancelled() {
                return Err(SendError::Cancelled);
            }
        }
        Ok(())
    }

    fn content(
        &mut self,
        block: &Block,
        part: Part,
        address: BlockAddress,
    ) -> Result<(), SendError> {
        let object_type = match &part {
            Part::Plain(write) | Part::Split(write) | Part::Stored(write) => {
                ObjectType(u8::try_from(write.object_type).unwrap_or(0))
            }
            Part::Spill(_, object_type) => *object_type,
        };
        let mut swapped;
        let mut bytes: &[u8] = &block.bytes;
        if block.endian == Endian::Big {
            swapped = bytes.to_vec();
            let native = to_native(object_type, &mut swapped);
            native.map_err(|reason| SendError::Invalid {
                object: address.object,
                reason: reason.to_owned(),
            })?;
            bytes = &swapped;
        }
        match part {
            Part::Plain(write) | Part::Stored(write) => {
                self.stream.record(&Record::Write(write), bytes)?;
            }
            Part::Spill(spill, _) => self.stream.record(&Record::Spill(spill), bytes)?,
            Part::Split(write) => {
                let piece_bytes = usize::try_from(SMALL_BLOCK_BYTES).unwrap_or(usize::MAX);
                let mut offset = write.offset;
                for piece in bytes.chunks(piece_bytes) {
                    let length = piece.len() as u64;
                    let write = Write {
                        offset,
                        logical_bytes: length,
                        checksum: ChecksumKind::Off as u8,
                        ..write
                    };
                    self.stream.record(&Record::Write(write), piece)?;
                    offset = offset.saturating_add(length);
                }
            }
        }
        Ok(())
    }
}
