//! Turns records into changes: checks sizes, decodes blocks, turns content of the other byte order round.

use crate::error::ReceiveError;
use crate::swap::swap;
use millpond_compress::decompress;
use millpond_env::sync::Arc;
use millpond_object::{EncodedContent, RawDnode, Seal};
use millpond_ondisk::{BLOCK_BYTES_MAX, CompressionKind, Endian, ObjectType, SECTOR_BYTES};
use millpond_stream::{
    BeginFlags, Free, FreeObjects, ObjectRecord, Record, RecordFlags, Spill, TO_THE_END, Taken,
    Write, WriteEmbedded,
};

/// A record with what must be known of it to apply it.
pub(crate) struct Change {
    /// Where the record begins, in bytes from the start of the input.
    pub(crate) at: u64,
    /// The end of its payload.
    pub(crate) end: u64,
    pub(crate) kind: ChangeKind,
}

pub(crate) enum ChangeKind {
    /// An object, and its bonus.
    Object(ObjectRecord, Vec<u8>),
    FreeObjects(FreeObjects),
    /// A range of an object, to the end if there is no length.
    Free {
        object: u64,
        offset: u64,
        length: Option<u64>,
    },
    Write {
        object: u64,
        offset: u64,
        content: Vec<u8>,
        encoded: Option<EncodedContent>,
    },
    Spill {
        object: u64,
        content: Vec<u8>,
        is_unmodified: bool,
    },
    /// The codes of a block of dnodes in a raw stream.
    Range(u64, Seal),
    /// An object of a raw stream.
    RawObject(ObjectRecord, RawDnode),
    /// A block of a raw stream, with its size as content in bytes.
    SealedWrite {
        object: u64,
        offset: u64,
        bytes: u64,
        stored: EncodedContent,
    },
    /// A spill block of a raw stream, with its size as content in bytes.
    SealedSpill {
        object: u64,
        bytes: u64,
        stored: EncodedContent,
        is_unmodified: bool,
    },
    End,
}

impl Change {
    /// What it takes in memory, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match &self.kind {
            ChangeKind::Object(_, bonus) => bonus.len(),
            ChangeKind::RawObject(_, raw) => raw.bonus.len().saturating_add(raw.bonus_tail.len()),
            ChangeKind::SealedWrite { bytes, stored, .. }
            | ChangeKind::SealedSpill { bytes, stored, .. } => usize::try_from(*bytes)
                .unwrap_or(usize::MAX)
                .saturating_add(stored.bytes.len()),
            ChangeKind::Write {
                content, encoded, ..
            } => {
                let encoded = encoded.as_ref().map_or(0, |encoded| encoded.bytes.len());
                content.len().saturating_add(encoded)
            }
            ChangeKind::Spill { content, .. } => content.len(),
            _ => 0,
        };
        bytes as u64
    }
}

/// What a stream and the pool that receives it say of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoder {
    pub(crate) to_guid: u64,
    pub(crate) flags: BeginFlags,
    /// Whether the pool can have blocks compressed with lz4, and with zstd.
    pub(crate) has_lz4: bool,
    pub(crate) has_zstd: bool,
    /// Whether blocks come as they are stored.
    pub(crate) is_raw: bool,
    /// Whether blocks may have been left out.
    pub(crate) is_redacted: bool,
}

type Decoded = Result<ChangeKind, String>;

impl Decoder {
    /// # Errors
    /// [`ReceiveError::Invalid`].
    pub(crate) fn decode(&self, taken: Taken) -> Result<Change, ReceiveError> {
        let Taken {
            record,
            payload,
            endian,
            at,
        } = taken;
        let end = at
            .saturating_add(millpond_stream::HEADER_BYTES as u64)
            .saturating_add(payload.len() as u64);
        let kind = match record {
            Record::Object(object) if self.is_raw => crate::raw::object(object, &payload),
            Record::ObjectRange(range) if self.is_raw => crate::raw::range(&range),
            Record::Write(write) if self.is_raw => self.sealed_write(&write, payload),
            Record::Spill(spill) if self.is_raw => self.sealed_spill(&spill, payload),
            Record::WriteEmbedded(_) if self.is_raw => {
                Err("a block in a pointer, in a raw stream".to_owned())
            }
            Record::Object(object) => bonus(object, payload, endian),
            Record::FreeObjects(free) => Ok(ChangeKind::FreeObjects(free)),
            Record::Write(write) => self.write(&write, payload, endian),
            Record::WriteEmbedded(write) => self.embedded(&write, &payload),
            Record::Spill(spill) => self.spill(&spill, payload, endian),
            Record::Free(free) => range(&free),
            Record::Redact(_) if !self.is_redacted => {
                Err("a redacted range, in a stream that is not redacted".to_owned())
            }
            // Left out on purpose: a hole, as in OpenZFS.
            Record::Redact(free) => range(&free),
            Record::End(end) if end.to_guid != self.to_guid => {
                Err("the end of another stream".to_owned())
            }
            Record::End(_) => Ok(ChangeKind::End),
            Record::Begin(_) => Err("a stream begins within another".to_owned()),
            Record::ObjectRange(_) => Err("a record of raw streams".to_owned()),
            Record::WriteByRef(_) => Err("a record of deduplicated streams".to_owned()),
        };
        match kind {
            Ok(kind) => Ok(Change { at, end, kind }),
            Err(reason) => Err(ReceiveError::Invalid { at, reason }),
        }
    }

