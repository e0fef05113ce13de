//! Compares the tables with the pointers that exist: after random changes, after power cuts, and with tables that lie.

use super::table::{Entry, decode};
use super::{DedupTables, FAST_DEDUP, PruneBy};
use crate::tests::leaks::check_with;
use crate::tests::made::{NoDatasets, Shape, after_each_cut, make, open, open_read_only};
use crate::{Pool, PoolView, SyncContext};
use millpond_block::{BlockAddress, Dedup};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_object::{BlockTraits, WriteJob};
use millpond_ondisk::dedup::{DedupClass, DedupHistogram, DedupKey};
use millpond_ondisk::{BlockPointer, ChecksumKind, Level, ObjectType, Txg};
use millpond_sim::{Seed, World, noise};
use millpond_zap::Zap;
use std::collections::BTreeMap;

mod bounds;
mod lies;

const TWO: Shape = Shape {
    disks: 2,
    ..Shape::ONE
};

/// A block as its writer knows it.
#[derive(Clone, Copy)]
struct Data {
    seed: u64,
    length: usize,
    copies: u8,
    checksum: ChecksumKind,
    is_verified: bool,
}

impl Data {
    const PLAIN: Self = Self {
        seed: 1,
        length: 4096,
        copies: 1,
        checksum: ChecksumKind::Sha256,
        is_verified: false,
    };

    fn random(seed: &mut Seed) -> Self {
        let checksums = [ChecksumKind::Sha256, ChecksumKind::Sha512];
        let number = seed.below(30);
        Self {
            seed: number,
            length: 512 * (1 + number as usize % 40),
            copies: 1 + (seed.below(4) / 3) as u8,
            checksum: checksums[(seed.below(5) / 4) as usize],
            is_verified: seed.below(2) == 0,
        }
    }
}

/// Every pointer, with its block.
type Model = Vec<(BlockPointer, Data)>;

fn job(ctx: &SyncContext<'_>, data: Data) -> WriteJob {
    let object_type = ObjectType::PLAIN_FILE;
    let mut policy = ctx.mos().policy().block(&BlockTraits {
        object_type,
        level: Level(0),
        is_spill: false,
        lsize_bytes: data.length as u64,
        dnode_checksum: 0,
        dnode_compression: 0,
        is_rewritten_late: false,
    });
    policy.checksum = data.checksum;
    policy.copies = data.copies;
    policy.dedup = Some(Dedup {
        is_verified: data.is_verified,
    });
    WriteJob {
        address: BlockAddress::default(),
        content: Arc::new(noise(data.seed, data.length)),
        object_type,
        level: Level(0),
        policy,
        encoded: None,
        fill: 1,
        previous: BlockPointer::default(),
        txg: ctx.txg(),
        pass: ctx.pass(),
        stored: None,
        is_clone: false,
        keeps_birth: false,
        key: None,
        is_raw: false,
    }
}

fn write(ctx: &SyncContext<'_>, data: &[Data]) -> Vec<BlockPointer> {
    let jobs = data.iter().map(|data| job(ctx, *data)).collect();
    let written = ctx.write_blocks(jobs).into_iter();
    written.map(|written| written.unwrap().pointer).collect()
}

/// Writes a block as an intent log does, and hands it to the sync.
fn write_logged(ctx: &SyncContext<'_>, data: Data) -> BlockPointer {
    let written = ctx.pool.write_log_data(ctx.tx(), vec![job(ctx, data)]);
    let stored = written.into_iter().next().unwrap().unwrap();
    assert!(!stored.is_dedup());
    let mut job = job(ctx, data);
    job.stored = Some(stored);
    let written = ctx.write_blocks(vec![job]).remove(0);
    written.unwrap().pointer
}

/// One txg of random writes, clones and frees.
fn change(pool: &Pool, seed: &mut Seed, model: &mut Model) {
    pool.sync_task(|ctx| {
        for _ in 0..1 + seed.below(12) {
            let at = seed.below((model.len() as u64).max(1)) as usize;
            match seed.below(6) {
                0 | 1 => {
                    let data: Vec<Data> = (0..1 + seed.below(6))
                        .map(|_| Data {
                            copies: 1,
                            ..Data::random(seed)
                        })
                        .collect();
                    model.extend(write(ctx, &data).into_iter().zip(data));
                }
                2 => {
                    let data = Data::random(seed);
                    model.push((write(ctx, &[data])[0], data));
                }
                3 => {
                    let data = Data::random(seed);
                    model.push((write_logged(ctx, data), data));
                }
                4 if at < model.len() => {
                    let (pointer, data) = model[at];
                    let clone = pointer.cloned_in(ctx.txg());
                    ctx.add_reference(&clone);
                    model.push((clone, data));
                }
                _ if at < model.len() => {
                    let (pointer, _) = model.swap_remove(at);
                    ctx.free_block(&pointer)?;
                }
                _ => {}
            }
        }
        Ok(())
    })
    .unwrap();
}

