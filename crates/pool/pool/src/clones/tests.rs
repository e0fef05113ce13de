//! Compares the tables with counts in memory: after random changes, after power cuts, and with tables that lie.

use super::{CLONING_ENDIAN, CloneTables};
use crate::tests::leaks::check_with;
use crate::tests::made::{NoDatasets, Shape, after_each_cut, count_up, make, open, open_read_only};
use crate::{Pool, PoolError, PoolView, SyncContext};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_object::{BlockAddress, BlockTraits, WriteJob};
use millpond_ondisk::dedup::clone_entry_count;
use millpond_ondisk::pool_directory::clone_table_key;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CloneTablePhys, CompressionKind, Dva, Feature, Level, ObjectId,
    ObjectType, StoredBlock, Txg, VdevId,
};
use millpond_sim::{Seed, World, noise};
use millpond_zap::Zap;
use std::collections::BTreeMap;

const TWO: Shape = Shape {
    disks: 2,
    ..Shape::ONE
};

/// Data blocks with the number of pointers to each.
type Model = Vec<(BlockPointer, u64)>;

/// Writes a data block of a few sectors.
fn write(ctx: &SyncContext<'_>, seed: u64, length: usize) -> BlockPointer {
    let object_type = ObjectType::PLAIN_FILE;
    let policy = ctx.mos().policy().block(&BlockTraits {
        object_type,
        level: Level(0),
        is_spill: false,
        lsize_bytes: length as u64,
        dnode_checksum: 0,
        dnode_compression: 0,
        is_rewritten_late: false,
    });
    let job = WriteJob {
        address: BlockAddress::default(),
        content: Arc::new(noise(seed, length)),
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
    };
    let written = ctx.write_blocks(vec![job]).remove(0);
    written.unwrap().pointer
}

/// One txg of random writes, clones and frees. References are released in any order, also before others are added.
fn change(pool: &Pool, seed: &mut Seed, model: &mut Model) {
    pool.sync_task(|ctx| {
        for _ in 0..1 + seed.below(12) {
            let length = 512 * (1 + seed.below(40) as usize);
            match seed.below(3) {
                0 => model.push((write(ctx, seed.bits(), length), 1)),
                1 => {
                    let before = model.len() as u64;
                    if let Some((pointer, count)) =
                        model.get_mut(seed.below(before.max(1)) as usize)
                        && *count > 0
                    {
                        *count += 1;
                        ctx.add_reference(pointer);
                    }
                }
                _ => {
                    let before = model.len() as u64;
                    if let Some((pointer, count)) =
                        model.get_mut(seed.below(before.max(1)) as usize)
                        && *count > 0
                    {
                        *count -= 1;
                        ctx.free_block(pointer)?;
                    }
                }
            }
        }
        Ok(())
    })
    .unwrap();
    model.retain(|(_, count)| *count > 0);
}

/// Releases all references to all blocks.
fn free_all(pool: &Pool, model: &mut Model) {
    pool.sync_task(|ctx| {
        for (pointer, count) in model.drain(..) {
            for _ in 0..count {
                ctx.free_block(&pointer)?;
            }
        }
        Ok(())
    })
    .unwrap();
}

fn table_of(pool: &PoolView, vdev: VdevId) -> Option<(CloneTablePhys, Zap, ObjectId)> {
    let id = pool
        .find_directory_object(&clone_table_key(vdev))
        .unwrap()?;
    let object = pool.mos().object(id).unwrap();
    let phys = CloneTablePhys::decode(object.bonus().unwrap(), object.dnode().endian).unwrap();
    let zap = Zap::open(pool.mos().object(phys.entries.unwrap()).unwrap()).unwrap();
    Some((phys, zap, id))
}

