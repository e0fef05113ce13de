//! Old znodes that keep their form.

use super::old::{SIZE_31, file_of, znode};
use super::*;
use crate::{Ace, AceFlags, AceKind, AceWho, Fuid, ZnodeAclForm};
use millpond_env::mark;
use millpond_ondisk::acl::encode_acl;
use millpond_ondisk::znode::ZnodePhys;

/// Entries for as many users, from 7 on.
fn users(count: u64) -> Vec<Ace> {
    let entry = |user| Ace {
        kind: AceKind::DENY,
        flags: AceFlags::empty(),
        mask: 2,
        who: AceWho::Id(Fuid(user)),
        object_types: None,
    };
    (7..7 + count).map(entry).collect()
}

fn set_list(file: &MemoryFile, list: &[Ace], form: ZnodeAclForm) -> Result<(), SaError> {
    let (layouts, _) = new_file_system();
    let bytes = encode_acl(list).unwrap();
    let count = (list.len() as u64).to_le_bytes();
    let changes = [
        SIZE_31,
        SaChange::Set(SaAttribute::DaclCount, &count),
        SaChange::Set(SaAttribute::DaclAces, &bytes),
    ];
    layouts.change_znode_in_place(&transaction(), file, &changes, form)
}

#[test]
fn lists_are_embedded_as_their_version_encodes_them() {
    // Object, length or entries, version, entries.
    let cases = [
        (
            ZnodeAclForm::Old,
            [0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            ZnodeAclForm::Fuid,
            [0, 0, 0, 0, 0, 0, 0, 0, 48, 0, 0, 0, 1, 0, 3, 0],
        ),
    ];
    for (form, head) in cases {
        let file = file_of(&znode());
        set_list(&file, &users(3), form).unwrap();
        let bonus = file.bonus();
        assert_eq!(bonus[176..192], head);
        let entry: &[u8] = match form {
            ZnodeAclForm::Old => &[7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0],
            ZnodeAclForm::Fuid => &[1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0],
        };
        assert_eq!(&bonus[192..192 + entry.len()], entry);
        let read = ZnodePhys::decode(&bonus, Endian::Little).unwrap();
        assert_eq!(read.acl.embedded_entries().unwrap().unwrap(), users(3));
        assert_eq!(read.size, 31);
        assert_eq!(bonus[..80], znode().encode().unwrap()[..80]);
    }
}

#[test]
fn long_lists_get_their_own_object_and_free_the_one_before() {
    let _mark = mark::expect("znode-list-in-its-own-object");
    let cases = [
        (ZnodeAclForm::Old, ObjectType::OLD_ACL, 6),
        (ZnodeAclForm::Fuid, ObjectType::ACL, 4),
    ];
    for (form, kind, fitting) in cases {
        let file = file_of(&znode());
        set_list(&file, &users(fitting), form).unwrap();
        assert_eq!(file.state.lock().acl, None);
        set_list(&file, &users(fitting + 1), form).unwrap();
        let stored = file.state.lock().acl.take().unwrap();
        assert_eq!(stored.0, kind);
        let read = ZnodePhys::decode(&file.bonus(), Endian::Little).unwrap();
        assert_eq!(read.acl.external, ObjectId(51));
        assert_eq!(read.acl.length_bytes(), stored.1.len() as u64);
        let entries = read.acl.entries(&stored.1, Endian::Little).unwrap();
        assert_eq!(entries, users(fitting + 1));
        assert_eq!(file.state.lock().freed, []);
        set_list(&file, &users(1), form).unwrap();
        assert_eq!(file.state.lock().freed, [ObjectId(51)]);
        let read = ZnodePhys::decode(&file.bonus(), Endian::Little).unwrap();
        assert_eq!(read.acl.external, ObjectId(0));
        assert_eq!(read.acl.embedded_entries().unwrap().unwrap(), users(1));
    }
}

#[test]
fn short_targets_follow_the_znode_and_long_ones_are_content() {
    let (layouts, _) = new_file_system();
    for (length, in_tail) in [(1, true), (56, true), (57, false), (4095, false)] {
        let file = file_of(&znode());
        let target = vec![b't'; length];
        let attributes = [
            (SaAttribute::Mode, &0o120_777u64.to_le_bytes()[..]),
            (SaAttribute::Symlink, &target),
        ];
        let form = ZnodeAclForm::Old;
        layouts
            .write_new_znode(&transaction(), &file, &attributes, form)
            .unwrap();
        let bonus = file.bonus();
        assert_eq!(bonus.len(), if in_tail { 264 + length } else { 264 });
        assert_eq!(bonus[264..], target[..bonus.len() - 264]);
        let content = file.state.lock().target.take();
        assert_eq!(content, (!in_tail).then_some(target));
        // A new znode has nothing of what the bonus was before.
        let mut wanted = vec![0; 264];
        wanted[72..74].copy_from_slice(&0o120_777u16.to_le_bytes());
        wanted[74] = (0o120_777u32 >> 16) as u8;
        assert_eq!(bonus[..264], wanted);
    }
}

#[test]
fn what_an_old_znode_cannot_store_is_refused_and_changes_nothing() {
    let (layouts, _) = new_file_system();
    let file = file_of(&znode());
    let before = file.bonus();
    let word = [9, 0, 0, 0, 0, 0, 0, 0];
    for change in [
        SaChange::Set(SaAttribute::ProjectId, &word),
        SaChange::Set(SaAttribute::Dxattr, b"packed"),
        SaChange::Set(SaAttribute::Scanstamp, &[1; 32]),
        SaChange::Set(SaAttribute::Size, b"short"),
        SaChange::Set(SaAttribute::DaclAces, b"no count"),
        SaChange::Remove(SaAttribute::Xattr),
    ] {
        let changes = [SIZE_31, change];
        let form = ZnodeAclForm::Fuid;
        let done = layouts.change_znode_in_place(&transaction(), &file, &changes, form);
        assert!(matches!(done, Err(SaError::Refused { .. })), "{change:?}");
    }
    let mut foreign = users(1);
    foreign[0].who = AceWho::Id(Fuid(1 << 32 | 7));
    let mut typed = users(1);
    (typed[0].kind, typed[0].object_types) = (AceKind(5), Some([0; 32]));
    for list in [&foreign, &typed] {
        let done = set_list(&file, list, ZnodeAclForm::Old);
        assert!(matches!(done, Err(SaError::Refused { .. })));
    }
    assert_eq!(file.bonus(), before);
    set_list(&file, &foreign, ZnodeAclForm::Fuid).unwrap();
    set_list(&file, &typed, ZnodeAclForm::Fuid).unwrap();
    // Files with system attributes do not belong to an old file system.
    file.state.lock().bonus_type = ObjectType::SA;
    let done = set_list(&file, &users(1), ZnodeAclForm::Fuid);
    assert!(matches!(done, Err(SaError::NotAFile { .. })));
}

proptest! {
    #[test]
    fn any_znode_keeps_the_bytes_that_do_not_change(
        bonus in proptest::collection::vec(any::<u8>(), 264..320),
        count in 0u64..9,
        is_old in any::<bool>(),
    ) {
        let file = MemoryFile::new(512, SaBuffers { bonus: bonus.clone(), spill: None });
        file.state.lock().bonus_type = ObjectType::ZNODE;
        let form = if is_old { ZnodeAclForm::Old } else { ZnodeAclForm::Fuid };
        set_list(&file, &users(count), form).unwrap();
        let changed = file.bonus();
        prop_assert_eq!(changed.len(), bonus.len());
        prop_assert_eq!(&changed[..80], &bonus[..80]);
        prop_assert_eq!(&changed[88..176], &bonus[88..176]);
        prop_assert_eq!(&changed[264..], &bonus[264..]);
        let read = ZnodePhys::decode(&changed, Endian::Little).unwrap();
        let stored = file.state.lock().acl.take();
        let entries = match stored {
            Some((_, bytes)) => read.acl.entries(&bytes, Endian::Little).unwrap(),
            None => read.acl.embedded_entries().unwrap().unwrap(),
        };
        prop_assert_eq!(entries, users(count));
    }
}
