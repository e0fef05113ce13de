//! Runs the steps of a check in order.

use super::claims::BlockSums;
use super::disputes::{FreeSpace, Holder, Watch};
use super::dsl::Dsl;
use super::files::FilesJob;
use super::finding::{Finding, FindingKind};
use super::lists::{DeadCounted, Lists, each_block};
use super::mos::MosPass;
use super::objects::References;
use super::report::Findings;
use super::shared::{Clones, Dedups};
use super::space::Space;
use super::space_sums::{Evidence, Judge};
use super::sums::{Mark, Ratios, Sums};
use super::trees::{BlockCheck, Counted, DatasetTree, Tally};
use super::{CheckOptions, CheckReport, CheckTotals, Progress};
use super::{features, labels, names};
use millpond_alloc::deflate_ratio;
use millpond_dataset::{DatasetError, KeyRing, traverse_destroyed_tree};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::thread;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::space_map::SpaceMapUnits;
use millpond_ondisk::{
    BlockPointer, BpTreeEntry, BpTreePhys, Dva, ObjectId, SpaceAction, SpaceMapEntries,
    SpaceMapEntry, SpaceMapPhys, Txg, VdevId,
};
use millpond_pool::PoolView;
use millpond_traverse::{Budget, Job, Outcome, Traversal, Tree};
use millpond_vdev::IndirectMapping;
use millpond_zap::Zap;
use std::collections::{HashMap, HashSet};

/// What a pass over all trees and lists counted.
struct Pass {
    trees: Vec<Counted>,
    mos: Counted,
    dead: Vec<Option<DeadCounted>>,
    live: Vec<Option<(Mark, Sums)>>,
    free: Option<Sums>,
    empty_references: u64,
    deleted_livelists: u64,
}

/// The state that does not change during a check.
pub(super) struct Scene<'a> {
    pub(super) pool: &'a Arc<PoolView>,
    pub(super) keys: &'a KeyRing,
    pub(super) options: &'a CheckOptions,
    pub(super) progress: &'a Progress,
    pub(super) dsl: &'a Dsl,
    ratios: &'a Ratios,
    space: &'a Space,
    clones: &'a Clones,
    dedups: &'a Dedups,
    /// The removal under way, and the copies that it has made.
    removing: Option<(VdevId, IndirectMapping)>,
    empty: Option<ObjectId>,
}

pub(super) fn check(
    pool: &Arc<PoolView>,
    keys: &KeyRing,
    options: &CheckOptions,
    progress: &Progress,
    on_finding: &(dyn Fn(&Finding) + Sync),
) -> Result<CheckReport, DatasetError> {
    let findings = Findings::new(on_finding, options.findings_max);
    let references = References::default();
    let dsl = Dsl::gather(pool, &findings, &references)?;
    let mut space = Space::load(pool, &findings);
    claim_checkpoint(pool, &mut space, &findings, &references);
    let ratios = ratios_of(pool);
    let clones = Clones::load(pool, &findings, &references);
    let dedups = Dedups::load(pool, &findings);
    let empty = pool.find_directory_object(key::EMPTY_BPOBJ).ok().flatten();
    let scene = Scene {
        pool,
        keys,
        options,
        progress,
        dsl: &dsl,
        ratios: &ratios,
        space: &space,
        clones: &clones,
        dedups: &dedups,
        removing: removal_mapping(pool, &findings),
        empty,
    };
    let shared = Mutex::default();
    let sums = BlockSums::default();
    let mos_pass = MosPass::default();
    let mut pass = scene.pass(
        &findings,
        &references,
        &shared,
        &sums,
        None,
        Some(&mos_pass),
    );
    scene.judge_disputes(&findings);
    let leaked = space.tell_leaks(&findings);
    let met = shared.into_inner();
    clones.judge(&met, &findings);
    dedups.judge(&met, &clones, &findings);
    let used: Vec<_> = pass.trees.iter().map(|counted| counted.features).collect();
    let counts = features::Counted {
        empty_references: pass.empty_references,
        deleted_livelists: pass.deleted_livelists,
        clone_tables: clones.tables,
        dedup_tables: fast_dedup_tables(pool),
        features: &used,
    };
    let evidence = Evidence {
        counted: std::mem::take(&mut pass.trees),
        dead: pass.dead,
        live: pass.live,
        mos: pass.mos,
        free: pass.free,
    };
    Judge {
        dsl: &dsl,
        evidence: &evidence,
        findings: &findings,
    }
    .run();
    mos_pass.finish(pool, &dsl, &counts, references, &findings);
    labels::judge(pool, &findings);
    let of = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    let totals = CheckTotals {
        pointers: of(&sums.pointers),
        embedded: of(&sums.embedded),
        logical_bytes: of(&sums.logical),
        physical_bytes: of(&sums.physical),
        allocated_bytes: of(&sums.allocated),
        shared_bytes: of(&sums.shared),
        gangs: of(&sums.gangs),
        mapped_bytes: space.mapped_bytes(),
        checkpoint_bytes: space.checkpoint_bytes(),
        leaked_bytes: leaked,
        objects: progress.objects(),
    };
    let mut report = findings.finish(totals);
    names::add_paths(pool, keys, &mut report);
    Ok(report)
}

