//! Layer `admin`: verifies every copy, mirror side and parity column of all blocks in a pool.
//!
//! The traversal starts at the uberblock's root pointer and at every dataset and snapshot. A block that a snapshot
//! shares with an older one is verified with the older one, so each block is verified once. Memory does not
//! grow with the size of the pool. Deferred frees are not verified, because they are never read again.

#![forbid(unsafe_code)]

mod blocks;
mod losses;
mod metadata;
mod report;
mod shared;

pub use losses::{Losses, LostObject};
pub use metadata::LostMetadata;
pub use report::{
    DAMAGED_OBJECTS_MAX, DamagedObject, LeafReport, PoolVerdict, Problem, ProblemKind, VerifyReport,
};

use blocks::BlockVerifier;
use millpond_dataset::{Dataset, DatasetError, Directory, KeyRing};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::thread;
use millpond_ondisk::{ObjectId, Txg};
use millpond_pool::import::read_labels;
use millpond_pool::{LoggedError, PoolView};
use millpond_posix::FileSystem;
pub use millpond_traverse::Progress;
use millpond_traverse::{Budget, Traversal, Tree};
use std::collections::{BTreeMap, HashSet};

/// The problems of a damaged object, collected during the traversal.
#[derive(Default)]
struct Tally {
    lost: u64,
    repairable: u64,
    first: String,
}

/// The lost blocks found during the traversal.
#[derive(Default)]
struct LostBlocks {
    blocks: Vec<LoggedError>,
    are_more: bool,
}

impl LostBlocks {
    fn add(&mut self, problem: &Problem) {
        if matches!(problem.kind, ProblemKind::Repairable(_)) {
            return;
        }
        if self.blocks.len() >= losses::LOST_BLOCKS_MAX {
            self.are_more = true;
            return;
        }
        let address = &problem.address;
        let mut block = LoggedError::new(address.dataset, address, Txg(0));
        block.birth = problem.birth;
        self.blocks.push(block);
    }

    fn is_complete(&self, troubles: &[String]) -> bool {
        !self.are_more && troubles.is_empty()
    }
}

/// Reads and verifies every copy of all blocks in the pool, with all cores.
///
/// `on_problem` is called for each problem when it is found, from several threads. The report lists the
/// affected objects and files, those of encrypted datasets if `keys` has their keys. Damage is part of the
/// report.
pub fn verify_pool(
    pool: &Arc<PoolView>,
    keys: &KeyRing,
    progress: &Progress,
    on_problem: &(dyn Fn(&Problem) + Sync),
) -> VerifyReport {
    let mut roots = vec![];
    let mut troubles = vec![];
    collect_roots(pool, &mut roots, &mut troubles);
    let store = pool.store();
    let report = Mutex::new(VerifyReport::default());
    let tallies: Mutex<BTreeMap<(u64, u64), Tally>, rank::Leaf> = Mutex::new(BTreeMap::new());
    let overflow = AtomicU64::new(0);
    let lost: Mutex<LostBlocks, rank::Leaf> = Mutex::default();
    let note = |problem: &Problem| {
        tally(&tallies, &overflow, problem);
        lost.lock().add(problem);
        on_problem(problem);
    };
    let blocks = BlockVerifier {
        store,
        progress,
        report: &report,
        on_problem: &note,
        shared: Mutex::new(HashSet::new()),
        lost_shared: Mutex::default(),
        budget: Budget::new(store.topology().capacity_bytes()),
    };
    // The first tree begins last on the stack.
    roots.reverse();
    Traversal::new(store, &blocks).run_parallel(roots, vec![], thread::parallelism() * 2);
    let lost_shared = blocks.lost_shared.into_inner();
    let mut roots = vec![];
    collect_roots(pool, &mut roots, &mut vec![]);
    lost_shared.report_others(store, roots, &note);
    let mut report = report.into_inner();
    let lost: LostBlocks = lost.into_inner();
    report.losses = losses::collect(pool, keys, &lost.blocks, lost.is_complete(&troubles));
    for trouble in troubles {
        report.invalid += 1;
        on_problem(&Problem {
            address: millpond_block::BlockAddress::default(),
            birth: None,
            kind: ProblemKind::Invalid(trouble),
        });
    }
    judge_labels(pool, &mut report);
    let (tallies, overflow) = (tallies.into_inner(), overflow.into_inner());
    name_objects(pool, keys, tallies, &mut report);
    report.damaged_not_listed += overflow;
    report
}

