//! Compares block pointer lists with a plain list in memory.

use crate::PoolError;
use crate::tests::made::{NoDatasets, Shape, make};
use crate::{BpObject, Drain, Pool, SyncContext, new_empty_list};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, BpObjectPhys, ObjectId};
use millpond_sim::World;

/// The `number`th of many distinct pointers, each to one sector.
fn pointer(number: u64) -> BlockPointer {
    let mut pointer = BlockPointer::default();
    // One address: one sector on vdev 0. lsize 512, psize 512, no compression, fletcher4, a
    // level-0 block of a file, little-endian.
    pointer.words[0] = 8;
    pointer.words[1] = number * 8;
    pointer.words[6] = (1 << 63) | (19 << 48) | (7 << 40) | (2 << 32);
    pointer.words[10] = 1 + number % 5;
    pointer
}

fn pool() -> Arc<Pool> {
    let world = World::without_journal(40);
    make(&world, Shape::ONE, Arc::new(NoDatasets::default()))
}

fn numbers(ctx: &SyncContext<'_>, list: &BpObject) -> Vec<u64> {
    let mut found = vec![];
    list.for_each(ctx, &mut |entry| {
        found.push(entry.pointer.words[1] / 8);
        Ok(())
    })
    .unwrap();
    found.sort_unstable();
    found
}

fn fill(ctx: &SyncContext<'_>, range: std::ops::Range<u64>) -> Result<BpObject, PoolError> {
    let list = BpObject::create(ctx)?;
    let all: Vec<_> = range.map(|number| (pointer(number), false)).collect();
    for some in all.chunks(700) {
        list.append_all(ctx, some)?;
    }
    Ok(list)
}

#[test]
fn appended_entries_are_listed_and_summed() {
    let pool = pool();
    pool.sync_task(|ctx| {
        let list = fill(ctx, 0..3000)?;
        list.append(ctx, &BlockPointer::default(), false)?;
        let phys = list.phys()?;
        assert_eq!(phys.pointer_count, 3000);
        assert_eq!(phys.bytes, 3000 * 4096);
        assert_eq!(phys.compressed_bytes, 3000 * 512);
        assert_eq!(phys.uncompressed_bytes, 3000 * 512);
        assert_eq!(numbers(ctx, &list), (0..3000).collect::<Vec<_>>());
        ctx.set_directory_number("test:list", list.id().0)
    })
    .unwrap();
    // And again after writing and reading the list.
    pool.sync_task(|ctx| {
        let id = ctx.directory_object("test:list")?.unwrap();
        let list = BpObject::open(ctx, id)?;
        assert_eq!(numbers(ctx, &list), (0..3000).collect::<Vec<_>>());
        BpObject::free(ctx, id)?;
        ctx.remove_directory_entry("test:list")
    })
    .unwrap();
}

#[test]
fn a_short_list_is_poured_in_and_a_long_one_hung_below() {
    let pool = pool();
    pool.sync_task(|ctx| {
        let list = fill(ctx, 0..10)?;
        let short = fill(ctx, 10..20)?.id();
        list.append_list(ctx, short)?;
        assert!(ctx.mos().object(short).is_err(), "poured in");
        let long = fill(ctx, 20..3000)?.id();
        list.append_list(ctx, long)?;
        let phys = list.phys()?;
        assert_eq!((phys.pointer_count, phys.sub_object_count), (20, 1));
        assert_eq!(phys.bytes, 3000 * 4096);
        assert_eq!(numbers(ctx, &list), (0..3000).collect::<Vec<_>>());
        // Moving the list below another one moves its sub-list and its few pointers up.
        let upper = BpObject::create(ctx)?;
        let lower = list.id();
        upper.append_list(ctx, lower)?;
        assert!(ctx.mos().object(lower).is_err());
        let phys = upper.phys()?;
        assert_eq!((phys.pointer_count, phys.sub_object_count), (20, 1));
        assert_eq!(numbers(ctx, &upper), (0..3000).collect::<Vec<_>>());
        assert_eq!(phys.bytes, 3000 * 4096);
        BpObject::free(ctx, upper.id())?;
        assert!(ctx.mos().object(long).is_err(), "freed with the list above");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_list_is_drained_in_slices_and_is_whole_after_each() {
    let pool = pool();
    let id: ObjectId = pool
        .sync_task(|ctx| {
            let list = fill(ctx, 0..1500)?;
            for start in [1500u64, 4000, 6500] {
                let sub = fill(ctx, start..start + 2500)?.id();
                list.append_list(ctx, sub)?;
            }
            ctx.set_directory_number("test:list", list.id().0)?;
            Ok(list.id())
        })
        .unwrap();
    let mut taken = vec![];
    loop {
        let is_empty = pool
            .sync_task(|ctx| {
                let list = BpObject::open(ctx, id)?;
                let mut left = 1300;
                let is_empty = list.drain(ctx, &mut |entry| {
                    if left == 0 {
                        return Ok(Drain::Stop);
                    }
                    left -= 1;
                    taken.push(entry.pointer.words[1] / 8);
                    Ok(Drain::Remove)
                })?;
                let rest = numbers(ctx, &list);
                assert_eq!(rest.len() + taken.len(), 9000);
                let phys = list.phys()?;
                assert_eq!(phys.bytes, rest.len() as u64 * 4096);
                assert_eq!(phys.compressed_bytes, rest.len() as u64 * 512);
                if is_empty {
                    assert_eq!(phys, BpObjectPhys::empty(phys.form));
                }
                Ok(is_empty)
            })
            .unwrap();
        if is_empty {
            break;
        }
    }
    taken.sort_unstable();
    assert_eq!(taken, (0..9000).collect::<Vec<_>>());
}

#[test]
fn freed_entries_reduce_the_sums() {
    let pool = pool();
    pool.sync_task(|ctx| {
        let list = fill(ctx, 0..4)?;
        list.append_all(ctx, &[(pointer(1), true), (pointer(2), true)])?;
        let phys = list.phys()?;
        assert_eq!((phys.pointer_count, phys.bytes), (6, 2 * 4096));
        BpObject::free(ctx, list.id())
    })
    .unwrap();
}

#[test]
fn empty_lists_share_one_object_freed_with_its_last_name() {
    let pool = pool();
    pool.sync_task(|ctx| {
        let guid = "com.delphix:empty_bpobj";
        let (one, two) = (new_empty_list(ctx)?, new_empty_list(ctx)?);
        assert_eq!(one, two);
        assert_eq!(ctx.feature_count(guid), 2);
        let list = fill(ctx, 0..3)?;
        list.append_list(ctx, one)?;
        assert_eq!(ctx.feature_count(guid), 1);
        assert_eq!(ctx.directory_object("empty_bpobj")?, Some(two));
        BpObject::free(ctx, two)?;
        assert_eq!(ctx.feature_count(guid), 0);
        assert_eq!(ctx.directory_object("empty_bpobj")?, None);
        assert!(ctx.mos().object(two).is_err());
        BpObject::free(ctx, list.id())
    })
    .unwrap();
}
