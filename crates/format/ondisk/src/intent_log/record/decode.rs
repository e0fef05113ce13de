//! Decoding of records.

use crate::{BLOCK_POINTER_BYTES, BlockPointer, DecodeError, Endian, ObjectId, Reader, Txg};

use super::acl::{AclHeader, string};
use super::{
    CreateRecord, CreatedObject, LOG_RECORD_HEADER_BYTES, LOG_WRITE_BYTES, LogRecord,
    LogRecordBody, LoggedPointers, RenameKind, SetAttributesRecord, WriteContent, fail, kind,
};

/// A record with its sequence number and its undecoded bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecordFrame<'a> {
    /// Type with flags, as stored.
    pub number: u64,
    /// The txg of the change.
    pub txg: Txg,
    /// The record's sequence number.
    pub sequence: u64,
    /// The whole record.
    pub bytes: &'a [u8],
    /// Byte order of its integers.
    pub endian: Endian,
}

/// Iterates over the records in the record area of a log block (`IntentLogBlock::records`).
///
/// A record with an invalid length ends the log: the iterator returns an error and then ends. Page
/// `docs/format/intent-log-records.md`.
#[derive(Debug, Clone)]
pub struct LogRecordFrames<'a> {
    bytes: &'a [u8],
    endian: Endian,
    position: usize,
}

impl<'a> LogRecordFrames<'a> {
    /// Starts at the first byte of `records`.
    #[must_use]
    pub fn new(records: &'a [u8], endian: Endian) -> Self {
        Self {
            bytes: records,
            endian,
            position: 0,
        }
    }
    fn frame(&self, rest: &'a [u8]) -> Result<LogRecordFrame<'a>, DecodeError> {
        let too_long = || fail("length is impossible", self.position.saturating_add(8));
        let mut reader = Reader::new("intent log record", rest, self.endian);
        let number = reader.u64()?;
        let length = usize::try_from(reader.u64()?).map_err(|_| too_long())?;
        let (txg, sequence) = (Txg(reader.u64()?), reader.u64()?);
        if length < LOG_RECORD_HEADER_BYTES || !length.is_multiple_of(8) {
            return Err(too_long());
        }
        Ok(LogRecordFrame {
            number,
            txg,
            sequence,
            bytes: rest.get(..length).ok_or_else(too_long)?,
            endian: self.endian,
        })
    }
}

impl<'a> Iterator for LogRecordFrames<'a> {
    type Item = Result<LogRecordFrame<'a>, DecodeError>;
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.position..)?;
        if rest.is_empty() {
            return None;
        }
        let frame = self.frame(rest);
        self.position = match &frame {
            Ok(frame) => self.position.saturating_add(frame.bytes.len()),
            Err(_) => self.bytes.len(),
        };
        Some(frame)
    }
}

impl<'a> LogRecordFrame<'a> {
    /// Decodes the record.
    ///
    /// # Errors
    /// If its type is unknown, or its parts exceed it.
    pub fn decode(&self) -> Result<LogRecord<'a>, DecodeError> {
        let mut reader = Reader::new("intent log record", self.bytes, self.endian);
        reader.skip(LOG_RECORD_HEADER_BYTES)?;
        Ok(LogRecord {
            txg: self.txg,
            sequence: self.sequence,
            is_case_insensitive: self.number & kind::CASE_INSENSITIVE != 0,
            body: body(self.number & !kind::CASE_INSENSITIVE, &mut reader)?,
        })
    }
}

