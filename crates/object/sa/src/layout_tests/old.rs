//! Changes to old znodes.

use super::*;
use crate::{Ace, AceFlags, AceKind, AceWho, Fuid, Timestamp};
use millpond_env::mark;
use millpond_ondisk::znode::{ZnodeAcl, ZnodePhys};

/// The content of a separate object: its id, bytes and byte order.
struct ObjectView(u64, Vec<u8>, Endian);

impl ObjectBytes for ObjectView {
    fn read(&self, id: ObjectId, length: usize) -> Result<(Vec<u8>, Endian), ObjectError> {
        if id != ObjectId(self.0) {
            return NoObjects.read(id, length);
        }
        let mut bytes = self.1.clone();
        bytes.resize(length, 0);
        Ok((bytes, self.2))
    }
}

fn file_system_with(object: ObjectView) -> SaLayouts {
    let registry = SaRegistry::from_zaps(3, Arc::new(object), None, None).unwrap();
    SaLayouts::new(Arc::new(registry), Some(Box::new(Tables::default())))
}

/// A file of mode 0644 with the six entries that systems of that time wrote. Version 1 stores them in 48
/// bytes.
pub(super) fn znode() -> ZnodePhys {
    let time = |seconds| Timestamp {
        seconds,
        nanoseconds: seconds.unsigned_abs() + 1,
    };
    let mut embedded = [0; 72];
    let entries = [
        (1u16, 0x1000u16, 0u32),
        (0, 0x1000, 0x1601c7),
        (1, 0x2040, 0x6),
        (0, 0x2040, 0x1),
        (1, 0x4000, 0x160146),
        (0, 0x4000, 0x120081),
    ];
    for ((kind, flags, mask), place) in entries.into_iter().zip(embedded.chunks_exact_mut(8)) {
        place[..2].copy_from_slice(&kind.to_le_bytes());
        place[2..4].copy_from_slice(&flags.to_le_bytes());
        place[4..].copy_from_slice(&mask.to_le_bytes());
    }
    ZnodePhys {
        atime: time(1000),
        mtime: time(2000),
        ctime: time(3000),
        crtime: time(-4000),
        generation: 77,
        mode: 0o100_644,
        size: 12345,
        parent: ObjectId(4),
        links: 3,
        xattr: ObjectId(0),
        rdev: 0x500_001,
        flags: FileFlags::ACL_TRIVIAL | FileFlags::ARCHIVE,
        uid: Fuid(1003),
        gid: Fuid(1 << 32 | 9),
        acl: ZnodeAcl {
            external: ObjectId(0),
            size: 48,
            version: 1,
            count: 6,
            embedded,
            endian: Endian::Little,
        },
        tail: vec![],
    }
}

pub(super) fn file_of(znode: &ZnodePhys) -> MemoryFile {
    let buffers = SaBuffers {
        bonus: znode.encode().unwrap(),
        spill: None,
    };
    let file = MemoryFile::new(512, buffers);
    file.state.lock().bonus_type = ObjectType::ZNODE;
    file
}

