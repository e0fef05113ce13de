//! Programs call `fsync` while a txg is written that changes where blocks may lie, and the power fails before that txg is
//! committed. The log must not lie where the last committed state knows no space, or other data.

use crate::attach::new_device;
use crate::cloning::{bytes_of, make};
use crate::exhaustive::judge;
use crate::sim;
use millpond_engine::{
    AllocationClass, FileSystem, NewLayout::Single, NewTop, NewVdevOptions, NewVdevs, Pool,
};
use millpond_sim::{HangPlan, Hanging, PowerCut, World, noise};
use std::sync::Arc;

use AllocationClass::{Log, Normal};

/// Size of the two labels at the start of a disk.
const LABEL_BYTES: u64 = 512 << 10;

fn options() -> NewVdevOptions {
    NewVdevOptions {
        ashift: Some(9),
        force: true,
    }
}

/// The content of a file that was made durable.
fn content(number: u64, length: usize) -> Vec<u8> {
    noise(1000 + number, length)
}

fn fsync_new(files: &Arc<FileSystem>, number: u64, length: usize) {
    let file = make(files, &format!("f{number}"), &content(number, length));
    files.fsync(&file).unwrap();
}

/// Makes a change of the pool, and `work` while the txg of the change has written everything but labels and uberblock. Then
/// cuts the power.
fn cut_before_the_commit(
    world: &World,
    pool: &Pool,
    change: impl FnOnce(&Pool) + Send,
    work: impl FnOnce(),
) -> World {
    let disk = world.disks()[0].clone();
    let plan = HangPlan::new(Hanging::Writes).within(0..LABEL_BYTES);
    disk.hang(plan.once());
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| change(pool));
        disk.await_hang();
        work();
        let after = world.reborn(world.recorded(), &PowerCut::NothingUnflushed);
        disk.release();
        changing.join().unwrap();
        after
    })
}

/// Everything that `fsync` promised is there after a power cut.
fn has_files(world: &World, numbers: std::ops::Range<u64>, length: usize, what: &str) {
    let pool = sim::open(world).unwrap_or_else(|error| panic!("{what}: {error}"));
    let files = pool.file_system("tank");
    let files = files.unwrap_or_else(|error| panic!("{what}: {error}"));
    for number in numbers {
        let found = files
            .root()
            .unwrap()
            .lookup(format!("f{number}").as_bytes());
        let file = found.unwrap_or_else(|error| panic!("{what}: f{number} is lost: {error}"));
        assert!(
            bytes_of(&file) == content(number, length),
            "{what}: f{number}"
        );
    }
    drop(files);
    pool.export().unwrap();
    judge(world, what);
}

#[test]
fn logs_wait_for_the_commit_of_a_vdev_that_is_added() {
    for class in [Log, Normal] {
        let what = format!("{class:?}");
        let world = World::new(410);
        let pool = sim::create(&world, &[(Single, 1)], 512);
        let files = pool.file_system("tank").unwrap();
        let length = 100_000;
        // The first begins a log, which waits for a txg.
        (0..2).for_each(|number| fsync_new(&files, number, length));
        let disk = world.disk(512 << 20, 512);
        let new = NewTop {
            layout: Single,
            class,
            devices: vec![new_device(&disk)],
        };
        let change = |pool: &Pool| {
            let new = NewVdevs::of(vec![new]);
            pool.inner().add_vdevs(&new, options(), &|_| false).unwrap();
        };
        let work = || (2..40).for_each(|number| fsync_new(&files, number, length));
        let after = cut_before_the_commit(&world, &pool, change, work);
        has_files(&after, 0..40, length, &what);
        // From the commit on it is used.
        let used = |pool: &Pool| {
            let usage = pool.inner().allocator().usage();
            usage.vdevs[1].allocated_bytes
        };
        let before = used(&pool);
        (40..60).for_each(|number| fsync_new(&files, number, length));
        assert!(used(&pool) > before, "{what}");
        drop(files);
        pool.export().unwrap();
        judge(&world, &what);
    }
}
