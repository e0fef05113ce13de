//! Chooses one of several devices that carry the label of the same leaf: paths to one disk, or copies of it.
//!
//! Everything else about a pool (which state is the newest, which leaves diverged) is found out from the chosen devices. A
//! copy that was used elsewhere has the guids of the original, so its uberblocks must not be taken for the original's.

use crate::import::scan::FoundLeaf;
use crate::import::{States, states};
use millpond_ondisk::{BlockPointer, Txg};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A device in the list of those found.
#[derive(Debug)]
struct Copy {
    at: usize,
    is_verified: bool,
    states: States,
    path: String,
}

impl Copy {
    fn new(at: usize, leaf: &FoundLeaf) -> Self {
        Self {
            at,
            is_verified: leaf.best.is_verified,
            states: states(&leaf.ring),
            path: leaf.candidate.path.display().to_string(),
        }
    }
    fn end(&self) -> Option<Txg> {
        self.states.keys().next_back().copied()
    }
    /// Whether its rings show the last state of `other`, or that shows none: then it has all that `other` has.
    fn continues(&self, other: &Self) -> bool {
        other
            .states
            .last_key_value()
            .is_none_or(|last| self.holds(last))
    }
    fn holds(&self, (txg, roots): (&Txg, &Vec<BlockPointer>)) -> bool {
        let own = self.states.get(txg);
        own.is_some_and(|own| roots.iter().any(|root| own.contains(root)))
    }
    /// Whether its rings show that it was used without the devices whose states are `others`.
    fn contradicts(&self, others: &States) -> bool {
        let mut all = others.iter();
        all.any(|of_txg| self.states.contains_key(of_txg.0) && !self.holds(of_txg))
    }
}

/// Marks the devices of `leaves` that are not used because another one with the same label is, and those that are used
/// although it is not known which one belongs to the others.
pub(crate) fn choose(leaves: &mut [FoundLeaf]) {
    let mut pools: BTreeMap<u64, BTreeMap<u64, Vec<usize>>> = BTreeMap::new();
    for (at, leaf) in leaves.iter_mut().enumerate() {
        leaf.is_passed_over = false;
        leaf.rivals.clear();
        if leaf.best.state.has_pool() {
            let pool = pools.entry(leaf.best.pool_guid.0).or_default();
            pool.entry(leaf.guid().0).or_default().push(at);
        }
    }
    for groups in pools.into_values() {
        if groups.values().any(|group| group.len() > 1) {
            let groups = groups.into_values().map(|mut group| {
                group.sort_by_key(|at| Reverse(leaves.get(*at).map(FoundLeaf::preference)));
                let copies = group.into_iter();
                let copies = copies.filter_map(|at| Some(Copy::new(at, leaves.get(at)?)));
                copies.collect()
            });
            choose_in_pool(leaves, groups.collect());
        }
    }
}

/// The same for the devices of one pool: those of each leaf, the preferred ones first.
fn choose_in_pool(leaves: &mut [FoundLeaf], groups: Vec<Vec<Copy>>) {
    let is_sure = |group: &&Vec<Copy>| {
        let first = group.first();
        first.is_some_and(|first| group.iter().all(|copy| copy.continues(first)))
    };
    let sure = merged(groups.iter().filter(is_sure));
    let kept: Vec<Vec<Copy>> = groups
        .into_iter()
        .map(|group| without_older(leaves, group, &sure))
        .collect();
    let others = merged(kept.iter().filter(|group| group.len() == 1));
    let newest = kept.iter().flatten().max_by_key(|copy| copy.end());
    let newest = newest.map(|copy| copy.states.clone()).unwrap_or_default();
    for group in kept.iter().filter(|group| group.len() > 1) {
        let chosen = preferred(group, &others);
        // If the pool is only read, its devices should at least belong together.
        let fitting = || {
            let last = newest.last_key_value()?;
            group.iter().find(|copy| copy.holds(last))
        };
        let used = chosen.or_else(fitting).or(group.first());
        for copy in group {
            let Some(leaf) = leaves.get_mut(copy.at) else {
                continue;
            };
            leaf.is_passed_over = used.is_some_and(|used| used.at != copy.at);
            if !leaf.is_passed_over && chosen.is_none() {
                leaf.rivals = group.iter().map(|copy| copy.path.clone()).collect();
            }
        }
    }
}

/// Passes over equal devices, and copies that another one continues: nothing of them is lost. What is left differs.
///
/// A copy at which the other devices of the pool end is not older than they are: what continues it may have been used
/// elsewhere.
fn without_older(leaves: &mut [FoundLeaf], group: Vec<Copy>, sure: &States) -> Vec<Copy> {
    let mut kept: Vec<Copy> = vec![];
    for copy in group {
        let is_end = sure
            .last_key_value()
            .is_some_and(|last| copy.end() == Some(*last.0) && copy.holds(last));
        let is_older = kept.iter().any(|other| {
            let is_worse = other.is_verified && !copy.is_verified;
            is_worse || other.continues(&copy) && !(is_end && other.end() > copy.end())
        });
        match (is_older, leaves.get_mut(copy.at)) {
            (true, Some(leaf)) => leaf.is_passed_over = true,
            _ => kept.push(copy),
        }
    }
    kept
}

/// The one of several copies that belongs to the other devices, whose states are `others`: it alone has their newest state
/// that any of the copies has, and the rest is older or was certainly used without them.
fn preferred<'a>(group: &'a [Copy], others: &States) -> Option<&'a Copy> {
    let mut newest_first = others.iter().rev();
    let common = newest_first.find(|state| group.iter().any(|copy| copy.holds(*state)))?;
    let mut holders = group.iter().filter(|copy| copy.holds(common));
    let (first, second) = (holders.next()?, holders.next());
    let is_out =
        |copy: &Copy| copy.at == first.at || copy.end() < first.end() || copy.contradicts(others);
    let is_clear = second.is_none() && !first.contradicts(others) && group.iter().all(is_out);
    is_clear.then_some(first)
}

/// The states of the first copy of each group.
fn merged<'a>(groups: impl Iterator<Item = &'a Vec<Copy>>) -> States {
    let mut merged = States::new();
    for (txg, roots) in groups
        .filter_map(|group| group.first())
        .flat_map(|copy| &copy.states)
    {
        merged.entry(*txg).or_default().extend(roots);
    }
    merged
}
