//! Tables that contradict themselves: they are not changed, or the txg that meets the lie is not committed.

use super::{Data, job, make_pool, settle, write_in_txg};
use crate::dedup::FAST_DEDUP;
use crate::dedup::table::decode;
use crate::error::Reading;
use crate::tests::made::{NoDatasets, open, open_read_only};
use crate::{PoolError, SyncContext};
use millpond_env::sync::Arc;
use millpond_ondisk::dedup::{DedupKey, DedupLogFlags, DedupLogPhys};
use millpond_ondisk::pool_directory::{dedup_directory_key, dedup_log_key, dedup_table_key, key};
use millpond_ondisk::{ChecksumKind, Endian, ObjectId};
use millpond_sim::World;

/// Makes a pool with two references to a block, lets `lie` change its table, and returns why it does not open.
fn lying(is_fast: bool, lie: impl FnOnce(&SyncContext<'_>)) -> PoolError {
    let world = World::without_journal(530);
    let pool = make_pool(&world, is_fast);
    write_in_txg(&pool, &[Data::PLAIN, Data::PLAIN]);
    if is_fast {
        settle(&pool);
        write_in_txg(
            &pool,
            &[Data {
                seed: 2,
                ..Data::PLAIN
            }],
        );
    }
    pool.sync_task(|ctx| {
        lie(ctx);
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
    let directory = |ctx: &SyncContext<'_>| {
        let name = dedup_directory_key(ChecksumKind::Sha256);
        ctx.directory_object(&name).unwrap().unwrap()
    };
    let log = |ctx: &SyncContext<'_>, number: u8| {
        let name = dedup_log_key(ChecksumKind::Sha256, number);
        let id = ctx.table_number(directory(ctx), &name).unwrap().unwrap();
        ctx.mos().object(ObjectId(id)).unwrap()
    };
    let set = |ctx: &SyncContext<'_>, name: &str, value: u64| {
        ctx.set_table_number(directory(ctx), name, value).unwrap();
    };
    let phys = |ctx: &SyncContext<'_>, number: u8, change: &dyn Fn(&mut DedupLogPhys)| {
        let object = log(ctx, number);
        let mut phys = DedupLogPhys::decode(&object.bonus(), Endian::Little).unwrap();
        change(&mut phys);
        object.set_bonus(ctx.tx(), phys.encode()).unwrap();
    };
    let duplicate = dedup_table_key(ChecksumKind::Sha256, "duplicate");
    type Lie<'l> = &'l dyn Fn(&SyncContext<'_>);
    let cases: [(&str, Lie<'_>); 12] = [
        ("version", &|ctx| set(ctx, "version", 2)),
        ("version", &|ctx| set(ctx, "flags", 7)),
        ("another type", &|ctx| set(ctx, &duplicate, 1)),
        ("another number of tables", &|ctx| {
            ctx.feature_increment(FAST_DEDUP).unwrap();
        }),
        ("two forms", &|ctx| {
            ctx.set_directory_number(&duplicate, 1).unwrap()
        }),
        ("one of its logs", &|ctx| {
            let name = dedup_log_key(ChecksumKind::Sha256, 1);
            ctx.remove_table_entry(directory(ctx), &name).unwrap();
        }),
        ("not one of its logs", &|ctx| {
            for number in 0..2 {
                phys(ctx, number, &|phys| phys.flags = DedupLogFlags::FLUSHING);
            }
        }),
        ("has a checkpoint", &|ctx| {
            for number in 0..2 {
                phys(ctx, number, &|phys| {
                    if phys.flags.is_empty() {
                        phys.flags = DedupLogFlags::CHECKPOINT;
                    }
                });
            }
        }),
        ("length", &|ctx| phys(ctx, 0, &|phys| phys.length_bytes = 5)),
        ("record type", &|ctx| {
            for number in 0..2 {
                let object = log(ctx, number);
                object.write(ctx.tx(), 0, &[9; 512]).unwrap();
                phys(ctx, number, &|phys| phys.length_bytes = 128 << 10);
            }
        }),
        ("statistics", &|ctx| {
            let id = ctx
                .directory_object(key::DEDUP_STATISTICS)
                .unwrap()
                .unwrap();
            ctx.remove_table_entry(id, &duplicate).unwrap();
        }),
        ("512 words", &|ctx| {
            let id = ctx
                .directory_object(key::DEDUP_STATISTICS)
                .unwrap()
                .unwrap();
            ctx.set_table_number(id, &duplicate, 1).unwrap();
        }),
    ];
    for (words, lie) in cases {
        let error = lying(true, lie).to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

/// A lie that only shows when the entry is used suspends the pool before anything is committed.
#[test]
fn a_false_entry_stops_the_txg_that_meets_it() {
    let bytes = |references: u64, value: &mut Vec<u8>| {
        // Not compressed: the references are at a fixed place.
        let slot = 1 + 64 + 48;
        value[slot..slot + 8].copy_from_slice(&references.to_le_bytes());
    };
    type Lie<'l> = &'l dyn Fn(&mut Vec<u8>);
    let cases: [(&str, Lie<'_>); 5] = [
        ("without references", &|value| bytes(0, value)),
        ("overflows", &|value| bytes(u64::MAX, value)),
        ("neither zle nor off", &|value| value[0] = 3),
        ("empty", &|value| value.clear()),
        ("decompressed", &|value| value.truncate(50)),
    ];
    for (words, lie) in cases {
        let world = World::without_journal(531);
        let pool = make_pool(&world, false);
        let pointer = write_in_txg(&pool, &[Data::PLAIN])[0];
        let name = dedup_table_key(ChecksumKind::Sha256, "unique");
        pool.sync_task(|ctx| {
            let id = ctx.directory_object(&name).unwrap().unwrap();
            let zap = ctx.table(id).unwrap();
            let key = DedupKey::of(&pointer).to_words();
            let value = zap.lookup_words(&key).unwrap().unwrap();
            let entry = decode(DedupKey::of(&pointer), &value, false).unwrap();
            let mut bytes = vec![0x82];
            bytes.extend(entry.encode_body());
            lie(&mut bytes);
            let value = millpond_zap::ZapValue {
                integer_bytes: 1,
                bytes,
            };
            zap.update_words(&key, &value).unwrap();
            Ok(())
        })
        .unwrap();
        drop(pool);
        let pool = open(&world, Arc::new(NoDatasets::default())).unwrap();
        let committed = pool.uberblock().txg;
        let outcome = pool.sync_task(|ctx| {
            let job = job(ctx, Data::PLAIN);
            let written = ctx.write_blocks(vec![job]).remove(0);
            written.map(|_| ()).reading("test")
        });
        assert!(outcome.is_err(), "{words}");
        let reason = pool.suspension().unwrap().reason;
        assert!(reason.contains(words), "{words}: {reason}");
        drop(pool);
        let read = open_read_only(&world).unwrap();
        assert_eq!(read.uberblock().txg, committed);
    }
}
