//! Random changes leave the same content as a map would. Flipped bytes cause no panic.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Put(u16, ZapValue),
    Remove(u16),
    Count(u16, i8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let value = prop_oneof![
        6 => any::<u64>().prop_map(ZapValue::from_u64),
        1 => (prop_oneof![Just(1u8), Just(2), Just(4), Just(8)], 0usize..40, any::<u8>())
            .prop_map(|(width, count, fill)| ZapValue {
                integer_bytes: width,
                bytes: vec![fill; usize::from(width) * count],
            }),
    ];
    let step = prop_oneof![
        5 => (0u16..300, value).prop_map(|(key, value)| Step::Put(key, value)),
        3 => (0u16..300).prop_map(Step::Remove),
        1 => (0u16..300, any::<i8>()).prop_map(|(key, delta)| Step::Count(key, delta)),
    ];
    proptest::collection::vec(step, 1..400)
}

fn key_name(key: u16) -> Vec<u8> {
    // Some names share their hash, some are long.
    match key % 8 {
        0 => vec![b'k'; usize::from(key) % 200 + 1],
        _ => format!("key {key}").into_bytes(),
    }
}

fn run(zap: &ZapMut<MemoryObject>, steps: &[Step]) {
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Put(key, value) => {
                let name = key_name(*key);
                let had = model.insert(name.clone(), value.clone()).is_some();
                let inserted = zap.insert(&name, value);
                assert_eq!(inserted.is_err(), had);
                if had {
                    zap.update(&name, value).unwrap();
                }
            }
            Step::Remove(key) => {
                let had = model.remove(&key_name(*key)).is_some();
                assert_eq!(zap.remove(&key_name(*key)).unwrap(), had);
            }
            Step::Count(key, delta) => {
                let name = key_name(*key);
                let old = model.get(&name).map(|value| value.first());
                if let Some(None) = old {
                    continue;
                }
                let sum = old
                    .flatten()
                    .unwrap_or(0)
                    .checked_add_signed(i64::from(*delta));
                let counted = zap.increment(&name, i64::from(*delta), AtZero::Remove);
                let Some(sum) = sum else {
                    assert!(counted.is_err());
                    continue;
                };
                assert_eq!(counted.unwrap(), sum);
                if sum == 0 {
                    model.remove(&name);
                } else if old != Some(Some(sum)) {
                    model.insert(name, ZapValue::from_u64(sum));
                }
            }
        }
        let reader = zap.view().unwrap();
        assert_eq!(reader.check().unwrap().entries, model.len() as u64);
    }
    same(zap.store(), &model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_changes_match_a_map(steps in steps(), salt in any::<u64>(), shift in 10u32..13) {
        run(&MemoryObject::created(512, &NewZap::plain(salt)), &steps);
        run(&MemoryObject::created(512, &NewZap::plain(salt)).with_micro_bytes_max(1024), &steps);
        let fat = NewZap { flags: ZapFlags::HASH64, ..NewZap::plain(salt) };
        run(&MemoryObject::created(1 << shift, &fat), &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn changing_a_zap_of_flipped_bytes_never_panics(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..1024, any::<u8>()), 1..12),
        near_heads in any::<bool>(),
        steps in steps(),
        is_micro in any::<bool>(),
    ) {
        let blocks = if is_micro {
            micro(7, 0, &[(b"one", 1), (b"two", 2)])
        } else {
            let entries: Vec<_> = (0..200)
                .map(|index| (Key::Name(key_name(index)), ZapValue::from_u64(index.into())))
                .collect();
            FatWriter::plain(10).write(&dedup(entries))
        };
        let mut blocks: MemoryBlocks = blocks;
        let ids: Vec<u64> = blocks.blocks.keys().copied().collect();
        for (id, at, byte) in flips {
            let block = blocks.blocks.get_mut(id.get(&ids)).unwrap();
            let at = if near_heads { at % 128 } else { at % block.len() };
            block[at] = byte;
        }
        let object = MemoryObject::of(blocks);
        let zap = object.zap();
        for step in steps.iter().take(60) {
            let _ = match step {
                Step::Put(key, value) => zap.update(&key_name(*key), value),
                Step::Remove(key) => zap.remove(&key_name(*key)).map(|_| ()),
                Step::Count(key, delta) => {
                    zap.increment(&key_name(*key), i64::from(*delta), AtZero::Remove).map(|_| ())
                }
            };
        }
    }
}

fn dedup(entries: Vec<(Key, ZapValue)>) -> Vec<(Key, ZapValue)> {
    let map: BTreeMap<_, _> = entries.into_iter().collect();
    map.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn an_index_stays_right_and_changes_nothing(
        steps in proptest::collection::vec((0u16..400, 0u8..3), 1..700),
        folds in any::<bool>(),
        micro_bytes_max in prop_oneof![Just(8192u32), Just(128 << 10)],
    ) {
        let normflags = if folds { 2 } else { 0 };
        let normalisation = Normalisation::from_normflags(normflags).unwrap();
        let new = NewZap { normalisation, ..NewZap::plain(77) };
        let made = || MemoryObject::created(512, &new).with_micro_bytes_max(micro_bytes_max);
        let (plain, indexed) = (made(), made());
        let mut index = None;
        for (key, what) in steps {
            let name = key_name(key);
            if what == 0 {
                let removed = indexed.remove_by(&mut index, &name).unwrap();
                prop_assert_eq!(removed, plain.remove(&name).unwrap());
            } else {
                let inserted = indexed.insert_u64_by(&mut index, &name, key.into());
                let expected = plain.insert_u64(&name, key.into());
                prop_assert_eq!(inserted.is_ok(), expected.is_ok());
            }
            let reader = indexed.store().reader();
            if index.is_none() {
                index = reader.micro_index().unwrap();
            }
            prop_assert_eq!(&index, &reader.micro_index().unwrap());
            let found = reader.lookup_entry_by(index.as_ref(), &name, NameMatch::Normalised);
            let expected = plain.lookup_entry(&name, NameMatch::Normalised);
            prop_assert_eq!(found.unwrap(), expected.unwrap());
        }
        prop_assert!(indexed.store().blocks().blocks == plain.store().blocks().blocks);
    }
}