fn body<'a>(number: u64, reader: &mut Reader<'a>) -> Result<LogRecordBody<'a>, DecodeError> {
    if CreateRecord::has_number(number) {
        return CreateRecord::read(number, reader).map(LogRecordBody::Create);
    }
    Ok(match number {
        kind::REMOVE | kind::RMDIR => LogRecordBody::Remove {
            is_directory: number == kind::RMDIR,
            directory: ObjectId(reader.u64()?),
            name: string(reader)?,
        },
        kind::LINK => LogRecordBody::Link {
            directory: ObjectId(reader.u64()?),
            object: ObjectId(reader.u64()?),
            name: string(reader)?,
        },
        kind::RENAME | kind::RENAME_EXCHANGE | kind::RENAME_WHITEOUT => rename(number, reader)?,
        kind::WRITE => write(reader)?,
        kind::WRITE2 => LogRecordBody::WriteAgain {
            object: ObjectId(reader.u64()?),
            offset: reader.u64()?,
            length: reader.u64()?,
        },
        kind::TRUNCATE => LogRecordBody::Truncate {
            object: ObjectId(reader.u64()?),
            offset: reader.u64()?,
            length: reader.u64()?,
        },
        kind::SETATTR => LogRecordBody::SetAttributes(SetAttributesRecord::read(reader)?),
        kind::ACL_V0 => {
            let object = ObjectId(reader.u64()?);
            let length = usize::try_from(reader.u64()?)
                .ok()
                .and_then(|count| count.checked_mul(12))
                .ok_or_else(|| fail("more entries than fit", 40))?;
            LogRecordBody::SetAclV0 {
                object,
                entries: reader.take(length)?,
            }
        }
        kind::ACL => LogRecordBody::SetAcl {
            object: ObjectId(reader.u64()?),
            acl: AclHeader::read(reader)?.read_rest(reader)?,
        },
        kind::SETSAXATTR => {
            let object = ObjectId(reader.u64()?);
            let length = usize::try_from(reader.u64()?)
                .map_err(|_| fail("value is longer than the record", 40))?;
            LogRecordBody::SetXattr {
                object,
                name: string(reader)?,
                value: reader.take(length)?,
            }
        }
        kind::CLONE_RANGE => clone_range(reader)?,
        _ => return Err(fail("type does not exist", 0)),
    })
}

fn rename<'a>(number: u64, reader: &mut Reader<'a>) -> Result<LogRecordBody<'a>, DecodeError> {
    let source_directory = ObjectId(reader.u64()?);
    let target_directory = ObjectId(reader.u64()?);
    let kind = match number {
        kind::RENAME => RenameKind::Plain,
        kind::RENAME_EXCHANGE => RenameKind::Exchange,
        _ => RenameKind::Whiteout(CreatedObject::read(reader)?),
    };
    Ok(LogRecordBody::Rename {
        kind,
        source_directory,
        target_directory,
        source_name: string(reader)?,
        target_name: string(reader)?,
    })
}

fn write<'a>(reader: &mut Reader<'a>) -> Result<LogRecordBody<'a>, DecodeError> {
    let object = ObjectId(reader.u64()?);
    let offset = reader.u64()?;
    let length = reader.u64()?;
    reader.skip(8)?;
    let pointer = BlockPointer::decode(reader.take(BLOCK_POINTER_BYTES)?, reader.endian())?;
    let content = if reader.remaining() == 0 {
        WriteContent::Indirect(pointer)
    } else {
        let length = usize::try_from(length)
            .map_err(|_| fail("data is longer than the record", LOG_WRITE_BYTES))?;
        WriteContent::Immediate(reader.take(length)?)
    };
    Ok(LogRecordBody::Write {
        object,
        offset,
        length,
        content,
    })
}

fn clone_range<'a>(reader: &mut Reader<'a>) -> Result<LogRecordBody<'a>, DecodeError> {
    let object = ObjectId(reader.u64()?);
    let offset = reader.u64()?;
    let length = reader.u64()?;
    let block_bytes = reader.u64()?;
    let bytes = usize::try_from(reader.u64()?)
        .ok()
        .and_then(|count| count.checked_mul(BLOCK_POINTER_BYTES))
        .ok_or_else(|| fail("more pointers than fit", 64))?;
    Ok(LogRecordBody::CloneRange {
        object,
        offset,
        length,
        block_bytes,
        pointers: LoggedPointers::new(reader.take(bytes)?, reader.endian()),
    })
}
