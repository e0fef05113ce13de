//! Converts content that a big-endian machine wrote to little-endian when it is rewritten.

use millpond_ondisk::{ByteswapClass, Dnode, Endian, ObjectType};

/// Makes the dnode and its bonus little-endian. An object without bonus needs no conversion.
///
/// # Errors
/// If there is no conversion for the type of the bonus.
pub(crate) fn adopt(dnode: &mut Dnode) -> Result<(), &'static str> {
    if dnode.endian == Endian::Big {
        to_native(dnode.bonus_type, &mut dnode.bonus)?;
        dnode.endian = Endian::Little;
    }
    Ok(())
}

/// Converts big-endian content of this type in place.
///
/// # Errors
/// If there is no conversion for this type. This holds for ZAPs and ACLs, which their owners rewrite whole.
pub fn to_native(object_type: ObjectType, bytes: &mut [u8]) -> Result<(), &'static str> {
    match object_type.byteswap() {
        Some(ByteswapClass::U8) => {}
        Some(ByteswapClass::U16) => swap_units(bytes, 2),
        Some(ByteswapClass::U32) => swap_units(bytes, 4),
        Some(ByteswapClass::U64) => swap_units(bytes, 8),
        Some(ByteswapClass::Znode) => swap_znode(bytes),
        _ => return Err("its content was written by a machine of the other byte order"),
    }
    Ok(())
}

/// Reverses the bytes of each whole unit. An incomplete unit at the end stays unchanged.
fn swap_units(bytes: &mut [u8], unit: usize) {
    for chunk in bytes.chunks_exact_mut(unit) {
        chunk.reverse();
    }
}

/// Converts the fixed part of an old znode: its words, then the head of its ACL, then the ACL's entries. Page
/// `docs/format/znode.md`.
fn swap_znode(bytes: &mut [u8]) {
    let part = |bytes: &mut [u8], from: usize, to: usize, unit| {
        let to = to.min(bytes.len());
        if let Some(part) = bytes.get_mut(from.min(to)..to) {
            swap_units(part, unit);
        }
    };
    part(bytes, 0, 184, 8);
    part(bytes, 184, 188, 4);
    part(bytes, 188, 192, 2);
    let version = match bytes.get(188..190) {
        Some([low, high]) => u16::from_le_bytes([*low, *high]),
        _ => return,
    };
    if version == 0 {
        // Entries of 12 bytes: who, mask, flags, type.
        for at in (192..264).step_by(12) {
            part(bytes, at, at + 8, 4);
            part(bytes, at + 8, at + 12, 2);
        }
        return;
    }
    let mut at = 192;
    while at + 8 <= 264.min(bytes.len()) {
        part(bytes, at, at + 4, 2);
        part(bytes, at + 4, at + 8, 4);
        let kind = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let who = u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]) & 0x7040;
        let has_id = !matches!(who, 0x1000 | 0x2040 | 0x4000);
        if has_id || (5..=8).contains(&kind) {
            part(bytes, at + 8, at + 16, 8);
        }
        at += match kind {
            5..=8 => 48,
            _ if has_id => 16,
            _ => 8,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_bonus_are_turned_round() {
        let mut bytes = 7u64.to_be_bytes().to_vec();
        bytes.extend([1, 2, 3]);
        to_native(ObjectType::DSL_DATASET, &mut bytes).unwrap();
        assert_eq!(bytes[..8], 7u64.to_le_bytes());
        assert_eq!(bytes[8..], [1, 2, 3]);
    }

    #[test]
    fn a_znode_with_an_acl_is_converted_entry_by_entry() {
        let mut bytes = Vec::new();
        for word in 0..23u64 {
            bytes.extend((word + 1000).to_be_bytes());
        }
        bytes.extend(24u32.to_be_bytes());
        bytes.extend(1u16.to_be_bytes());
        bytes.extend(2u16.to_be_bytes());
        // Denied to the owner (8 bytes), allowed to one user (16 bytes).
        for (kind, flags, mask) in [(1u16, 0x1000u16, 7u32), (0, 0, 9)] {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(flags.to_be_bytes());
            bytes.extend(mask.to_be_bytes());
        }
        bytes.extend(1234u64.to_be_bytes());
        bytes.resize(264, 0);
        bytes.extend(b"target");
        to_native(ObjectType::ZNODE, &mut bytes).unwrap();
        assert_eq!(bytes[8 * 22..184], 1022u64.to_le_bytes());
        assert_eq!(bytes[184..192], [24, 0, 0, 0, 1, 0, 2, 0]);
        assert_eq!(bytes[192..200], [1, 0, 0, 0x10, 7, 0, 0, 0]);
        assert_eq!(bytes[200..208], [0, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(bytes[208..216], 1234u64.to_le_bytes());
        assert_eq!(bytes[264..], *b"target");
    }

    #[test]
    fn a_short_znode_is_no_panic() {
        for length in 0..264 {
            to_native(ObjectType::ZNODE, &mut vec![0xff; length]).unwrap();
        }
        assert!(to_native(ObjectType::OTHER_ZAP, &mut [0; 512]).is_err());
    }
}
