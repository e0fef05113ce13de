use millpond_ondisk::{Guid, Txg};

use super::*;
use crate::health::{LeafEntry, LeafTable};
use crate::tree::{LeafId, Reflow, VdevConfig, VdevType};
use crate::twin::{leaf, over};

fn order(sources: &[Source]) -> Vec<u32> {
    sources.iter().map(|source| source.leaf.0).collect()
}

fn mirror_of(count: u64) -> VdevTree {
    let children = (0..count).map(|at| leaf(10 + at)).collect();
    let mirror = VdevConfig {
        ashift: 9,
        ..over(VdevType::Mirror, 5, children)
    };
    VdevTree::new(VdevConfig::root(Guid(1), vec![mirror]), Reflow::default()).unwrap()
}

#[test]
fn complete_leaves_precede_stale_and_absent_ones() {
    let tree = mirror_of(4);
    let mut health = LeafTable::all_good(4);
    *health.entry(LeafId(0)).unwrap() = LeafEntry {
        is_readable: false,
        missed: vec![],
    };
    health.entry(LeafId(1)).unwrap().missed = vec![];
    health.entry(LeafId(1)).unwrap().missed.push(5..8);
    let at = |birth| order(&sources(&tree, &health, NodeId(1), 4 << 20, Txg(birth)));
    assert_eq!(at(7), [2, 3, 1, 0]);
    // In another txg leaf 1 is as good as the others, and reads rotate over three leaves.
    assert_eq!(at(8).last(), Some(&0));
    assert_eq!(at(8).len(), 4);
}

#[test]
fn the_next_side_is_read_every_2_mib() {
    let tree = mirror_of(3);
    let first = |offset: u64| {
        order(&sources(
            &tree,
            &LeafTable::all_good(3),
            NodeId(1),
            offset,
            Txg(1),
        ))[0]
    };
    let turns: Vec<u32> = (0..6u64).map(|at| first(at << 21)).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    assert_eq!(first(5), first((2 << 20) - 1));
}

/// Leaves that are all good, with this number of requests each.
struct Loaded(&'static [u64]);

impl Health for Loaded {
    fn leaf(&self, _: LeafId, _: Txg) -> LeafHealth {
        LeafHealth::Good
    }
    fn load(&self, leaf: LeafId) -> u64 {
        self.0[leaf.0 as usize]
    }
}

/// Leaves in these states.
struct InState(&'static [LeafHealth]);

impl Health for InState {
    fn leaf(&self, leaf: LeafId, _: Txg) -> LeafHealth {
        self.0[leaf.0 as usize]
    }
}

#[test]
fn slow_sides_come_between_good_and_stale_ones() {
    use LeafHealth::{Good, Slow, Stale};
    let tree = mirror_of(4);
    let health = InState(&[Stale, Slow, Good, Good]);
    for (offset, expected) in [(0, [2, 3, 1, 0]), (2 << 20, [3, 2, 1, 0])] {
        let found = sources(&tree, &health, NodeId(1), offset, Txg(1));
        assert_eq!(order(&found), expected);
        let stale: Vec<bool> = found.iter().map(|source| source.is_stale).collect();
        assert_eq!(stale, [false, false, false, true]);
    }
}

#[test]
fn a_busy_side_is_left_for_the_least_busy_one() {
    let tree = mirror_of(3);
    let at = |loads, offset| order(&sources(&tree, &Loaded(loads), NodeId(1), offset, Txg(1)));
    assert_eq!(at(&[1, 0, 0], 0), [0, 1, 2]);
    assert_eq!(at(&[2, 1, 1], 0), [0, 1, 2]);
    assert_eq!(at(&[2, 1, 0], 0), [2, 0, 1]);
    assert_eq!(at(&[5, 3, 3], 0), [1, 0, 2]);
    // The second side's turn.
    assert_eq!(at(&[0, 2, 3], 2 << 20), [0, 1, 2]);
}

#[test]
fn spares_that_point_at_each_other_end_the_walk() {
    // Every child of the dRAID vdev is replaced by both of its distributed spares, as in no real pool.
    let children = (0..5u64)
        .map(|at| {
            let dspare = |id: u64| VdevConfig {
                spare_id: Some(id),
                ..VdevConfig::new(VdevType::DraidSpare, Guid(100 + at * 10 + id))
            };
            over(
                VdevType::Spare,
                50 + at,
                vec![leaf(10 + at), dspare(0), dspare(1)],
            )
        })
        .collect();
    let draid = VdevConfig {
        ashift: 12,
        nparity: Some(1),
        draid_ndata: Some(2),
        draid_nspares: Some(2),
        draid_ngroups: Some(1),
        ..over(VdevType::Draid, 5, children)
    };
    let tree = VdevTree::new(VdevConfig::root(Guid(1), vec![draid]), Reflow::default()).unwrap();
    for child in tree.node(NodeId(1)).unwrap().children.clone() {
        for slice in 0..40u64 {
            let offset = (4 << 20) + (slice << 24);
            let found = sources(&tree, &crate::AllGood, child, offset, Txg(1));
            assert!(!found.is_empty() && found.len() <= 5);
        }
    }
}
