//! Encoding of records.

use crate::{BlockPointer, DecodeError, ObjectId, Writer};

use super::acl::put_strings;
use super::{
    LOG_RECORD_HEADER_BYTES, LogRecord, LogRecordBody, LoggedPointers, RenameKind, WriteContent,
    fail, kind,
};

impl LogRecord<'_> {
    /// Encodes the record, little-endian, padded to a multiple of 8 bytes.
    ///
    /// # Errors
    /// If no record can express it: a list for a symbolic link, immediate data that is empty or of the wrong
    /// length, or incomplete access control entries.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut writer = Writer::with_capacity(LOG_RECORD_HEADER_BYTES);
        let number = write_body(&self.body, &mut writer)?;
        writer.pad_to(writer.position().next_multiple_of(8));
        let body = writer.finish();
        let length = body.len().saturating_add(LOG_RECORD_HEADER_BYTES);
        let flag = if self.is_case_insensitive {
            kind::CASE_INSENSITIVE
        } else {
            0
        };
        let mut record = Writer::with_capacity(length);
        record.put_words(&[
            number | flag,
            u64::try_from(length).unwrap_or(u64::MAX),
            self.txg.0,
            self.sequence,
        ]);
        record.put(&body);
        Ok(record.finish())
    }
}

/// Writes an access control list in the old format: its count of entries and the entries.
fn write_old_acl(object: ObjectId, entries: &[u8], writer: &mut Writer) -> Result<(), DecodeError> {
    if !entries.len().is_multiple_of(12) {
        return Err(fail("entries are not whole", 48));
    }
    let count = entries.len().checked_div(12).unwrap_or(0);
    writer.put_words(&[object.0, u64::try_from(count).unwrap_or(u64::MAX)]);
    writer.put(entries);
    Ok(())
}

/// Writes the count of pointers and the pointers.
fn write_pointers(pointers: &LoggedPointers<'_>, writer: &mut Writer) {
    let count = pointers.iter().count();
    writer.put_u64(u64::try_from(count).unwrap_or(u64::MAX));
    for pointer in pointers.iter() {
        writer.put(&pointer.encode());
    }
}

/// The type number of the removal of a name.
fn removal(is_directory: bool) -> u64 {
    match is_directory {
        true => kind::RMDIR,
        false => kind::REMOVE,
    }
}

/// Writes what is special about a kind of rename, and returns the type number.
fn write_rename(rename: &RenameKind, writer: &mut Writer) -> u64 {
    match rename {
        RenameKind::Plain => kind::RENAME,
        RenameKind::Exchange => kind::RENAME_EXCHANGE,
        RenameKind::Whiteout(object) => {
            object.write(writer);
            kind::RENAME_WHITEOUT
        }
    }
}

/// Writes the pointer of a write record, and its data if it has some.
fn write_content(
    content: &WriteContent<'_>,
    length: u64,
    writer: &mut Writer,
) -> Result<(), DecodeError> {
    match content {
        WriteContent::Indirect(pointer) => writer.put(&pointer.encode()),
        WriteContent::Immediate(data) => {
            // A record without data means an indirect write.
            if data.is_empty() || u64::try_from(data.len()) != Ok(length) {
                return Err(fail("data of another length", 48));
            }
            writer.put(&BlockPointer::default().encode());
            writer.put(data);
        }
    }
    Ok(())
}

/// Writes the part after the header and returns the type number.
fn write_body(body: &LogRecordBody<'_>, writer: &mut Writer) -> Result<u64, DecodeError> {
    Ok(match body {
        LogRecordBody::Create(create) => {
            create.write(writer);
            create.number()?
        }
        LogRecordBody::Remove {
            is_directory,
            directory,
            name,
        } => {
            writer.put_u64(directory.0);
            put_strings(writer, &[name]);
            removal(*is_directory)
        }
        LogRecordBody::Link {
            directory,
            object,
            name,
        } => {
            writer.put_words(&[directory.0, object.0]);
            put_strings(writer, &[name]);
            kind::LINK
        }
        LogRecordBody::Rename {
            kind: rename,
            source_directory,
            target_directory,
            source_name,
            target_name,
        } => {
            writer.put_words(&[source_directory.0, target_directory.0]);
            let number = write_rename(rename, writer);
            put_strings(writer, &[source_name, target_name]);
            number
        }
        LogRecordBody::Write {
            object,
            offset,
            length,
            content,
        } => {
            writer.put_words(&[object.0, *offset, *length, 0]);
            write_content(content, *length, writer)?;
            kind::WRITE
        }
        LogRecordBody::WriteAgain {
            object,
            offset,
            length,
        } => {
            writer.put_words(&[object.0, *offset, *length, 0]);
            writer.put(&BlockPointer::default().encode());
            kind::WRITE2
        }
        LogRecordBody::Truncate {
            object,
            offset,
            length,
        } => {
            writer.put_words(&[object.0, *offset, *length]);
            kind::TRUNCATE
        }
        LogRecordBody::SetAttributes(set) => {
            set.write(writer);
            kind::SETATTR
        }
        LogRecordBody::SetAclV0 { object, entries } => {
            write_old_acl(*object, entries, writer)?;
            kind::ACL_V0
        }
        LogRecordBody::SetAcl { object, acl } => {
            writer.put_u64(object.0);
            acl.write_header(writer);
            acl.write_rest(writer);
            kind::ACL
        }
        LogRecordBody::SetXattr {
            object,
            name,
            value,
        } => {
            writer.put_words(&[object.0, u64::try_from(value.len()).unwrap_or(u64::MAX)]);
            put_strings(writer, &[name]);
            writer.put(value);
            kind::SETSAXATTR
        }
        LogRecordBody::CloneRange {
            object,
            offset,
            length,
            block_bytes,
            pointers,
        } => {
            writer.put_words(&[object.0, *offset, *length, *block_bytes]);
            write_pointers(pointers, writer);
            kind::CLONE_RANGE
        }
    })
}
