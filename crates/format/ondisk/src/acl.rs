//! NFSv4 access control lists in both of their encodings, and the ids in them.
//!
//! Page `docs/format/acl.md`.

use crate::{DecodeError, Endian, Reader, Writer};

/// A user or group as stored: the index of a domain, and an id in that domain. Page `docs/format/acl.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fuid(pub u64);

impl Fuid {
    /// Index into the file system's domain table; 0 for plain POSIX ids.
    #[must_use]
    pub fn domain(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(0)
    }
    /// The id in the domain.
    #[must_use]
    pub fn id(self) -> u32 {
        u32::try_from(self.0 & 0xffff_ffff).unwrap_or(0)
    }
    /// The POSIX id; `None` if the domain is a foreign one.
    #[must_use]
    pub fn posix(self) -> Option<u32> {
        (self.domain() == 0).then(|| self.id())
    }
}

/// The kind of an entry; unknown values are kept. Page `docs/format/acl.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AceKind(pub u16);

impl AceKind {
    /// Grants the rights in the mask.
    pub const ALLOW: AceKind = AceKind(0);
    /// Denies the rights in the mask.
    pub const DENY: AceKind = AceKind(1);
    /// Requests an audit record.
    pub const AUDIT: AceKind = AceKind(2);
    /// Requests an alarm.
    pub const ALARM: AceKind = AceKind(3);

    /// Whether the entry carries two object type ids (kinds 5 to 8).
    #[must_use]
    pub fn has_object_types(self) -> bool {
        (5..=8).contains(&self.0)
    }
}

bitflags::bitflags! {
    /// Flags of an entry. Page `docs/format/acl.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct AceFlags: u16 {
        /// Files inherit the entry.
        const FILE_INHERIT = 0x1;
        /// Directories inherit the entry.
        const DIRECTORY_INHERIT = 0x2;
        /// Children do not propagate the entry.
        const NO_PROPAGATE = 0x4;
        /// The entry does not apply to this object itself.
        const INHERIT_ONLY = 0x8;
        /// Audit or alarm on success.
        const SUCCESSFUL_ACCESS = 0x10;
        /// Audit or alarm on failure.
        const FAILED_ACCESS = 0x20;
        /// The id is a group id.
        const IDENTIFIER_GROUP = 0x40;
        /// The entry was inherited from the parent directory.
        const INHERITED = 0x80;
        /// `owner@`
        const OWNER = 0x1000;
        /// `group@`, together with [`AceFlags::IDENTIFIER_GROUP`].
        const GROUP = 0x2000;
        /// `everyone@`
        const EVERYONE = 0x4000;
        const _ = !0;
    }
}

/// The subject of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AceWho {
    /// `owner@`
    Owner,
    /// `group@`
    Group,
    /// `everyone@`
    Everyone,
    /// A user, or with [`AceFlags::IDENTIFIER_GROUP`] a group.
    Id(Fuid),
}

/// One access control entry. Page `docs/format/acl.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ace {
    /// Allow, deny, audit or alarm.
    pub kind: AceKind,
    /// Inheritance flags, and the flags from which [`Ace::who`] is decoded.
    pub flags: AceFlags,
    /// The rights.
    pub mask: u32,
    /// The subject.
    pub who: AceWho,
    /// Object type and inherited object type, only for kinds 5 to 8.
    pub object_types: Option<[u8; 32]>,
}

/// Size of an entry in the old encoding, in bytes.
const OLD_ACE_BYTES: usize = 12;

fn abstract_who(flags: AceFlags) -> Option<AceWho> {
    match flags.bits() & 0x7040 {
        0x1000 => Some(AceWho::Owner),
        0x2040 => Some(AceWho::Group),
        0x4000 => Some(AceWho::Everyone),
        _ => None,
    }
}

