//! Names whose hashes agree in all bits or in many.

use super::*;

/// Returns names with equal hashes for any salt. CRC is linear, so a bit difference that vanishes in the
/// upper 28 bits can be applied to any name.
pub(super) fn colliding(count: usize, bits: u32) -> Vec<Vec<u8>> {
    // Differences over eight bytes: find those that vanish in the upper `bits`, by elimination over GF(2).
    let length = 8usize;
    let base = ZapHashing::plain(0);
    let crc = |name: &[u8]| millpond_ondisk::zap::zap_crc64(0, name);
    let zero = vec![b'@'; length];
    let at_zero = crc(&zero);
    let mut basis: Vec<(u64, u64)> = Vec::new();
    let mut kernel = Vec::new();
    for byte in 0..length {
        for bit in 0..6 {
            let mut name = zero.clone();
            name[byte] ^= 1 << bit;
            let mut effect = (crc(&name) ^ at_zero) >> (64 - bits);
            let mut mask = 1u64 << (byte * 6 + bit);
            for (other, other_mask) in &basis {
                if effect ^ other < effect {
                    effect ^= other;
                    mask ^= other_mask;
                }
            }
            if effect == 0 {
                kernel.push(mask);
            } else {
                basis.push((effect, mask));
                basis.sort_unstable_by(|one, other| other.cmp(one));
            }
        }
    }
    assert!(1 << kernel.len() >= count, "{} free bits", kernel.len());
    (0..count)
        .map(|choice| {
            let mask = kernel
                .iter()
                .enumerate()
                .filter(|(at, _)| choice >> at & 1 == 1)
                .fold(0, |mask, (_, one)| mask ^ one);
            let name: Vec<u8> = (0..length)
                .map(|byte| b'@' ^ ((mask >> (byte * 6)) & 63) as u8)
                .collect();
            assert_eq!((base.name(&name) ^ base.name(&zero)) >> (64 - bits), 0);
            name
        })
        .collect()
}

#[test]
fn names_of_one_hash_get_differentiators_in_order_and_fill_gaps() {
    let names = colliding(130, 28);
    let zap = MemoryObject::created(512, &NewZap::plain(0x1357));
    let mut model = Model::new();
    for (index, name) in names.iter().enumerate() {
        zap.insert_u64(name, index as u64).unwrap();
        model.insert(name.clone(), ZapValue::from_u64(index as u64));
        // (count × 5) ≥ 638 from the 128th on.
        let form = if index < 127 {
            ZapForm::Micro
        } else {
            ZapForm::Fat
        };
        assert_eq!(zap.view().unwrap().form(), form, "{index}");
    }
    same(zap.store(), &model);
    let order = || -> Vec<Vec<u8>> {
        let view = zap.view().unwrap();
        view.iter().map(|entry| entry.unwrap().name).collect()
    };
    assert_eq!(order(), names);
    for gap in [3usize, 50] {
        assert!(zap.remove(&names[gap]).unwrap());
    }
    zap.insert_u64(b"something else", 1).unwrap();
    zap.remove(b"something else").unwrap();
    for gap in [50usize, 3] {
        zap.insert_u64(&names[gap], 1).unwrap();
    }
    let order = order();
    assert_eq!((&order[3], &order[50]), (&names[50], &names[3]));
}

#[test]
fn a_full_leaf_of_one_hash_refuses_another_entry() {
    let names = colliding(300, 28);
    let zap = MemoryObject::created(512, &NewZap::plain(0x1357));
    zap.update(b"fat", &ZapValue::from_bytes(b"x")).unwrap();
    let mut model = Model::from([(b"fat".to_vec(), ZapValue::from_bytes(b"x"))]);
    let mut refused = 0;
    for name in &names {
        match zap.insert_u64(name, 1) {
            Ok(()) => {
                model.insert(name.clone(), ZapValue::from_u64(1));
            }
            Err(ZapError::Full { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // 638 chunks, three for each entry.
    assert_eq!(refused, 300 - 212);
    same(zap.store(), &model);
    assert!(zap.store().blocks().header().table_shift < 20);
    // Other names still fit.
    zap.insert_u64(b"another", 1).unwrap();
}

#[test]
fn similar_hashes_do_not_grow_the_table_without_bound() {
    let names = colliding(3000, 24);
    let zap = MemoryObject::created(512, &NewZap::plain(0x1357));
    // A microzap that cannot become fat stays a microzap.
    let mut model = Model::new();
    let refused = names
        .iter()
        .filter(|name| zap.insert_u64(name, 1).is_err())
        .count();
    assert!(refused > 900, "{refused}");
    assert_eq!(zap.view().unwrap().form(), ZapForm::Micro);
    zap.view().unwrap().check().unwrap();

    let zap = MemoryObject::created(512, &NewZap::plain(0x1357));
    zap.update(b"", &ZapValue::from_u64(1)).unwrap();
    model.insert(Vec::new(), ZapValue::from_u64(1));
    for name in &names {
        match zap.insert_u64(name, 1) {
            Ok(()) => {
                model.insert(name.clone(), ZapValue::from_u64(1));
            }
            Err(ZapError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(model.len() < 3000);
    same(zap.store(), &model);
    let header = zap.store().blocks().header();
    assert!(header.table_shift <= 20, "{header:?}");
}

#[test]
fn names_with_equal_folding_can_coexist() {
    let folding = Normalisation {
        folds_case: true,
        form: None,
    };
    let new = NewZap {
        normalisation: folding,
        ..NewZap::plain(3)
    };
    let zap = MemoryObject::created(512, &new);
    for form in [ZapForm::Micro, ZapForm::Fat] {
        assert_eq!(zap.view().unwrap().form(), form);
        for (index, name) in (0..).zip([b"Foo", b"foo", b"FOO"]) {
            zap.insert_u64(name, index).unwrap();
            assert!(matches!(
                zap.insert_u64(name, 9),
                Err(ZapError::Exists { .. })
            ));
        }
        let entry = |name: &[u8], how| zap.lookup_entry(name, how).unwrap().map(|entry| entry.name);
        assert_eq!(entry(b"fOO", NameMatch::Normalised).unwrap(), b"Foo");
        assert_eq!(entry(b"fOO", NameMatch::Exact), None);
        assert_eq!(entry(b"FOO", NameMatch::Exact).unwrap(), b"FOO");
        let gone = zap.remove_entry(b"fOO", NameMatch::Normalised).unwrap();
        assert_eq!(gone.unwrap().name, b"Foo");
        assert_eq!(entry(b"fOO", NameMatch::Normalised).unwrap(), b"foo");
        assert!(!zap.remove(b"fOO").unwrap());
        zap.view().unwrap().check().unwrap();
        for name in [b"foo", b"FOO"] {
            assert!(zap.remove(name).unwrap());
        }
        zap.update(b"wide", &ZapValue::from_bytes(b"x")).unwrap();
    }
    let forms = NewZap {
        normalisation: Normalisation::from_normflags(0x50).unwrap(),
        ..NewZap::plain(3)
    };
    let zap = MemoryObject::created(512, &forms);
    zap.insert_u64("e\u{301}".as_bytes(), 1).unwrap();
    assert!(
        zap.lookup_entry("é".as_bytes(), NameMatch::Normalised)
            .unwrap()
            .is_some()
    );
    assert!(matches!(
        zap.insert_u64(b"\xff", 1),
        Err(ZapError::Refused { .. })
    ));
    assert!(!zap.remove(b"\xff").unwrap());
}
