//! Helpers of several test modules: bytes from hexadecimal text, and byte order conversion.

/// Bytes from hexadecimal text; blanks are ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// The same 64-bit words in the other byte order.
pub fn swapped_words(bytes: &[u8]) -> Vec<u8> {
    bytes
        .chunks(8)
        .flat_map(|word| word.iter().rev().copied())
        .collect()
}

/// A valid dnode of this type with three holes as pointers.
pub(crate) fn dnode(object_type: u8) -> crate::Dnode {
    crate::Dnode {
        object_type: crate::ObjectType(object_type),
        indirect_block_shift: 17,
        levels: 1,
        bonus_type: crate::ObjectType(0),
        checksum: 0,
        compression: 0,
        flags: crate::DnodeFlags::USED_BYTES,
        data_block_sectors: 32,
        extra_slots: 0,
        block_id_max: crate::BlockId(0),
        used: 4096,
        block_pointers: vec![crate::BlockPointer::default(); 3],
        bonus: vec![],
        bonus_tail: vec![],
        spill: None,
        endian: crate::Endian::Little,
    }
}