/// Compares tables, features and free space with the model.
fn judge(pool: &Arc<PoolView>, model: &Model) {
    let mut expected: BTreeMap<(VdevId, u64), u64> = BTreeMap::new();
    let mut sums: BTreeMap<VdevId, (u64, u64, u64)> = BTreeMap::new();
    for (pointer, count) in model {
        let first = pointer.dvas().next().unwrap();
        let bytes = pool.deflated_pointer_bytes(pointer);
        if *count > 1 {
            expected.insert((first.vdev, first.offset_bytes), count - 1);
            let sums = sums.entry(first.vdev).or_default();
            *sums = (sums.0 + 1, sums.1 + bytes, sums.2 + bytes * (count - 1));
        }
    }
    let mut found = BTreeMap::new();
    for (vdev, _) in pool.store().topology().tree.tops() {
        let Some((phys, zap, _)) = table_of(pool, vdev) else {
            assert!(!sums.contains_key(&vdev), "vdev {vdev} has no table");
            continue;
        };
        for entry in zap.iter() {
            let entry = entry.unwrap();
            let count = clone_entry_count(&entry.value.bytes, entry.value.integer_bytes, &phys);
            found.insert((vdev, entry.words()[0]), count.unwrap());
        }
        let header = (phys.entry_count, phys.used_bytes, phys.saved_bytes);
        assert_eq!(Some(&header), sums.get(&vdev), "header of vdev {vdev}");
    }
    assert_eq!(found, expected);
    let features = pool.features();
    let tables = sums.len() as u64;
    assert_eq!(features.count(super::BLOCK_CLONING), Some(tables));
    if let Some(count) = features.count(CLONING_ENDIAN) {
        assert!(count == tables || count == 0);
    }
    // Loading checks the counters.
    CloneTables::load(pool, &geometries(pool)).unwrap();
    let data: Vec<BlockPointer> = model.iter().map(|(pointer, _)| *pointer).collect();
    check_with(pool, &data);
}

fn geometries(pool: &PoolView) -> BTreeMap<VdevId, millpond_alloc::VdevGeometry> {
    let vdevs = crate::PoolSpaceMaps::load(pool).unwrap().into_vdevs();
    vdevs
        .into_iter()
        .map(|(id, vdev)| (id, vdev.geometry))
        .collect()
}

fn enable_endian(pool: &Pool) {
    pool.sync_task(|ctx| {
        let feature = Feature::by_name("block_cloning_endian").unwrap();
        let change = (ctx.pool.state.write().features).enable(feature, ctx.txg())?;
        ctx.store_features(&change)
    })
    .unwrap();
}

fn random_changes(seed: u64, is_endian: bool) {
    let world = World::without_journal(seed);
    let mut pool = make(&world, TWO, Arc::new(NoDatasets::default()));
    if is_endian {
        enable_endian(&pool);
    }
    let _created = mark::expect("clone-table-created");
    let _removed = mark::expect("clone-table-removed");
    let mut random = Seed::new(seed);
    let mut model = Model::new();
    for round in 0..60 {
        change(&pool, &mut random, &mut model);
        judge(&open_read_only(&world).unwrap(), &model);
        let saved: u64 = (model.iter())
            .map(|(pointer, count)| pool.deflated_bytes(pointer) * (count - 1))
            .sum();
        assert_eq!(pool.space().clone_saved_bytes, saved);
        if round % 20 == 19 {
            free_all(&pool, &mut model);
            judge(&open_read_only(&world).unwrap(), &model);
        } else if round % 7 == 6 {
            drop(pool);
            pool = open(&world, Arc::new(NoDatasets::default())).unwrap();
        }
    }
}

#[test]
fn tables_count_what_the_pointers_say() {
    random_changes(401, false);
}

#[test]
fn tables_of_the_newer_form_do_too() {
    random_changes(402, true);
}