fn change(layouts: &SaLayouts, file: &MemoryFile, changes: &[SaChange<'_>]) -> Result<(), SaError> {
    layouts.change(&transaction(), file, changes)
}

pub(super) const SIZE_31: SaChange<'_> =
    SaChange::Set(SaAttribute::Size, &[31, 0, 0, 0, 0, 0, 0, 0]);

fn layout_of(layouts: &SaLayouts, buffer: &[u8]) -> Vec<u16> {
    let number = u16::from_le_bytes([buffer[4], buffer[5]]) & 0x3ff;
    let registry = layouts.registry();
    let list = registry.layout(number).unwrap();
    list.iter().map(|one| one.number).collect()
}

#[test]
fn an_old_znode_becomes_attributes_in_the_order_of_a_new_file() {
    let (layouts, _) = new_file_system();
    let file = file_of(&znode());
    change(&layouts, &file, &[SIZE_31]).unwrap();
    assert_eq!(file.bonus_type(), ObjectType::SA);
    let bonus = file.bonus();
    let order = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19];
    assert_eq!(layout_of(&layouts, &bonus), order);
    // Header, attributes of fixed length, the number of entries, six entries.
    assert_eq!(bonus.len(), 8 + 128 + 8 + 48);
    assert_eq!(bonus[..4], [0x5a, 0x50, 0x2f, 0]);
    assert_eq!(bonus[5] >> 2, 1, "header of 8 bytes");
    assert_eq!(bonus[6..8], [48, 0]);
    let word = |offset: usize| u64::from_le_bytes(bonus[offset..offset + 8].try_into().unwrap());
    let words = [0o100_644, 31, 77, 1003, 1 << 32 | 9, 4];
    assert_eq!([8, 16, 24, 32, 40, 48].map(word), words);
    let flags = FileFlags::ACL_TRIVIAL | FileFlags::ARCHIVE;
    assert_eq!(word(56), flags.bits());
    assert_eq!([64, 72, 80, 96].map(word), [1000, 1001, 2000, 3000]);
    assert_eq!(word(112).cast_signed(), -4000);
    assert_eq!([word(128), word(136)], [3, 6]);
    assert_eq!(bonus[144..192], znode().acl.embedded[..48]);
    let read = file.read(&layouts);
    assert_eq!(read.acl().unwrap(), znode().acl.embedded_entries().unwrap());
    assert_eq!(
        (read.rdev().unwrap(), read.project_id().unwrap()),
        (None, None)
    );
    // Further changes work as for any other file.
    change(&layouts, &file, &[SIZE_31]).unwrap();
    assert_eq!(file.bonus(), bonus);
}

#[test]
fn a_converted_project_id_has_its_slot_and_flag() {
    let (layouts, _) = new_file_system();
    let file = file_of(&znode());
    let project = SaChange::Set(SaAttribute::ProjectId, &[5, 0, 0, 0, 0, 0, 0, 0]);
    change(&layouts, &file, &[project]).unwrap();
    let bonus = file.bonus();
    let order = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19];
    assert_eq!(layout_of(&layouts, &bonus), order);
    assert_eq!(bonus[8 + 128], 5);
    let flags = file.read(&layouts).flags().unwrap();
    assert!(flags.contains(FileFlags::PROJECT_ID | FileFlags::ARCHIVE));
}

#[test]
fn device_numbers_and_packed_acls_are_converted() {
    let (layouts, _) = new_file_system();
    let mut old = znode();
    old.mode = 0o020_600;
    old.xattr = ObjectId(55);
    old.flags |= FileFlags::BONUS_SCANSTAMP;
    old.tail = (1..=32).collect();
    let file = file_of(&old);
    let packed = SaChange::Set(SaAttribute::Dxattr, b"packed");
    change(&layouts, &file, &[packed]).unwrap();
    let order = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 10, 16, 19, 9, 18, 20];
    assert_eq!(layout_of(&layouts, &file.bonus()), order);
    let read = file.read(&layouts);
    assert_eq!(read.rdev().unwrap(), Some(0x500_001));
    assert_eq!(read.xattr_directory().unwrap(), Some(ObjectId(55)));
    let stamp: Vec<u8> = (1..=32).collect();
    assert_eq!(read.scanstamp().unwrap().unwrap().as_slice(), stamp);
    assert!(!read.flags().unwrap().contains(FileFlags::BONUS_SCANSTAMP));
    assert_eq!(read.xattr_list(), Ok(Some(b"packed".as_slice())));
}

