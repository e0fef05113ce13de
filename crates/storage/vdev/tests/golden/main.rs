//! Pools that OpenZFS made. Every block of every dataset lies where the maps say, with right parity and
//! copies. It survives every loss that its vdev must survive.
//!
//! `MILLPOND_GOLDEN` names the folder of the large set; without it, the tests say so and pass.

mod images;
mod pool;

use std::collections::BTreeSet;

use images::{case, disks};
use millpond_vdev::*;
use pool::Pool;

fn open(name: &str) -> Option<Pool> {
    let pool = Pool::open(disks(&case(name)?));
    assert!(
        pool.blocks.len() > 100,
        "{name}: {} blocks",
        pool.blocks.len()
    );
    Some(pool)
}

/// Leaves that are open and never missed a txg.
fn whole_leaves(pool: &Pool) -> Vec<LeafId> {
    let all = pool.tree.leaves().filter(|(_, leaf)| leaf.is_device());
    all.map(|(id, _)| id)
        .filter(|id| pool.leaves[id.0 as usize].is_some())
        .collect()
}

/// Audits every block: only `liars` may be wrong.
fn audit_all(pool: &Pool, liars: &[u32]) -> u64 {
    let mut runs = 0;
    for (range, bp) in &pool.blocks {
        let report = pool.audit(*range, bp);
        assert!(report.block.is_ok(), "{range:?} {bp:?} {report:?}");
        for finding in &report.findings {
            let is_fine = match finding.verdict {
                Verdict::Right | Verdict::Absent | Verdict::Stale => true,
                _ => liars.contains(&finding.leaf.0),
            };
            assert!(is_fine, "{range:?} {bp:?} {finding:?}");
            runs += u64::from(finding.verdict == Verdict::Right);
        }
        // The space that a block takes on the vdev is the size in its pointer.
        let asize = pool.tree.asize(range.vdev, range.size_bytes, range.birth);
        let dva = bp
            .dvas()
            .find(|dva| dva.vdev == range.vdev && dva.offset_bytes == range.offset_bytes);
        assert_eq!(asize, dva.map(|dva| dva.asize_bytes), "{range:?}");
    }
    runs
}

/// Sets of `count` of `leaves`; if there are more than `most`, an even selection of that many.
fn sets(leaves: &[LeafId], count: usize, most: usize) -> Vec<Vec<LeafId>> {
    let all: Vec<Vec<LeafId>> = (0u64..1 << leaves.len())
        .filter(|mask| mask.count_ones() as usize == count)
        .map(|mask| {
            let chosen = leaves
                .iter()
                .enumerate()
                .filter(|(at, _)| mask & (1 << at) != 0);
            chosen.map(|(_, leaf)| *leaf).collect()
        })
        .collect();
    let step = all.len().div_ceil(most).max(1);
    all.into_iter().step_by(step).collect()
}

/// Reads every block with `count` leaves absent, then with `count` leaves corrupted.
fn survive_losses(pool: &mut Pool, count: usize, most: usize) {
    let leaves = whole_leaves(pool);
    let mut found = false;
    for lost in sets(&leaves, count, most) {
        let before = pool.health.clone();
        for leaf in &lost {
            pool.health.entry(*leaf).unwrap().is_readable = false;
        }
        for (range, bp) in &pool.blocks {
            let read = pool.read(*range, bp);
            assert!(
                read.is_ok_and(|read| read.liars.is_empty()),
                "{lost:?} {range:?}"
            );
        }
        pool.health = before;
        pool.liars = lost;
        let mut named = BTreeSet::new();
        for (range, bp) in &pool.blocks {
            let read = pool.read(*range, bp).expect("within redundancy");
            named.extend(read.liars.iter().map(|blame| blame.leaf));
        }
        let lying: BTreeSet<LeafId> = pool.liars.drain(..).collect();
        // A leaf may hold nothing but spare space or parity, which is not read while data is right.
        assert!(named.is_subset(&lying), "{named:?} of {lying:?}");
        found |= !named.is_empty();
    }
    assert!(found);
}

fn check(name: &str, redundancy: usize, most: usize) {
    let Some(mut pool) = open(name) else { return };
    let runs = audit_all(&pool, &[]);
    println!(
        "{name}: {} blocks, {runs} runs of bytes right",
        pool.blocks.len()
    );
    survive_losses(&mut pool, redundancy, most);
}

#[test]
fn mirrors_match_the_golden_images() {
    check("mirror2", 1, 2);
    check("mirror3", 2, 1);
}

