//! Tests every kind of vdev with every pattern of losses. A simple independent writer writes a block, and
//! leaves are damaged. Reading must then return the block and blame exactly the leaves that returned errors
//! or wrong bytes.

mod nesting;
mod rows;

use std::collections::BTreeSet;

use millpond_ondisk::Guid;
use proptest::prelude::*;

use super::*;
use crate::twin::{Shape, Twin, any_shape, leaf, over};
use crate::*;

/// What happens to a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Absent,
    Gone,
    Unreadable,
    Lies,
    StaleAndLies,
    StaleButRight,
}

const HARMS: [Harm; 6] = [
    Harm::Absent,
    Harm::Gone,
    Harm::Unreadable,
    Harm::Lies,
    Harm::StaleAndLies,
    Harm::StaleButRight,
];

fn hurt(twin: &mut Twin, leaf: u32, harm: Harm) {
    match harm {
        Harm::Absent => twin.remove(leaf),
        Harm::Gone => twin.device(leaf).fault = Some(LeafFault::Absent),
        Harm::Unreadable => twin.device(leaf).fault = Some(LeafFault::Io),
        Harm::Lies => twin.device(leaf).rot(leaf as u8 ^ 0x5c),
        Harm::StaleAndLies => {
            twin.device(leaf).rot(leaf as u8 ^ 0x33);
            twin.make_stale(leaf);
        }
        Harm::StaleButRight => twin.make_stale(leaf),
    }
}

