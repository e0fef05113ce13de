use std::collections::BTreeSet;

use millpond_ondisk::{Ashift, Guid};
use proptest::prelude::*;

use super::*;
use crate::twin::{FIRST_SECTORS, Shape, Twin, any_shape, leaf, over};
use crate::{LeafFault, Reflow, VdevConfig, VdevType, Verdict};

/// Vdevs that can be written.
fn any_writable() -> impl Strategy<Value = Shape> {
    any_shape().prop_filter("a vdev that takes blocks", |shape| {
        !matches!(
            shape,
            Shape::Widening {
                is_scratch: true,
                ..
            }
        )
    })
}

fn content(sectors: usize, seed: u8) -> Vec<u8> {
    (0..sectors * 512)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (at >> 16) as u8 ^ seed)
        .collect()
}

impl Twin {
    fn plan(&self) -> WritePlan {
        WritePlan::new(&self.tree, &self.health, self.range, &self.data).unwrap()
    }

    /// The same pool before anything was written.
    fn blank(&self) -> Twin {
        Twin {
            tree: self.tree.clone(),
            devices: vec![Default::default(); self.devices.len()],
            health: self.health.clone(),
            indirect: Default::default(),
            range: self.range,
            data: self.data.clone(),
            asked: BTreeSet::new(),
            reads: 0,
            rounds: 0,
        }
    }

    /// Executes the plan; writes to `failing` leaves fail.
    fn write(&mut self, failing: &BTreeSet<u32>) -> WriteOutcome {
        let plan = self.plan();
        let mut is_written = Vec::new();
        for write in plan.writes() {
            let is_good = !failing.contains(&write.leaf.0);
            if is_good {
                let device = &mut self.devices[write.leaf.0 as usize];
                device.write(write.offset_bytes, write.bytes(&self.data));
            }
            assert_eq!(write.length_bytes(), write.bytes(&self.data).len() as u64);
            is_written.push(is_good);
        }
        plan.outcome(&mut |index| is_written[index])
    }

    /// Writes to a leaf what an audit finds that it lacks.
    fn resilver(&mut self, leaf: LeafId) {
        let missed = &mut self.health.entry(leaf).unwrap().missed;
        missed.push(0..u64::MAX);
        let audit = self.audit();
        let lacks = |write: &&LeafWrite| {
            let mut findings = audit.findings.iter();
            findings.any(|found| {
                let found_end = found.offset_bytes + found.length_bytes;
                found.leaf == write.leaf
                    && found.verdict != Verdict::Right
                    && (found.offset_bytes..found_end).contains(&write.offset_bytes)
            })
        };
        let plan = self.plan();
        for write in plan.writes().iter().filter(lacks) {
            let device = &mut self.devices[write.leaf.0 as usize];
            device.write(write.offset_bytes, write.bytes(&self.data));
        }
        self.health.entry(leaf).unwrap().missed.clear();
    }

    fn sectors(&self) -> Vec<Vec<(u64, LeafOutcomeBytes)>> {
        let devices = self.devices.iter();
        devices
            .map(|device| {
                let at = device.written_at(512).into_iter();
                at.map(|at| (at, device.read(at, 512).unwrap())).collect()
            })
            .collect()
    }
}