#[test]
fn a_list_of_version_0_becomes_one_of_version_1() {
    let (layouts, _) = new_file_system();
    let mut old = znode();
    // Denied to a user, allowed to a group and to everyone. Fields: who, mask, flags, type.
    let entries = [
        (1003u32, 0x2u32, 0u16, 1u16),
        (9, 0x1, 0x40, 0),
        (u32::MAX, 0x120081, 0x4000, 0),
    ];
    old.acl.embedded = [0; 72];
    for (entry, place) in entries.iter().zip(old.acl.embedded.chunks_exact_mut(12)) {
        place[..4].copy_from_slice(&entry.0.to_le_bytes());
        place[4..8].copy_from_slice(&entry.1.to_le_bytes());
        place[8..10].copy_from_slice(&entry.2.to_le_bytes());
        place[10..].copy_from_slice(&entry.3.to_le_bytes());
    }
    (old.acl.version, old.acl.size, old.acl.count) = (0, 3, 0);
    let file = file_of(&old);
    change(&layouts, &file, &[SIZE_31]).unwrap();
    let bonus = file.bonus();
    assert_eq!(bonus[136], 3);
    let stored = [
        [1, 0, 0, 0, 2, 0, 0, 0],
        [0xeb, 3, 0, 0, 0, 0, 0, 0],
        [0, 0, 0x40, 0, 1, 0, 0, 0],
        [9, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0x40, 0x81, 0, 0x12, 0],
    ];
    assert_eq!(bonus[144..], *stored.as_flattened());
}

#[test]
fn an_acl_object_is_converted_and_freed() {
    let _mark = mark::expect("old-list-becomes-attribute");
    // Forty entries of 16 bytes, written by a big-endian machine.
    let mut stored = vec![];
    for user in 0..40u64 {
        stored.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        stored.extend(user.to_be_bytes());
    }
    let layouts = file_system_with(ObjectView(60, stored, Endian::Big));
    let mut old = znode();
    old.acl.external = ObjectId(60);
    (old.acl.size, old.acl.count) = (640, 40);
    let file = file_of(&old);
    change(&layouts, &file, &[SIZE_31]).unwrap();
    assert_eq!(file.state.lock().freed, [ObjectId(60)]);
    // The bonus ends where the pointer begins. The list is in a spill block of two sectors.
    assert_eq!(file.sizes(), (8, 192, Some(1024)));
    let spill = file.spill().unwrap().unwrap();
    assert_eq!(layout_of(&layouts, &spill.bytes), [19]);
    let list = file.read(&layouts).acl().unwrap().unwrap();
    let wanted = |user| Ace {
        kind: AceKind::ALLOW,
        flags: AceFlags::empty(),
        mask: 1,
        who: AceWho::Id(Fuid(user)),
        object_types: None,
    };
    assert_eq!(list, (0..40).map(wanted).collect::<Vec<_>>());
}

#[test]
fn setting_an_acl_does_not_need_the_old_one() {
    let (layouts, _) = new_file_system();
    let mut old = znode();
    old.acl.external = ObjectId(60);
    (old.acl.size, old.acl.count) = (640, 40);
    let file = file_of(&old);
    let before = file.bonus();
    assert!(matches!(
        change(&layouts, &file, &[SIZE_31]),
        Err(SaError::Object(ObjectError::NotFound { .. }))
    ));
    assert_eq!(
        (file.bonus_type(), file.bonus()),
        (ObjectType::ZNODE, before)
    );
    let list = trivial();
    let count = (list.len() as u64 / 8).to_le_bytes();
    let set = [
        SaChange::Set(SaAttribute::DaclCount, &count),
        SaChange::Set(SaAttribute::DaclAces, &list),
    ];
    change(&layouts, &file, &set).unwrap();
    assert_eq!(file.state.lock().freed, [ObjectId(60)]);
    assert_eq!(file.bonus()[144..], list);
}

#[test]
fn an_old_link_keeps_its_form() {
    let (layouts, _) = new_file_system();
    let mut old = znode();
    old.mode = 0o120_777;
    (old.size, old.tail) = (6, b"target".to_vec());
    let file = file_of(&old);
    change(&layouts, &file, &[SIZE_31]).unwrap();
    change(
        &layouts,
        &file,
        &[SaChange::Set(SaAttribute::Crtime, &[8; 16])],
    )
    .unwrap();
    let packed = [SaChange::Set(SaAttribute::Dxattr, b"list")];
    assert!(change(&layouts, &file, &packed).is_err());
    assert!(
        change(
            &layouts,
            &file,
            &[SaChange::Set(SaAttribute::Size, b"short")]
        )
        .is_err()
    );
    assert!(change(&layouts, &file, &[SaChange::Remove(SaAttribute::Size)]).is_err());
    assert_eq!(file.bonus_type(), ObjectType::ZNODE);
    let mut wanted = old.clone();
    wanted.size = 31;
    let time = u64::from_le_bytes([8; 8]);
    (wanted.crtime.seconds, wanted.crtime.nanoseconds) = (time.cast_signed(), time);
    assert_eq!(file.bonus()[..], wanted.encode().unwrap());
}

