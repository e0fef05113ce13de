//! Reads the blocks of batches, and writes their records.

use crate::error::SendError;
use millpond_block::{Block, BlockAddress, BlockError, BlockStore};
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_object::to_native;
use millpond_ondisk::{BlockPointer, Endian, ObjectType};
use millpond_stream::{HEADER_BYTES, Record, Spill, StreamWriter, Write};
use std::borrow::Cow;
use std::io;

/// Readers without large blocks take no more in one record.
pub(crate) const SMALL_BLOCK_BYTES: u64 = 128 << 10;

/// A record, perhaps without its payload.
pub(crate) enum Entry {
    Record(Record, Vec<u8>),
    Block(Box<(BlockPointer, BlockAddress, Unread)>),
}

/// A record whose payload is a block.
pub(crate) enum Unread {
    Write(Write, Form),
    Spill(Spill, ObjectType),
    /// As it is stored.
    StoredSpill(Spill),
}

/// What is sent of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Its content.
    Plain,
    /// Its content in several records.
    Split,
    /// What is stored.
    Stored,
}

impl Unread {
    fn is_stored(&self) -> bool {
        matches!(self, Self::Write(_, Form::Stored) | Self::StoredSpill(_))
    }
}

/// The bytes of a record in a stream.
pub(crate) fn stream_bytes(payload_bytes: u64) -> u64 {
    (HEADER_BYTES as u64).saturating_add(payload_bytes)
}

impl Entry {
    /// The bytes of its records in a stream.
    pub(crate) fn stream_bytes(&self) -> u64 {
        match self {
            Self::Record(_, payload) => stream_bytes(payload.len() as u64),
            Self::Block(block) => match &block.2 {
                Unread::Write(write, Form::Plain) => stream_bytes(write.logical_bytes),
                Unread::Write(write, Form::Stored) => stream_bytes(write.compressed_bytes),
                Unread::Write(write, Form::Split) => {
                    let more = write
                        .logical_bytes
                        .div_ceil(SMALL_BLOCK_BYTES)
                        .saturating_sub(1);
                    let headers = more.saturating_mul(HEADER_BYTES as u64);
                    stream_bytes(write.logical_bytes).saturating_add(headers)
                }
                Unread::Spill(spill, _) => stream_bytes(spill.length),
                Unread::StoredSpill(spill) => stream_bytes(spill.compressed_bytes),
            },
        }
    }
}

/// Reads the blocks of batches.
#[derive(Clone, Copy)]
pub(crate) struct Fetcher<'a> {
    pub(crate) store: &'a Arc<BlockStore>,
    pub(crate) key: Option<&'a Arc<DatasetKey>>,
}

/// An entry whose block was read.
pub(crate) enum Fetched {
    Record(Record, Vec<u8>),
    /// As it is stored.
    Stored(Record, Result<Vec<u8>, BlockError>),
    /// The content of a block.
    Content(
        Box<(BlockPointer, BlockAddress, Unread)>,
        Result<Arc<Block>, BlockError>,
    ),
}

impl Fetcher<'_> {
    /// Reads all blocks of a batch.
    pub(crate) fn fetch(&self, batch: Vec<Entry>) -> Vec<Fetched> {
        let wanted = |stored: bool| -> Vec<_> {
            let blocks = batch.iter().filter_map(|entry| match entry {
                Entry::Block(block) if block.2.is_stored() == stored => Some((block.0, block.1)),
                _ => None,
            });
            blocks.collect()
        };
        let mut contents = self.store.read_batch(&wanted(false), self.key).into_iter();
        let mut stored = self.store.read_stored_batch(&wanted(true)).into_iter();
        let fetched = batch.into_iter().filter_map(|entry| match entry {
            Entry::Record(record, payload) => Some(Fetched::Record(record, payload)),
            Entry::Block(block) => match block.2 {
                Unread::Write(write, Form::Stored) => {
                    Some(Fetched::Stored(Record::Write(write), stored.next()?))
                }
                Unread::StoredSpill(spill) => {
                    Some(Fetched::Stored(Record::Spill(spill), stored.next()?))
                }
                _ => Some(Fetched::Content(block, contents.next()?)),
            },
        });
        fetched.collect()
    }
}

/// Writes the records of batches whose blocks were read.
pub(crate) struct Writer<'a, W> {
    pub(crate) fetcher: Fetcher<'a>,
    pub(crate) stream: StreamWriter<W>,
}

impl<W: io::Write> Writer<'_, W> {
    pub(crate) fn write(&mut self, batch: Vec<Fetched>) -> Result<(), SendError> {
        for fetched in batch {
            match fetched {
                Fetched::Record(record, payload) => self.stream.record(&record, &payload)?,
                Fetched::Stored(record, stored) => {
                    self.stream.record(&record, &stored?)?;
                }
                Fetched::Content(block, content) => {
                    let (pointer, address, unread) = *block;
                    self.content(&*content?, unread, address)?;
                    // Nothing reads it soon.
                    self.fetcher.store.evict(&pointer, self.fetcher.key);
                }
            }
        }
        Ok(())
    }

    fn content(
        &mut self,
        block: &Block,
        unread: Unread,
        address: BlockAddress,
    ) -> Result<(), SendError> {
        let mut bytes = Cow::Borrowed(block.bytes.as_slice());
        if block.endian == Endian::Big {
            let object_type = match &unread {
                Unread::Write(write, _) => ObjectType(u8::try_from(write.object_type).unwrap_or(0)),
                Unread::Spill(_, object_type) => *object_type,
                Unread::StoredSpill(_) => ObjectType::NONE,
            };
            let native = to_native(object_type, bytes.to_mut());
            native.map_err(|reason| SendError::Invalid {
                object: address.object,
                reason: reason.to_owned(),
            })?;
        }
        match unread {
            Unread::Spill(spill, _) | Unread::StoredSpill(spill) => {
                self.stream.record(&Record::Spill(spill), &bytes)?;
            }
            Unread::Write(write, Form::Split) => self.pieces(write, &bytes)?,
            Unread::Write(write, _) => self.stream.record(&Record::Write(write), &bytes)?,
        }
        Ok(())
    }

    fn pieces(&mut self, write: Write, bytes: &[u8]) -> Result<(), SendError> {
        let piece_bytes = usize::try_from(SMALL_BLOCK_BYTES).unwrap_or(usize::MAX);
        let mut offset = write.offset;
        for piece in bytes.chunks(piece_bytes) {
            let logical_bytes = piece.len() as u64;
            let write = Write {
                offset,
                logical_bytes,
                ..write
            };
            self.stream.record(&Record::Write(write), piece)?;
            offset = offset.saturating_add(logical_bytes);
        }
        Ok(())
    }
}