fn free_all(pool: &Pool, model: &mut Model) {
    pool.sync_task(|ctx| {
        for (pointer, _) in model.drain(..) {
            ctx.free_block(&pointer)?;
        }
        Ok(())
    })
    .unwrap();
}

/// What the objects and logs of a pool have, in the newest state of each entry.
fn entries_of(
    pool: &PoolView,
    tables: &DedupTables,
) -> BTreeMap<(u8, DedupKey), (Entry, Option<DedupClass>)> {
    let mut all = BTreeMap::new();
    for (number, table) in &tables.tables {
        let is_flat = table.fast.is_some();
        let mut found = BTreeMap::new();
        for (class, own) in DedupClass::ALL.into_iter().zip(&table.classes) {
            let Some(id) = own.object else { continue };
            let zap = Zap::open(pool.mos().object(id).unwrap()).unwrap();
            let mut histogram = DedupHistogram::default();
            for entry in zap.iter() {
                let entry = entry.unwrap();
                let key = DedupKey::from_words(entry.words().try_into().unwrap());
                let stored = decode(key, &entry.value, is_flat).unwrap();
                let logs = table.fast.iter().filter_map(|fast| fast.logs.as_ref());
                let mut logs = logs.flat_map(|logs| &logs.both);
                if !logs.any(|log| log.entries.contains_key(&key)) {
                    assert_eq!(stored.class(), Some(class));
                    histogram.add(&stored, |dva| dva.asize_bytes);
                }
                let stored = Entry {
                    entry: stored,
                    stored: Some(class),
                    is_logged: false,
                };
                let twice = found.insert(key, (stored, Some(class)));
                assert!(twice.is_none(), "{key:x?} is in two classes");
            }
            assert_eq!(own.histogram, histogram, "{class:?}");
        }
        let logs = table.fast.iter().filter_map(|fast| fast.logs.as_ref());
        for log in logs.flat_map(|logs| &logs.both) {
            for (key, entry) in &log.entries {
                let before = found.insert(*key, (*entry, entry.stored));
                let stored = before.and_then(|(_, class)| class);
                assert_eq!(stored, entry.stored, "where {key:x?} is stored");
            }
        }
        all.extend(
            found
                .into_iter()
                .map(|(key, found)| ((*number, key), found)),
        );
    }
    all
}

/// Compares tables, features, content and free space with the model.
fn judge(pool: &Arc<PoolView>, model: &Model) {
    let tables = DedupTables::load(pool).unwrap();
    let mut counts: BTreeMap<(u8, DedupKey, [u64; 2]), u64> = BTreeMap::new();
    let mut blocks: BTreeMap<[u64; 2], BlockPointer> = BTreeMap::new();
    let mut cloned: BTreeMap<[u64; 2], u64> = BTreeMap::new();
    let found = entries_of(pool, &tables);
    for (pointer, data) in model {
        let first = [pointer.words[0], pointer.words[1]];
        let number = data.checksum.number();
        let key = DedupKey::of(pointer);
        let entry = found.get(&(number, key));
        let is_entered = pointer.is_dedup()
            && entry.is_some_and(|(entry, _)| {
                let mut slots = entry.entry.used_slots();
                slots.any(|slot| slot.holds(pointer))
            });
        if is_entered {
            *counts.entry((number, key, first)).or_default() += 1;
        } else {
            *cloned.entry(first).or_default() += 1;
        }
        blocks.insert(first, *pointer);
        let block = pool.store().read(pointer, BlockAddress::default(), None);
        assert_eq!(*block.unwrap().bytes, noise(data.seed, data.length));
    }
    let mut entered = BTreeMap::new();
    for ((number, key), (entry, _)) in &found {
        for slot in entry.entry.used_slots() {
            let place = (*number, *key, slot.addresses[0]);
            entered.insert(place, slot.reference_count);
        }
    }
    assert_eq!(entered, counts);
    let extra: u64 = cloned.values().map(|count| count - 1).sum();
    let clones = pool.features().count(crate::BLOCK_CLONING);
    assert_eq!(clones.unwrap_or(0) > 0, extra > 0);
    let measured = crate::space::measure_dedup(pool).unwrap();
    assert_eq!(tables.totals().saved_bytes(), measured.saved_bytes());
    let fast = tables.tables.values().filter(|table| table.fast.is_some());
    let fast = fast.count() as u64;
    assert_eq!(pool.features().count(FAST_DEDUP).unwrap_or(0), fast);
    let data: Vec<BlockPointer> = blocks.into_values().collect();
    check_with(pool, &data);
}

