//! POSIX ACLs, as stored in extended attributes. Page `docs/format/acl.md`.

use millpond_ondisk::{DecodeError, Endian, Reader, Writer};

/// The extended attribute with the access ACL.
pub const POSIX_ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attribute with the default ACL, which new files in a directory inherit.
pub const POSIX_ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

/// The subject of an entry, in the order of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PosixAclWho {
    /// The owner.
    Owner,
    /// A user.
    User(u32),
    /// The file's group.
    Group,
    /// Another group.
    NamedGroup(u32),
    /// The upper bound for named users and all groups.
    Mask,
    /// All other users.
    Others,
}

/// A valid POSIX ACL: one entry each for owner, group and others, a mask if users or groups are named, in the
/// standard order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PosixAcl {
    entries: Vec<(PosixAclWho, u8)>,
}

impl PosixAcl {
    /// Decodes an extended attribute's value; `None` for a list without entries, which stands for no ACL.
    ///
    /// Allocates at most four times its length.
    ///
    /// # Errors
    /// If it is not a valid ACL.
    pub fn decode(value: &[u8]) -> Result<Option<Self>, DecodeError> {
        let mut reader = Reader::new("POSIX ACL", value, Endian::Little);
        if reader.u32()? != VERSION {
            return Err(reader.fail("unknown version"));
        }
        let mut entries: Vec<(PosixAclWho, u8)> = vec![];
        while reader.remaining() > 0 {
            let tag = reader.u16()?;
            let permissions = reader.u16()?;
            let id = reader.u32()?;
            let who = match tag {
                1 => PosixAclWho::Owner,
                2 => PosixAclWho::User(id),
                4 => PosixAclWho::Group,
                8 => PosixAclWho::NamedGroup(id),
                0x10 => PosixAclWho::Mask,
                0x20 => PosixAclWho::Others,
                _ => return Err(reader.fail("unknown tag")),
            };
            let names_nobody = matches!(
                who,
                PosixAclWho::User(NO_ID) | PosixAclWho::NamedGroup(NO_ID)
            );
            let permissions = u8::try_from(permissions).unwrap_or(u8::MAX);
            if permissions > 7 || names_nobody {
                return Err(reader.fail("entry makes no sense"));
            }
            entries.push((who, permissions));
        }
        if entries.is_empty() {
            return Ok(None);
        }
        Self::checked(entries)
            .map(Some)
            .ok_or_else(|| reader.fail("entries do not make a list"))
    }

    /// Builds an ACL of these entries, sorted; `None` if a mandatory entry is missing or an entry is
    /// duplicate.
    #[must_use]
    pub fn new(mut entries: Vec<(PosixAclWho, u8)>) -> Option<Self> {
        entries.sort_unstable();
        let is_in_range = entries.iter().all(|(_, permissions)| *permissions <= 7);
        Self::checked(entries).filter(|_| is_in_range)
    }

    fn checked(entries: Vec<(PosixAclWho, u8)>) -> Option<Self> {
        let rank = |who: PosixAclWho| match who {
            PosixAclWho::Owner => 0,
            PosixAclWho::User(_) => 1,
            PosixAclWho::Group => 2,
            PosixAclWho::NamedGroup(_) => 3,
            PosixAclWho::Mask => 4,
            PosixAclWho::Others => 5,
        };
        let is_ordered = entries.windows(2).all(|pair| match pair {
            [(one, _), (other, _)] => {
                let may_repeat = matches!(rank(*one), 1 | 3);
                rank(*one) < rank(*other) || (may_repeat && rank(*one) == rank(*other))
            }
            _ => true,
        });
        let has = |wanted| entries.iter().any(|(who, _)| *who == wanted);
        let names_some = entries.iter().any(|(who, _)| matches!(rank(*who), 1 | 3));
        let is_whole = has(PosixAclWho::Owner)
            && has(PosixAclWho::Group)
            && has(PosixAclWho::Others)
            && (!names_some || has(PosixAclWho::Mask));
        (is_ordered && is_whole).then_some(Self { entries })
    }

