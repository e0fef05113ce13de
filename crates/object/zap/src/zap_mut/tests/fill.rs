//! ZAPs that are created with their entries.

use super::collisions::colliding;
use super::*;

fn created_with(new: &NewZap, entries: &[(Vec<u8>, u64)]) -> ZapMut<MemoryObject> {
    let zap = MemoryObject::new(512).zap();
    zap.create_with(new, entries).unwrap();
    let object = zap.store();
    let (blocks, writes) = object.with(|state| (state.blocks.blocks.len(), state.writes));
    assert_eq!(writes, blocks, "each block is written once");
    let model = entries
        .iter()
        .map(|(name, value)| (name.clone(), ZapValue::from_u64(*value)));
    same(object, &model.collect());
    zap
}

fn numbers(count: u64) -> Vec<(Vec<u8>, u64)> {
    let name = |number: u64| format!("{:x}", number * 7 + 4).into_bytes();
    (0..count).map(|number| (name(number), number)).collect()
}

#[test]
fn a_zap_created_with_entries_is_like_one_that_got_them_one_by_one() {
    let new = NewZap::plain(0xbeef_0001);
    for count in [0, 1, 7, 8, 2047, 2048, 20_000] {
        let entries = numbers(count);
        let filled = created_with(&new, &entries);
        let slow = MemoryObject::created(512, &new);
        for (name, value) in &entries {
            slow.insert_u64(name, *value).unwrap();
        }
        let form = |zap: &ZapMut<MemoryObject>| zap.store().reader().form();
        assert_eq!(form(&filled), form(&slow), "{count} entries");
        // It takes further changes.
        filled.insert_u64(b"one more", 1).unwrap();
        assert_eq!(filled.remove(b"4").unwrap(), count > 0);
        assert_eq!(filled.entry_count().unwrap(), count.max(1));
    }
}

#[test]
fn hashes_that_begin_alike_get_a_larger_pointer_table() {
    let alike: Vec<_> = colliding(2500, 11).into_iter().zip(0..).collect();
    let zap = created_with(&NewZap::plain(77), &alike);
    let reader = zap.store().reader();
    assert!(reader.header().unwrap().table_block > 0);
}

#[test]
fn names_that_need_it_make_a_fat_zap_at_once() {
    let long = vec![(vec![b'n'; 50], 1)];
    let zap = created_with(&NewZap::plain(3), &long);
    assert_eq!(zap.store().reader().form(), ZapForm::Fat);
    let of_one_hash: Vec<_> = colliding(127, 28).into_iter().zip(0..).collect();
    let zap = created_with(&NewZap::plain(3), &of_one_hash);
    assert_eq!(zap.store().reader().form(), ZapForm::Micro);
    let of_one_hash: Vec<_> = colliding(128, 28).into_iter().zip(0..).collect();
    let zap = created_with(&NewZap::plain(3), &of_one_hash);
    assert_eq!(zap.store().reader().form(), ZapForm::Fat);
}

#[test]
fn entries_that_no_zap_can_have_are_refused_and_nothing_is_written() {
    let refused = |entries: &[(Vec<u8>, u64)]| {
        let zap = MemoryObject::new(512).zap();
        let error = zap.create_with(&NewZap::plain(3), entries).unwrap_err();
        assert_eq!(zap.store().with(|state| state.writes), 0);
        error
    };
    let twice = [(b"a".to_vec(), 1), (b"b".to_vec(), 2), (b"a".to_vec(), 3)];
    assert!(matches!(refused(&twice), ZapError::Exists { .. }));
    let nul = [(b"a\0b".to_vec(), 1)];
    assert!(matches!(refused(&nul), ZapError::Refused { .. }));
    let long = [(vec![b'a'; 256], 1)];
    assert!(matches!(refused(&long), ZapError::NameTooLong { .. }));
    // More of one hash than fit into a leaf.
    let namesakes: Vec<_> = colliding(2000, 28).into_iter().zip(0..).collect();
    assert!(matches!(refused(&namesakes), ZapError::Full { .. }));
}