/// A pool whose new tables are fast or not. Without features it also defers frees to the next txg.
fn make_pool(world: &World, is_fast: bool) -> Arc<Pool> {
    let shape = Shape {
        has_features: is_fast,
        ..TWO
    };
    let pool = make(world, shape, Arc::new(NoDatasets::default()));
    assert_eq!(pool.feature_is_enabled(FAST_DEDUP), is_fast);
    pool
}

fn random_changes(seed: u64, is_fast: bool) {
    let world = World::without_journal(seed);
    let mut pool = make_pool(&world, is_fast);
    let _removed = mark::expect("dedup-table-removed");
    let _completed = mark::expect("dedup-filter-grows");
    let _logged = mark::expect("logged-block-was-stored-before");
    let mut random = Seed::new(seed);
    let mut model = Model::new();
    for round in 0..80 {
        change(&pool, &mut random, &mut model);
        judge(&open_read_only(&world).unwrap(), &model);
        let tables = DedupTables::load(&open_read_only(&world).unwrap()).unwrap();
        let saved = tables.totals().saved_bytes();
        assert_eq!(pool.space().dedup_saved_bytes, saved);
        if round % 30 == 29 {
            free_all(&pool, &mut model);
            judge(&open_read_only(&world).unwrap(), &model);
            let tables = DedupTables::load(&open_read_only(&world).unwrap()).unwrap();
            assert!(tables.tables.is_empty(), "{tables:?}");
        } else if round % 7 == 6 {
            drop(pool);
            pool = open(&world, Arc::new(NoDatasets::default())).unwrap();
        } else if round % 5 == 4 && is_fast {
            // Nothing is pruned that is newer than this.
            pool.prune_dedup(PruneBy::Percent(50)).unwrap();
            judge(&open_read_only(&world).unwrap(), &model);
        }
    }
}

#[test]
fn fast_tables_count_what_the_pointers_say() {
    let _created = mark::expect("dedup-table-created");
    let _swapped = mark::expect("dedup-logs-swapped");
    let _pruned = mark::expect("dedup-entry-pruned");
    random_changes(501, true);
}

#[test]
fn legacy_tables_do_too() {
    random_changes(502, false);
}

/// Runs txgs in which nothing but the logs changes, until they are flushed.
fn settle(pool: &Pool) {
    for _ in 0..20 {
        crate::tests::made::count_up(pool).unwrap();
    }
    assert!(!pool.dedup.lock().has_logged());
}

fn free(pool: &Pool, pointers: &[BlockPointer]) {
    pool.sync_task(|ctx| {
        let mut pointers = pointers.iter();
        pointers.try_for_each(|pointer| ctx.free_block(pointer))
    })
    .unwrap();
}

fn write_in_txg(pool: &Pool, data: &[Data]) -> Vec<BlockPointer> {
    pool.sync_task(|ctx| Ok(write(ctx, data))).unwrap()
}

fn clone_in_txg(pool: &Pool, pointer: &BlockPointer) -> BlockPointer {
    let cloned = pool.sync_task(|ctx| {
        let clone = pointer.cloned_in(ctx.txg());
        ctx.add_reference(&clone);
        Ok(clone)
    });
    cloned.unwrap()
}

/// A block whose entry was pruned, the same content written anew, and clones of both: each frees its own block only.
#[test]
fn pointers_of_pruned_entries_never_free_newer_blocks() {
    for order in 0..24u64 {
        let world = World::without_journal(510);
        let pool = make_pool(&world, true);
        let old = write_in_txg(&pool, &[Data::PLAIN])[0];
        settle(&pool);
        world.advance(100_000_000_000);
        let pruned = pool.prune_dedup(PruneBy::Age(50)).unwrap();
        assert_eq!((pruned.pruned, pruned.seen), (1, 1));
        if order % 2 == 0 {
            settle(&pool);
            assert!(pool.dedup.lock().tables.is_empty());
        }
        let old_clone = clone_in_txg(&pool, &old);
        let new = write_in_txg(&pool, &[Data::PLAIN])[0];
        assert_ne!(new.words[..2], old.words[..2]);
        let new_clone = clone_in_txg(&pool, &new);
        let mut model: Model = [old, old_clone, new, new_clone]
            .map(|pointer| (pointer, Data::PLAIN))
            .to_vec();
        judge(&open_read_only(&world).unwrap(), &model);
        let mut seed = Seed::new(order);
        while !model.is_empty() {
            let at = seed.below(model.len() as u64) as usize;
            let (pointer, _) = model.swap_remove(at);
            free(&pool, &[pointer]);
            judge(&open_read_only(&world).unwrap(), &model);
            if order % 3 == 0 {
                settle(&pool);
                judge(&open_read_only(&world).unwrap(), &model);
            }
        }
    }
}

