//! The NFSv4 ACL that every file has: derived from a mode, inherited, changed by `chmod`. Page
//! `docs/format/acl.md`.

use crate::settings::{AclInherit, AclMode};
use millpond_sa::{Ace, AceFlags, AceKind, AceWho, FileFlags};

const READ: u32 = 0x1;
const WRITE: u32 = 0x2 | 0x4;
const DELETE_CHILD: u32 = 0x40;
const EXECUTE: u32 = 0x20;
const READ_ATTRIBUTES: u32 = 0x80;
const WRITE_NAMED_ATTRIBUTES: u32 = 0x10;
const WRITE_ATTRIBUTES: u32 = 0x100;
const DELETE: u32 = 0x1_0000;
const READ_ACL: u32 = 0x2_0000;
const WRITE_ACL: u32 = 0x4_0000;
const WRITE_OWNER: u32 = 0x8_0000;
/// What the owner may always do: read and write attributes, ACL and owner; synchronize.
const OWNER_BASE: u32 = 0x1e_0198;
/// What everyone may always do: read attributes and ACL; synchronize.
const OTHERS_BASE: u32 = 0x12_0088;

const INHERITANCE: AceFlags = AceFlags::FILE_INHERIT
    .union(AceFlags::DIRECTORY_INHERIT)
    .union(AceFlags::NO_PROPAGATE)
    .union(AceFlags::INHERIT_ONLY);

/// The file flags that are derived from the ACL.
pub(crate) const ACL_FLAGS: FileFlags = FileFlags::INHERIT_ACE
    .union(FileFlags::ACL_TRIVIAL)
    .union(FileFlags::ACL_OBJECT_ACE)
    .union(FileFlags::NO_EXECS_DENIED);

fn entry(kind: AceKind, who: AceWho, mask: u32) -> Ace {
    let flags = match who {
        AceWho::Owner => AceFlags::OWNER,
        AceWho::Group => AceFlags::GROUP | AceFlags::IDENTIFIER_GROUP,
        AceWho::Everyone | AceWho::Id(_) => AceFlags::EVERYONE,
    };
    Ace {
        kind,
        flags,
        mask,
        who,
        object_types: None,
    }
}

/// The ACL entries that a mode stands for, in two parts: those that go before all other entries, and those
/// that go after them.
fn trivial_parts(mode: u64, is_directory: bool) -> (Vec<Ace>, Vec<Ace>) {
    let rights = |triple: u64| {
        let mut mask = 0;
        if triple & 4 != 0 {
            mask |= READ;
        }
        if triple & 2 != 0 {
            mask |= WRITE | if is_directory { DELETE_CHILD } else { 0 };
        }
        if triple & 1 != 0 {
            mask |= EXECUTE;
        }
        mask
    };
    let owner = rights(mode >> 6);
    let group = rights(mode >> 3);
    let others = rights(mode);
    let mut front = vec![];
    // Rights that the owner and others have but the group has not. The group's denial would come first, so
    // they are granted to the owner before it.
    let early = owner & !group & others;
    if early != 0 {
        front.push(entry(AceKind::ALLOW, AceWho::Owner, early));
    }
    let owner_denied = !owner & (group | others);
    if owner_denied != 0 {
        front.push(entry(AceKind::DENY, AceWho::Owner, owner_denied));
    }
    let group_denied = !group & others;
    if group_denied != 0 {
        front.push(entry(AceKind::DENY, AceWho::Group, group_denied));
    }
    let back = vec![
        entry(AceKind::ALLOW, AceWho::Owner, OWNER_BASE | owner),
        entry(AceKind::ALLOW, AceWho::Group, OTHERS_BASE | group),
        entry(AceKind::ALLOW, AceWho::Everyone, OTHERS_BASE | others),
    ];
    (front, back)
}

/// The ACL that is equivalent to a mode.
pub(crate) fn trivial_acl(mode: u64, is_directory: bool) -> Vec<Ace> {
    around(mode, is_directory, vec![])
}

fn around(mode: u64, is_directory: bool, middle: Vec<Ace>) -> Vec<Ace> {
    let (mut acl, back) = trivial_parts(mode, is_directory);
    acl.extend(middle);
    acl.extend(back);
    acl
}