type LeafOutcomeBytes = Vec<u8>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_sector_is_where_the_description_of_the_format_puts_it(
        shape in any_writable(),
        ashift in 9u64..=16,
        place in 0u64..9000,
        sectors in 1usize..80,
        seed: u8,
    ) {
        let slow = shape.twin(ashift, place, content(sectors, seed));
        let mut fast = slow.blank();
        let outcome = fast.write(&BTreeSet::new());
        prop_assert_eq!(outcome, WriteOutcome { missed: vec![], is_readable: true });
        prop_assert_eq!(fast.sectors(), slow.sectors());
        let read = fast.read().unwrap();
        prop_assert_eq!(&read.data, &fast.data);
        prop_assert!(read.liars.is_empty());
        prop_assert!(fast.audit().is_clean());
    }

    #[test]
    fn a_block_across_the_progress_of_an_expansion_needs_only_the_moves_beyond_it(
        parity in 1u64..4,
        data in 1u64..4,
        ashift in prop_oneof![Just(9u64), Just(12)],
        place in 0u64..60,
        moved_sectors in 1u64..90,
        sectors in 1usize..60,
        away in proptest::option::of(0u32..7),
    ) {
        let children = parity + data + 1;
        let shape = |moved_sectors| Shape::Widening {
            children,
            parity,
            moved_sectors,
            is_scratch: false,
        };
        let mut twin = shape(moved_sectors).twin(ashift, place, content(sectors, 5)).blank();
        // A child that is away returns and is resilvered before anything else is moved.
        let away = away.filter(|away| u64::from(*away) < children).map(LeafId);
        twin.write(&away.iter().map(|leaf| leaf.0).collect());
        if let Some(leaf) = away {
            twin.resilver(leaf);
        }
        // The rest is moved, each sector by itself.
        let sector = 1 << ashift;
        for number in FIRST_SECTORS + moved_sectors..2000 {
            let at = |width: u64| ((number % width) as usize, (4 << 20) + number / width * sector);
            let ((old, from), (new, to)) = (at(children - 1), at(children));
            if let Ok(bytes) = twin.devices[old].read(from, sector) {
                twin.devices[new].write(to, &bytes);
            }
        }
        let mut moved = shape(4000).twin(ashift, place, content(sectors, 5)).blank();
        moved.devices = twin.devices;
        let read = moved.read().unwrap();
        prop_assert_eq!(&read.data, &moved.data);
        prop_assert!(read.liars.is_empty());
        prop_assert!(moved.audit().is_clean());
    }

    #[test]
    fn writes_survive_every_permitted_loss(
        shape in any_writable(),
        ashift in prop_oneof![Just(9u64), Just(12)],
        place in 0u64..3000,
        sectors in 1usize..60,
        order in Just((0u32..12).collect::<Vec<_>>()).prop_shuffle(),
        lost in 0usize..5,
        is_known in any::<bool>(),
    ) {
        let mut twin = shape.twin(ashift, place, content(sectors, 3)).blank();
        let count = twin.devices.len() as u32;
        let lost: BTreeSet<u32> = order.into_iter().filter(|at| *at < count).take(lost).collect();
        let holders: BTreeSet<u32> = twin.plan().writes().iter().map(|write| write.leaf.0).collect();
        if is_known {
            for leaf in &lost {
                twin.remove(*leaf);
            }
        }
        let outcome = twin.write(&lost);
        let missed: Vec<u32> = outcome.missed.iter().map(|leaf| leaf.0).collect();
        let expected: Vec<u32> = lost.intersection(&holders).copied().collect();
        prop_assert_eq!(&missed, &expected);
        // On an expanded vdev a leaf holds cells of only some rows.
        if (expected.len() as u64) <= shape.redundancy() {
            prop_assert!(outcome.is_readable);
        }
        // A reader must agree with the result.
        for leaf in &lost {
            twin.device(*leaf).fault = Some(LeafFault::Absent);
        }
        let data = twin.data.clone();
        match twin.read() {
            Ok(read) => {
                prop_assert!(outcome.is_readable);
                prop_assert_eq!(read.data, data);
            }
            Err(_) => prop_assert!(!outcome.is_readable),
        }
    }

    #[test]
    fn fillers_cover_free_space_only(
        parity in 1u64..4,
        data in 1u64..6,
        ashift in 9u64..=12,
        place in 0u64..9000,
        sectors in 1usize..80,
    ) {
        let shape = Shape::Raidz { children: parity + data, parity };
        let twin = shape.twin(ashift, place, content(sectors, 1));
        let plan = twin.plan();
        let sector = 1u64 << ashift;
        let asize = twin.tree.asize(twin.range.vdev, twin.range.size_bytes, twin.range.birth).unwrap();
        let written: u64 = plan.writes().iter().map(LeafWrite::length_bytes).sum();
        let filled: u64 = plan.fillers().iter().map(|filler| filler.length_bytes).sum();
        prop_assert_eq!(written + filled, asize);
        for filler in plan.fillers() {
            let device = &twin.devices[filler.leaf.0 as usize];
            prop_assert!(!device.written_at(sector).contains(&filler.offset_bytes));
        }
        // They are the last sectors of the range, counted in rows.
        let first = twin.range.offset_bytes / sector;
        let children = parity + data;
        let numbers: BTreeSet<u64> = plan
            .fillers()
            .iter()
            .map(|f| (f.offset_bytes - VDEV_DATA_START_BYTES) / sector * children + u64::from(f.leaf.0))
            .collect();
        let expected: BTreeSet<u64> =
            (first + written / sector..first + asize / sector).collect();
        prop_assert_eq!(numbers, expected);
    }
}

#[test]
fn a_block_shorter_than_a_sector_is_filled_up_with_zeros() {
    let mut twin = Shape::Mirror { sides: 2 }
        .twin(12, 1, content(1, 9))
        .blank();
    twin.write(&BTreeSet::new());
    let bytes = twin.devices[1]
        .read(VDEV_DATA_START_BYTES + 4096, 4096)
        .unwrap();
    assert_eq!(bytes[..512], content(1, 9));
    assert!(bytes[512..].iter().all(|byte| *byte == 0));
}