#[test]
fn raidz1_matches_the_golden_images() {
    check("raidz1-3", 1, 3);
}

#[test]
fn raidz2_matches_the_golden_images() {
    check("raidz2-5", 2, 3);
}

#[test]
fn raidz3_matches_the_golden_images() {
    check("raidz3-7", 3, 2);
}

#[test]
fn draid1_matches_the_golden_images() {
    check("draid1", 1, 3);
}

#[test]
fn draid2_with_a_distributed_spare_matches_the_golden_images() {
    // One member is offline and replaced by the spare, so two more may be lost.
    let Some(mut pool) = open("draid2") else {
        return;
    };
    let runs = audit_all(&pool, &[]);
    println!(
        "draid2: {} blocks, {runs} runs of bytes right",
        pool.blocks.len()
    );
    survive_losses(&mut pool, 2, 3);
}

#[test]
fn expanded_raidz_matches_the_golden_images() {
    check("expanded", 1, 2);
    check("v24-raidz", 1, 2);
}

#[test]
fn raidz_during_expansion_matches_the_golden_images() {
    check("expanding", 1, 4);
}

#[test]
fn a_removed_vdev_is_read_where_its_data_went() {
    let Some(pool) = open("removed") else { return };
    let runs = audit_all(&pool, &[]);
    let removed: Vec<_> = pool
        .tree
        .tops()
        .filter(|(_, node)| node.kind == VdevKind::Indirect)
        .map(|(id, _)| id)
        .collect();
    let through = pool
        .blocks
        .iter()
        .filter(|(range, _)| removed.contains(&range.vdev))
        .count();
    assert!(through > 20, "{through} blocks of the removed vdev");
    println!(
        "removed: {} blocks, {through} through the mapping, {runs} runs",
        pool.blocks.len()
    );
}

#[test]
fn spares_and_replacements_match_the_golden_images() {
    for name in [
        "spare-used",
        "resilver-mid",
        "classes",
        "stripe3",
        "gang-raidz",
    ] {
        if let Some(pool) = open(name) {
            let runs = audit_all(&pool, &[]);
            println!(
                "{name}: {} blocks, {runs} runs of bytes right",
                pool.blocks.len()
            );
        }
    }
}

#[test]
fn only_damaged_members_are_blamed() {
    for (name, liars) in [
        ("corrupt-mirror", &[0u32, 1][..]),
        ("corrupt-raidz1", &[1]),
        ("corrupt-raidz2", &[0, 3]),
        ("corrupt-raidz2-split", &[0, 1, 2, 4]),
    ] {
        let Some(pool) = open(name) else { continue };
        audit_all(&pool, liars);
        let mut named = BTreeSet::new();
        for (range, bp) in &pool.blocks {
            let resolved = pool.read(*range, bp).unwrap();
            named.extend(resolved.liars.iter().map(|blame| blame.leaf.0));
        }
        println!("{name}: liars {named:?}");
        assert!(!named.is_empty() && named.iter().all(|leaf| liars.contains(leaf)));
    }
}

/// Plans the write of every block and compares it with the contents of its leaves.
fn write_again(name: &str) {
    let Some(pool) = open(name) else { return };
    let whole = whole_leaves(&pool);
    let mut bytes = 0;
    for (range, bp) in &pool.blocks {
        let block = pool.read(*range, bp).expect("readable").data;
        let plan = WritePlan::new(&pool.tree, &pool.health, *range, &block).expect("writable");
        assert!(!plan.writes().is_empty());
        for write in plan.writes() {
            if !whole.contains(&write.leaf) {
                continue;
            }
            let read = LeafRead {
                leaf: write.leaf,
                offset_bytes: write.offset_bytes,
                length_bytes: write.length_bytes(),
            };
            let held = pool.serve(&[read]).remove(0).expect("readable");
            assert!(*held == *write.bytes(&block), "{name}: {range:?} {read:?}");
            bytes += write.length_bytes();
        }
    }
    println!(
        "{name}: {} blocks, {bytes} bytes as they are",
        pool.blocks.len()
    );
}

#[test]
fn writing_any_block_of_a_mirror_again_changes_nothing() {
    write_again("mirror2");
    write_again("mirror3");
}

#[test]
fn writing_any_block_of_raidz_again_changes_nothing() {
    for name in ["raidz1-3", "raidz2-5", "raidz3-7", "expanded", "v24-raidz"] {
        write_again(name);
    }
}
