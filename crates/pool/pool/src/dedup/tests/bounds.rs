//! Dead entries, full logs, the quota, and blocks that cannot be read.

use super::{Data, Model, judge, make_pool, settle, write, write_in_txg};
use crate::tests::leaks::check_with;
use crate::tests::made::{NoDatasets, count_up, open, open_read_only};
use crate::{PoolSetting, SettingTime};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::BlockPointer;
use millpond_ondisk::dedup::DedupKey;
use millpond_sim::World;

/// Entries without references that OpenZFS leaves in its logs own their blocks until they are flushed.
#[test]
fn blocks_of_dead_entries_in_a_log_are_freed_when_it_is_flushed() {
    for is_written_again in [false, true] {
        let world = World::without_journal(532);
        let pool = make_pool(&world, true);
        let other = Data {
            seed: 2,
            ..Data::PLAIN
        };
        let pointer = write_in_txg(&pool, &[Data::PLAIN])[0];
        // A table without any other entry would be removed at once.
        let mut model = vec![(write_in_txg(&pool, &[other])[0], other)];
        // The last reference is released as OpenZFS does it.
        pool.sync_task(|ctx| {
            ctx.pool.change_dedup(|tables| {
                let table = tables.tables.values_mut().next().unwrap();
                let mut entry = table.take(ctx, &DedupKey::of(&pointer))?.unwrap();
                entry.entry.slots_mut()[0].reference_count = 0;
                table.put(ctx, entry);
                Ok(())
            })
        })
        .unwrap();
        drop(pool);
        let read = open_read_only(&world).unwrap();
        check_with(&read, &[pointer, model[0].0]);
        let pool = open(&world, Arc::new(NoDatasets::default())).unwrap();
        if is_written_again {
            let again = write_in_txg(&pool, &[Data::PLAIN])[0];
            model.push((again, Data::PLAIN));
        }
        settle(&pool);
        judge(&open_read_only(&world).unwrap(), &model);
    }
}

/// More entries than one txg flushes: those up to the checkpoint are in the objects, the others in the log.
#[test]
fn a_log_is_flushed_in_parts_and_loaded_between_them() {
    let _partly = mark::expect("dedup-log-partly-flushed");
    let world = World::without_journal(540);
    let mut pool = make_pool(&world, true);
    let data: Vec<Data> = (0..2600)
        .map(|seed| Data {
            seed,
            length: 512,
            ..Data::PLAIN
        })
        .collect();
    let mut model: Model = Model::new();
    for data in data.chunks(1300) {
        model.extend(
            write_in_txg(&pool, data)
                .into_iter()
                .zip(data.iter().copied()),
        );
    }
    for round in 0..14 {
        count_up(&pool).unwrap();
        if round >= 7 {
            judge(&open_read_only(&world).unwrap(), &model);
            drop(pool);
            pool = open(&world, Arc::new(NoDatasets::default())).unwrap();
            // Some of the flushed and of the waiting entries change.
            let again: Vec<Data> = data.iter().copied().skip(round).step_by(200).collect();
            model.extend(write_in_txg(&pool, &again).into_iter().zip(again));
            let (pointer, _) = model.swap_remove(round);
            super::free(&pool, &[pointer]);
        }
    }
    settle(&pool);
    judge(&open_read_only(&world).unwrap(), &model);
    let pointers: Vec<BlockPointer> = model.drain(..).map(|(pointer, _)| pointer).collect();
    super::free(&pool, &pointers);
    judge(&open_read_only(&world).unwrap(), &model);
}

#[test]
fn a_table_over_its_quota_takes_no_new_keys() {
    let _over = mark::expect("dedup-table-over-quota");
    let world = World::without_journal(541);
    let pool = make_pool(&world, true);
    write_in_txg(&pool, &[Data::PLAIN]);
    let set = |value: &str| {
        let setting = PoolSetting::parse("dedup_table_quota", value, SettingTime::Later).unwrap();
        pool.sync_task(|ctx| ctx.set_pool_property(&setting))
            .unwrap();
    };
    let other = |seed| Data {
        seed,
        ..Data::PLAIN
    };
    set("512");
    let pointers = write_in_txg(&pool, &[Data::PLAIN, other(2), other(2)]);
    let are_shared: Vec<bool> = pointers.iter().map(BlockPointer::is_dedup).collect();
    assert_eq!(are_shared, [true, false, false]);
    for value in ["none", "auto", "1073741824"] {
        set(value);
        let seed = 10 + value.len() as u64;
        assert!(write_in_txg(&pool, &[other(seed)])[0].is_dedup(), "{value}");
    }
}