#[test]
fn invalid_znodes_are_not_converted() {
    let (layouts, _) = new_file_system();
    let mut old = znode();
    old.acl.version = 7;
    let file = file_of(&old);
    assert!(matches!(
        change(&layouts, &file, &[SIZE_31]),
        Err(SaError::Corrupt { .. })
    ));
    assert_eq!(file.bonus()[..], old.encode().unwrap());
    file.state.lock().bonus = vec![0; 60].into();
    assert!(matches!(
        change(&layouts, &file, &[SIZE_31]),
        Err(SaError::Corrupt { .. })
    ));
    // There are no tables before version 5.
    let empty = SaRegistry::from_zaps(3, Arc::new(NoObjects), None, None).unwrap();
    let layouts = SaLayouts::new(Arc::new(empty), None);
    let file = file_of(&znode());
    assert!(matches!(
        change(&layouts, &file, &[SIZE_31]),
        Err(SaError::Refused { .. })
    ));
    layouts.give_tables(Box::new(Tables::default()));
    change(&layouts, &file, &[SIZE_31]).unwrap();
    assert_eq!(file.read(&layouts).size().unwrap(), 31);
}

proptest! {
    #[test]
    fn any_znode_is_converted_unchanged_or_refused(
        head in proptest::collection::vec(any::<u8>(), 264),
        tail in proptest::collection::vec(any::<u8>(), 0..56),
        is_plain in any::<bool>(),
    ) {
        let mut bonus = head;
        if is_plain {
            // A valid list: three entries for owner, group and everyone.
            bonus[176..264].fill(0);
            bonus[184] = 24;
            bonus[188] = 1;
            bonus[190] = 3;
            for (place, who) in [(194, 0x1000u16), (202, 0x2040), (210, 0x4000)] {
                bonus[place..place + 2].copy_from_slice(&who.to_le_bytes());
            }
        }
        bonus.extend(tail);
        let old = ZnodePhys::decode(&bonus, Endian::Little).unwrap();
        let (layouts, _) = new_file_system();
        let file = MemoryFile::new(512, SaBuffers { bonus: bonus.clone(), spill: None });
        file.state.lock().bonus_type = ObjectType::ZNODE;
        let done = change(&layouts, &file, &[SIZE_31]);
        if file.bonus_type() == ObjectType::ZNODE {
            // A link keeps its form. Files whose change failed are unchanged.
            let is_link = old.mode & 0o170_000 == 0o120_000;
            prop_assert_eq!(done.is_ok(), is_link);
            if is_link {
                bonus[80..88].copy_from_slice(&31u64.to_le_bytes());
            }
            prop_assert_eq!(&file.bonus()[..], &bonus[..]);
            prop_assert!(is_link || !is_plain);
            return Ok(());
        }
        done.unwrap();
        let read = file.read(&layouts);
        prop_assert_eq!(read.mode().unwrap(), old.mode);
        prop_assert_eq!(read.size().unwrap(), 31);
        prop_assert_eq!(read.links().unwrap(), old.links);
        prop_assert_eq!(read.uid().unwrap(), old.uid);
        prop_assert_eq!(read.gid().unwrap(), old.gid);
        prop_assert_eq!(read.parent().unwrap(), old.parent);
        prop_assert_eq!(read.flags().unwrap(), old.flags - FileFlags::BONUS_SCANSTAMP);
        prop_assert_eq!(read.atime().unwrap(), old.atime);
        prop_assert_eq!(read.mtime().unwrap(), old.mtime);
        prop_assert_eq!(read.ctime().unwrap(), old.ctime);
        prop_assert_eq!(read.crtime().unwrap(), old.crtime);
        prop_assert_eq!(read.scanstamp().unwrap(), old.scanstamp());
        prop_assert_eq!(read.acl().unwrap(), old.acl.embedded_entries().unwrap());
    }
}