    /// Encodes the extended attribute's value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put_u32(VERSION);
        for (who, permissions) in &self.entries {
            let (tag, id) = match who {
                PosixAclWho::Owner => (1, NO_ID),
                PosixAclWho::User(id) => (2, *id),
                PosixAclWho::Group => (4, NO_ID),
                PosixAclWho::NamedGroup(id) => (8, *id),
                PosixAclWho::Mask => (0x10, NO_ID),
                PosixAclWho::Others => (0x20, NO_ID),
            };
            writer.put_u16(tag);
            writer.put_u16(u16::from(*permissions));
            writer.put_u32(id);
        }
        writer.finish()
    }

    /// The entries and their permissions (`rwx` as 4, 2, 1), in order.
    #[must_use]
    pub fn entries(&self) -> &[(PosixAclWho, u8)] {
        &self.entries
    }

    fn get(&self, wanted: PosixAclWho) -> Option<u8> {
        let found = self.entries.iter().find(|(who, _)| *who == wanted);
        found.map(|(_, permissions)| *permissions)
    }
    fn set(&mut self, wanted: PosixAclWho, permissions: u8) {
        for (who, old) in &mut self.entries {
            if *who == wanted {
                *old = permissions;
            }
        }
    }
    /// The entry that the group bits of the mode represent: the mask if there is one.
    fn group_class(&self) -> PosixAclWho {
        match self.get(PosixAclWho::Mask) {
            Some(_) => PosixAclWho::Mask,
            None => PosixAclWho::Group,
        }
    }

    /// The nine permission bits of the mode that represents the ACL.
    #[must_use]
    pub fn mode(&self) -> u64 {
        let bits = |who| u64::from(self.get(who).unwrap_or(0));
        bits(PosixAclWho::Owner) << 6 | bits(self.group_class()) << 3 | bits(PosixAclWho::Others)
    }
    /// Whether the mode expresses the whole ACL. Such an ACL is not stored.
    #[must_use]
    pub fn is_the_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// The ACL after `chmod`.
    #[must_use]
    pub fn with_mode(&self, mode: u64) -> Self {
        let mut changed = self.clone();
        let triple = |shift: u32| u8::try_from((mode >> shift) & 7).unwrap_or(0);
        changed.set(PosixAclWho::Owner, triple(6));
        changed.set(self.group_class(), triple(3));
        changed.set(PosixAclWho::Others, triple(0));
        changed
    }

    /// Treats this ACL as a directory's default ACL: returns the access ACL of a new file with `mode`.
    ///
    /// The result grants only what both this ACL and `mode` grant.
    #[must_use]
    pub fn for_new_file(&self, mode: u64) -> Self {
        self.with_mode(mode & self.mode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PosixAclWho::{Group, Mask, NamedGroup, Others, Owner, User};
    use proptest::prelude::*;

    /// What `setfacl -m u:1000:rwx` writes on a file of mode 0640.
    fn sample() -> PosixAcl {
        PosixAcl::new(vec![
            (User(1000), 7),
            (Owner, 6),
            (Group, 4),
            (Mask, 7),
            (Others, 0),
        ])
        .unwrap()
    }

    #[test]
    fn the_value_is_version_2_and_eight_bytes_for_each_entry() {
        let value = sample().encode();
        assert_eq!(value.len(), 4 + 5 * 8);
        assert_eq!(&value[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(&value[12..20], [2, 0, 7, 0, 0xe8, 3, 0, 0]);
        assert_eq!(PosixAcl::decode(&value), Ok(Some(sample())));
    }

    #[test]
    fn the_group_bits_of_the_mode_show_the_mask() {
        assert_eq!(sample().mode(), 0o670);
        assert!(!sample().is_the_mode());
        let changed = sample().with_mode(0o751);
        assert_eq!(changed.mode(), 0o751);
        assert_eq!(changed.entries()[2], (Group, 4));
        let plain = PosixAcl::new(vec![(Owner, 6), (Group, 4), (Others, 0)]).unwrap();
        assert!(plain.is_the_mode());
        assert_eq!(plain.mode(), 0o640);
    }

    #[test]
    fn a_new_file_gets_at_most_the_requested_mode() {
        let made = sample().for_new_file(0o600);
        assert_eq!(made.mode(), 0o600);
        assert_eq!(made.entries()[1], (User(1000), 7));
        assert_eq!(made.entries()[3], (Mask, 0));
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        assert_eq!(PosixAcl::decode(&2u32.to_le_bytes()), Ok(None));
        assert!(PosixAcl::decode(&[]).is_err());
        assert!(PosixAcl::decode(&1u32.to_le_bytes()).is_err());
        assert!(PosixAcl::decode(&sample().encode()[..43]).is_err());
        assert!(PosixAcl::new(vec![(Owner, 6), (Group, 4)]).is_none());
        assert!(PosixAcl::new(vec![(Owner, 6), (Owner, 6), (Group, 4), (Others, 0)]).is_none());
        let without_mask = vec![(Owner, 6), (NamedGroup(5), 4), (Group, 4), (Others, 0)];
        assert!(PosixAcl::new(without_mask).is_none());
        assert!(PosixAcl::new(vec![(Owner, 8), (Group, 4), (Others, 0)]).is_none());
        let mut unordered = sample().encode();
        unordered[4..20].rotate_left(8);
        assert!(PosixAcl::decode(&unordered).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100)
        ) {
            let _ = PosixAcl::decode(&bytes);
        }
        #[test]
        fn posix_acls_round_trip(
            users in proptest::collection::btree_map(0u32..99, 0u8..8, 0..5),
            bits in proptest::collection::vec(0u8..8, 4),
            mode in 0u64..0o1000
        ) {
            let mut entries = vec![(Owner, bits[0]), (Group, bits[1]), (Others, bits[2])];
            if !users.is_empty() {
                entries.push((Mask, bits[3]));
            }
            entries.extend(users.into_iter().map(|(id, bits)| (User(id), bits)));
            let acl = PosixAcl::new(entries).unwrap();
            prop_assert_eq!(PosixAcl::decode(&acl.encode()).unwrap().unwrap(), acl.clone());
            prop_assert_eq!(acl.with_mode(mode).mode(), mode);
            prop_assert_eq!(acl.for_new_file(mode).mode(), mode & acl.mode());
        }
    }
}
