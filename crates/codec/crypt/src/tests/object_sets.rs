//! MACs of object sets.

use super::*;

fn object_set() -> Vec<u8> {
    let mut block = vec![0; 4096];
    block[..24].copy_from_slice(&hex("0a11060300000001 2000000000000000 0100000000000000"));
    block[24..32].copy_from_slice(&[9; 8]);
    block[64..192].copy_from_slice(&indirect_pointer());
    block[704] = 2;
    block[712] = 1;
    block[1024..1032].copy_from_slice(&hex("27 11 01 03 00 00 00 00"));
    block
}

/// The object set as a big-endian machine would store it.
fn foreign_object_set(block: &[u8]) -> Vec<u8> {
    let mut foreign = swapped_words(block);
    for dnode in [0, 1024, 1536, 2048] {
        foreign[dnode..dnode + 16].copy_from_slice(&block[dnode..dnode + 16]);
        foreign[dnode + 8..dnode + 10].reverse();
        foreign[dnode + 10..dnode + 12].reverse();
    }
    foreign[720..784].copy_from_slice(&block[720..784]);
    foreign
}

#[test]
fn the_recorded_object_set_has_the_recorded_portable_mac() {
    let macs = ccm_key()
        .object_set_macs(&object_set(), Endian::Little)
        .unwrap();
    assert_eq!(
        macs.portable,
        array("b932f8b88bf683753a48c24ccd13f344d81e2cc1a57907d52601ed70a3ff83ab")
    );
    assert_ne!(macs.local, [0; 32]);
    // The byte strings in a pointer follow the byte order of its block, so the swapped set has the same MACs.
    let foreign = ccm_key().object_set_macs(&foreign_object_set(&object_set()), Endian::Big);
    assert_eq!(foreign, Ok(macs));
}

#[test]
fn a_pointer_to_an_object_set_has_its_macs_checked() {
    let key = ccm_key();
    let mut block = object_set();
    key.seal_object_set(&mut block, Endian::Little).unwrap();
    let bp = pointer(Endian::Little, ObjectType::OBJECT_SET, 0);
    assert_eq!(key.decrypt_block(&bp, &mut block), Ok(()));
    block[8] ^= 2;
    assert!(key.decrypt_block(&bp, &mut block).is_err());
}

#[test]
fn an_object_set_with_any_changed_covered_byte_is_refused() {
    let key = ccm_key();
    let mut block = object_set();
    key.seal_object_set(&mut block, Endian::Little).unwrap();
    let verify = |block: &[u8]| key.verify_object_set(block, Endian::Little);
    assert_eq!(verify(&block), Ok(LocalMac::Verified));
    // Covered: kind, meta-dnode, flags, accounting dnode and both MACs. Not covered: used bytes, log header,
    // padding.
    for (offset, is_covered) in [
        (0, true),
        (8, true),
        (24, false),
        (64 + 48, true),
        (64 + 112, true),
        (64 + 96, false),
        (520, false),
        (704, true),
        (712, true),
        (713, true),
        (720, true),
        (752, true),
        (800, false),
        (1024, true),
        (1026, true),
        (2600, false),
    ] {
        let mut changed = block.clone();
        changed[offset] ^= 2;
        assert_eq!(verify(&changed).is_err(), is_covered, "byte {offset}");
    }
    block[752..784].fill(0);
    assert_eq!(verify(&block), Ok(LocalMac::Absent));
    assert!(matches!(
        verify(&block[..700]),
        Err(CryptError::Malformed { .. })
    ));
    block[3] = 200;
    assert!(matches!(verify(&block), Err(CryptError::Malformed { .. })));
}

#[test]
fn an_object_set_without_accounting_has_a_zero_local_mac() {
    let mut block = object_set();
    block[712] = 0;
    let macs = |block: &[u8]| ccm_key().object_set_macs(block, Endian::Little).unwrap();
    assert_eq!(macs(&block).local, [0; 32]);
    block[712] = 1;
    assert_eq!(macs(&block[..1024]).local, [0; 32]);
    assert_ne!(macs(&block[..2048]).local, [0; 32]);
}
