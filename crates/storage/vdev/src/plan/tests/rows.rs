//! Losses that differ between the rows of one block.

use super::*;

#[test]
fn corrupt_columns_in_different_expanded_rows_are_found() {
    // A dRAID block that crosses a boundary between groups has two rows, each with its own parity. Each row
    // loses another column; together these are more leaves than there is parity.
    let shape = Shape::Draid {
        children: 6,
        parity: 1,
        data: 2,
        spares: 0,
    };
    let stripes = (16u64 << 20) / 4096;
    let mut twin = shape.twin(12, stripes - 1, pattern(6 * 4096, 9));
    let mut plan = ReadPlan::new(&twin.tree, &AllGood, &NoIndirect, twin.range).unwrap();
    let step = plan.advance(Vec::new(), &mut |_| true);
    let reads = step.reads();
    assert_eq!(reads.len(), 4);
    let border = (4u64 << 20) + (16 << 20) - 4096;
    let (first, second): (Vec<&LeafRead>, Vec<&LeafRead>) =
        reads.iter().partition(|read| read.offset_bytes == border);
    assert_eq!((first.len(), second.len()), (2, 2));
    let liars = [*first[0], *second[1]];
    assert_ne!(liars[0].leaf, liars[1].leaf);
    for liar in liars {
        let device = twin.device(liar.leaf.0);
        let mut bytes = device.read(liar.offset_bytes, liar.length_bytes).unwrap();
        bytes[17] ^= 1;
        device.write(liar.offset_bytes, &bytes);
    }
    let resolved = twin.read().unwrap();
    assert_eq!(resolved.data, twin.data);
    assert_eq!(
        Twin::named(&resolved),
        liars.iter().map(|liar| liar.leaf).collect()
    );
}

#[test]
fn bad_sectors_of_all_leaves_at_different_heights_are_survived() {
    for shape in [
        Shape::Mirror { sides: 2 },
        Shape::Raidz {
            children: 4,
            parity: 1,
        },
        Shape::Raidz {
            children: 5,
            parity: 2,
        },
        Shape::Draid {
            children: 6,
            parity: 1,
            data: 3,
            spares: 1,
        },
    ] {
        for is_silent in [false, true] {
            let mut twin = shape.twin(9, 24, pattern(512 * 24 - 9, 3));
            let leaves: Vec<u32> = (0..twin.devices.len() as u32)
                .filter(|leaf| twin.device(*leaf).written())
                .collect();
            // Another sector of each leaf; only two of them silently, otherwise every set would be tried.
            for (height, leaf) in leaves
                .iter()
                .enumerate()
                .take(if is_silent { 2 } else { 4 })
            {
                let device = twin.device(*leaf);
                let at = *device.written_at(512).iter().nth(height).unwrap();
                if is_silent {
                    let mut bytes = device.read(at, 512).unwrap();
                    bytes[5] ^= 0x10;
                    device.write(at, &bytes);
                } else {
                    device.bad_bytes.push(at..at + 512);
                }
            }
            let resolved = twin.read().unwrap();
            assert_eq!(resolved.data, twin.data, "{shape:?}");
            let report = twin.audit();
            assert_eq!(report.block.as_deref(), Ok(twin.data.as_slice()));
            twin.repair(&resolved);
            assert_eq!(twin.read().unwrap().data, twin.data);
        }
    }
}

#[test]
fn bad_sectors_in_different_rows_survive_expansion() {
    // Cells of adjacent rows are read together; if such a read fails they are read by themselves.
    let shape = Shape::Widened {
        first: 4,
        width: 4,
        children: 5,
        parity: 1,
    };
    let mut twin = shape.twin(9, 40, pattern(512 * 30, 3));
    // Raid sectors 40 to 79. Cell 40 + 4 * row + column is on child `sector mod 5`.
    for sector in [41u64, 47, 53] {
        let at = (4 << 20) + sector / 5 * 512;
        twin.device((sector % 5) as u32)
            .bad_bytes
            .push(at..at + 512);
    }
    let resolved = twin.read().unwrap();
    assert_eq!(resolved.data, twin.data);
    assert!(resolved.liars.iter().all(|blame| blame.length_bytes == 512));
    assert_eq!(resolved.liars.len(), 3);
}