    fn write(&self, write: &Write, payload: Vec<u8>, endian: Endian) -> Decoded {
        let object_type = valid_type(write.object_type)?;
        let size = block_size(write.logical_bytes)?;
        if write.offset.checked_add(write.logical_bytes).is_none() {
            return Err("a block past the largest offset".to_owned());
        }
        let (content, encoded) = match write.compression {
            0 => {
                let mut content = payload;
                if endian == Endian::Big {
                    swap(object_type, &mut content)?;
                }
                (content, None)
            }
            number => {
                let kind = compression(number)?;
                let content = decoded(kind, &payload, size)?;
                let is_kept = !object_type.is_metadata() && self.stores(kind);
                let encoded = is_kept.then(|| EncodedContent {
                    compression: kind,
                    bytes: Arc::new(payload),
                    seal: None,
                });
                (content, encoded)
            }
        };
        Ok(ChangeKind::Write {
            object: write.object,
            offset: write.offset,
            content,
            encoded,
        })
    }

    pub(crate) fn stores(&self, kind: CompressionKind) -> bool {
        match kind {
            CompressionKind::Lz4 => self.has_lz4,
            CompressionKind::Zstd => self.has_zstd,
            _ => true,
        }
    }

    fn embedded(&self, write: &WriteEmbedded, payload: &[u8]) -> Decoded {
        let size = block_size(write.logical_bytes.into())?;
        let stored = usize::try_from(write.stored_bytes).unwrap_or(usize::MAX);
        let stored = payload.get(..stored).ok_or("an embedded block is cut")?;
        if write.kind != 0 || stored.is_empty() {
            return Err("an embedded block of another kind".to_owned());
        }
        let kind = compression(write.compression)?;
        let content = decoded(kind, stored, size)?;
        // OpenZFS sends a spill block that its pointer holds in this way.
        if i64::try_from(write.offset).is_err() {
            return Ok(ChangeKind::Spill {
                object: write.object,
                content,
                is_unmodified: false,
            });
        }
        let encoded = self.stores(kind).then(|| EncodedContent {
            compression: kind,
            bytes: Arc::new(stored.to_vec()),
            seal: None,
        });
        Ok(ChangeKind::Write {
            object: write.object,
            offset: write.offset,
            content,
            encoded,
        })
    }

    fn spill(&self, spill: &Spill, payload: Vec<u8>, endian: Endian) -> Decoded {
        block_size(spill.length)?;
        if spill.compressed_bytes != 0 || spill.compression != 0 {
            return Err("a compressed spill block".to_owned());
        }
        let mut content = payload;
        if endian == Endian::Big {
            // Some senders do not say which type it has. System attributes tell their order themselves.
            match spill.object_type {
                0 => {}
                number => swap(valid_type(number)?, &mut content)?,
            }
        }
        Ok(ChangeKind::Spill {
            object: spill.object,
            content,
            is_unmodified: self.is_unmodified(spill),
        })
    }

    /// Whether a spill block is that of the older snapshot.
    pub(crate) fn is_unmodified(&self, spill: &Spill) -> bool {
        self.flags.contains(BeginFlags::SPILL_BLOCKS)
            && spill.flags & RecordFlags::SPILL_UNMODIFIED != 0
    }
}

fn bonus(object: ObjectRecord, payload: Vec<u8>, endian: Endian) -> Decoded {
    let is_raw = object.raw_bonus_bytes != 0
        || object.indirect_shift != 0
        || object.levels != 0
        || object.pointers != 0
        || object.last_block != 0
        || object.flags & !RecordFlags::OBJECT_SPILL != 0;
    if is_raw {
        return Err("an object of a raw stream".to_owned());
    }
    let mut bonus = payload;
    bonus.truncate(usize::try_from(object.bonus_bytes).unwrap_or(usize::MAX));
    if endian == Endian::Big && !bonus.is_empty() {
        swap(valid_type(object.bonus_type)?, &mut bonus)?;
    }
    Ok(ChangeKind::Object(object, bonus))
}

fn range(free: &Free) -> Decoded {
    let length = Some(free.length).filter(|length| *length != TO_THE_END);
    if length.is_some_and(|length| free.offset.checked_add(length).is_none()) {
        return Err("a range past the largest offset".to_owned());
    }
    Ok(ChangeKind::Free {
        object: free.object,
        offset: free.offset,
        length,
    })
}

/// The type with this number, which objects of datasets can have.
pub(crate) fn valid_type(number: u32) -> Result<ObjectType, String> {
    let object_type = u8::try_from(number).map(ObjectType);
    match object_type {
        Ok(object_type) if object_type != ObjectType::NONE && object_type.is_valid() => {
            Ok(object_type)
        }
        _ => Err(format!("no object has type {number}")),
    }
}

/// Checks the size of a block in bytes.
pub(crate) fn block_size(bytes: u64) -> Result<usize, String> {
    let is_possible = bytes > 0 && bytes <= BLOCK_BYTES_MAX && bytes.is_multiple_of(SECTOR_BYTES);
    match usize::try_from(bytes) {
        Ok(size) if is_possible => Ok(size),
        _ => Err(format!("no block has {bytes} bytes")),
    }
}

fn compression(number: u8) -> Result<CompressionKind, String> {
    match CompressionKind::from_number(number) {
        Some(
            kind @ (CompressionKind::Lzjb
            | CompressionKind::Gzip(_)
            | CompressionKind::Zle
            | CompressionKind::Lz4
            | CompressionKind::Zstd),
        ) => Ok(kind),
        _ => Err(format!("no block is compressed with function {number}")),
    }
}

fn decoded(kind: CompressionKind, stored: &[u8], size: usize) -> Result<Vec<u8>, String> {
    let mut content = vec![0; size];
    match decompress(kind, stored, &mut content) {
        Ok(()) => Ok(content),
        Err(error) => Err(format!("a compressed block is damaged: {error}")),
    }
}
