//! Formats access control lists as text.
//!
//! NFSv4 entries have rights as in `nfs4_getfacl`; POSIX ACLs look as in `getfacl`.

use super::entry_text::Names;
use millpond_engine::acl::{Ace, AceFlags, AceKind, AceWho};

/// Formats one NFSv4 entry, for example `allow:owner@:rwx...:fd`.
pub fn nfs4(ace: &Ace, names: &Names) -> String {
    let kind = match ace.kind {
        AceKind::ALLOW => "allow".to_owned(),
        AceKind::DENY => "deny".to_owned(),
        AceKind::AUDIT => "audit".to_owned(),
        AceKind::ALARM => "alarm".to_owned(),
        other => format!("kind{}", other.0),
    };
    let who = match ace.who {
        AceWho::Owner => "owner@".to_owned(),
        AceWho::Group => "group@".to_owned(),
        AceWho::Everyone => "everyone@".to_owned(),
        AceWho::Id(id) => {
            let is_group = ace.flags.contains(AceFlags::IDENTIFIER_GROUP);
            let word = if is_group { "group" } else { "user" };
            match id.posix() {
                Some(id) if is_group => format!("{word}:{}", names.group(id)),
                Some(id) => format!("{word}:{}", names.user(id)),
                None => format!("{word}:{}-{}", id.domain(), id.id()),
            }
        }
    };
    let rights = letters(u64::from(ace.mask), &RIGHTS);
    let flags = letters(u64::from(ace.flags.bits()), &FLAGS);
    format!("{kind} {who} {rights} {flags}")
        .trim_end()
        .to_owned()
}

/// Formats a POSIX ACL from its extended attribute (`system.posix_acl_access`).
///
/// The attribute is version 2 with little-endian entries of 8 bytes. Returns `None` for any other form.
pub fn posix(value: &[u8], names: &Names) -> Option<Vec<String>> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != 2 || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut lines = vec![];
    for entry in entries.chunks_exact(8) {
        let [t0, t1, p0, p1, i0, i1, i2, i3] = *entry else {
            return None;
        };
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        let who = match u16::from_le_bytes([t0, t1]) {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{}", names.user(id)),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{}", names.group(id)),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        let bits = u16::from_le_bytes([p0, p1]);
        let letter = |bit, letter| if bits & bit != 0 { letter } else { '-' };
        let rights: String = [letter(4, 'r'), letter(2, 'w'), letter(1, 'x')]
            .into_iter()
            .collect();
        lines.push(format!("{who}:{rights}"));
    }
    Some(lines)
}

fn letters(bits: u64, table: &[(u64, char)]) -> String {
    let mut text: String = table
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, letter)| letter)
        .collect();
    if text.is_empty() {
        text.push('-');
    }
    text
}

const RIGHTS: [(u64, char); 14] = [
    (0x1, 'r'),
    (0x2, 'w'),
    (0x4, 'a'),
    (0x20, 'x'),
    (0x10000, 'd'),
    (0x40, 'D'),
    (0x80, 't'),
    (0x100, 'T'),
    (0x8, 'n'),
    (0x10, 'N'),
    (0x20000, 'c'),
    (0x40000, 'C'),
    (0x80000, 'o'),
    (0x10_0000, 'y'),
];
const FLAGS: [(u64, char); 7] = [
    (0x1, 'f'),
    (0x2, 'd'),
    (0x4, 'n'),
    (0x8, 'i'),
    (0x10, 'S'),
    (0x20, 'F'),
    (0x80, 'I'),
];

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;
    use std::collections::BTreeMap;

    fn names() -> Names {
        Names {
            users: BTreeMap::from([(7, "anna".to_owned())]),
            groups: BTreeMap::new(),
            zone: TimeZone::UTC,
            now_s: 0,
        }
    }

    #[test]
    fn an_nfs4_entry_shows_kind_subject_rights_and_flags() {
        let mut ace = Ace {
            kind: AceKind::ALLOW,
            flags: AceFlags::OWNER,
            mask: 0x001e_01bf,
            who: AceWho::Owner,
            object_types: None,
        };
        assert_eq!(nfs4(&ace, &names()), "allow owner@ rwaxtTnNcCoy -");
        ace.kind = AceKind::DENY;
        ace.flags = AceFlags::FILE_INHERIT | AceFlags::INHERITED;
        ace.who = AceWho::Id(millpond_engine::acl::Fuid(7));
        ace.mask = 1;
        assert_eq!(nfs4(&ace, &names()), "deny user:anna r fI");
    }

    #[test]
    fn a_posix_acl_is_decoded_and_junk_is_not() {
        let mut value = 2u32.to_le_bytes().to_vec();
        value.extend([1, 0, 7, 0, 255, 255, 255, 255]);
        value.extend([2, 0, 5, 0, 7, 0, 0, 0]);
        value.extend([0x20, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(
            posix(&value, &names()).unwrap(),
            ["user::rwx", "user:anna:r-x", "other::---"]
        );
        assert_eq!(posix(&value[..value.len() - 1], &names()), None);
        assert_eq!(posix(b"", &names()), None);
        value[4] = 0x40;
        assert_eq!(posix(&value, &names()), None);
    }
}
