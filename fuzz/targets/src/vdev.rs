//! Block locations: mappings of removed vdevs, and I/O plans for arbitrary vdev trees.

use millpond_ondisk::{Txg, VdevId};
use millpond_vdev::{
    AllGood, AuditPlan, AuditStep, BlockRange, IndirectMapping, LeafFault, NoIndirect, ReadPlan,
    Step, VdevTree,
};

/// Number of steps after which a plan must have ended.
const STEPS_MAX: usize = 300;

/// A mapping object (half of the input) and a births object (the rest).
pub fn indirect_mapping(data: &[u8]) {
    let Some((endian, data)) = crate::ordered(data) else {
        return;
    };
    let (mapping, births) = data.split_at(data.len() / 2 / 24 * 24);
    let count = (mapping.len() / 24) as u64;
    let Ok(mapping) = IndirectMapping::decode(mapping, count, births, endian) else {
        return;
    };
    for entry in mapping.entries() {
        let (start, length) = (entry.source_offset_bytes, entry.length_bytes());
        let pieces = mapping.resolve(start, length).unwrap_or_default();
        assert_eq!(
            pieces.iter().map(|piece| piece.size_bytes).sum::<u64>(),
            length
        );
        let _ = mapping.resolve(start.saturating_sub(512), length.saturating_add(1024));
        let _ = mapping.birth(start);
    }
}

/// Plans reads and audits of a few blocks on every vdev of a tree.
///
/// All leaves fail or return wrong data.
pub fn plans_over(tree: &VdevTree) {
    for (vdev, _) in tree.tops().take(16) {
        let _ = (
            tree.space(vdev),
            tree.deflate_ratio(vdev),
            tree.data_disks(vdev),
        );
        for (offset_bytes, size_bytes) in [(0, 512), (1 << 20, 20_000), (7 << 20, 5000)] {
            plan_one(tree, vdev, offset_bytes, size_bytes);
        }
    }
}

fn plan_one(tree: &VdevTree, vdev: VdevId, offset_bytes: u64, size_bytes: u64) {
    let birth = Txg(offset_bytes >> 18);
    let range = BlockRange {
        vdev,
        offset_bytes,
        size_bytes,
        birth,
    };
    if let Ok(mut plan) = ReadPlan::new(tree, &AllGood, &NoIndirect, range) {
        let mut outcomes = Vec::new();
        for step in 0.. {
            assert!(step < STEPS_MAX);
            match plan.advance(outcomes, &mut |bytes| bytes.iter().all(|byte| *byte == 9)) {
                Step::Read(reads) => {
                    outcomes = reads.iter().map(|_| Err(LeafFault::Io)).collect();
                }
                Step::Done(_) => unreachable!("no leaf gave a byte"),
                Step::Failed(_) => break,
            }
        }
    }
    if let Ok(mut plan) = AuditPlan::new(tree, &AllGood, &NoIndirect, range) {
        let mut outcomes = Vec::new();
        for step in 0.. {
            assert!(step < STEPS_MAX);
            match plan.advance(outcomes, &mut |bytes| bytes.len() as u64 == size_bytes) {
                AuditStep::Read(reads) => {
                    let zeros = reads
                        .iter()
                        .map(|read| Ok(vec![0; read.length_bytes as usize].into()));
                    outcomes = zeros.collect();
                }
                AuditStep::Done(_) => break,
            }
        }
    }
}