/// The copies that a removal under way has made. Each belongs to the owner of what was copied.
fn removal_mapping(pool: &PoolView, findings: &Findings<'_>) -> Option<(VdevId, IndirectMapping)> {
    pool.removal_mapping().unwrap_or_else(|error| {
        let detail = format!("the removal of a vdev: {error}");
        Finding::new(FindingKind::Unreadable, detail).into(findings);
        None
    })
}

/// The number of dedup tables that `fast_dedup` counts.
fn fast_dedup_tables(pool: &PoolView) -> u64 {
    let names = pool.directory_names().unwrap_or_default();
    let is_table = |name: &&String| {
        let rest = name.strip_prefix("DDT-");
        rest.is_some_and(|rest| rest != "statistics" && !rest.contains('-'))
    };
    names.iter().filter(is_table).count() as u64
}

fn ratios_of(pool: &Arc<PoolView>) -> Ratios {
    let topology = pool.store().topology();
    let is_deflated = matches!(pool.directory_number(key::DEFLATE), Ok(Some(1..)));
    let ids = topology.tree.tops().map(|(id, _)| id);
    let ratio = |id| {
        let typical = topology.tree.asize(id, 128 << 10, Txg(0));
        match typical.filter(|_| is_deflated) {
            Some(bytes) => deflate_ratio(bytes),
            None => 512,
        }
    };
    Ratios(ids.map(|id| (id, ratio(id))).collect())
}

/// Claims the space that is allocated only for a checkpoint. No other structure may claim it.
fn claim_checkpoint(
    pool: &Arc<PoolView>,
    space: &mut Space,
    findings: &Findings<'_>,
    references: &References,
) {
    let topology = pool.store().topology();
    for (vdev, node) in topology.tree.tops() {
        let Some(zap) = node.config.zap_top.and_then(ObjectId::some) else {
            continue;
        };
        let found = (|| -> Result<Option<Vec<Dva>>, String> {
            let object = pool.mos().object(zap).map_err(|error| error.to_string())?;
            let zap = Zap::open(object).map_err(|error| error.to_string())?;
            let id = zap
                .lookup_u64(vdev_key::CHECKPOINT_SPACE_MAP.as_bytes())
                .map_err(|error| error.to_string())?;
            let Some(id) = id.and_then(|id| ObjectId(id).some()) else {
                return Ok(None);
            };
            references.note(id, "the space map of a checkpoint");
            let object = pool.mos().object(id).map_err(|error| error.to_string())?;
            let bonus = object.bonus().map_err(|error| error.to_string())?;
            let phys = SpaceMapPhys::decode(bonus, object.dnode().endian)
                .map_err(|error| error.to_string())?;
            let units = SpaceMapUnits {
                shift: node.ashift.0,
                start_bytes: 0,
                size_bytes: Some(node.config.asize_bytes),
            };
            let (mut dvas, mut wrong) = (vec![], None);
            each_block(&object, phys.length_bytes, 1, &mut |bytes, endian| {
                for entry in SpaceMapEntries::new(bytes, endian) {
                    let range = match entry {
                        Ok(SpaceMapEntry::Range {
                            action: SpaceAction::Free,
                            offset_units,
                            run_units,
                            ..
                        }) => units.range_bytes(offset_units, run_units),
                        Ok(_) => continue,
                        Err(error) => Err(error),
                    };
                    match range {
                        Ok(range) => dvas.push(Dva {
                            vdev,
                            offset_bytes: range.start,
                            asize_bytes: range.end - range.start,
                            is_gang: false,
                        }),
                        Err(error) => wrong = Some(error.to_string()),
                    }
                }
            })?;
            wrong.map_or(Ok(Some(dvas)), Err)
        })();
        match found {
            Ok(None) => {}
            Ok(Some(dvas)) => {
                for dva in dvas {
                    space.claim_for_checkpoint(&dva, findings);
                }
            }
            Err(error) => {
                let detail = format!("checkpoint's space map of vdev {vdev}: {error}");
                Finding::new(FindingKind::SpaceMap, detail).into(findings);
            }
        }
    }
}