/// Reads `count` entries of version 1 (8, 16 or 48 bytes each) that fill `bytes` exactly.
///
/// Allocates at most five times the length of `bytes`.
///
/// # Errors
/// If the entries do not fill `bytes` exactly.
pub fn decode_acl(bytes: &[u8], endian: Endian, count: u64) -> Result<Vec<Ace>, DecodeError> {
    let mut reader = Reader::new("acl", bytes, endian);
    let mut entries = Vec::new();
    for _ in 0..count {
        let kind = AceKind(reader.u16()?);
        let flags = AceFlags::from_bits_retain(reader.u16()?);
        let mask = reader.u32()?;
        let (who, object_types) = match abstract_who(flags) {
            Some(who) => (who, None),
            None => {
                let who = AceWho::Id(Fuid(reader.u64()?));
                let types = if kind.has_object_types() {
                    Some(reader.array()?)
                } else {
                    None
                };
                (who, types)
            }
        };
        entries.push(Ace {
            kind,
            flags,
            mask,
            who,
            object_types,
        });
    }
    if reader.remaining() > 0 {
        return Err(reader.fail("bytes behind the last entry"));
    }
    Ok(entries)
}

/// Reads `count` entries of the old encoding (version 0: 12 bytes each) that fill `bytes` exactly.
///
/// Allocates at most five times the length of `bytes`.
///
/// # Errors
/// If the entries do not fill `bytes` exactly.
pub fn decode_old_acl(bytes: &[u8], endian: Endian, count: u64) -> Result<Vec<Ace>, DecodeError> {
    let fits = usize::try_from(count)
        .ok()
        .and_then(|count| count.checked_mul(OLD_ACE_BYTES))
        .is_some_and(|length| length == bytes.len());
    if !fits {
        return Err(DecodeError::new("old acl", "length contradicts count", 0));
    }
    let mut reader = Reader::new("old acl", bytes, endian);
    let mut entries = Vec::new();
    for _ in 0..count {
        let id = reader.u32()?;
        let mask = reader.u32()?;
        let flags = AceFlags::from_bits_retain(reader.u16()?);
        let kind = AceKind(reader.u16()?);
        let who = abstract_who(flags).unwrap_or(AceWho::Id(Fuid(u64::from(id))));
        entries.push(Ace {
            kind,
            flags,
            mask,
            who,
            object_types: None,
        });
    }
    Ok(entries)
}

/// Converts a list of version 1 entries from byte order `endian` to little-endian.
///
/// An incomplete entry at the end stays partly unconverted.
#[must_use]
pub fn acl_to_little(bytes: &[u8], endian: Endian) -> Vec<u8> {
    let mut swapped = bytes.to_vec();
    if endian == Endian::Little {
        return swapped;
    }
    let mut rest = swapped.as_mut_slice();
    while let Some((head, after)) = rest.split_at_mut_checked(8) {
        let (kind, others) = head.split_at_mut(2);
        let (flags, mask) = others.split_at_mut(2);
        for number in [&mut *kind, &mut *flags, mask] {
            number.reverse();
        }
        let kind = AceKind(Reader::new("acl", kind, Endian::Little).u16().unwrap_or(0));
        let flags = Reader::new("acl", flags, Endian::Little).u16().unwrap_or(0);
        rest = after;
        if abstract_who(AceFlags::from_bits_retain(flags)).is_some() {
            continue;
        }
        let Some((id, after)) = rest.split_at_mut_checked(8) else {
            break;
        };
        id.reverse();
        rest = after;
        if kind.has_object_types() {
            let Some((_, after)) = rest.split_at_mut_checked(32) else {
                break;
            };
            rest = after;
        }
    }
    swapped
}

/// Encodes entries in version 1, little-endian.
///
/// # Errors
/// If the flags, kind and id of an entry contradict each other, so that it would be decoded as another entry.
pub fn encode_acl(entries: &[Ace]) -> Result<Vec<u8>, DecodeError> {
    let mut writer = Writer::default();
    for entry in entries {
        let fail = |reason| DecodeError::new("acl", reason, writer.position());
        let marked = abstract_who(entry.flags);
        let id = match (entry.who, marked) {
            (AceWho::Id(id), None) => Some(id),
            (who, Some(marked)) if who == marked => None,
            _ => return Err(fail("flags contradict the id")),
        };
        let wants_types = id.is_some() && entry.kind.has_object_types();
        if wants_types != entry.object_types.is_some() {
            return Err(fail("object types contradict the kind"));
        }
        writer.put_u16(entry.kind.0);
        writer.put_u16(entry.flags.bits());
        writer.put_u32(entry.mask);
        if let Some(id) = id {
            writer.put_u64(id.0);
        }
        if let Some(types) = &entry.object_types {
            writer.put(types);
        }
    }
    Ok(writer.finish())
}

