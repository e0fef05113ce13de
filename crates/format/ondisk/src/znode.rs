//! Times and flags of files, and the old znode: the fixed bonus of file systems before version 5.
//!
//! After an upgrade to version 5, files keep the old znode until they are changed. Page
//! `docs/format/znode.md`.

use crate::acl::{Ace, Fuid, decode_acl, decode_old_acl};
use crate::{DecodeError, Endian, ObjectId, Reader, Writer};

/// Size of an old znode without its tail, in bytes.
pub const ZNODE_BYTES: usize = 264;
/// Size of the embedded access control entries of an old znode, in bytes.
pub const ZNODE_ACL_BYTES: usize = 72;

/// A timestamp. Page `docs/format/znode.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Additional nanoseconds, below 10^9 from a correct writer.
    pub nanoseconds: u64,
}

impl Timestamp {
    /// Reads two 64-bit words.
    ///
    /// # Errors
    /// If fewer than 16 bytes are left.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            seconds: reader.u64()?.cast_signed(),
            nanoseconds: reader.u64()?,
        })
    }
    /// Appends two 64-bit words.
    pub fn encode(self, writer: &mut Writer) {
        writer.put_u64(self.seconds.cast_unsigned());
        writer.put_u64(self.nanoseconds);
    }
}

bitflags::bitflags! {
    /// Flags of a file ("pflags"). Page `docs/format/znode.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct FileFlags: u64 {
        /// An xattr directory or a file in one.
        const XATTR = 0x1;
        /// The ACL has inheritable entries.
        const INHERIT_ACE = 0x2;
        /// The ACL is equivalent to the mode.
        const ACL_TRIVIAL = 0x4;
        /// The ACL has entries with object types.
        const ACL_OBJECT_ACE = 0x8;
        /// The ACL is protected from inheritance.
        const ACL_PROTECTED = 0x10;
        /// The ACL was created by default.
        const ACL_DEFAULTED = 0x20;
        /// The ACL takes part in automatic inheritance.
        const ACL_AUTO_INHERIT = 0x40;
        /// A scanstamp follows an old znode.
        const BONUS_SCANSTAMP = 0x80;
        /// The ACL denies execution to no one.
        const NO_EXECS_DENIED = 0x100;
        /// DOS attribute.
        const READONLY = 0x1_0000_0000;
        /// DOS attribute.
        const HIDDEN = 0x2_0000_0000;
        /// DOS attribute.
        const SYSTEM = 0x4_0000_0000;
        /// DOS attribute: changed since the last backup.
        const ARCHIVE = 0x8_0000_0000;
        /// Immutable.
        const IMMUTABLE = 0x10_0000_0000;
        /// Must not be unlinked.
        const NOUNLINK = 0x20_0000_0000;
        /// Append-only.
        const APPENDONLY = 0x40_0000_0000;
        /// Excluded from dumps.
        const NODUMP = 0x80_0000_0000;
        /// For union file systems.
        const OPAQUE = 0x100_0000_0000;
        /// Must not be opened: a virus was found.
        const AV_QUARANTINED = 0x200_0000_0000;
        /// Changed since the last virus scan.
        const AV_MODIFIED = 0x400_0000_0000;
        /// A reparse point.
        const REPARSE = 0x800_0000_0000;
        /// The content is offline.
        const OFFLINE = 0x1000_0000_0000;
        /// DOS attribute.
        const SPARSE = 0x2000_0000_0000;
        /// New files in the directory inherit its project.
        const PROJECT_INHERIT = 0x4000_0000_0000;
        /// The attribute `PROJID` is present.
        const PROJECT_ID = 0x8000_0000_0000;
        const _ = !0;
    }
}