#[test]
fn a_pool_with_tables_of_the_old_form_keeps_it_until_they_are_empty() {
    let world = World::without_journal(403);
    let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
    let clone_one = |count: u64| {
        pool.sync_task(|ctx| {
            let pointer = write(ctx, count, 4096);
            ctx.add_reference(&pointer);
            Ok((pointer, 2))
        })
        .unwrap()
    };
    let form = |offset: u64| {
        let read = open_read_only(&world).unwrap();
        let (_, zap, _) = table_of(&read, VdevId(0)).unwrap();
        let value = zap.lookup_words(&[offset]).unwrap().unwrap();
        (value.integer_bytes, value.bytes.len())
    };
    let offset = |pointer: &BlockPointer| pointer.dvas().next().unwrap().offset_bytes;
    let first = clone_one(1);
    enable_endian(&pool);
    let second = clone_one(2);
    assert_eq!(form(offset(&second.0)), (1, 8));
    let mut model = vec![first, second];
    judge(&open_read_only(&world).unwrap(), &model);
    free_all(&pool, &mut model);
    judge(&open_read_only(&world).unwrap(), &model);
    let third = clone_one(3);
    assert_eq!(form(offset(&third.0)), (8, 8));
    judge(&open_read_only(&world).unwrap(), &vec![third]);
}

/// A block with one reference beyond the first.
fn referenced_twice(pool: &Pool) -> BlockPointer {
    let block = pool.sync_task(|ctx| {
        let pointer = write(ctx, 5, 8704);
        ctx.add_reference(&pointer);
        Ok(pointer)
    });
    block.unwrap()
}

#[test]
fn deferred_frees_release_references_when_they_are_done() {
    let world = World::without_journal(404);
    let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
    let block = referenced_twice(&pool);
    let defer = || {
        pool.sync_task(|ctx| {
            // The list of the txg before is emptied in this one, after this task.
            let list = pool.deferred_free_list(ctx)?;
            list.append(ctx, &block, false)
        })
        .unwrap();
        count_up(&pool).unwrap();
    };
    defer();
    judge(&open_read_only(&world).unwrap(), &vec![(block, 1)]);
    defer();
    judge(&open_read_only(&world).unwrap(), &vec![]);
}

#[test]
fn metadata_never_consults_the_tables() {
    let world = World::without_journal(405);
    let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
    let block = referenced_twice(&pool);
    let mut tables =
        CloneTables::load(&open_read_only(&world).unwrap(), &pool.maps.geometries()).unwrap();
    pool.sync_task(|ctx| {
        let mut batch = super::Batch::new(ctx, &mut tables);
        for (word, bits) in [
            (6, 10u64 << 48),
            (6, (19 << 48) | (1 << 56)),
            (6, (19 << 48) | (1 << 62)),
        ] {
            let mut other = block;
            other.words[word] &= !(0x7fff << 48);
            other.words[word] |= bits;
            assert!(!batch.release(&other)?, "{other:?}");
        }
        assert!(batch.release(&block)?);
        assert!(!batch.release(&block)?, "the last reference is the block's");
        Ok(())
    })
    .unwrap();
}

/// The block that was at the same place before: of another size, with an earlier birth.
fn before(pointer: &BlockPointer, sectors: u64, age: u64) -> BlockPointer {
    let dvas = [Dva {
        asize_bytes: sectors * 512,
        ..pointer.dvas().next().unwrap()
    }];
    let stored = StoredBlock {
        dvas: &dvas,
        lsize_bytes: sectors * 512,
        psize_bytes: sectors * 512,
        compression: CompressionKind::Off,
        checksum: ChecksumKind::Fletcher4,
        checksum_words: [1, 2, 3, 4],
        object_type: ObjectType::PLAIN_FILE,
        level: Level(0),
        birth: Txg(pointer.physical_birth().0 - age),
        fill: 1,
    };
    stored.pointer()
}

/// Adds a reference to a block, or releases one.
fn refer(pool: &Pool, pointer: &BlockPointer, is_added: bool) {
    pool.sync_task(|ctx| match is_added {
        true => {
            ctx.add_reference(pointer);
            Ok(())
        }
        false => ctx.free_block(pointer),
    })
    .unwrap();
}

