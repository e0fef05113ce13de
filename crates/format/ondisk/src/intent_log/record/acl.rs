//! Access control lists in records.

use crate::{DecodeError, Reader, WordArray, Writer};

use super::fail;

/// An access control list in a record. Page `docs/format/intent-log-records.md`.
///
/// Ids above 32 bits refer to `fuids` and `domains`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogAcl<'a> {
    /// The number of entries in the list.
    pub entry_count: u64,
    /// Flags of the list.
    pub flags: u64,
    /// The entries, as stored and in the writer's byte order.
    pub entries: &'a [u8],
    /// Ids of foreign domains.
    pub fuids: WordArray<'a>,
    /// Names of the domains of these ids.
    pub domains: Vec<&'a [u8]>,
}

/// The five words before a list.
pub(super) struct AclHeader {
    entry_count: u64,
    domain_count: u64,
    fuid_count: u64,
    entries_bytes: u64,
    flags: u64,
}

impl AclHeader {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            entry_count: reader.u64()?,
            domain_count: reader.u64()?,
            fuid_count: reader.u64()?,
            entries_bytes: reader.u64()?,
            flags: reader.u64()?,
        })
    }
    /// Reads the data after the header: entries padded to 8 bytes, ids, domains.
    pub(super) fn read_rest<'a>(&self, reader: &mut Reader<'a>) -> Result<LogAcl<'a>, DecodeError> {
        let too_long = || fail("list is longer than its record", 0);
        let entries_bytes = usize::try_from(self.entries_bytes).map_err(|_| too_long())?;
        let padded = entries_bytes
            .checked_next_multiple_of(8)
            .ok_or_else(too_long)?;
        let entries = reader
            .take(padded)?
            .get(..entries_bytes)
            .unwrap_or_default();
        let fuid_bytes = usize::try_from(self.fuid_count)
            .ok()
            .and_then(|count| count.checked_mul(8))
            .ok_or_else(too_long)?;
        let fuids = WordArray::new(reader.take(fuid_bytes)?, reader.endian());
        Ok(LogAcl {
            entry_count: self.entry_count,
            flags: self.flags,
            entries,
            fuids,
            domains: strings(reader, self.domain_count)?,
        })
    }
}

impl LogAcl<'_> {
    pub(super) fn write_header(&self, writer: &mut Writer) {
        let length = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        writer.put_words(&[
            self.entry_count,
            length(self.domains.len()),
            length(self.fuids.len()),
            length(self.entries.len()),
            self.flags,
        ]);
    }
    pub(super) fn write_rest(&self, writer: &mut Writer) {
        writer.put(self.entries);
        writer.pad_to(writer.position().next_multiple_of(8));
        for fuid in self.fuids.iter() {
            writer.put_u64(fuid);
        }
        put_strings(writer, &self.domains);
    }
}

/// The bytes up to the next NUL, which is skipped.
pub(super) fn string<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let at = reader.position();
    let rest = reader.clone().take(reader.remaining())?;
    let length = rest
        .iter()
        .position(|byte| *byte == 0)
        .ok_or_else(|| fail("string without end", at))?;
    let text = reader.take(length)?;
    reader.skip(1)?;
    Ok(text)
}

/// Reads `count` consecutive strings.
///
/// Each takes at least a byte of the record, so the memory is bounded by the record's length.
pub(super) fn strings<'a>(
    reader: &mut Reader<'a>,
    count: u64,
) -> Result<Vec<&'a [u8]>, DecodeError> {
    if usize::try_from(count).map_or(true, |count| count > reader.remaining()) {
        return Err(fail("more strings than fit", reader.position()));
    }
    (0..count).map(|_| string(reader)).collect()
}

pub(super) fn put_strings(writer: &mut Writer, strings: &[&[u8]]) {
    for text in strings {
        writer.put(text);
        writer.put_u8(0);
    }
}