#[test]
fn a_corrupt_child_is_found_at_its_width_before_expansion() {
    // Corruption happened while the vdev had 4 children, and was copied since: the sectors of the old child
    // 2 are now spread over all children.
    let shape = Shape::Widened {
        first: 4,
        width: 4,
        children: 5,
        parity: 1,
    };
    let mut twin = shape.twin(9, 0, pattern(512 * 27, 5));
    for sector in (0..36u64).filter(|sector| sector % 4 == 2) {
        let (leaf, at) = ((sector % 5) as u32, (4 << 20) + sector / 5 * 512);
        let mut bytes = twin.device(leaf).read(at, 512).unwrap();
        bytes[9] ^= 0x40;
        twin.device(leaf).write(at, &bytes);
    }
    let resolved = twin.read().unwrap();
    assert_eq!(resolved.data, twin.data);
    assert!(resolved.liars.len() > 4);
}

/// All leaves are complete; one has not answered for a while.
struct OneSlow(LeafId);

impl Health for OneSlow {
    fn leaf(&self, leaf: LeafId, _: millpond_ondisk::Txg) -> LeafHealth {
        match leaf == self.0 {
            true => LeafHealth::Slow,
            false => LeafHealth::Good,
        }
    }
}

/// A slow column is computed from parity by reads, but an audit reads and judges it like the others.
#[test]
fn a_slow_column_is_avoided_by_reads_and_read_by_audits() {
    let shape = Shape::Raidz {
        children: 4,
        parity: 1,
    };
    let twin = shape.twin(12, 0, pattern(3 * 4096, 5));
    let all_good = ReadPlan::new(&twin.tree, &AllGood, &NoIndirect, twin.range);
    let step = all_good.unwrap().advance(Vec::new(), &mut |_| true);
    // The column that holds the first bytes of the block.
    let slow = step.reads()[0].leaf;
    let health = OneSlow(slow);
    let is_asked = |reads: &[LeafRead]| reads.iter().any(|read| read.leaf == slow);
    let mut read = ReadPlan::new(&twin.tree, &health, &NoIndirect, twin.range).unwrap();
    let step = read.advance(Vec::new(), &mut |_| true);
    assert_eq!((step.reads().len(), is_asked(step.reads())), (3, false));
    let plan = || AuditPlan::new(&twin.tree, &health, &NoIndirect, twin.range).unwrap();
    for mut plan in [
        plan(),
        plan().sparing_stale(),
        plan().sparing_stale().sparing_copies(),
    ] {
        let AuditStep::Read(reads) = plan.advance(Vec::new(), &mut |_| true) else {
            panic!("nothing is read");
        };
        assert_eq!((reads.len(), is_asked(&reads)), (4, true));
        let outcomes = reads.iter().map(|read| {
            let device = &twin.devices[read.leaf.0 as usize];
            let bytes = device.read(read.offset_bytes, read.length_bytes);
            bytes.map(LeafBytes::from)
        });
        let outcomes = outcomes.collect();
        let AuditStep::Done(report) = plan.advance(outcomes, &mut |bytes| bytes == twin.data)
        else {
            panic!("more is read");
        };
        assert!(report.is_clean(), "{report:?}");
        assert!(report.findings.iter().all(|finding| !finding.is_stale));
    }
}

/// The checksum of an intent log block covers its records only.
#[test]
fn contents_that_differ_beyond_the_checksum_are_the_same() {
    let shape = Shape::Widening {
        children: 4,
        parity: 1,
        moved_sectors: 80,
        is_scratch: false,
    };
    for (sectors, covered) in [(48, 700), (48, 5000), (13, 300)] {
        for lost in 0..4 {
            let mut twin = shape.twin(9, 3, pattern(sectors * 512, 7));
            twin.device(lost).rot(1);
            let data = twin.data.clone();
            let mut verify = |bytes: &[u8]| bytes[..covered] == data[..covered];
            let read = twin.read_with(&mut verify).unwrap();
            assert_eq!(read.data[..covered], data[..covered]);
            assert!(twin.audit_with(&mut verify).block.is_ok());
        }
    }
}