/// Collects all object sets of the pool: the MOS, then each head and snapshot, including internal and
/// temporary ones.
fn collect_roots(pool: &Arc<PoolView>, roots: &mut Vec<Tree<()>>, troubles: &mut Vec<String>) {
    roots.push(Tree {
        born_after: Some(Txg(0)),
        ..Tree::new(0, pool.uberblock().root, ())
    });
    let mut stack = vec![];
    match Directory::root(pool) {
        Ok(root) => stack.push(root),
        Err(error) => troubles.push(error.to_string()),
    }
    while let Some(directory) = stack.pop() {
        match directory.child_entries() {
            Ok(children) => {
                for (component, id) in children.into_iter().rev() {
                    match directory.open_child(&component, id) {
                        Ok(child) => stack.push(child),
                        Err(error) => troubles.push(error.to_string()),
                    }
                }
            }
            Err(error) => troubles.push(error.to_string()),
        }
        if let Err(error) = push_datasets(&directory, roots, troubles) {
            troubles.push(error.to_string());
        }
    }
}

fn judge_labels(pool: &PoolView, report: &mut VerifyReport) {
    let topology = pool.store().topology();
    for ((leaf, _), device) in topology.tree.leaves().zip(&topology.devices) {
        let Some(device) = device else { continue };
        for (number, label) in read_labels(device.as_ref()).into_iter().enumerate() {
            let trouble = match label {
                Ok(label) if label.is_verified => continue,
                Ok(_) => "checksum does not match".to_owned(),
                Err(fault) => fault.to_string(),
            };
            let entry = report.leaves.entry(leaf.0).or_default();
            entry.name = topology.leaf_name(leaf);
            entry.labels.push((number, trouble));
        }
    }
}

/// Resolves names of damaged objects, worst first.
fn name_objects(
    pool: &Arc<PoolView>,
    keys: &KeyRing,
    tallies: BTreeMap<(u64, u64), Tally>,
    report: &mut VerifyReport,
) {
    let mut tallies: Vec<_> = tallies.into_iter().collect();
    tallies.sort_by_key(|(_, tally)| std::cmp::Reverse((tally.lost > 0, tally.lost)));
    let mut open: Option<(u64, Option<Dataset>)> = None;
    for ((dataset, object), tally) in tallies {
        if open.as_ref().is_none_or(|(id, _)| *id != dataset) {
            let found = match dataset {
                0 => None,
                id => Dataset::by_id(pool, ObjectId(id)).ok(),
            };
            open = Some((dataset, found));
        }
        let known = open.as_ref().and_then(|(_, dataset)| dataset.as_ref());
        let path = known.and_then(|dataset| {
            let key = keys.key_of(dataset.directory()).ok()?;
            let files = FileSystem::open(dataset.object_set(key).ok()?).ok()?;
            files.path_of(ObjectId(object)).ok().flatten()
        });
        report.damaged.push(DamagedObject {
            dataset: known.map(|dataset| dataset.name().to_owned()),
            object,
            path,
            lost: tally.lost,
            repairable: tally.repairable,
            first: tally.first,
        });
    }
}

fn tally(
    tallies: &Mutex<BTreeMap<(u64, u64), Tally>, rank::Leaf>,
    overflow: &AtomicU64,
    problem: &Problem,
) {
    let key = (problem.address.dataset, problem.address.object.0);
    let mut tallies = tallies.lock();
    if tallies.len() >= DAMAGED_OBJECTS_MAX && !tallies.contains_key(&key) {
        overflow.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let tally = tallies.entry(key).or_default();
    let words = match &problem.kind {
        ProblemKind::Lost(words) => {
            tally.lost += 1;
            words.join("; ")
        }
        ProblemKind::Repairable(words) => {
            tally.repairable += 1;
            words.join("; ")
        }
        ProblemKind::Invalid(words) => {
            tally.lost += 1;
            words.clone()
        }
    };
    if tally.first.is_empty() {
        tally.first = format!("{}: {words}", problem.address);
    }
}

fn push_datasets(
    directory: &Arc<Directory>,
    roots: &mut Vec<Tree<()>>,
    troubles: &mut Vec<String>,
) -> Result<(), DatasetError> {
    let Some(head) = directory.head()? else {
        return Ok(());
    };
    for (name, id) in head.snapshot_entries()? {
        match head.open_snapshot(&name, id) {
            Ok(snapshot) => roots.push(root_of(&snapshot)),
            Err(error) => troubles.push(error.to_string()),
        }
    }
    roots.push(root_of(&head));
    Ok(())
}

/// A block that a snapshot shares with an older one is verified with the older one.
fn root_of(dataset: &Dataset) -> Tree<()> {
    Tree {
        born_after: Some(dataset.phys().previous_snapshot_txg),
        has_log: !dataset.is_snapshot(),
        ..Tree::new(dataset.id().0, dataset.phys().block_pointer, ())
    }
}
