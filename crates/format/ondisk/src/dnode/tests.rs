use super::*;
use crate::testing::{dnode, hex};
use crate::{Level, Txg};
use proptest::prelude::*;

/// A root directory of a little-endian file system: object 4, one 512-byte block, two copies.
fn root_directory() -> Vec<u8> {
    let mut bytes = hex(
        "140e01012c0000030100a800000000000000000000000000000400000000000000000000000000000000000000000000
         00000000000000000000000000000000
         01000000000000000300000000000000 0100000000000000035c000000000000 00000000000000000000000000000000
         0000000002071480 0000000000000000 0000000000000000 0000000000000000 0400000000000000 0100000000000000
         c46010ac00000000 7ea00f3055000000 c150e02b41150000 00b60d5027900300",
    );
    bytes.extend((0..168u32).map(|byte| byte as u8));
    bytes.resize(512, 0);
    bytes
}

#[test]
fn a_real_dnode_reads_as_its_fields_and_encodes_to_equal_bytes() {
    let bytes = root_directory();
    let dnode = Dnode::decode(&bytes, Endian::Little).unwrap().unwrap();
    assert_eq!(dnode.object_type, ObjectType::DIRECTORY);
    assert_eq!((dnode.indirect_block_shift, dnode.levels), (14, 1));
    assert_eq!(dnode.bonus_type, ObjectType::SA);
    assert_eq!(
        dnode.flags,
        DnodeFlags::USED_BYTES | DnodeFlags::USER_USED_ACCOUNTED
    );
    assert_eq!(
        (dnode.data_block_bytes(), dnode.bonus.len(), dnode.slots()),
        (512, 168, 1)
    );
    assert_eq!((dnode.block_id_max, dnode.used_bytes()), (BlockId(0), 1024));
    assert_eq!(dnode.spill, None);
    let [pointer] = dnode.block_pointers.as_slice() else {
        panic!("one pointer")
    };
    assert_eq!((pointer.birth(), pointer.level()), (Txg(4), Level(0)));
    assert_eq!(pointer.dvas().count(), 2);
    assert_eq!(dnode.encode().unwrap(), bytes);
}

#[test]
fn the_same_dnode_in_foreign_order_reads_the_same() {
    let little = Dnode::decode(&root_directory(), Endian::Little)
        .unwrap()
        .unwrap();
    let mut bytes = root_directory();
    bytes[8..10].reverse();
    bytes[10..12].reverse();
    for at in [16, 24].into_iter().chain((64..192).step_by(8)) {
        bytes[at..at + 8].reverse();
    }
    let big = Dnode::decode(&bytes, Endian::Big).unwrap().unwrap();
    assert_eq!(
        Dnode {
            endian: Endian::Little,
            ..big
        },
        little
    );
}

#[test]
fn a_free_slot_is_not_a_dnode_and_is_one_slot_long() {
    assert_eq!(Dnode::decode(&[0; 512], Endian::Little), Ok(None));
    assert_eq!(Dnode::slot_count(&[0; 512]), 1);
    let mut large = root_directory();
    large[12] = 3;
    assert_eq!(Dnode::slot_count(&large), 4);
    let large = Dnode {
        extra_slots: 3,
        ..dnode(19)
    };
    assert_eq!(large.slots(), 4);
}

#[test]
fn slots_inside_of_a_large_dnode_are_passed_over() {
    let mut block = vec![0u8; 8 * 512];
    (block[512], block[512 + 12]) = (10, 2);
    (block[5 * 512], block[5 * 512 + 12]) = (10, 200);
    let slots: Vec<usize> = Dnode::in_block(&block).map(|(slot, _)| slot).collect();
    assert_eq!(slots, [0, 1, 4, 5]);
    let lengths: Vec<usize> = Dnode::in_block(&block)
        .map(|(_, bytes)| bytes.len())
        .collect();
    assert_eq!(lengths, [8, 7, 4, 3].map(|slots| slots * 512));
    assert_eq!(Dnode::in_block(&[]).count(), 0);
}

#[test]
fn fields_that_no_writer_makes_are_refused_by_name() {
    let refused = |at: usize, value: u8| {
        let mut bytes = root_directory();
        bytes[at] = value;
        Dnode::decode(&bytes, Endian::Little).unwrap_err().reason
    };
    assert_eq!(refused(0, 54), "object type does not exist");
    assert_eq!(refused(2, 0), "levels outside 1 to 12");
    assert_eq!(refused(2, 13), "levels outside 1 to 12");
    assert_eq!(refused(3, 4), "block pointers outside 1 to 3");
    assert_eq!(refused(1, 63), "indirect block shift out of range");
    assert_eq!(refused(11, 2), "bonus does not fit");
    assert_eq!(refused(12, 32), "more than 32 slots");
    assert_eq!(refused(16, 1), "largest block id is not addressable");
}