/// Whether a leaf was read and returned an error or wrong bytes.
fn misled(twin: &Twin, harms: &[(u32, Harm)]) -> BTreeSet<LeafId> {
    harms
        .iter()
        .filter(|(_, harm)| !matches!(harm, Harm::Absent | Harm::StaleButRight))
        .map(|(leaf, _)| LeafId(*leaf))
        .filter(|leaf| twin.asked.contains(leaf))
        .collect()
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Reads and audits with the given damage, and checks all results.
fn check_survives(mut twin: Twin, harms: &[(u32, Harm)]) {
    let holders: BTreeSet<u32> = (0..twin.devices.len() as u32)
        .filter(|leaf| twin.device(*leaf).written())
        .collect();
    for (leaf, harm) in harms {
        hurt(&mut twin, *leaf, *harm);
    }
    let resolved = twin.read().expect("within redundancy");
    assert_eq!(resolved.data, twin.data);
    assert_eq!(Twin::named(&resolved), misled(&twin, harms));
    for blame in &resolved.liars {
        let harm = harms
            .iter()
            .find(|(leaf, _)| LeafId(*leaf) == blame.leaf)
            .unwrap()
            .1;
        let expected = match harm {
            Harm::Gone => BlameReason::Io(LeafFault::Absent),
            Harm::Unreadable => BlameReason::Io(LeafFault::Io),
            Harm::Lies => BlameReason::Checksum,
            Harm::StaleAndLies => BlameReason::Stale,
            Harm::Absent | Harm::StaleButRight => unreachable!(),
        };
        assert_eq!(blame.reason, expected);
    }

    let report = twin.audit();
    assert_eq!(report.block.as_deref(), Ok(twin.data.as_slice()));
    let judged: BTreeSet<u32> = report
        .findings
        .iter()
        .map(|finding| finding.leaf.0)
        .collect();
    assert_eq!(judged, holders, "every leaf that holds a part is judged");
    for finding in &report.findings {
        let harm = harms
            .iter()
            .find(|(leaf, _)| *leaf == finding.leaf.0)
            .map(|(_, harm)| *harm);
        let expected = match harm {
            None | Some(Harm::StaleButRight) => Verdict::Right,
            Some(Harm::Absent) => Verdict::Absent,
            Some(Harm::Gone) => Verdict::Fault(LeafFault::Absent),
            Some(Harm::Unreadable) => Verdict::Fault(LeafFault::Io),
            Some(Harm::Lies) => Verdict::Wrong,
            Some(Harm::StaleAndLies) => Verdict::Stale,
        };
        assert_eq!(finding.verdict, expected, "{finding:?}");
    }

    // Repairs make the leaves right again.
    let (liars, named) = (resolved.liars.len(), Twin::named(&resolved));
    if liars > 0 {
        twin.repair(&resolved);
        twin.health = LeafTable::all_good(twin.devices.len());
        let report = twin.audit();
        assert!(report.block.is_ok());
        for finding in report
            .findings
            .iter()
            .filter(|finding| named.contains(&finding.leaf))
        {
            // Only the ranges that were read of a stale or silently corrupted leaf are repaired.
            let is_repaired = resolved.liars.iter().any(|blame| {
                blame.leaf == finding.leaf
                    && blame.offset_bytes <= finding.offset_bytes
                    && finding.offset_bytes + finding.length_bytes
                        <= blame.offset_bytes + blame.length_bytes
            });
            assert!(
                !is_repaired || finding.verdict == Verdict::Right,
                "{finding:?}"
            );
        }
    }
}

/// Every set of at most `most` of `count` leaves.
fn loss_sets(count: u32, most: u32) -> Vec<Vec<u32>> {
    (0u32..1 << count)
        .filter(|mask| mask.count_ones() <= most)
        .map(|mask| (0..count).filter(|at| mask & (1 << at) != 0).collect())
        .collect()
}

#[test]
fn every_pattern_of_lost_and_corrupt_leaves_is_survived() {
    let shapes = [
        Shape::Mirror { sides: 3 },
        Shape::Raidz {
            children: 4,
            parity: 1,
        },
        Shape::Raidz {
            children: 5,
            parity: 2,
        },
        Shape::Raidz {
            children: 6,
            parity: 3,
        },
        Shape::Widened {
            first: 3,
            width: 3,
            children: 4,
            parity: 1,
        },
        Shape::Widened {
            first: 4,
            width: 5,
            children: 6,
            parity: 2,
        },
        Shape::Widening {
            children: 5,
            parity: 2,
            moved_sectors: 39,
            is_scratch: false,
        },
        Shape::Widening {
            children: 5,
            parity: 2,
            moved_sectors: 39,
            is_scratch: true,
        },
        Shape::Draid {
            children: 7,
            parity: 1,
            data: 2,
            spares: 1,
        },
        Shape::Draid {
            children: 6,
            parity: 2,
            data: 3,
            spares: 1,
        },
    ];
    for shape in shapes {
        let leaves = match shape {
            Shape::Mirror { sides } => sides,
            Shape::Raidz { children, .. }
            | Shape::Widened { children, .. }
            | Shape::Widening { children, .. }
            | Shape::Draid { children, .. } => children,
        };
        for set in loss_sets(leaves as u32, shape.redundancy() as u32) {
            let combinations = HARMS.len().pow(set.len() as u32);
            // All combinations of one and two kinds of damage, and some of three.
            let step = if set.len() > 2 { 11 } else { 1 };
            for combination in (0..combinations).step_by(step) {
                let mut rest = combination;
                let harms: Vec<(u32, Harm)> = set
                    .iter()
                    .map(|leaf| {
                        let harm = HARMS[rest % HARMS.len()];
                        rest /= HARMS.len();
                        (*leaf, harm)
                    })
                    .collect();
                let data = pattern(9 * 512 - 100, combination as u64);
                check_survives(shape.twin(9, 33, data), &harms);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_block_on_any_vdev_survives_any_harm_within_redundancy(
        shape in any_shape(),
        ashift in prop_oneof![Just(9u64), Just(12), 9u64..=14],
        place in prop_oneof![0u64..300, 0u64..100_000],
        length in prop_oneof![1usize..5000, 1usize..70_000],
        picks in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..6), 0..4),
        seed in any::<u64>(),
    ) {
        let twin = shape.twin(ashift, place, pattern(length, seed));
        let mut harms: Vec<(u32, Harm)> = Vec::new();
        for (pick, harm) in picks {
            let leaf = pick.index(twin.devices.len()) as u32;
            if harms.len() < shape.redundancy() as usize
                && harms.iter().all(|(other, _)| *other != leaf)
            {
                harms.push((leaf, HARMS[harm]));
            }
        }
        check_survives(twin, &harms);
    }

    #[test]
    fn an_untouched_block_costs_one_round_of_its_data_columns_only(
        shape in any_shape(),
        place in 0u64..3000,
        length in 1usize..30_000,
    ) {
        let mut twin = shape.twin(9, place, pattern(length, place));
        let resolved = twin.read().unwrap();
        prop_assert_eq!(&resolved.data, &twin.data);
        prop_assert!(resolved.liars.is_empty() && resolved.repairs.is_empty());
        prop_assert_eq!(twin.rounds, 1);
        let data_columns = match shape {
            Shape::Mirror { .. } => 1,
            Shape::Raidz { children, parity } => children - parity,
            Shape::Draid { data, .. } => 2 * data,
            // Every child has data cells in some row.
            Shape::Widened { .. } | Shape::Widening { .. } => u64::MAX,
        };
        prop_assert!(twin.reads as u64 <= data_columns);
    }
}

proptest! {
    // Few cases: each tries every combination twice.
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn beyond_redundancy_a_plan_fails_and_never_gives_wrong_bytes(
        shape in any_shape(),
        length in 1usize..9000,
        harms in proptest::collection::vec(0usize..4, 16),
        seed in any::<u64>(),
    ) {
        let mut twin = shape.twin(9, seed % 1000, pattern(length, seed));
        for (leaf, harm) in harms.iter().enumerate().take(twin.devices.len()) {
            hurt(&mut twin, leaf as u32, HARMS[*harm]);
        }
        // All leaves are damaged: nothing is right.
        let failure = twin.read().expect_err("nothing is right");
        let lying = harms.iter().take(twin.devices.len()).filter(|harm| HARMS[**harm] == Harm::Lies);
        if lying.count() == twin.devices.len() {
            prop_assert_eq!(failure.kind, FailureKind::Checksum);
            prop_assert!(failure.tried > 0);
        }
        let report = twin.audit();
        prop_assert!(report.block.is_err());
        prop_assert!(report.findings.iter().all(|finding| finding.role == Role::Padding
            || finding.verdict != Verdict::Right));
    }
}

#[test]
fn a_corrupt_mirror_side_is_repaired_from_the_good_one() {
    let mut twin = Shape::Mirror { sides: 2 }.twin(12, 5, pattern(8192, 1));
    twin.device(0).rot(3);
    let resolved = twin.read().unwrap();
    assert_eq!(resolved.data, twin.data);
    let blame = Blame {
        leaf: LeafId(0),
        spare: None,
        offset_bytes: (4 << 20) + 5 * 4096,
        length_bytes: 8192,
        reason: BlameReason::Checksum,
    };
    assert_eq!(resolved.liars, [blame]);
    assert_eq!(resolved.repairs[0].data, twin.data);
    twin.repair(&resolved);
    assert!(twin.audit().is_clean());
}

/// The first pair of sums of Fletcher-2.
fn weak_sums(data: &[u8]) -> [u64; 2] {
    let words = data.chunks_exact(16).map(|pair| pair[..8].try_into());
    words.fold([0u64; 2], |[a, b], word| {
        let a = a.wrapping_add(u64::from_le_bytes(word.unwrap()));
        [a, b.wrapping_add(a)]
    })
}

#[test]
fn two_contents_with_the_right_checksum_give_an_error_and_no_repair() {
    // Bit 60 of a word differs in the two columns, so that two wrong columns have the right sums.
    let mut data = vec![0; 8192];
    data[4096 - 16 + 7] = 0x10;
    let mut twin = Shape::Raidz {
        children: 3,
        parity: 1,
    }
    .twin(12, 0, data.clone());
    let sums = weak_sums(&data);
    let mut verify = |bytes: &[u8]| weak_sums(bytes) == sums;
    let whole = twin.devices.clone();
    let mut ambiguous = 0;
    for leaf in 0..3 {
        twin.devices = whole.clone();
        let offset = twin.device(leaf).written_at(512).last().copied().unwrap();
        let mut last = twin.device(leaf).read(offset, 512).unwrap();
        last[512 - 16 + 7] ^= 0x10;
        twin.device(leaf).write(offset, &last);
        let outcome = twin.read_with(&mut verify);
        let report = twin.audit_with(&mut verify);
        match outcome {
            // A column that no reader needs.
            Ok(resolved) => assert_eq!((resolved.data, resolved.repairs), (data.clone(), vec![])),
            Err(_) => {
                assert!(report.block.is_err());
                ambiguous += 1;
            }
        }
        // A checksum that tells them apart finds the right one.
        assert_eq!(twin.read().unwrap().data, data);
        assert_eq!(twin.audit().block.as_deref(), Ok(data.as_slice()));
    }
    assert_eq!(ambiguous, 2, "the two data columns");
}

#[test]
fn mirror_sides_are_read_in_rotation() {
    let mut seen = BTreeSet::new();
    for place in 0..4u64 {
        let mut twin = Shape::Mirror { sides: 2 }.twin(12, place * 512, pattern(4096, place));
        twin.read().unwrap();
        seen.extend(twin.asked);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_stale_side_is_read_only_as_a_last_resort() {
    let mut twin = Shape::Mirror { sides: 2 }.twin(12, 0, pattern(4096, 7));
    twin.make_stale(0);
    twin.read().unwrap();
    assert_eq!(twin.asked, BTreeSet::from([LeafId(1)]));
    twin.remove(1);
    assert_eq!(twin.read().unwrap().data, twin.data);
}

#[test]
fn corrupt_draid_padding_is_found_by_an_audit_only() {
    let shape = Shape::Draid {
        children: 5,
        parity: 1,
        data: 3,
        spares: 0,
    };
    let mut twin = shape.twin(12, 7, pattern(4096, 2));
    let report = twin.audit();
    assert!(report.is_clean());
    let pads: Vec<AuditFinding> = report
        .findings
        .iter()
        .copied()
        .filter(|found| found.role == Role::Padding)
        .collect();
    assert_eq!(pads.len(), 2);
    twin.device(pads[0].leaf.0).rot(1);
    assert!(twin.read().unwrap().liars.is_empty());
    let wrong: Vec<AuditFinding> = twin
        .audit()
        .findings
        .into_iter()
        .filter(|found| found.verdict != Verdict::Right)
        .collect();
    assert_eq!(
        wrong,
        [AuditFinding {
            verdict: Verdict::Wrong,
            ..pads[0]
        }]
    );
}

#[test]
fn outcomes_of_the_wrong_number_or_length_count_as_failed_reads() {
    let mut twin = Shape::Mirror { sides: 2 }.twin(9, 0, pattern(1024, 2));
    let good = twin.data.clone();
    let verify = &mut |bytes: &[u8]| bytes == good;
    let mut plan = ReadPlan::new(&twin.tree, &AllGood, &NoIndirect, twin.range).unwrap();
    let first = plan.advance(Vec::new(), verify);
    assert_eq!(first.reads().len(), 1);
    let second = plan.advance(Vec::new(), verify);
    assert_eq!(second.reads().len(), 1);
    // Both sides failed; their sectors are tried one by one.
    let third = plan.advance(vec![Ok(vec![0; 512].into())], verify);
    assert_eq!(third.reads().len(), 4);
    let Step::Failed(failure) = plan.advance(vec![Ok(vec![0; 511].into()); 3], verify) else {
        panic!()
    };
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert!(
        failure
            .blames
            .iter()
            .all(|b| b.reason == BlameReason::Io(LeafFault::Length))
    );
    let Step::Failed(again) = plan.advance(Vec::new(), verify) else {
        panic!()
    };
    assert_eq!(again.kind, FailureKind::Spent);
    assert!(twin.read().is_ok());
}

#[test]
fn ranges_outside_the_vdev_are_refused() {
    let tops = vec![
        VdevConfig {
            ashift: 12,
            ..leaf(5)
        },
        VdevConfig::hole(),
        VdevConfig::missing(),
        VdevConfig {
            ashift: 12,
            ..VdevConfig::new(VdevType::Indirect, Guid(9))
        },
        raidz_with(vec![leaf(10), leaf(11), leaf(12)], 1),
    ];
    let twin = Twin::over_all(tops, Reflow::default());
    let plan = |vdev: u32, offset_bytes: u64, size_bytes: u64| {
        let range = BlockRange {
            vdev: VdevId(vdev),
            offset_bytes,
            size_bytes,
            birth: Txg(1),
        };
        ReadPlan::new(&twin.tree, &AllGood, &twin.indirect, range).map(|_| ())
    };
    let offset = |vdev: u32, offset_bytes: u64| {
        Err(PlanError::Offset {
            vdev: VdevId(vdev),
            offset_bytes,
        })
    };
    assert_eq!(plan(0, 0, 512), Ok(()));
    assert_eq!(plan(0, 0, 0), Err(PlanError::Size { size_bytes: 0 }));
    assert_eq!(
        plan(0, 0, (16 << 20) + 1),
        Err(PlanError::Size {
            size_bytes: (16 << 20) + 1
        })
    );
    assert_eq!(plan(0, u64::MAX - 512, 512), offset(0, u64::MAX - 512));
    assert_eq!(plan(1, 0, 512), Err(PlanError::Hole(VdevId(1))));
    assert_eq!(plan(2, 0, 512), Err(PlanError::Missing(VdevId(2))));
    let unmapped = Err(PlanError::Unmapped {
        vdev: VdevId(3),
        offset_bytes: 512,
    });
    assert_eq!(plan(3, 512, 512), unmapped);
    assert_eq!(plan(4, 100, 512), offset(4, 100));
    assert_eq!(plan(4, 512 * 5, 16 << 20), Ok(()));
    assert_eq!(plan(5, 0, 512), Err(PlanError::NoSuchVdev(VdevId(5))));
    assert_eq!(
        plan(u32::MAX, 0, 512),
        Err(PlanError::NoSuchVdev(VdevId(u32::MAX)))
    );
}

fn raidz_with(children: Vec<VdevConfig>, parity: u64) -> VdevConfig {
    VdevConfig {
        ashift: 9,
        nparity: Some(parity),
        ..over(VdevType::Raidz, 2, children)
    }
}

#[test]
fn a_block_with_an_unreasonable_number_of_copies_is_refused() {
    // Mirrors of 60 leaves below an expanded RAID-Z vdev: 60 copies of each of many sectors.
    let mirrors = (0..3u64)
        .map(|at| {
            let sides = (0..60).map(|side| leaf(1000 + at * 100 + side)).collect();
            over(VdevType::Mirror, 10 + at, sides)
        })
        .collect();
    let top = VdevConfig {
        raidz_expand_txgs: vec![Txg(200)],
        ..raidz_with(mirrors, 1)
    };
    let twin = Twin::over(top, Reflow::default());
    let plan = |size_bytes: u64| {
        let range = BlockRange {
            size_bytes,
            ..twin.range
        };
        ReadPlan::new(&twin.tree, &AllGood, &NoIndirect, range).map(|_| ())
    };
    assert_eq!(plan(128 << 10), Ok(()));
    assert_eq!(plan(16 << 20), Err(PlanError::TooManyPieces));
}

#[test]
fn the_largest_block_on_the_narrowest_widened_vdev_is_planned() {
    let top = VdevConfig {
        raidz_expand_txgs: vec![Txg(200)],
        ..raidz_with((0..5).map(|at| leaf(10 + at)).collect(), 3)
    };
    let twin = Twin::over(top, Reflow::default());
    let range = BlockRange {
        size_bytes: 16 << 20,
        ..twin.range
    };
    let mut plan = ReadPlan::new(&twin.tree, &AllGood, &NoIndirect, range).unwrap();
    let step = plan.advance(Vec::new(), &mut |_| true);
    let total: u64 = step.reads().iter().map(|read| read.length_bytes).sum();
    assert_eq!(total, 16 << 20);
}
