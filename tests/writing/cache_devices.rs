//! Cache devices: what is read from them, what happens when they lie or fail, and what is found again.

use crate::records::{self, CACHE_BYTES, RECORD, RECORDS, content, read, stats, write};
use crate::rig::Rig;
use crate::sim;
use millpond_device::Device;
use millpond_engine::{
    NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, OpenOptions, Pool,
    PropertyValue, View,
};
use millpond_env::mark;
use millpond_sim::{FaultPlan, PowerCut, Scope, SimDisk, World};
use millpond_tests::oracle::zdb;
use std::sync::Arc;

/// A pool of one disk, with a cache device that is in use.
fn create(world: &World) -> (Pool, Arc<SimDisk>) {
    let (disk, cache) = (world.disk(160 << 20, 512), world.disk(1100 << 20, 512));
    let device = NewDevice::file("/sim/d0.img", disk);
    let new = NewPool {
        vdev_options: NewVdevOptions {
            ashift: Some(9),
            force: true,
        },
        writing: sim::by_caller(),
        system: "sim".into(),
        cache_bytes: Some(CACHE_BYTES),
        ..NewPool::new(
            "tank",
            NewVdevs {
                tops: vec![NewTop::normal(NewLayout::Single, vec![device])],
                caches: vec![NewDevice::file("/sim/d1.img", Arc::clone(&cache) as _)],
                ..NewVdevs::default()
            },
        )
    };
    let pool = Pool::create(&world.env(), &new).unwrap();
    pool.inner()
        .use_cache_device(Arc::clone(&cache) as _)
        .unwrap();
    pool.inner().feed_cache_devices();
    pool.datasets().create_filesystem("tank/a", &[]).unwrap();
    (pool, cache)
}

fn open(world: &World) -> Pool {
    let options = OpenOptions {
        cache_bytes: Some(CACHE_BYTES),
        ..OpenOptions::default()
    };
    let candidate = sim::candidate(world);
    Pool::open_candidate(&world.env(), &candidate, &options, &sim::by_caller()).unwrap()
}

/// Bytes read from the pool's disk, and its errors.
fn disk_reads(pool: &Pool) -> (u64, u64) {
    let stats = pool.inner().store().topology().counters[0].stats();
    (stats.read_bytes, stats.read_errors + stats.checksum_errors)
}

#[test]
fn blocks_evicted_from_memory_are_read_from_a_cache_device() {
    let _mark = mark::expect("read-from-cache-device");
    let world = World::without_journal(1);
    let (pool, cache) = create(&world);
    let content = content(7);
    write(&pool, "file", &content);
    read(&pool, "file", &content);
    let (before, disk_before) = (stats(&pool), disk_reads(&pool).0);
    assert!(
        before.stored_bytes > (RECORDS * RECORD) as u64,
        "{before:?}"
    );
    read(&pool, "file", &content);
    let after = stats(&pool);
    assert!(after.hits - before.hits >= RECORDS as u64 - 32, "{after:?}");
    assert!(disk_reads(&pool).0 - disk_before < 20 * RECORD as u64);
    assert_eq!(after.checksum_errors, 0);
    // It lies. The pool notices, and no one else does.
    let start = (4 << 20) + 512;
    for at in (0..after.used_bytes).step_by(RECORD / 2) {
        cache.rot(start + at, &[0xa5; 16]);
    }
    read(&pool, "file", &content);
    let lied = stats(&pool);
    assert!(lied.checksum_errors >= RECORDS as u64 - 32, "{lied:?}");
    assert_eq!(disk_reads(&pool).1, 0, "the pool has no errors");
    read(&pool, "file", &content);
    assert!(stats(&pool).hits > lied.hits, "it was fed again");
}

#[test]
fn a_cache_device_that_fails_is_not_used_and_not_missed() {
    let world = World::without_journal(2);
    let (pool, cache) = create(&world);
    let content = content(8);
    write(&pool, "file", &content);
    read(&pool, "file", &content);
    assert!(stats(&pool).buffers > 100 && stats(&pool).is_usable);
    cache.set_faults(Some(FaultPlan::failing(Scope::Reads)));
    read(&pool, "file", &content);
    let failed = stats(&pool);
    assert!(failed.read_errors > 0 && !failed.is_usable, "{failed:?}");
    assert_eq!(disk_reads(&pool).1, 0);
    write(&pool, "other", &content);
    // Removed, and used again.
    let guid = pool.inner().cache_device_stats()[0].0;
    assert!(pool.inner().stop_cache_device(guid));
    assert!(!pool.inner().stop_cache_device(guid));
    read(&pool, "file", &content);
    cache.set_faults(None);
    let again = Arc::clone(&cache) as Arc<dyn Device>;
    assert_eq!(pool.inner().use_cache_device(again).unwrap(), guid);
    pool.inner().feed_cache_devices();
    read(&pool, "file", &content);
    read(&pool, "file", &content);
    let used = stats(&pool);
    assert!(used.is_usable && used.hits > 0 && used.checksum_errors == 0);
    let other = world.disk(64 << 20, 512);
    assert!(pool.inner().use_cache_device(other).is_err(), "it is none");
}

