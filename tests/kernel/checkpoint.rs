//! Checkpoints that were taken, written beside, discarded or returned to here and by the kernel module, in turns.

use crate::Rig;
use millpond_engine::{
    Caller, NewMode, OpenOptions, Pool, PoolBuilder, Search, SyncMode, WriteAt, WriteOptions,
};
use millpond_pool::CheckpointRefusal;
use millpond_tests::images::workspace;
use millpond_tests::oracle::kernel::{self, Disks, Release};
use millpond_tests::workload::Life;

const MIB: u64 = 128;

/// A pool with a file system `gone`, which is not part of the life.
fn lived(builder: PoolBuilder, name: &str) -> (Pool, Life) {
    let (pool, life) = crate::lived(builder, name, "checkpoint", 120);
    let gone = format!("{name}/gone");
    pool.datasets().create_filesystem(&gone, &[]).unwrap();
    let files = pool.file_system(&gone).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let (node, _) = files.create(&caller, &root, b"file", mode, true).unwrap();
    let noise: Vec<u8> = (0..1_000_000u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 9) as u8)
        .collect();
    files
        .write(&caller, &node, WriteAt::Offset(0), &noise)
        .unwrap();
    drop((node, root, files));
    pool.sync().unwrap();
    (pool, life)
}

/// Destroys the extra file system; returns whether it was there.
fn without_gone(pool: &Pool, name: &str) -> bool {
    let was_there = pool
        .datasets()
        .destroy(&format!("{name}/gone"), Default::default());
    pool.sync().unwrap();
    was_there.is_ok()
}

fn rewind(rig: &Rig, name: &str) -> Pool {
    let options = OpenOptions {
        at_checkpoint: true,
        ..OpenOptions::default()
    };
    let search = Search::new([rig.folder()]);
    Pool::open(&search, name, &options, &WriteOptions::default()).unwrap()
}

/// Begins to discard the checkpoint, and leaves the pool as after a crash.
fn discard_a_part(rig: &Rig, name: &str) {
    let writing = WriteOptions {
        sync_mode: SyncMode::Caller,
        ..WriteOptions::default()
    };
    let search = Search::new([rig.folder()]);
    let pool = Pool::open(&search, name, &OpenOptions::default(), &writing).unwrap();
    pool.inner().set_discarded_at_once(5);
    pool.inner().discard_checkpoint().unwrap();
    pool.sync().unwrap();
    assert!(pool.inner().has_more_to_discard());
}

fn run(rig: &Rig, release: Release, actions: &[[&str; 2]]) {
    let script = workspace().join("tools/kernel/checkpoint");
    let arguments = actions.as_flattened();
    let disks = Disks::Changed;
    let output = kernel::run(release, &rig.images, disks, None, &script, arguments).unwrap();
    output.lines.iter().for_each(|line| println!("    {line}"));
    if output.status != Some(0) {
        rig.keep("checkpoint");
    }
    assert_eq!(output.status, Some(0), "{release:?}");
}

/// The pool is right, and works here.
fn works(rig: &Rig, name: &str, life: &mut Life, has_gone: bool) {
    rig.judge(name);
    let pool = rig.open(name);
    assert_eq!(without_gone(&pool, name), has_gone, "{name}");
    life.steps(&pool, 20);
    pool.export().unwrap();
    life.compare(&rig.read(name), name);
    rig.judge(name);
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(14, MIB);
    let image = |range: std::ops::Range<usize>| rig.images[range].to_vec();
    let builders = [
        (
            "discarded",
            PoolBuilder::new("discarded").mirror(image(0..2)),
        ),
        ("rewound", PoolBuilder::new("rewound").raidz(1, image(2..5))),
        (
            "halfway",
            PoolBuilder::new("halfway").single(&rig.images[5]),
        ),
        ("beside", PoolBuilder::new("beside").single(&rig.images[6])),
        ("theirs", PoolBuilder::new("theirs").mirror(image(7..9))),
        ("back", PoolBuilder::new("back").raidz(1, image(9..13))),
        (
            "small",
            PoolBuilder::new("small").single(&rig.images[13]).ashift(9),
        ),
    ];
    let [
        mut discarded,
        mut rewound,
        mut halfway,
        mut beside,
        mut theirs,
        mut back,
        mut small,
    ] = builders.map(|(name, builder)| {
        let (pool, mut life) = lived(builder, name);
        let kept = life.clone();
        if !["theirs", "back", "small"].contains(&name) {
            pool.inner().take_checkpoint().unwrap();
            life.steps(&pool, 40);
            if name != "beside" {
                assert!(without_gone(&pool, name));
            }
        }
        pool.export().unwrap();
        if name == "halfway" {
            discard_a_part(&rig, name);
        }
        rig.judge(name);
        match name {
            "rewound" => kept,
            _ => life,
        }
    });
    run(
        &rig,
        release,
        &[
            ["discards", "discarded"],
            ["rewinds", "rewound"],
            ["ends", "halfway"],
            ["destroys", "beside"],
            ["takes", "theirs"],
            ["takes", "back"],
            ["takes", "small"],
        ],
    );
    works(&rig, "discarded", &mut discarded, false);
    works(&rig, "rewound", &mut rewound, true);
    works(&rig, "halfway", &mut halfway, false);

    // What the module took, or wrote beside what we took.
    let kept = back.clone();
    for (name, life) in [
        ("beside", &mut beside),
        ("theirs", &mut theirs),
        ("back", &mut back),
        ("small", &mut small),
    ] {
        works(&rig, name, life, false);
        let pool = rig.open(name);
        let refusal = pool.inner().checkpoint_refusal();
        assert_eq!(refusal, Some(CheckpointRefusal::Exists), "{name}");
        if name == "beside" {
            pool.inner().discard_checkpoint().unwrap();
            while pool.inner().has_more_to_discard() {
                pool.sync().unwrap();
            }
        }
        pool.export().unwrap();
        if name == "theirs" {
            discard_a_part(&rig, name);
        }
        rig.judge(name);
    }
    back = kept;
    rewind(&rig, "back").export().unwrap();
    works(&rig, "back", &mut back, true);
    run(
        &rig,
        release,
        &[
            ["clean", "discarded"],
            ["clean", "rewound"],
            ["clean", "beside"],
            ["ends", "theirs"],
            ["clean", "back"],
            ["discards", "small"],
        ],
    );
    for (name, life) in [
        ("beside", &mut beside),
        ("theirs", &mut theirs),
        ("back", &mut back),
        ("small", &mut small),
    ] {
        works(&rig, name, life, false);
    }
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn checkpoints_go_to_and_fro_with_2_3() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn checkpoints_go_to_and_fro_with_2_4() {
    to_and_fro(Release::V2_4);
}