/// Whether an ACL expresses no more than a mode can.
pub(crate) fn is_trivial(acl: &[Ace]) -> bool {
    acl.iter().all(|ace| {
        let is_allow = ace.kind == AceKind::ALLOW;
        let is_deny = ace.kind == AceKind::DENY;
        let only_owners = WRITE_ACL | WRITE_OWNER | WRITE_ATTRIBUTES | WRITE_NAMED_ATTRIBUTES;
        !matches!(ace.who, AceWho::Id(_))
            && (is_allow || is_deny)
            && !ace.flags.intersects(INHERITANCE)
            && !(is_deny && ace.mask & (READ_ACL | READ_ATTRIBUTES) != 0)
            && ace.mask & DELETE == 0
            && (ace.mask & DELETE_CHILD == 0 || ace.mask & WRITE != 0)
            && !(is_allow && ace.who != AceWho::Owner && ace.mask & only_owners != 0)
    })
}

/// The nine permission bits that an ACL grants. For each bit, the first entry that covers it decides.
pub(crate) fn mode_of(acl: &[Ace]) -> u64 {
    let mut decided = 0u64;
    let mut granted = 0u64;
    for ace in acl {
        if ace.flags.contains(AceFlags::INHERIT_ONLY) {
            continue;
        }
        let triples = match ace.who {
            AceWho::Owner => 0o700,
            AceWho::Group => 0o070,
            AceWho::Everyone => 0o777,
            AceWho::Id(_) => continue,
        };
        let mut bits = 0;
        if ace.mask & READ != 0 {
            bits |= 0o444;
        }
        if ace.mask & 0x2 != 0 {
            bits |= 0o222;
        }
        if ace.mask & EXECUTE != 0 {
            bits |= 0o111;
        }
        let fresh = bits & triples & !decided;
        match ace.kind {
            AceKind::ALLOW => granted |= fresh,
            AceKind::DENY => {}
            _ => continue,
        }
        decided |= fresh;
    }
    granted
}

/// The file flags derived from an ACL.
pub(crate) fn hints(acl: &[Ace]) -> FileFlags {
    let mut flags = FileFlags::empty();
    if is_trivial(acl) {
        flags |= FileFlags::ACL_TRIVIAL;
    }
    if acl.iter().any(|ace| {
        ace.flags
            .intersects(AceFlags::FILE_INHERIT | AceFlags::DIRECTORY_INHERIT)
    }) {
        flags |= FileFlags::INHERIT_ACE;
    }
    if acl.iter().any(|ace| ace.kind.has_object_types()) {
        flags |= FileFlags::ACL_OBJECT_ACE;
    }
    if executes_for_all(acl) {
        flags |= FileFlags::NO_EXECS_DENIED;
    }
    flags
}

fn executes_for_all(acl: &[Ace]) -> bool {
    let denies_execute_to_any = acl.iter().any(|ace| {
        matches!(ace.who, AceWho::Id(_)) && ace.kind == AceKind::DENY && ace.mask & EXECUTE != 0
    });
    !denies_execute_to_any && mode_of(acl) & 0o111 == 0o111
}

/// The ACL after `chmod`; `None` if the property forbids the change.
pub(crate) fn after_chmod(
    old: &[Ace],
    mode: u64,
    is_directory: bool,
    property: AclMode,
) -> Option<Vec<Ace>> {
    match property {
        AclMode::Discard => return Some(trivial_acl(mode, is_directory)),
        AclMode::Restricted if !is_trivial(old) => return None,
        _ => {}
    }
    let mut kept = vec![];
    for ace in old {
        let inherits = ace
            .flags
            .intersects(AceFlags::FILE_INHERIT | AceFlags::DIRECTORY_INHERIT);
        let mut ace = *ace;
        if !matches!(ace.who, AceWho::Id(_)) {
            // The mode replaces owner, group and everyone entries. Of these, only the inheritable ones are
            // kept, for inheritance only.
            if is_directory && inherits {
                ace.flags |= AceFlags::INHERIT_ONLY;
                kept.push(ace);
            }
            continue;
        }
        let applies_here = !ace.flags.contains(AceFlags::INHERIT_ONLY);
        if property == AclMode::GroupMask && ace.kind == AceKind::ALLOW && applies_here {
            let group = (mode >> 3) & 7;
            if group & 4 == 0 {
                ace.mask &= !READ;
            }
            if group & 2 == 0 {
                ace.mask &= !(WRITE | DELETE_CHILD);
            }
            if group & 1 == 0 {
                ace.mask &= !EXECUTE;
            }
        }
        kept.push(ace);
    }
    Some(around(mode, is_directory, kept))
}

