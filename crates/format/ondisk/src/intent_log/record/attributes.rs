//! Attributes in records.

use crate::{DecodeError, ObjectId, Reader, Writer};

use super::acl::{put_strings, strings};
use super::fail;

/// The mask bit on Linux: the block of further attributes follows.
const MASK_FURTHER_LINUX: u64 = 0x8000_0000;
/// The same on FreeBSD and illumos.
const MASK_FURTHER_OTHER: u64 = 0x1_0000;
/// The number of bitmap words in every block written so far.
const BITMAP_WORDS: u32 = 3;
/// The maximum number of bitmap words in a valid block.
const BITMAP_WORDS_MAX: u32 = 16;

/// The block of further attributes. Page `docs/format/intent-log-records.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogAttributes {
    /// Which attributes are set, as a bit mask.
    pub requested: u32,
    /// Values of the boolean attributes, by the same bits.
    pub values: u64,
    /// Creation time (bit 0x1): seconds and nanoseconds.
    pub creation_time: [u64; 2],
    /// Scan stamp or project.
    pub stamp: LogStamp,
}

/// The last field of the block of further attributes; bit 0x40000 selects its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStamp {
    /// A virus scanner's stamp, valid with bit 0x1000.
    Scan([u8; 32]),
    /// The project (bit 0x40000).
    Project(u64),
}

impl Default for LogStamp {
    fn default() -> Self {
        Self::Scan([0; 32])
    }
}

impl LogAttributes {
    /// Bit of the creation time.
    pub const CREATION_TIME: u32 = 0x1;
    /// Bit of the scan stamp.
    pub const SCAN_STAMP: u32 = 0x1000;
    /// Bit of the project.
    pub const PROJECT: u32 = 0x4_0000;

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let words = reader.u32()?;
        if !(1..=BITMAP_WORDS_MAX).contains(&words) {
            return Err(fail("bitmap of impossible length", reader.position()));
        }
        let requested = reader.u32()?;
        for _ in 1..words {
            reader.u32()?;
        }
        let values = reader.u64()?;
        let creation_time = [reader.u64()?, reader.u64()?];
        let project = reader.clone().u64()?;
        let scan = reader.array()?;
        Ok(Self {
            requested,
            values,
            creation_time,
            stamp: if requested & Self::PROJECT != 0 {
                LogStamp::Project(project)
            } else {
                LogStamp::Scan(scan)
            },
        })
    }
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put_u32(BITMAP_WORDS);
        let project_bit = match self.stamp {
            LogStamp::Project(_) => Self::PROJECT,
            LogStamp::Scan(_) => 0,
        };
        writer.put_u32((self.requested & !Self::PROJECT) | project_bit);
        writer.put_u32(0);
        writer.put_u32(0);
        writer.put_u64(self.values);
        writer.put_words(&self.creation_time);
        match &self.stamp {
            LogStamp::Project(project) => {
                writer.put_u64(*project);
                writer.put(&[0; 24]);
            }
            LogStamp::Scan(stamp) => writer.put(stamp),
        }
    }
}

/// Sets attributes of a file. Page `docs/format/intent-log-records.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAttributesRecord<'a> {
    /// The file.
    pub object: ObjectId,
    /// Which of the fields are valid, in the mask bits of the system that wrote the log.
    pub mask: u64,
    /// Type and permissions.
    pub mode: u64,
    /// Owner; above 32 bits, the upper half is an index into `domains`.
    pub uid: u64,
    /// Group, as for the owner.
    pub gid: u64,
    /// Size; informative unless it is in the mask.
    pub size: u64,
    /// Access: seconds and nanoseconds.
    pub access_time: [u64; 2],
    /// Modification: seconds and nanoseconds.
    pub modification_time: [u64; 2],
    /// Further attributes.
    pub attributes: Option<LogAttributes>,
    /// Names of foreign domains.
    pub domains: Vec<&'a [u8]>,
}

impl<'a> SetAttributesRecord<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let object = ObjectId(reader.u64()?);
        let mask = reader.u64()?;
        let mode = reader.u64()?;
        let (uid, gid) = (reader.u64()?, reader.u64()?);
        let size = reader.u64()?;
        let access_time = [reader.u64()?, reader.u64()?];
        let modification_time = [reader.u64()?, reader.u64()?];
        let attributes = if mask & MASK_FURTHER_LINUX != 0 {
            Some(LogAttributes::read(reader)?)
        } else if mask & MASK_FURTHER_OTHER != 0 && reader.remaining() > 0 {
            // On Linux this bit has another meaning; only the following bytes distinguish the two.
            let mut ahead = reader.clone();
            LogAttributes::read(&mut ahead)
                .ok()
                .inspect(|_| *reader = ahead)
        } else {
            None
        };
        Ok(Self {
            object,
            mask,
            mode,
            uid,
            gid,
            size,
            access_time,
            modification_time,
            attributes,
            domains: strings(reader, implied_domains(uid, gid))?,
        })
    }
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put_words(&[
            self.object.0,
            self.mask,
            self.mode,
            self.uid,
            self.gid,
            self.size,
        ]);
        writer.put_words(&self.access_time);
        writer.put_words(&self.modification_time);
        if let Some(attributes) = &self.attributes {
            attributes.write(writer);
        }
        put_strings(writer, &self.domains);
    }
}

/// The number of domains for an owner and a group: one for each distinct index.
pub(super) fn implied_domains(uid: u64, gid: u64) -> u64 {
    match (uid >> 32, gid >> 32) {
        (0, 0) => 0,
        (0, _) | (_, 0) => 1,
        (user, group) if user == group => 1,
        _ => 2,
    }
}