#[test]
fn both_sides_of_a_replacement_below_raidz_are_written() {
    let replacing = over(VdevType::Replacing, 50, vec![leaf(51), leaf(52)]);
    let mut top = over(VdevType::Raidz, 2, vec![leaf(10), replacing, leaf(11)]);
    top.nparity = Some(1);
    top.ashift = 9;
    let mut twin = Twin::over(top, Reflow::default());
    twin.data = content(8, 5);
    twin.range.size_bytes = twin.data.len() as u64;
    // The new side missed everything so far, but receives new writes.
    twin.health
        .entry(LeafId(2))
        .unwrap()
        .missed
        .push(0..u64::MAX);
    assert!(twin.write(&BTreeSet::from([1])).is_readable);
    let audit = twin.audit();
    assert!(audit.block.is_ok());
    let of_new = audit.findings.iter().filter(|f| f.leaf == LeafId(2));
    assert!(of_new.clone().count() > 0);
    assert!(of_new.clone().all(|f| f.verdict == Verdict::Right));
}

#[test]
fn vdevs_that_take_no_blocks_are_refused() {
    let range = BlockRange {
        vdev: VdevId(0),
        offset_bytes: 0,
        size_bytes: 512,
        birth: millpond_ondisk::Txg(100),
    };
    let widening = Shape::Widening {
        children: 4,
        parity: 1,
        moved_sectors: 0,
        is_scratch: true,
    };
    let scratch = Reflow {
        offset_bytes: 512 * 40,
        scratch_state: Reflow::SCRATCH_VALID,
    };
    let twin = Twin::over(widening.config(9), scratch);
    let plan = WritePlan::new(&twin.tree, &twin.health, range, &[0; 512]);
    assert_eq!(plan, Err(WritePlanError::NotWritable(VdevId(0))));
    let twin = Twin::over(Shape::Mirror { sides: 1 }.config(9), Reflow::default());
    let of = |range, bytes: &[u8]| WritePlan::new(&twin.tree, &twin.health, range, bytes);
    assert!(matches!(
        of(range, &[0; 1024]),
        Err(WritePlanError::Length { .. })
    ));
    let elsewhere = BlockRange {
        vdev: VdevId(1),
        ..range
    };
    assert!(matches!(
        of(elsewhere, &[0; 512]),
        Err(WritePlanError::Range(PlanError::NoSuchVdev(_)))
    ));
    assert!(of(range, &[0; 512]).is_ok());
}

#[test]
fn a_vdev_survives_as_many_losses_as_it_has_redundancy() {
    let mut raidz = over(
        VdevType::Raidz,
        2,
        vec![
            leaf(10),
            over(VdevType::Replacing, 20, vec![leaf(21), leaf(22)]),
            leaf(11),
            leaf(12),
        ],
    );
    raidz.nparity = Some(1);
    let mirror = over(VdevType::Mirror, 3, vec![leaf(31), leaf(32)]);
    let tops = vec![raidz, mirror, leaf(40), VdevConfig::hole()];
    let tops = tops
        .into_iter()
        .map(|mut top| {
            top.ashift = 9;
            top
        })
        .collect();
    let twin = Twin::over_all(tops, Reflow::default());
    assert_eq!(twin.tree.find_leaf(Guid(40)), Some(LeafId(7)));
    assert_eq!(twin.tree.top(VdevId(2)).unwrap().ashift, Ashift(9));
    let survives = |vdev, lost: &[u32]| {
        twin.tree
            .survives(VdevId(vdev), &|leaf| lost.contains(&leaf.0))
    };
    assert!(survives(0, &[]) && survives(0, &[1]) && survives(0, &[1, 2]));
    assert!(survives(0, &[0, 1]) && !survives(0, &[0, 1, 2]) && !survives(0, &[0, 3]));
    assert!(survives(1, &[5]) && survives(1, &[6]) && !survives(1, &[5, 6]));
    assert!(survives(2, &[5, 6]) && !survives(2, &[7]));
    assert!(!survives(3, &[]) && !survives(9, &[]));
    // What bears one more is what survives with any leaf more.
    for vdev in [0, 1, 2, 3, 9] {
        for lost in (0..1u32 << 8).map(|bits| move |leaf: LeafId| bits >> leaf.0 & 1 == 1) {
            let all = (0..8).all(|one| {
                let is_lost = |leaf: LeafId| leaf.0 == one || lost(leaf);
                twin.tree.survives(VdevId(vdev), &is_lost)
            });
            assert_eq!(twin.tree.survives_one_more(VdevId(vdev), &lost), all);
        }
    }
}
