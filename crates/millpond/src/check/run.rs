//! Runs the steps of a check in order.

use super::claims::Figures;
use super::disputes::{FreeSpace, Holder, Watch};
use super::dsl::Dsl;
use super::figures::{Evidence, Judge};
use super::files::FilesJob;
use super::finding::{Finding, FindingKind};
use super::lists::{DeadCounted, Lists, each_block};
use super::mos::MosPass;
use super::objects::References;
use super::report::Findings;
use super::shared::Clones;
use super::space::Space;
use super::sums::{Mark, Ratios, Sums};
use super::walk::{Counted, Tally, Tree, Walk, Work};
use super::{CheckOptions, CheckProgress, CheckReport, CheckTotals};
use super::{features, labels, names};
use crate::walk::{Budget, Stack};
use crate::{Error, Pool};
use millpond_alloc::deflate_ratio;
use millpond_dataset::walk_destroyed_tree;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::thread;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::space_map::SpaceMapUnits;
use millpond_ondisk::{
    BlockPointer, BpTreeEntry, BpTreePhys, Dva, ObjectId, SpaceAction, SpaceMapEntries,
    SpaceMapEntry, SpaceMapPhys, Txg,
};
use millpond_zap::Zap;
use std::collections::{HashMap, HashSet};

/// Results of a walk over all trees and lists.
struct Walked {
    trees: Vec<Counted>,
    mos: Counted,
    dead: Vec<Option<DeadCounted>>,
    live: Vec<Option<(Mark, Sums)>>,
    free: Option<Sums>,
    empty_references: u64,
    deleted_livelists: u64,
}

/// The state that does not change during a check.
struct Scene<'a> {
    pool: &'a Pool,
    options: &'a CheckOptions,
    progress: &'a CheckProgress,
    dsl: &'a Dsl,
    ratios: &'a Ratios,
    space: &'a Space,
    clones: &'a Clones,
    empty: Option<ObjectId>,
}

pub(super) fn check(
    pool: &Pool,
    options: &CheckOptions,
    progress: &CheckProgress,
    on_finding: &(dyn Fn(&Finding) + Sync),
) -> Result<CheckReport, Error> {
    let inner = pool.inner();
    let findings = Findings::new(on_finding, options.findings_max);
    let references = References::default();
    let dsl = Dsl::gather(inner, &findings, &references)?;
    let mut space = Space::load(inner, &findings);
    claim_checkpoint(pool, &mut space, &findings, &references);
    let ratios = ratios_of(pool);
    let clones = Clones::load(inner, &findings, &references);
    let empty = inner.find_directory_object(key::EMPTY_BPOBJ).ok().flatten();
    let scene = Scene {
        pool,
        options,
        progress,
        dsl: &dsl,
        ratios: &ratios,
        space: &space,
        clones: &clones,
        empty,
    };
    let shared = Mutex::default();
    let figures = Figures::default();
    let mos_pass = MosPass::default();
    let mut walked = scene.walk(
        &findings,
        &references,
        &shared,
        &figures,
        None,
        Some(&mos_pass),
    );
    scene.judge_disputes(&findings);
    let leaked = space.tell_leaks(&findings);
    clones.judge(&shared.into_inner(), &findings);
    let uses: Vec<_> = walked.trees.iter().map(|counted| counted.uses).collect();
    let counts = features::Counted {
        empty_references: walked.empty_references,
        deleted_livelists: walked.deleted_livelists,
        clone_tables: clones.tables,
        uses: &uses,
    };
    let evidence = Evidence {
        counted: std::mem::take(&mut walked.trees),
        dead: walked.dead,
        live: walked.live,
        mos: walked.mos,
        free: walked.free,
    };
    Judge {
        dsl: &dsl,
        evidence: &evidence,
        findings: &findings,
    }
    .run();
    mos_pass.finish(pool, &dsl, &counts, references, &findings);
    labels::judge(pool, &findings);
    let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let totals = CheckTotals {
        pointers: of(&figures.pointers),
        embedded: of(&figures.embedded),
        logical_bytes: of(&figures.logical),
        physical_bytes: of(&figures.physical),
        allocated_bytes: of(&figures.allocated),
        shared_bytes: of(&figures.shared),
        gangs: of(&figures.gangs),
        mapped_bytes: space.mapped_bytes(),
        checkpoint_bytes: space.checkpoint_bytes(),
        leaked_bytes: leaked,
        objects: progress.objects(),
    };
    let mut report = findings.finish(totals);
    names::add_paths(pool, &mut report);
    Ok(report)
}