/// The access control list of an old znode. Page `docs/format/znode.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZnodeAcl {
    /// The object that contains the entries; 0 if they are in the znode.
    pub external: ObjectId,
    /// Version 0: the number of entries. Version 1: their size in bytes.
    pub size: u32,
    /// Encoding of the entries: 0 old, 1 as in system attributes.
    pub version: u16,
    /// Version 1: the number of entries.
    pub count: u16,
    /// The embedded entries, in byte order `endian`; stale if an external object contains the entries.
    pub embedded: [u8; ZNODE_ACL_BYTES],
    /// The byte order of `embedded`.
    pub endian: Endian,
}

impl ZnodeAcl {
    /// The number of entries.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        match self.version {
            0 => u64::from(self.size),
            _ => u64::from(self.count),
        }
    }
    /// Size of all entries in bytes, embedded or external.
    ///
    /// This can be up to 48 GiB, so check it before reading.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        match self.version {
            0 => u64::from(self.size).saturating_mul(12),
            _ => u64::from(self.size),
        }
    }
    /// The embedded entries; `None` if they are in an external object.
    ///
    /// # Errors
    /// If they do not fit, or contradict the count.
    pub fn embedded_entries(&self) -> Result<Option<Vec<Ace>>, DecodeError> {
        if self.external != ObjectId(0) {
            return Ok(None);
        }
        let length = usize::try_from(self.length_bytes()).unwrap_or(usize::MAX);
        let bytes = self
            .embedded
            .get(..length)
            .ok_or_else(|| DecodeError::new("znode", "embedded acl above 72 bytes", 184))?;
        self.entries(bytes, self.endian).map(Some)
    }
    /// Decodes entries read from the external object. Allocates at most five times the length of `bytes`.
    ///
    /// # Errors
    /// If they contradict the count, or the version is unknown.
    pub fn entries(&self, bytes: &[u8], endian: Endian) -> Result<Vec<Ace>, DecodeError> {
        match self.version {
            0 => decode_old_acl(bytes, endian, self.entry_count()),
            1 => decode_acl(bytes, endian, self.entry_count()),
            _ => Err(DecodeError::new("znode", "unknown acl version", 188)),
        }
    }
}

/// An old znode. Page `docs/format/znode.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZnodePhys {
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or metadata.
    pub ctime: Timestamp,
    /// Creation.
    pub crtime: Timestamp,
    /// The txg in which the file was created.
    pub generation: u64,
    /// `st_mode`, including the file type.
    pub mode: u64,
    /// Length in bytes; for a directory, the number of entries plus 2.
    pub size: u64,
    /// A directory that contains or contained a link.
    pub parent: ObjectId,
    /// The number of links.
    pub links: u64,
    /// The xattr directory; 0 for none.
    pub xattr: ObjectId,
    /// Device number.
    pub rdev: u64,
    /// See [`FileFlags`].
    pub flags: FileFlags,
    /// Owner.
    pub uid: Fuid,
    /// Group.
    pub gid: Fuid,
    /// Access control list.
    pub acl: ZnodeAcl,
    /// The bytes after the znode: a short symlink's target or a scanstamp. At most 16 KiB.
    pub tail: Vec<u8>,
}