/// Encodes entries in the old encoding (version 0: 12 bytes each), little-endian.
///
/// # Errors
/// If an entry has object types or an id above 32 bits, which this encoding cannot store, or if the flags and id of
/// an entry contradict each other.
pub fn encode_old_acl(entries: &[Ace]) -> Result<Vec<u8>, DecodeError> {
    let mut writer = Writer::default();
    for entry in entries {
        let fail = |reason| DecodeError::new("old acl", reason, writer.position());
        let id = match (entry.who, abstract_who(entry.flags)) {
            (AceWho::Id(Fuid(id)), None) => {
                u32::try_from(id).map_err(|_| fail("an id above 32 bits"))?
            }
            (who, Some(marked)) if who == marked => u32::MAX,
            _ => return Err(fail("flags contradict the id")),
        };
        if entry.object_types.is_some() {
            return Err(fail("an entry with object types"));
        }
        writer.put_u32(id);
        writer.put_u32(entry.mask);
        writer.put_u16(entry.flags.bits());
        writer.put_u16(entry.kind.0);
    }
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_trivial_acl_of_a_real_directory_round_trips() {
        let bytes = [
            0, 0, 0, 0x10, 0xbf, 0x01, 0x1e, 0, 0, 0, 0x40, 0x20, 0xa9, 0, 0x12, 0, 0, 0, 0, 0x40,
            0xa9, 0, 0x12, 0,
        ];
        let entries = decode_acl(&bytes, Endian::Little, 3).unwrap();
        let listed: Vec<_> = entries.iter().map(|ace| (ace.who, ace.mask)).collect();
        assert_eq!(
            listed,
            [
                (AceWho::Owner, 0x1e01bf),
                (AceWho::Group, 0x1200a9),
                (AceWho::Everyone, 0x1200a9)
            ]
        );
        assert_eq!(encode_acl(&entries).unwrap(), bytes);
    }

    #[test]
    fn an_entry_of_a_big_endian_writer_is_deny_for_the_owner() {
        let entries = decode_acl(&[0, 1, 0x10, 0, 0, 0, 0, 0], Endian::Big, 1).unwrap();
        assert_eq!(entries[0].kind, AceKind::DENY);
        assert_eq!(entries[0].who, AceWho::Owner);
    }

    #[test]
    fn old_entries_have_the_id_in_front_and_no_object_types() {
        let bytes = [
            0xff, 0xff, 0xff, 0xff, 0x20, 0, 0, 0, 0, 0x10, 1, 0, 0xe8, 3, 0, 0, 1, 0, 0, 0, 0x40,
            0, 0, 0,
        ];
        let entries = decode_old_acl(&bytes, Endian::Little, 2).unwrap();
        assert_eq!(
            (entries[0].who, entries[0].kind),
            (AceWho::Owner, AceKind::DENY)
        );
        assert_eq!(entries[0].mask, 0x20);
        assert_eq!(entries[1].who, AceWho::Id(Fuid(1000)));
        assert!(entries[1].flags.contains(AceFlags::IDENTIFIER_GROUP));
        assert!(decode_old_acl(&bytes, Endian::Little, 3).is_err());
        assert!(decode_old_acl(&bytes, Endian::Little, u64::MAX).is_err());
    }

    #[test]
    fn wrong_acl_counts_are_errors_before_allocation() {
        let one = [0, 0, 0, 0x10, 0, 0, 0, 0];
        assert!(decode_acl(&one, Endian::Little, u64::MAX).is_err());
        assert!(decode_acl(&one, Endian::Little, 0).is_err());
        assert!(decode_acl(&one[..7], Endian::Little, 1).is_err());
        // Sixteen bytes are needed if the flags name no abstract subject.
        assert!(decode_acl(&[0; 8], Endian::Little, 1).is_err());
    }

    #[test]
    fn acls_that_would_not_round_trip_are_not_written() {
        let entry = Ace {
            kind: AceKind::ALLOW,
            flags: AceFlags::OWNER,
            mask: 0,
            who: AceWho::Id(Fuid(5)),
            object_types: None,
        };
        assert!(encode_acl(&[entry]).is_err());
        let entry = Ace {
            who: AceWho::Owner,
            object_types: Some([0; 32]),
            ..entry
        };
        assert!(encode_acl(&[entry]).is_err());
    }

    #[test]
    fn only_kinds_5_to_8_carry_object_types() {
        let carry: Vec<u16> = (0..20)
            .filter(|kind| AceKind(*kind).has_object_types())
            .collect();
        assert_eq!(carry, [5, 6, 7, 8]);
        // Kind 5, user 7, then two types of 16 bytes: an entry of 48 bytes.
        let mut bytes = vec![0, 5, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7];
        bytes.extend(1..=32);
        let read = decode_acl(&bytes, Endian::Big, 1).unwrap();
        let types = core::array::from_fn(|at| u8::try_from(at + 1).unwrap());
        assert_eq!(read[0].object_types, Some(types));
        let little = acl_to_little(&bytes, Endian::Big);
        assert_eq!(decode_acl(&little, Endian::Little, 1).unwrap(), read);
    }

    #[test]
    fn a_list_that_ends_inside_an_entry_is_turned_up_to_there() {
        let whole = [0, 1, 0x10, 0, 0, 0, 0, 2];
        for rest in [
            &[][..],
            &[0, 1, 0x10][..],
            &[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0][..],
        ] {
            let little = acl_to_little(&[&whole[..], rest].concat(), Endian::Big);
            assert_eq!(little.len(), 8 + rest.len());
            assert_eq!(little[..8], [1, 0, 0, 0x10, 2, 0, 0, 0]);
        }
    }

    #[test]
    fn an_id_is_posix_only_in_domain_0() {
        assert_eq!(Fuid(1000).posix(), Some(1000));
        assert_eq!(Fuid(1 << 32 | 7).posix(), None);
        assert_eq!((Fuid(3 << 32 | 7).domain(), Fuid(3 << 32 | 7).id()), (3, 7));
    }

    fn swapped(entries: &[Ace]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for entry in entries {
            bytes.extend(entry.kind.0.to_be_bytes());
            bytes.extend(entry.flags.bits().to_be_bytes());
            bytes.extend(entry.mask.to_be_bytes());
            if let AceWho::Id(id) = entry.who {
                bytes.extend(id.0.to_be_bytes());
            }
            bytes.extend(entry.object_types.iter().flatten());
        }
        bytes
    }

    proptest! {
        #[test]
        fn acls_round_trip_in_both_byte_orders(
            parts in proptest::collection::vec((0u16..9, any::<u16>(), any::<u32>(), any::<u64>(), any::<[u8; 32]>()), 0..20)
        ) {
            let entries: Vec<Ace> = parts.into_iter().map(|(kind, flags, mask, id, types)| {
                let kind = AceKind(kind);
                let flags = AceFlags::from_bits_retain(flags);
                let who = abstract_who(flags).unwrap_or(AceWho::Id(Fuid(id)));
                let is_id = matches!(who, AceWho::Id(_));
                let object_types = (is_id && kind.has_object_types()).then_some(types);
                Ace { kind, flags, mask, who, object_types }
            }).collect();
            let count = entries.len() as u64;
            let bytes = encode_acl(&entries).unwrap();
            prop_assert_eq!(&decode_acl(&bytes, Endian::Little, count).unwrap(), &entries);
            prop_assert_eq!(&decode_acl(&swapped(&entries), Endian::Big, count).unwrap(), &entries);
            prop_assert_eq!(&acl_to_little(&bytes, Endian::Little), &bytes);
            prop_assert_eq!(acl_to_little(&swapped(&entries), Endian::Big), bytes);
        }
        #[test]
        fn any_bytes_are_entries_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in any::<u64>()) {
            let _ = decode_acl(&bytes, Endian::Little, count);
            let _ = decode_acl(&bytes, Endian::Big, count % 20);
            let _ = decode_old_acl(&bytes, Endian::Big, bytes.len() as u64 / 12);
        }
    }
}