impl Scene<'_> {
    /// Jobs that count the deadlists and livelists of all datasets.
    fn list_jobs<'j>(
        &'j self,
        lists: &'j Lists<'_>,
        dead: &'j [Mutex<Option<DeadCounted>, rank::CheckSums>],
        live: &'j [Mutex<Option<(Mark, Sums)>, rank::CheckSums>],
    ) -> Vec<Job<'j>> {
        let mut jobs: Vec<Job<'j>> = vec![];
        for (at, node) in self.dsl.datasets.iter().enumerate() {
            if let Some(id) = node.phys.deadlist {
                jobs.push(Box::new(move || {
                    let counted = lists.deadlist(&node.name, id, &mut |_| {});
                    *dead[at].lock() = Some(counted);
                }));
            }
            if let Ok(Some(words)) = node.dataset.extension(keys::REMAP_DEADLIST)
                && let Some(id) = words.first().copied()
            {
                jobs.push(Box::new(move || {
                    lists.deadlist(&node.name, ObjectId(id), &mut |_| {});
                }));
            }
            let directory = &self.dsl.directories[node.directory];
            if node.next.is_none()
                && let Ok(Some(words)) = directory.directory.extension(keys::LIVELIST)
                && let Some(id) = words.first().copied()
            {
                jobs.push(Box::new(move || {
                    *live[at].lock() = lists.livelist(&node.name, ObjectId(id), &mut |_| {});
                }));
            }
        }
        jobs
    }

    /// Visits all structures that own blocks; with `mos_pass`, also tables and files.
    fn pass(
        &self,
        findings: &Findings<'_>,
        references: &References,
        shared: &Mutex<HashMap<(u32, u64), u64>, rank::CheckSums>,
        sums: &BlockSums,
        watch: Option<&Watch>,
        mos_pass: Option<&MosPass>,
    ) -> Pass {
        let pool = self.pool;
        let store = pool.store();
        let topology = store.topology();
        let capacity = topology.capacity_bytes();
        let tally = |tree| {
            Arc::new(Tally {
                tree,
                counted: Mutex::default(),
                logged: Mutex::default(),
            })
        };
        let mos_tally = tally(DatasetTree::of_mos(pool.uberblock().root));
        let tallies: Vec<Arc<Tally>> = (0..self.dsl.datasets.len())
            .map(|at| tally(self.dsl.tree(at)))
            .collect();
        let lists = Lists {
            mos: pool.mos(),
            ratios: self.ratios,
            findings,
            references,
            empty: self.empty,
            met: Mutex::new(HashSet::new()),
            empty_references: Mutex::new(0),
        };
        let dead: Vec<Mutex<Option<DeadCounted>, rank::CheckSums>> =
            tallies.iter().map(|_| Mutex::default()).collect();
        let live: Vec<Mutex<Option<(Mark, Sums)>, rank::CheckSums>> =
            tallies.iter().map(|_| Mutex::default()).collect();
        let free: Mutex<_, rank::CheckSums> = Mutex::new((Some(Sums::default()), 0u64));
        let is_cloned = |pointer: &BlockPointer| self.clones.has(pointer);
        let blocks = BlockCheck {
            store,
            topology,
            space: self.space,
            ratios: self.ratios,
            findings,
            progress: self.progress,
            shared,
            is_cloned: &is_cloned,
            synced: pool.uberblock().txg,
            sums,
            watch,
            removing: self.removing.as_ref(),
            claims: Budget::new(capacity.saturating_mul(2)),
        };
        let trees: Vec<Tree<Arc<Tally>>> = [&mos_tally]
            .into_iter()
            .chain(&tallies)
            .map(|tally| Tree {
                previous: Some(tally.tree.previous_root),
                has_log: tally.tree.has_log,
                ..Tree::new(tally.tree.dataset, tally.tree.root, Arc::clone(tally))
            })
            .collect();
        // Long work for single threads begins before the trees, which all threads share.
        let (blocks, lists, dead, live, free) = (&blocks, &lists, &dead, &live, &free);
        let mut jobs = match watch {
            Some(_) => vec![],
            None => self.list_jobs(lists, dead, live),
        };
        jobs.push(Box::new(|| {
            *free.lock() = self.free_lists(blocks, lists);
        }));
        if let Some(mos_pass) = mos_pass {
            jobs.push(Box::new(|| {
                mos_pass.run(self.pool, self.progress, findings);
            }));
            let files = FilesJob::of(self, findings);
            for job in files {
                jobs.push(Box::new(move || job.run()));
            }
        }
        let traversal = Traversal::new(store, blocks).metadata_bytes_max(capacity);
        let outcome = traversal.run_parallel(trees, jobs, thread::parallelism());
        if matches!(outcome, Outcome::OverBudget(_)) && !blocks.claims.is_spent() {
            blocks.tell_over_budget();
        }
        let counted = |tally: &Arc<Tally>| *tally.counted.lock();
        let (free, deleted_livelists) = *free.lock();
        Pass {
            trees: tallies.iter().map(counted).collect(),
            mos: counted(&mos_tally),
            dead: dead.iter().map(|dead| dead.lock().take()).collect(),
            live: live.iter().map(|live| live.lock().take()).collect(),
            free,
            empty_references: *lists.empty_references.lock(),
            deleted_livelists,
        }
    }

    /// Claims the blocks that wait to be freed. Returns the totals charged to `$FREE` and the count of
    /// deleted livelists.
    fn free_lists(&self, blocks: &BlockCheck<'_>, lists: &Lists<'_>) -> (Option<Sums>, u64) {
        let pool = self.pool;
        let mut free = Some(Sums::default());
        let mut deleted = 0;
        let add = |free: &mut Option<Sums>, sums: Option<Sums>| match (&mut *free, sums) {
            (Some(free), Some(sums)) => *free += sums,
            _ => *free = None,
        };
        let find = |key: &str| pool.find_directory_object(key).ok().flatten();
        let own = |pointer: &BlockPointer, words: &str| {
            let holder = || Holder {
                dataset: String::new(),
                object: 0,
                words: words.to_owned(),
            };
            blocks.own(pointer, &holder);
        };
        for pointer in &self.dedups.dead {
            own(pointer, "an entry of a dedup table that is removed");
        }
        if let Some(id) = find(key::FREE_BPOBJ) {
            let sums = lists.read("", id, &mut |entry| {
                own(&entry.pointer, "the list of frees")
            });
            add(&mut free, sums);
        }
        if let Some(id) = find(key::SYNC_BPLIST) {
            // Deferred frees are not charged to any dataset.
            lists.read("", id, &mut |entry| {
                own(&entry.pointer, "the deferred frees")
            });
        }
        if let Some(id) = find(key::OBSOLETE_BPOBJ) {
            lists.read("", id, &mut |_| {});
        }
        if let Some(id) = find(key::BPTREE) {
            lists.references.note(id, "the queue of destroyed trees");
            let sums = self.destroyed_trees(blocks, id, &own);
            if let Err(error) = &sums {
                let detail = format!("the queue of destroyed trees: {error}");
                let finding = Finding::new(FindingKind::Unreadable, detail);
                lists.findings.add(finding.object(id.0));
            }
            add(&mut free, sums.ok());
        }
        if let Some(id) = find(key::DELETED_CLONES) {
            lists.references.note(id, "the set of deleted clones");
            let zap = pool
                .mos()
                .object(id)
                .ok()
                .and_then(|object| Zap::open(object).ok());
            for entry in zap.iter().flat_map(|zap| zap.iter()).flatten() {
                let Some(list) = entry.value.first() else {
                    continue;
                };
                deleted += 1;
                let sums = lists.livelist("", ObjectId(list), &mut |pointer| {
                    own(pointer, "a deleted clone");
                });
                add(&mut free, sums.map(|(_, sums)| sums));
            }
        }
        (free, deleted)
    }

    fn destroyed_trees(
        &self,
        blocks: &BlockCheck<'_>,
        id: ObjectId,
        own: &dyn Fn(&BlockPointer, &str),
    ) -> Result<Sums, String> {
        let object = self
            .pool
            .mos()
            .object(id)
            .map_err(|error| error.to_string())?;
        let bonus = object.bonus().map_err(|error| error.to_string())?;
        let endian = object.dnode().endian;
        let phys = BpTreePhys::decode(bonus, endian).map_err(|error| error.to_string())?;
        let mut sums = Sums::default();
        let capacity = object.length_bytes() / 168;
        for at in phys.begin..phys.end.min(capacity) {
            let mut bytes = [0; 168];
            object
                .read(at * 168, &mut bytes)
                .map_err(|error| error.to_string())?;
            let endian = object
                .read_block(millpond_ondisk::BlockId(
                    at * 168 / object.block_bytes().max(1),
                ))
                .map_or(endian, |block| block.endian);
            let entry = BpTreeEntry::decode(&bytes, endian).map_err(|error| error.to_string())?;
            traverse_destroyed_tree(blocks.store, &entry, &mut |pointer| {
                own(pointer, "a destroyed dataset");
                sums += self.ratios.sums(pointer);
            })?;
        }
        for (what, stored, counted) in [
            ("bytes", phys.bytes, sums.used),
            ("physical bytes", phys.compressed_bytes, sums.compressed),
            ("logical bytes", phys.uncompressed_bytes, sums.uncompressed),
        ] {
            if i64::try_from(stored) != Ok(counted) && blocks.watch.is_none() {
                let detail = format!(
                    "the queue of destroyed trees, {what}: {stored} stored, {counted} counted"
                );
                let finding = Finding::new(FindingKind::BlockListSum, detail);
                blocks.findings.add(finding.object(id.0));
            }
        }
        Ok(sums)
    }

    /// Visits all trees again to find the owners of disputed ranges.
    fn judge_disputes(&self, findings: &Findings<'_>) {
        let disputes = self.space.disputes();
        if disputes.is_empty() {
            return;
        }
        let watch = Watch::new(&disputes);
        let silent = |_: &Finding| {};
        let (muted, references) = (Findings::new(&silent, 0), References::default());
        let (shared, sums) = (Mutex::default(), BlockSums::default());
        self.pass(&muted, &references, &shared, &sums, Some(&watch), None);
        let mut maps = FreeSpace::load(self.pool);
        for dispute in disputes {
            let holders = watch.holders(&dispute);
            let place = format!(
                "{} bytes at {:#x} of vdev {}",
                dispute.range.end - dispute.range.start,
                dispute.range.start,
                dispute.vdev
            );
            let names: Vec<String> = holders
                .iter()
                .map(|holder| {
                    let dataset = match holder.dataset.as_str() {
                        "" => "the pool",
                        name => name,
                    };
                    format!("{dataset} object {} {}", holder.object, holder.words)
                })
                .collect();
            let is_free = maps
                .as_mut()
                .is_some_and(|maps| maps.has(self.space, &dispute));
            let (kind, words) = if is_free {
                (
                    FindingKind::AllocatedButFree,
                    "which the space maps call free",
                )
            } else {
                (
                    FindingKind::DoubleAllocation,
                    "which only one of them can own",
                )
            };
            let detail = format!("{place}, {words}: {}", names.join("; "));
            let mut finding = Finding::new(kind, detail);
            if let Some(holder) = holders.first() {
                finding = finding.of(&holder.dataset).object(holder.object);
            }
            findings.add(finding);
        }
    }
}