#[test]
fn a_cache_device_is_filled_again_after_a_power_cut() {
    let world = World::new(3);
    let (pool, _) = create(&world);
    let old = content(9);
    write(&pool, "file", &old);
    read(&pool, "file", &old);
    for cut in [PowerCut::NothingUnflushed, PowerCut::EverythingWritten] {
        let after = world.reborn(world.recorded(), &cut);
        let pool = open(&after);
        let cache = Arc::clone(&after.disks()[1]);
        pool.inner().use_cache_device(cache).unwrap();
        pool.inner().feed_cache_devices();
        let found = stats(&pool);
        assert!(
            found.rebuilt_buffers >= 136 && found.rebuilds == 1,
            "{found:?}"
        );
        read(&pool, "file", &old);
        let used = stats(&pool);
        assert!(used.hits >= 100 && used.checksum_errors == 0, "{used:?}");
        // The space of its blocks is taken by others: the old copies stay, and are never used for them.
        let files = pool.file_system("tank/a").unwrap();
        let root = files.root().unwrap();
        files.unlink(&root, b"file").unwrap();
        drop((files, root));
        (0..4).for_each(|_| pool.sync().unwrap());
        for seed in 0..3 {
            let name = format!("new-{seed}");
            let new = content(100 + seed);
            write(&pool, &name, &new);
            read(&pool, &name, &new);
            read(&pool, &name, &new);
        }
        assert_eq!(stats(&pool).checksum_errors, 0);
        let view = pool.committed().unwrap();
        sim::verify(&view).unwrap();
        drop(view);
        pool.export().unwrap();
    }
}

#[test]
fn a_pool_opened_for_reading_uses_what_is_there_and_writes_nothing() {
    let world = World::new(4);
    let (pool, _) = create(&world);
    let content = content(10);
    write(&pool, "file", &content);
    read(&pool, "file", &content);
    pool.export().unwrap();
    let recorded = world.recorded();
    let options = OpenOptions {
        cache_bytes: Some(CACHE_BYTES),
        prefetch: false,
        ..OpenOptions::default()
    };
    let view = View::open_candidate(&sim::candidate(&world), &options).unwrap();
    let cache = Arc::clone(&world.disks()[1]);
    view.inner().use_cache_device(cache).unwrap();
    let files = view.dataset("tank/a").unwrap().file_system().unwrap();
    let node = files.root().unwrap().lookup(b"file").unwrap();
    for _ in 0..2 {
        for (number, expected) in content.chunks(RECORD).enumerate() {
            let mut bytes = vec![0; RECORD];
            node.read((number * RECORD) as u64, &mut bytes).unwrap();
            assert!(bytes == expected);
        }
    }
    let stats = view.inner().store().cache_device_stats()[0].1;
    assert!(stats.hits >= 200 && stats.writes == 0, "{stats:?}");
    assert_eq!(world.recorded(), recorded);
}

#[test]
fn secondarycache_decides_what_is_copied() {
    let world = World::without_journal(5);
    let (pool, _) = create(&world);
    let content = content(11);
    let set = |number| {
        let change = ("secondarycache".to_owned(), PropertyValue::Number(number));
        pool.datasets().set_properties("tank", &[change]).unwrap();
    };
    set(0);
    write(&pool, "file", &content);
    read(&pool, "file", &content);
    let none = stats(&pool);
    assert!(none.stored_bytes < 2 << 20, "only of the pool: {none:?}");
    set(1);
    read(&pool, "file", &content);
    assert!(stats(&pool).stored_bytes < 2 << 20);
    set(2);
    read(&pool, "file", &content);
    assert!(stats(&pool).stored_bytes > (RECORDS * RECORD / 2) as u64);
}

/// The thread of the pool feeds the device, on image files; `zdb` prints what we wrote.
#[test]
fn zdb_prints_the_header_and_the_entries_that_we_wrote() {
    let rig = Rig::new(2, 1100);
    let pool = records::with_cache_device(&rig);
    let content = content(12);
    write(&pool, "file", &content);
    let mut rounds = 0;
    while stats(&pool).log_blocks < 3 {
        read(&pool, "file", &content);
        rounds += 1;
        assert!(rounds < 100, "{:?}", stats(&pool));
    }
    let written = stats(&pool);
    pool.export().unwrap();
    if let Some(why) = zdb::absent() {
        println!("not judged: {why}");
        return;
    }
    let printed = zdb::print_label(&rig.images[1], "-lll").unwrap();
    let number = |name: &str| -> u64 {
        let after = printed.split(name).nth(1);
        let word = after.and_then(|after| after.split_whitespace().next());
        let number = word.and_then(|word| word.parse().ok());
        number.unwrap_or_else(|| panic!("no {name} in\n{printed}"))
    };
    assert_eq!(number("magic:"), 0x5a46_5343_4143_4845);
    assert_eq!(
        [number("log_blk_ent:"), number("start:")],
        [68, (4 << 20) + 512]
    );
    let logs = written.log_blocks;
    assert_eq!(
        [number("lb_count_refcount:"), number("log_blk_count:")],
        [logs; 2]
    );
    assert!(printed.contains("0 with invalid cksum"), "{printed}");
    assert_eq!(printed.matches("\tle[").count() as u64, logs * 68);
}