/// The claims of intent logs add references to blocks that are gone. A later block has their place.
fn hold(pool: &Pool, stale: &[BlockPointer]) {
    pool.sync_task(|ctx| {
        for pointer in stale {
            ctx.add_reference(pointer);
            ctx.hold_for_log(pointer);
        }
        Ok(())
    })
    .unwrap();
}

/// A block is cloned and freed while logs have references to others that had its place: it is freed once, and
/// nothing else is. Logs end before, between and after its frees.
#[test]
fn references_of_logs_are_not_released_by_the_block_that_came_after() {
    let _mark = mark::expect("log-holds-other-block");
    for (sectors, was_sectors) in [(4, 16), (16, 4), (8, 8)] {
        for order in 0..20 {
            let world = World::without_journal(411);
            let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
            count_up(&pool).unwrap();
            let length = 512 * sectors as usize;
            let block = pool.sync_task(|ctx| Ok(write(ctx, 6, length))).unwrap();
            let stale = [
                before(&block, was_sectors, 1),
                before(&block, was_sectors * 2, 2),
            ];
            hold(&pool, &stale);
            refer(&pool, &block, true);
            refer(&pool, &block, true);
            // Each order of the two ends among the three frees of the block.
            let (first, second) = (order % 4, order / 4);
            let mut steps = vec![block; 3];
            steps.insert(first, stale[0]);
            steps.insert(second, stale[1]);
            for step in &steps {
                refer(&pool, step, false);
            }
            judge(&open_read_only(&world).unwrap(), &vec![]);
            drop(pool);
            drop(open(&world, Arc::new(NoDatasets::default())).unwrap());
        }
    }
}

/// The block is freed and its place given to others before the log ends.
#[test]
fn the_end_of_a_log_frees_nothing_of_later_blocks() {
    for (sectors, was_sectors) in [(4, 16), (16, 4), (8, 8)] {
        let world = World::without_journal(412);
        let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
        let length = 512 * sectors as usize;
        let block = pool.sync_task(|ctx| Ok(write(ctx, 6, length))).unwrap();
        let stale = before(&block, was_sectors, 1);
        hold(&pool, &[stale]);
        refer(&pool, &block, true);
        refer(&pool, &block, false);
        refer(&pool, &block, false);
        check_with(&open_read_only(&world).unwrap(), &[]);
        let others: Model = (0..40)
            .map(|seed| {
                pool.sync_task(|ctx| Ok((write(ctx, seed, 512), 1)))
                    .unwrap()
            })
            .collect();
        refer(&pool, &stale, false);
        count_up(&pool).unwrap();
        judge(&open_read_only(&world).unwrap(), &others);
    }
}

#[test]
fn power_cuts_leave_tables_and_free_space_of_one_txg() {
    let world = World::new(406);
    let pool = make(&world, TWO, Arc::new(NoDatasets::default()));
    let mut random = Seed::new(406);
    let mut model = Model::new();
    world.forget();
    let mut states: BTreeMap<Txg, Model> = BTreeMap::new();
    states.insert(pool.uberblock().txg, model.clone());
    for round in 0..5 {
        change(&pool, &mut random, &mut model);
        if round == 3 {
            free_all(&pool, &mut model);
        }
        states.insert(pool.uberblock().txg, model.clone());
    }
    drop(pool);
    let met = after_each_cut(&world, 3, &states, |count, after, model| {
        judge(&open_read_only(after).unwrap(), model);
        // The next txg continues from there.
        if count % 5 == 0 {
            let pool = open(after, Arc::new(NoDatasets::default())).unwrap();
            let mut model = model.clone();
            change(&pool, &mut Seed::new(count as u64), &mut model);
            judge(&open_read_only(after).unwrap(), &model);
        }
    });
    assert!(met > 100, "{met}");
}

