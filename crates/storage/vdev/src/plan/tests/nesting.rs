//! Columns that are themselves mirrors, replacements and spares.

use super::*;

/// RAID-Z1 of leaf, replacing(leaf, spare(leaf, leaf)), mirror(leaf, leaf), leaf.
fn nested() -> Twin {
    let replacing = over(
        VdevType::Replacing,
        20,
        vec![
            leaf(21),
            over(VdevType::Spare, 22, vec![leaf(23), leaf(24)]),
        ],
    );
    let mirror = over(VdevType::Mirror, 30, vec![leaf(31), leaf(32)]);
    let mut twin = Twin::over(
        raidz_with(vec![leaf(10), replacing, mirror, leaf(40)], 1),
        Reflow::default(),
    );
    let data = pattern(512 * 9, 11);
    let flat = Shape::Raidz {
        children: 4,
        parity: 1,
    }
    .twin(9, 3, data.clone());
    for (leaf, child) in [
        (0usize, 0usize),
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 2),
        (6, 3),
    ] {
        twin.devices[leaf] = flat.devices[child].clone();
    }
    twin.range = flat.range;
    twin.data = data;
    twin
}

#[test]
fn replacing_spare_and_mirror_below_raidz_use_every_copy() {
    assert!(nested().audit().is_clean());
    for harm in [Harm::Lies, Harm::Unreadable, Harm::Absent] {
        // One whole column, and all but one copy of each other column, may be wrong.
        for column in [vec![0u32], vec![1, 2, 3], vec![4, 5], vec![6]] {
            let mut twin = nested();
            let mut harms: Vec<(u32, Harm)> = column.iter().map(|leaf| (*leaf, harm)).collect();
            for leaf in [1u32, 2, 5] {
                if !(column.contains(&leaf) || leaf < 4 && column == [1, 2, 3]) {
                    harms.push((leaf, harm));
                }
            }
            if column == [4, 5] {
                harms.retain(|(leaf, _)| *leaf != 3);
            }
            for (leaf, harm) in &harms {
                hurt(&mut twin, *leaf, *harm);
            }
            let resolved = twin.read().unwrap();
            assert_eq!(resolved.data, twin.data);
            assert_eq!(Twin::named(&resolved), misled(&twin, &harms));
        }
    }
}

#[test]
fn a_distributed_spare_replaces_its_child() {
    let shape = Shape::Draid {
        children: 6,
        parity: 1,
        data: 3,
        spares: 2,
    };
    for place in [0u64, 1, 40, 5000, 9000, 20_000] {
        let data = pattern(4096 * 7 + 5, place);
        let flat = shape.twin(12, place, data.clone());
        let geometry = match &flat.tree.top(VdevId(0)).unwrap().kind {
            VdevKind::Draid(geometry) => geometry.clone(),
            _ => unreachable!(),
        };
        for victim in 0..6u64 {
            // The victim's child becomes spare(victim, dspare 0). The child that holds dspare 0 may itself
            // be replaced by dspare 1; doing the same for the next child covers that.
            for also in [None, Some((victim + 1) % 6)] {
                let mut config = shape.config(12);
                for (spare, child) in [Some(victim), also].into_iter().flatten().enumerate() {
                    let dspare = VdevConfig {
                        spare_id: Some(spare as u64),
                        ..VdevConfig::new(VdevType::DraidSpare, Guid(500 + spare as u64))
                    };
                    let old = config.children[child as usize].clone();
                    config.children[child as usize] =
                        over(VdevType::Spare, 600 + spare as u64, vec![old, dspare]);
                }
                let mut twin = Twin::over(config, Reflow::default());
                let device_leaf = |twin: &Twin, child: u64| {
                    twin.tree.find_leaf(Guid(100 + child)).unwrap().0 as usize
                };
                for child in 0..6u64 {
                    let at = device_leaf(&twin, child);
                    twin.devices[at] = flat.devices[child as usize].clone();
                }
                twin.range = flat.range;
                twin.data = data.clone();
                // Copy each victim's sectors to the spare space, as a rebuild does.
                for (spare, child) in [Some(victim), also].into_iter().flatten().enumerate() {
                    let source = flat.devices[child as usize].clone();
                    for at in source.written_at(4096) {
                        let bytes = source.read(at, 4096).unwrap();
                        let stripe = (at - (4 << 20)) / 4096;
                        let mut spare = spare as u64;
                        let mut holder = geometry.spare_child(spare, stripe * 4096).unwrap();
                        // If the child that holds it is itself a victim, its own spare holds it.
                        while holder == victim || Some(holder) == also {
                            spare = u64::from(holder != victim);
                            holder = geometry.spare_child(spare, stripe * 4096).unwrap();
                        }
                        let leaf = device_leaf(&twin, holder);
                        twin.devices[leaf].write(at, &bytes);
                    }
                }
                for child in [Some(victim), also].into_iter().flatten() {
                    let leaf = device_leaf(&twin, child) as u32;
                    twin.remove(leaf);
                }
                let resolved = twin.read().unwrap();
                assert_eq!(resolved.data, twin.data, "{place} {victim} {also:?}");
                assert_eq!(resolved.liars, []);
            }
        }
    }
}