/// Within one txg: references that fall to 0 and rise again, in every order of writes, clones and frees.
#[test]
fn one_txg_writes_and_frees_the_same_key() {
    for (is_fast, is_settled) in [(true, false), (true, true), (false, true)] {
        let world = World::without_journal(511);
        let pool = make_pool(&world, is_fast);
        let first = write_in_txg(&pool, &[Data::PLAIN])[0];
        if is_settled {
            settle(&pool);
        }
        let second = pool.sync_task(|ctx| {
            ctx.free_block(&first)?;
            Ok(write(ctx, &[Data::PLAIN])[0])
        });
        let second = second.unwrap();
        assert_eq!(second.words[..2], first.words[..2], "the block was kept");
        judge(
            &open_read_only(&world).unwrap(),
            &vec![(second, Data::PLAIN)],
        );
        // Written and freed at once, beside the old one.
        pool.sync_task(|ctx| {
            let third = write(ctx, &[Data::PLAIN, Data::PLAIN]);
            ctx.free_block(&third[0])?;
            ctx.free_block(&third[1])?;
            ctx.free_block(&second)
        })
        .unwrap();
        judge(&open_read_only(&world).unwrap(), &vec![]);
        // A key that is only there for a moment.
        pool.sync_task(|ctx| {
            let pointer = write(ctx, &[Data::PLAIN])[0];
            ctx.free_block(&pointer)
        })
        .unwrap();
        judge(&open_read_only(&world).unwrap(), &vec![]);
        // Other numbers of copies. A fast table has one block for all, a legacy table one for each.
        let two = Data {
            copies: 2,
            ..Data::PLAIN
        };
        let data = [Data::PLAIN, two, Data::PLAIN, two];
        let pointers: Vec<BlockPointer> = (data.iter())
            .map(|one| write_in_txg(&pool, &[*one])[0])
            .collect();
        let mut model: Model = pointers.into_iter().zip(data).collect();
        judge(&open_read_only(&world).unwrap(), &model);
        while let Some((pointer, _)) = model.pop() {
            free(&pool, &[pointer]);
            judge(&open_read_only(&world).unwrap(), &model);
        }
    }
}

#[test]
fn power_cuts_leave_tables_and_free_space_of_one_txg() {
    for (seed, is_fast) in [(520, true), (521, false)] {
        let world = World::new(seed);
        let pool = make_pool(&world, is_fast);
        let mut random = Seed::new(seed);
        let mut model = Model::new();
        if is_fast {
            // Old entries in the objects of the tables, others in both logs.
            let data: Vec<Data> = (0..30)
                .map(|seed| Data {
                    seed,
                    ..Data::PLAIN
                })
                .collect();
            model.extend(write_in_txg(&pool, &data).into_iter().zip(data));
            settle(&pool);
        }
        world.forget();
        let mut states: BTreeMap<Txg, Model> = BTreeMap::new();
        states.insert(pool.uberblock().txg, model.clone());
        for round in 0..14 {
            change(&pool, &mut random, &mut model);
            states.insert(pool.uberblock().txg, model.clone());
            if round == 5 && is_fast {
                pool.prune_dedup(PruneBy::Percent(40)).unwrap();
                states.insert(pool.uberblock().txg, model.clone());
            }
            if round == 11 {
                free_all(&pool, &mut model);
                states.insert(pool.uberblock().txg, model.clone());
            }
        }
        drop(pool);
        let met = after_each_cut(&world, 13, &states, |count, after, model| {
            judge(&open_read_only(after).unwrap(), model);
            // The next txg continues from there.
            if count % 5 == 0 {
                let pool = open(after, Arc::new(NoDatasets::default())).unwrap();
                let mut model = model.clone();
                change(&pool, &mut Seed::new(count as u64), &mut model);
                judge(&open_read_only(after).unwrap(), &model);
            }
        });
        assert!(met > 60, "{met}");
    }
}