#[test]
fn sizes_are_accepted_up_to_their_limits_only() {
    let reason = |change: &dyn Fn(&mut Dnode)| {
        let mut changed = dnode(19);
        change(&mut changed);
        let bytes = changed.encode().unwrap();
        let decoded = Dnode::decode(&bytes, Endian::Little);
        decoded.err().map(|error| error.reason)
    };
    // A tree of one level has no indirect blocks; old writers stored a small value there.
    for (levels, shift, is_good) in [
        (1, 6, false),
        (1, 7, true),
        (1, 24, true),
        (1, 25, false),
        (2, 9, false),
        (2, 10, true),
        (2, 24, true),
        (2, 25, false),
    ] {
        let found_reason =
            reason(&|dnode| (dnode.levels, dnode.indirect_block_shift) = (levels, shift));
        let wanted = (!is_good).then_some("indirect block shift out of range");
        assert_eq!(found_reason, wanted, "{levels} levels, shift {shift}");
    }
    for (sectors, is_good) in [(0, false), (1, true), (32768, true), (32769, false)] {
        let found_reason = reason(&|dnode| dnode.data_block_sectors = sectors);
        let wanted = (!is_good).then_some("data block size outside 512 bytes to 16 MiB");
        assert_eq!(found_reason, wanted, "{sectors}");
    }
    assert_eq!(reason(&|dnode| dnode.levels = 12), None);
    assert_eq!(reason(&|dnode| dnode.extra_slots = 31), None);
    assert_eq!(reason(&|dnode| dnode.block_id_max = BlockId(2)), None);
}

#[test]
fn old_writers_counted_sectors_not_bytes() {
    let mut old = dnode(19);
    old.used = 3;
    assert_eq!(old.used_bytes(), 3);
    old.flags = DnodeFlags::empty();
    assert_eq!(old.used_bytes(), 3 * 512);
    assert_eq!(
        (old.indirect_block_bytes(), old.pointers_shift()),
        (1 << 17, 10)
    );
    old.indirect_block_shift = 64;
    assert_eq!(old.indirect_block_bytes(), 0);
}

#[test]
fn invalid_dnodes_are_not_encoded() {
    let refused = |change: &dyn Fn(&mut Dnode)| {
        let mut changed = dnode(19);
        change(&mut changed);
        changed.encode().unwrap_err().reason
    };
    assert_eq!(
        refused(&|dnode| dnode.block_pointers.clear()),
        "block pointers outside 1 to 3"
    );
    assert_eq!(
        refused(&|dnode| dnode.block_pointers = vec![BlockPointer::default(); 4]),
        "block pointers outside 1 to 3"
    );
    assert_eq!(
        refused(&|dnode| (dnode.endian, dnode.bonus) = (Endian::Big, vec![1])),
        "bonus is in foreign byte order"
    );
    // 512 - 64 - 3 * 128 bytes are left for the bonus.
    assert_eq!(
        refused(&|dnode| dnode.bonus = vec![1; 65]),
        "bonus does not fit"
    );
    let full = Dnode {
        bonus: vec![1; 64],
        ..dnode(19)
    };
    assert_eq!(full.encode().unwrap()[448..], [1; 64]);
    let empty_foreign = Dnode {
        endian: Endian::Big,
        ..dnode(19)
    };
    assert!(empty_foreign.encode().is_ok());
}

#[test]
fn the_spill_pointer_is_at_the_end_after_the_bonus() {
    let mut with_spill = dnode(19);
    with_spill.block_pointers.truncate(1);
    with_spill.flags |= DnodeFlags::SPILL_POINTER;
    with_spill.spill = Some(BlockPointer { words: [7; 16] });
    with_spill.bonus = vec![9; 192];
    let bytes = with_spill.encode().unwrap();
    assert_eq!(bytes.len(), 512);
    assert_eq!(&bytes[384..392], &7u64.to_le_bytes());
    assert_eq!(
        Dnode::decode(&bytes, Endian::Little).unwrap().unwrap(),
        with_spill
    );
    with_spill.bonus.push(9);
    assert!(with_spill.encode().is_err());
}

#[test]
fn the_tree_addresses_as_many_blocks_as_its_levels_allow() {
    let mut dnode = dnode(19);
    dnode.indirect_block_shift = 17;
    dnode.levels = 1;
    assert_eq!(dnode.addressable_blocks(), Some(3));
    dnode.levels = 2;
    assert_eq!(dnode.addressable_blocks(), Some(3 << 10));
    dnode.levels = 6;
    assert_eq!(dnode.addressable_blocks(), Some(3 << 50));
    dnode.levels = 12;
    assert_eq!(dnode.addressable_blocks(), None);
}

proptest! {
    #[test]
    fn dnodes_round_trip(
        kind in 1u8..54, levels in 1u8..7, pointers in 1usize..4, extra in 0u8..32,
        used in any::<u64>(), bonus in prop::collection::vec(any::<u8>(), 0..64),
        words in any::<[u64; 16]>(),
    ) {
        let mut original = dnode(kind);
        original.levels = levels;
        original.block_pointers = vec![BlockPointer { words }; pointers];
        original.extra_slots = extra;
        original.used = used;
        original.bonus = bonus;
        let bytes = original.encode().unwrap();
        prop_assert_eq!(Dnode::slot_count(&bytes), usize::from(extra) + 1);
        prop_assert_eq!(Dnode::decode(&bytes, Endian::Little).unwrap().unwrap(), original);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
        let _ = Dnode::decode(&bytes, Endian::Little);
        let _ = Dnode::decode(&bytes, Endian::Big);
        let _ = Dnode::slot_count(&bytes);
    }
}