fn ratios_of(pool: &Pool) -> Ratios {
    let inner = pool.inner();
    let topology = inner.store().topology();
    let is_deflated = matches!(inner.directory_number(key::DEFLATE), Ok(Some(1..)));
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
    pool: &Pool,
    space: &mut Space,
    findings: &Findings<'_>,
    references: &References,
) {
    let inner = pool.inner();
    let topology = inner.store().topology();
    for (vdev, node) in topology.tree.tops() {
        let Some(zap) = node.config.zap_top.and_then(ObjectId::some) else {
            continue;
        };
        let found = (|| -> Result<Option<Vec<Dva>>, String> {
            let object = inner.mos().object(zap).map_err(|error| error.to_string())?;
            let zap = Zap::open(object).map_err(|error| error.to_string())?;
            let id = zap
                .lookup_u64(vdev_key::CHECKPOINT_SPACE_MAP.as_bytes())
                .map_err(|error| error.to_string())?;
            let Some(id) = id.and_then(|id| ObjectId(id).some()) else {
                return Ok(None);
            };
            references.note(id, "the space map of a checkpoint");
            let object = inner.mos().object(id).map_err(|error| error.to_string())?;
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
    /// Walks over all structures that own blocks; with `mos_pass`, also over tables and files.
    fn walk(
        &self,
        findings: &Findings<'_>,
        references: &References,
        shared: &Mutex<HashMap<(u32, u64), u64>>,
        figures: &Figures,
        watch: Option<&Watch>,
        mos_pass: Option<&MosPass>,
    ) -> Walked {
        let inner = self.pool.inner();
        let store = inner.store();
        let topology = store.topology();
        let capacity = topology.capacity_bytes();
        let mos_tree = Tree {
            name: String::new(),
            dataset: 0,
            root: inner.uberblock().root,
            previous_root: BlockPointer::default(),
            born_after: Txg(0),
            origin_txg: Txg(0),
            unique_after: Txg(0),
        };
        let tally = |tree| {
            Arc::new(Tally {
                tree,
                counted: Mutex::default(),
            })
        };
        let mos_tally = tally(mos_tree);
        let tallies: Vec<Arc<Tally>> = (0..self.dsl.datasets.len())
            .map(|at| tally(self.dsl.tree(at)))
            .collect();
        let lists = Lists {
            mos: inner.mos(),
            ratios: self.ratios,
            findings,
            references,
            empty: self.empty,
            met: Mutex::new(HashSet::new()),
            empty_references: Mutex::new(0),
        };
        let dead: Vec<Mutex<Option<DeadCounted>>> =
            tallies.iter().map(|_| Mutex::default()).collect();
        let live: Vec<Mutex<Option<(Mark, Sums)>>> =
            tallies.iter().map(|_| Mutex::default()).collect();
        let free = Mutex::new((Some(Sums::default()), 0u64));
        let is_cloned = |pointer: &BlockPointer| self.clones.has(pointer);
        let walk = Walk {
            store,
            topology,
            space: self.space,
            ratios: self.ratios,
            findings,
            progress: self.progress,
            stack: Stack::new(vec![]),
            shared,
            is_cloned: &is_cloned,
            synced: inner.uberblock().txg,
            figures,
            watch,
            budget: Budget::new(capacity.saturating_mul(2)),
            claims: Budget::new(capacity.saturating_mul(2)),
        };
        let mut work: Vec<Work<'_>> = vec![];
        let (lists, dead, live, free) = (&lists, &dead, &live, &free);
        // The stack is last in, first out. Long single-threaded items are taken first, then the trees, which
        // all threads share.
        work.push(Work::Root(Arc::clone(&mos_tally)));
        for tally in &tallies {
            work.push(Work::Root(Arc::clone(tally)));
        }
        for (at, node) in self.dsl.datasets.iter().enumerate() {
            if watch.is_some() {
                break;
            }
            if let Some(id) = node.phys.deadlist {
                work.push(Work::Other(Box::new(move |_| {
                    let counted = lists.deadlist(&node.name, id, &mut |_| {});
                    *dead[at].lock() = Some(counted);
                })));
            }
            if let Ok(Some(words)) = node.dataset.extension(keys::REMAP_DEADLIST)
                && let Some(id) = words.first().copied()
            {
                work.push(Work::Other(Box::new(move |_| {
                    lists.deadlist(&node.name, ObjectId(id), &mut |_| {});
                })));
            }
            let directory = &self.dsl.directories[node.directory];
            if node.next.is_none()
                && let Ok(Some(words)) = directory.directory.extension(keys::LIVELIST)
                && let Some(id) = words.first().copied()
            {
                work.push(Work::Other(Box::new(move |_| {
                    *live[at].lock() = lists.livelist(&node.name, ObjectId(id), &mut |_| {});
                })));
            }
        }
        for (at, node) in self.dsl.datasets.iter().enumerate() {
            if node.next.is_none() && !node.phys.is_snapshot() {
                let tally = &tallies[at];
                work.push(Work::Other(Box::new(|walk| walk.log(&tally.tree))));
            }
        }
        work.push(Work::Other(Box::new(|walk| {
            *free.lock() = self.free_lists(walk, lists);
        })));
        if let Some(mos_pass) = mos_pass {
            work.push(Work::Other(Box::new(|_| {
                mos_pass.run(self.pool, self.progress, findings);
            })));
            let jobs = FilesJob::of(self.pool, self.dsl, self.options, self.progress, findings);
            for job in jobs {
                work.push(Work::Other(Box::new(move |_| job.run())));
            }
        }
        let is_small = work.len() < 3;
        walk.stack.push(work);
        let threads = thread::parallelism();
        if is_small || threads < 2 {
            walk.run();
        } else {
            thread::scope(|scope| {
                for _ in 1..threads {
                    scope.spawn(|| walk.run());
                }
                walk.run();
            });
        }
        let counted = |tally: &Arc<Tally>| *tally.counted.lock();
        let (free, deleted_livelists) = *free.lock();
        Walked {
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
    fn free_lists(&self, walk: &Walk<'_>, lists: &Lists<'_>) -> (Option<Sums>, u64) {
        let inner = self.pool.inner();
        let mut free = Some(Sums::default());
        let mut deleted = 0;
        let add = |free: &mut Option<Sums>, sums: Option<Sums>| match (&mut *free, sums) {
            (Some(free), Some(sums)) => *free += sums,
            _ => *free = None,
        };
        let find = |key: &str| inner.find_directory_object(key).ok().flatten();
        let own = |pointer: &BlockPointer, words: &str| {
            let holder = || Holder {
                dataset: String::new(),
                object: 0,
                words: words.to_owned(),
            };
            walk.own(pointer, &holder);
        };
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
            let sums = self.destroyed_trees(walk, id, &own);
            if let Err(error) = &sums {
                let detail = format!("the queue of destroyed trees: {error}");
                let finding = Finding::new(FindingKind::Unreadable, detail);
                lists.findings.add(finding.object(id.0));
            }
            add(&mut free, sums.ok());
        }
        if let Some(id) = find(key::DELETED_CLONES) {
            lists.references.note(id, "the set of deleted clones");
            let zap = inner
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
        walk: &Walk<'_>,
        id: ObjectId,
        own: &dyn Fn(&BlockPointer, &str),
    ) -> Result<Sums, String> {
        let object = self
            .pool
            .inner()
            .mos()
            .object(id)
            .map_err(|error| error.to_string())?;
        let bonus = object.bonus().map_err(|error| error.to_string())?;
        let endian = object.dnode().endian;
        let phys = BpTreePhys::decode(bonus, endian).map_err(|error| error.to_string())?;
        let mut sums = Sums::default();
        let room = object.length_bytes() / 168;
        for at in phys.begin..phys.end.min(room) {
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
            walk_destroyed_tree(walk.store, &entry, &mut |pointer| {
                own(pointer, "a destroyed dataset");
                sums += self.ratios.sums(pointer);
            })?;
        }
        for (what, stored, counted) in [
            ("bytes", phys.bytes, sums.used),
            ("physical bytes", phys.compressed_bytes, sums.compressed),
            ("logical bytes", phys.uncompressed_bytes, sums.uncompressed),
        ] {
            if i64::try_from(stored) != Ok(counted) && walk.watch.is_none() {
                let detail = format!(
                    "the queue of destroyed trees, {what}: {stored} stored, {counted} counted"
                );
                let finding = Finding::new(FindingKind::BlockListFigure, detail);
                walk.findings.add(finding.object(id.0));
            }
        }
        Ok(sums)
    }

    /// Walks all trees again to find the owners of disputed ranges.
    fn judge_disputes(&self, findings: &Findings<'_>) {
        let disputes = self.space.disputes();
        if disputes.is_empty() {
            return;
        }
        let watch = Watch::new(&disputes);
        let silent = |_: &Finding| {};
        let (muted, references) = (Findings::new(&silent, 0), References::default());
        let (shared, figures) = (Mutex::default(), Figures::default());
        self.walk(&muted, &references, &shared, &figures, Some(&watch), None);
        let mut maps = FreeSpace::load(self.pool.inner());
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