/// The sizes are known only when a txg is written, and the keys in logs need space in the tables later.
#[test]
fn a_txg_takes_no_more_new_keys_than_the_quota_has_space_for() {
    for is_fast in [true, false] {
        let world = World::without_journal(544);
        let pool = make_pool(&world, is_fast);
        write_in_txg(&pool, &[Data::PLAIN]);
        let set = |value: &str| {
            let setting =
                PoolSetting::parse("dedup_table_quota", value, SettingTime::Later).unwrap();
            pool.sync_task(|ctx| ctx.set_pool_property(&setting))
                .unwrap();
        };
        let left = || {
            let left = pool.sync_task(|ctx| ctx.pool.change_dedup(|tables| tables.keys_left(ctx)));
            left.unwrap()
        };
        // As many keys as are new, some of them twice.
        let written = |first: u64| {
            let seeds = (first..first + 1500).chain(first..first + 10);
            let data: Vec<Data> = seeds
                .map(|seed| Data {
                    seed,
                    length: 512,
                    ..Data::PLAIN
                })
                .collect();
            let pointers = write_in_txg(&pool, &data);
            let (new, again) = pointers.split_at(1500);
            for (one, other) in new.iter().zip(again) {
                assert_eq!(one.is_dedup(), other.is_dedup());
            }
            new.iter().filter(|pointer| pointer.is_dedup()).count() as u64
        };
        set("200000");
        let allowed = left().unwrap();
        assert!((100..1000).contains(&allowed), "{allowed}");
        assert_eq!(written(10_000), allowed);
        if is_fast {
            // They wait in the log, which is smaller than what they will need. Before, it was larger than one key.
            assert!(left().unwrap() < 100, "{:?}", left());
        }
        set("none");
        assert_eq!(left(), None);
        assert_eq!(written(20_000), 1500);
    }
}

/// With `verify` a stored block that cannot be read is not referred to; the new one is stored without an entry.
#[test]
fn a_block_that_cannot_be_read_is_not_referred_to() {
    let _differs = mark::expect("dedup-block-differs");
    let world = World::without_journal(542);
    let pool = make_pool(&world, true);
    let other = Data {
        seed: 2,
        ..Data::PLAIN
    };
    let pointers = write_in_txg(&pool, &[Data::PLAIN, other]);
    let verified = Data {
        is_verified: true,
        ..Data::PLAIN
    };
    pool.sync_task(|ctx| {
        ctx.pool.change_dedup(|tables| {
            let table = tables.tables.values_mut().next().unwrap();
            let mut entry = table.take(ctx, &DedupKey::of(&pointers[0]))?.unwrap();
            let [a, b, ..] = pointers[1].words;
            entry.entry.slots_mut()[0].addresses[0] = [a, b];
            table.put(ctx, entry);
            Ok(())
        })?;
        let written = write(ctx, &[verified, verified]);
        for pointer in &written {
            assert!(!pointer.is_dedup());
            assert_ne!(pointer.words[..2], pointers[1].words[..2]);
        }
        Ok(())
    })
    .unwrap();
}

/// Entries change their class while the filter of a table that was found is made, from a class that was not read yet to
/// one that was.
#[test]
fn a_filter_knows_entries_that_move_while_it_is_made() {
    for is_fast in [false, true] {
        let world = World::without_journal(543);
        let pool = make_pool(&world, is_fast);
        let data: Vec<Data> = (0..24)
            .map(|seed| Data {
                seed,
                ..Data::PLAIN
            })
            .collect();
        let write_all = |pool: &Arc<crate::Pool>, data: &[Data]| -> Model {
            let pointers = write_in_txg(pool, data).into_iter();
            pointers.zip(data.iter().copied()).collect()
        };
        let mut model = write_all(&pool, &data);
        model.extend(write_all(&pool, &data[..1]));
        settle(&pool);
        drop(pool);
        let pool = open(&world, Arc::new(NoDatasets::default())).unwrap();
        {
            let mut tables = pool.dedup.lock();
            let all = tables.tables.values_mut();
            all.for_each(|table| table.filter.step_entries = 4);
        }
        model.extend(write_all(&pool, &data));
        settle(&pool);
        // The rest of the filter.
        for seed in 100..120 {
            let other = Data {
                seed,
                ..Data::PLAIN
            };
            model.extend(write_all(&pool, &[other]));
        }
        settle(&pool);
        // Each block has another pointer.
        let freed: Vec<BlockPointer> = model.drain(..24).map(|(pointer, _)| pointer).collect();
        super::free(&pool, &freed);
        settle(&pool);
        judge(&open_read_only(&world).unwrap(), &model);
    }
}