/// Makes a pool with one cloned block, and changes its table.
fn lying(
    seed: u64,
    lie: impl FnOnce(&SyncContext<'_>, CloneTablePhys, ObjectId) -> CloneTablePhys,
) -> PoolError {
    let world = World::without_journal(seed);
    let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
    pool.sync_task(|ctx| {
        let pointer = write(ctx, 5, 8704);
        ctx.add_reference(&pointer);
        Ok(())
    })
    .unwrap();
    let (phys, _, id) = table_of(&open_read_only(&world).unwrap(), VdevId(0)).unwrap();
    pool.sync_task(|ctx| {
        let phys = lie(ctx, phys, id);
        let object = ctx.mos().object(id).unwrap();
        object.set_bonus(ctx.tx(), phys.encode()).unwrap();
        Ok(())
    })
    .unwrap();
    drop(pool);
    // It can still be read.
    open_read_only(&world).unwrap();
    match open(&world, Arc::new(NoDatasets::default())) {
        Err(crate::OpenError::State { error, .. }) => error,
        other => panic!("opened: {other:?}"),
    }
}

#[test]
fn a_pool_whose_table_contradicts_itself_is_not_opened_for_changes() {
    type Lie = fn(&mut CloneTablePhys);
    let with = |change: Lie| {
        lying(407, |_, mut phys, _| {
            change(&mut phys);
            phys
        })
        .to_string()
    };
    let cases: [(&str, Lie); 6] = [
        ("another number of entries", |phys| phys.entry_count = 2),
        ("more counters", |phys| phys.counter_count = 1 << 40),
        ("contradict the number", |phys| phys.counter_count = 0),
        ("another size", |phys| phys.range_bytes = 4096),
        ("no entries", |phys| phys.entries = None),
        ("names", |phys| phys.entries = Some(ObjectId(1))),
    ];
    for (words, change) in cases {
        let error = with(change);
        assert!(error.contains(words), "{words}: {error}");
    }
    let counter = lying(408, |ctx, phys, id| {
        let object = ctx.mos().object(id).unwrap();
        object.write(ctx.tx(), 0, &[0; 64]).unwrap();
        phys
    });
    assert!(counter.to_string().contains("counters contradict"));
    let feature = lying(409, |ctx, phys, _| {
        ctx.feature_increment(super::BLOCK_CLONING).unwrap();
        phys
    });
    assert!(feature.to_string().contains("another number of tables"));
}

/// A lie that only shows when the entry is used suspends the pool before anything is committed.
#[test]
fn a_false_sum_or_value_stops_the_txg_that_meets_it() {
    let lies: [fn(&SyncContext<'_>, &mut CloneTablePhys, u64); 3] = [
        |_, phys, _| phys.saved_bytes = 0,
        |_, phys, _| phys.used_bytes = 1,
        |ctx, phys, offset| {
            let value = millpond_zap::ZapValue {
                integer_bytes: 1,
                bytes: vec![0; 8],
            };
            let zap = ctx.table(phys.entries.unwrap()).unwrap();
            zap.update_words(&[offset], &value).unwrap();
        },
    ];
    for lie in lies {
        let world = World::without_journal(410);
        let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
        let block = pool
            .sync_task(|ctx| {
                let pointer = write(ctx, 5, 8704);
                ctx.add_reference(&pointer);
                Ok(pointer)
            })
            .unwrap();
        let offset = block.dvas().next().unwrap().offset_bytes;
        let (mut phys, _, id) = table_of(&open_read_only(&world).unwrap(), VdevId(0)).unwrap();
        pool.sync_task(|ctx| {
            lie(ctx, &mut phys, offset);
            let object = ctx.mos().object(id).unwrap();
            object.set_bonus(ctx.tx(), phys.encode()).unwrap();
            Ok(())
        })
        .unwrap();
        drop(pool);
        let pool = open(&world, Arc::new(NoDatasets::default())).unwrap();
        let committed = pool.uberblock().txg;
        let outcome = pool.sync_task(|ctx| ctx.free_block(&block));
        assert!(outcome.is_err());
        let reason = pool.suspension().unwrap().reason;
        assert!(reason.contains("clone table"), "{reason}");
        drop(pool);
        let read = open_read_only(&world).unwrap();
        assert_eq!(read.uberblock().txg, committed);
    }
}