impl ZnodePhys {
    /// Reads the bonus of an old file. Allocates at most its length.
    ///
    /// # Errors
    /// If there are fewer than 264 bytes.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("znode", bonus, endian);
        let atime = Timestamp::decode(&mut reader)?;
        let mtime = Timestamp::decode(&mut reader)?;
        let ctime = Timestamp::decode(&mut reader)?;
        let crtime = Timestamp::decode(&mut reader)?;
        let generation = reader.u64()?;
        let mode = reader.u64()?;
        let size = reader.u64()?;
        let parent = ObjectId(reader.u64()?);
        let links = reader.u64()?;
        let xattr = ObjectId(reader.u64()?);
        let rdev = reader.u64()?;
        let flags = FileFlags::from_bits_retain(reader.u64()?);
        let uid = Fuid(reader.u64()?);
        let gid = Fuid(reader.u64()?);
        reader.skip(32)?;
        let acl = ZnodeAcl {
            external: ObjectId(reader.u64()?),
            size: reader.u32()?,
            version: reader.u16()?,
            count: reader.u16()?,
            embedded: reader.array()?,
            endian,
        };
        let tail = reader.take(reader.remaining())?.to_vec();
        Ok(Self {
            atime,
            mtime,
            ctime,
            crtime,
            generation,
            mode,
            size,
            parent,
            links,
            xattr,
            rdev,
            flags,
            uid,
            gid,
            acl,
            tail,
        })
    }

    /// Encodes the bonus, little-endian.
    ///
    /// # Errors
    /// If the embedded entries are in foreign byte order.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        if self.acl.endian == Endian::Big {
            return Err(DecodeError::new("znode", "acl is in foreign order", 192));
        }
        let mut writer = Writer::with_capacity(ZNODE_BYTES.saturating_add(self.tail.len()));
        for time in [self.atime, self.mtime, self.ctime, self.crtime] {
            time.encode(&mut writer);
        }
        for word in [
            self.generation,
            self.mode,
            self.size,
            self.parent.0,
            self.links,
            self.xattr.0,
            self.rdev,
            self.flags.bits(),
            self.uid.0,
            self.gid.0,
        ] {
            writer.put_u64(word);
        }
        writer.pad_to(176);
        writer.put_u64(self.acl.external.0);
        writer.put_u32(self.acl.size);
        writer.put_u16(self.acl.version);
        writer.put_u16(self.acl.count);
        writer.put(&self.acl.embedded);
        writer.put(&self.tail);
        Ok(writer.finish())
    }

    /// The scanstamp of a virus scanner, if any.
    #[must_use]
    pub fn scanstamp(&self) -> Option<[u8; 32]> {
        if !self.flags.contains(FileFlags::BONUS_SCANSTAMP) {
            return None;
        }
        self.tail.get(..32)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{AceKind, AceWho};
    use proptest::prelude::*;

    fn big_endian_bonus() -> Vec<u8> {
        let mut bonus = vec![0u8; ZNODE_BYTES];
        for word in 0..22u64 {
            let at = word as usize * 8;
            bonus[at..at + 8].copy_from_slice(&(100 + word).to_be_bytes());
        }
        bonus[176..184].fill(0);
        bonus[184..188].copy_from_slice(&0x30u32.to_be_bytes());
        bonus[188..190].copy_from_slice(&1u16.to_be_bytes());
        bonus[190..192].copy_from_slice(&6u16.to_be_bytes());
        for (index, flags) in [0x1000u16, 0x1000, 0x2040, 0x2040, 0x4000, 0x4000]
            .into_iter()
            .enumerate()
        {
            let at = 192 + 8 * index;
            bonus[at + 1] = 1 - index as u8 % 2;
            bonus[at + 2..at + 4].copy_from_slice(&flags.to_be_bytes());
        }
        bonus
    }

    #[test]
    fn a_big_endian_znode_has_each_field_at_its_offset() {
        let znode = ZnodePhys::decode(&big_endian_bonus(), Endian::Big).unwrap();
        assert_eq!(znode.atime.seconds, 100);
        assert_eq!(znode.crtime.nanoseconds, 107);
        assert_eq!(znode.generation, 108);
        assert_eq!(znode.mode, 109);
        assert_eq!(znode.size, 110);
        assert_eq!(znode.parent, ObjectId(111));
        assert_eq!(znode.links, 112);
        assert_eq!(znode.xattr, ObjectId(113));
        assert_eq!(znode.rdev, 114);
        assert_eq!(znode.flags.bits(), 115);
        assert_eq!((znode.uid, znode.gid), (Fuid(116), Fuid(117)));
        let entries = znode.acl.embedded_entries().unwrap().unwrap();
        assert_eq!(entries.len(), 6);
        assert_eq!(
            (entries[0].kind, entries[0].who),
            (AceKind::DENY, AceWho::Owner)
        );
        assert_eq!(entries[5].who, AceWho::Everyone);
    }

    #[test]
    fn acls_that_do_not_fit_or_have_an_unknown_version_are_errors() {
        let mut znode = ZnodePhys::decode(&big_endian_bonus(), Endian::Big).unwrap();
        znode.acl.size = 73;
        assert!(znode.acl.embedded_entries().is_err());
        znode.acl.version = 0;
        znode.acl.size = 7;
        assert!(znode.acl.embedded_entries().is_err());
        znode.acl.size = u32::MAX;
        assert!(znode.acl.embedded_entries().is_err());
        znode.acl.size = 0;
        assert_eq!(znode.acl.embedded_entries().unwrap(), Some(vec![]));
        znode.acl.version = 2;
        assert!(znode.acl.embedded_entries().is_err());
        znode.acl.external = ObjectId(9);
        assert_eq!(znode.acl.embedded_entries().unwrap(), None);
    }

    #[test]
    fn a_short_bonus_is_an_error() {
        assert!(ZnodePhys::decode(&[0; 263], Endian::Little).is_err());
    }

    #[test]
    fn the_scanstamp_is_there_only_with_its_flag() {
        let mut bonus = vec![0u8; ZNODE_BYTES];
        bonus.extend([7u8; 32]);
        let mut znode = ZnodePhys::decode(&bonus, Endian::Little).unwrap();
        assert_eq!(znode.scanstamp(), None);
        znode.flags |= FileFlags::BONUS_SCANSTAMP;
        assert_eq!(znode.scanstamp(), Some([7; 32]));
        znode.tail.truncate(31);
        assert_eq!(znode.scanstamp(), None);
    }

    #[test]
    fn an_acl_fills_its_72_bytes_and_is_counted_by_its_version() {
        let bonus = vec![0u8; ZNODE_BYTES];
        let mut znode = ZnodePhys::decode(&bonus, Endian::Little).unwrap();
        znode.acl.size = 6;
        znode.acl.count = 9;
        assert_eq!((znode.acl.entry_count(), znode.acl.length_bytes()), (6, 72));
        assert_eq!(znode.acl.embedded_entries().unwrap().unwrap().len(), 6);
        znode.acl.version = 1;
        assert_eq!((znode.acl.entry_count(), znode.acl.length_bytes()), (9, 6));
        // Nine entries of 8 bytes, each for the owner.
        znode.acl.size = 72;
        znode.acl.embedded = core::array::from_fn(|at| if at % 8 == 3 { 0x10 } else { 0 });
        let entries = znode.acl.embedded_entries().unwrap().unwrap();
        assert_eq!(entries.len(), 9);
        assert!(entries.iter().all(|entry| entry.who == AceWho::Owner));
        assert!(znode.encode().is_ok());
        znode.acl.endian = Endian::Big;
        assert!(znode.encode().is_err());
    }

    #[test]
    fn times_before_1970_are_negative() {
        let time = Timestamp {
            seconds: -2,
            nanoseconds: 5,
        };
        let mut writer = Writer::default();
        time.encode(&mut writer);
        let bytes = writer.finish();
        assert_eq!(bytes[..9], [0xfe, 255, 255, 255, 255, 255, 255, 255, 5]);
        let mut reader = Reader::new("time", &bytes, Endian::Little);
        assert_eq!(Timestamp::decode(&mut reader), Ok(time));
    }

    proptest! {
        #[test]
        fn any_long_enough_bonus_round_trips(
            head in proptest::collection::vec(any::<u8>(), ZNODE_BYTES),
            tail in proptest::collection::vec(any::<u8>(), 0..56),
        ) {
            let mut bonus = head;
            bonus[144..176].fill(0);
            bonus.extend(tail);
            let znode = ZnodePhys::decode(&bonus, Endian::Little).unwrap();
            let _ = znode.acl.embedded_entries();
            prop_assert_eq!(znode.encode().unwrap(), bonus);
        }
    }
}