/// The ACL of a new file, and its permission bits.
pub(crate) fn inherited(
    parent: &[Ace],
    mode: u64,
    is_directory: bool,
    property: AclInherit,
) -> (Vec<Ace>, u64) {
    let wanted = if is_directory {
        AceFlags::FILE_INHERIT | AceFlags::DIRECTORY_INHERIT
    } else {
        AceFlags::FILE_INHERIT
    };
    let passes = matches!(
        property,
        AclInherit::Passthrough | AclInherit::PassthroughExecute
    );
    let mut middle = vec![];
    let mut says_the_mode = false;
    for ace in parent {
        let is_allow = ace.kind == AceKind::ALLOW;
        let is_skipped = !ace.flags.intersects(wanted)
            || property == AclInherit::Discard
            || (property == AclInherit::NoAllow && is_allow);
        if is_skipped {
            continue;
        }
        let mut ace = *ace;
        if is_allow && property == AclInherit::Restricted {
            ace.mask &= !(WRITE_ACL | WRITE_OWNER);
        }
        let wants_execution = is_directory || mode & 0o111 != 0;
        if is_allow && property == AclInherit::PassthroughExecute && !wants_execution {
            ace.mask &= !EXECUTE;
        }
        if !is_directory || ace.flags.contains(AceFlags::NO_PROPAGATE) {
            ace.flags -= INHERITANCE;
        } else if ace.flags.contains(AceFlags::DIRECTORY_INHERIT) {
            ace.flags -= AceFlags::INHERIT_ONLY;
        } else {
            ace.flags |= AceFlags::INHERIT_ONLY;
        }
        ace.flags |= AceFlags::INHERITED;
        let applies_here = !ace.flags.contains(AceFlags::INHERIT_ONLY);
        says_the_mode |= passes && applies_here && !matches!(ace.who, AceWho::Id(_));
        middle.push(ace);
    }
    if says_the_mode {
        let mode = (mode & !0o777) | mode_of(&middle);
        return (middle, mode);
    }
    (around(mode, is_directory, middle), mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_sa::Fuid;
    use proptest::prelude::*;

    fn entries_of(acl: &[Ace]) -> Vec<(u16, AceWho, u32)> {
        acl.iter()
            .map(|ace| (ace.kind.0, ace.who, ace.mask))
            .collect()
    }

    #[test]
    fn trivial_lists_are_those_of_real_files() {
        use AceWho::{Everyone, Group, Owner};
        let three = |owner, group, everyone| {
            vec![
                (0, Owner, owner),
                (0, Group, group),
                (0, Everyone, everyone),
            ]
        };
        assert_eq!(
            entries_of(&trivial_acl(0o644, false)),
            three(0x1e_019f, 0x12_0089, 0x12_0089)
        );
        assert_eq!(
            entries_of(&trivial_acl(0o755, false)),
            three(0x1e_01bf, 0x12_00a9, 0x12_00a9)
        );
        assert_eq!(
            entries_of(&trivial_acl(0o755, true)),
            three(0x1e_01ff, 0x12_00a9, 0x12_00a9)
        );
        assert_eq!(
            entries_of(&trivial_acl(0o1777, true)),
            three(0x1e_01ff, 0x12_00ef, 0x12_00ef)
        );
        assert_eq!(
            entries_of(&trivial_acl(0o604, false)),
            [
                (0, Owner, 0x1),
                (1, Group, 0x1),
                (0, Owner, 0x1e_019f),
                (0, Group, 0x12_0088),
                (0, Everyone, 0x12_0089)
            ]
        );
        assert_eq!(
            entries_of(&trivial_acl(0o077, false)),
            [
                (1, Owner, 0x27),
                (0, Owner, 0x1e_0198),
                (0, Group, 0x12_00af),
                (0, Everyone, 0x12_00af)
            ]
        );
    }

    #[test]
    fn a_list_with_a_users_entry_or_inheritance_is_not_trivial() {
        let mut acl = trivial_acl(0o755, true);
        assert!(is_trivial(&acl));
        acl[2].flags |= AceFlags::FILE_INHERIT;
        assert!(!is_trivial(&acl));
        let mut acl = trivial_acl(0o755, true);
        acl.insert(0, user_entry(1000, READ, AceFlags::empty()));
        assert!(!is_trivial(&acl));
        assert_eq!(mode_of(&acl), 0o755);
    }

    fn user_entry(id: u64, mask: u32, flags: AceFlags) -> Ace {
        Ace {
            kind: AceKind::ALLOW,
            flags,
            mask,
            who: AceWho::Id(Fuid(id)),
            object_types: None,
        }
    }

    #[test]
    fn chmod_keeps_acl_entries_only_if_the_property_allows() {
        let mut acl = trivial_acl(0o644, false);
        acl.insert(0, user_entry(7, READ | WRITE, AceFlags::empty()));
        let after = |property| after_chmod(&acl, 0o640, false, property);
        assert_eq!(after(AclMode::Discard), Some(trivial_acl(0o640, false)));
        assert_eq!(after(AclMode::Restricted), None);
        let kept = after(AclMode::Passthrough).unwrap();
        assert_eq!(kept.len(), 4);
        assert_eq!(kept[0].mask, READ | WRITE);
        let masked = after(AclMode::GroupMask).unwrap();
        assert_eq!(masked[0].mask, READ);
        assert_eq!(mode_of(&masked), 0o640);
    }

    #[test]
    fn files_inherit_entries_without_their_inheritance() {
        let flags = AceFlags::FILE_INHERIT | AceFlags::DIRECTORY_INHERIT;
        let mut parent = trivial_acl(0o755, true);
        parent.insert(0, user_entry(7, READ | WRITE_ACL, flags));
        let (acl, mode) = inherited(&parent, 0o644, false, AclInherit::Restricted);
        assert_eq!(mode, 0o644);
        assert_eq!(acl[0].flags, AceFlags::INHERITED);
        assert_eq!(acl[0].mask, READ);
        let (acl, _) = inherited(&parent, 0o755, true, AclInherit::Restricted);
        assert_eq!(acl[0].flags, flags | AceFlags::INHERITED);
        assert!(hints(&acl).contains(FileFlags::INHERIT_ACE));
        let (acl, _) = inherited(&parent, 0o644, false, AclInherit::Discard);
        assert_eq!(acl, trivial_acl(0o644, false));
    }

    #[test]
    fn passed_through_owner_entries_make_the_mode() {
        let mut parent = trivial_acl(0o755, true);
        parent[0].flags |= AceFlags::FILE_INHERIT;
        parent[1].flags |= AceFlags::FILE_INHERIT;
        let (acl, mode) = inherited(&parent, 0o100_600, false, AclInherit::Passthrough);
        assert_eq!(mode, 0o100_750);
        assert_eq!(acl.len(), 2);
        let (_, mode) = inherited(&parent, 0o100_600, false, AclInherit::PassthroughExecute);
        assert_eq!(mode, 0o100_640);
    }

    proptest! {
        #[test]
        fn the_trivial_acl_of_any_mode_has_that_mode(mode in 0u64..0o10000, is_directory: bool) {
            let acl = trivial_acl(mode, is_directory);
            prop_assert!(is_trivial(&acl));
            prop_assert_eq!(mode_of(&acl), mode & 0o777);
            prop_assert_eq!(hints(&acl).contains(FileFlags::NO_EXECS_DENIED), mode & 0o111 == 0o111);
            prop_assert!(millpond_ondisk::acl::encode_acl(&acl).is_ok());
        }
    }
}
