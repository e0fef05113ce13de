use crate::rig::Rig;
use crate::sim;
use millpond_engine::{
    Caller, FileSystem, NewLayout, NewMode, Node, OpenOptions, Pool, PoolBuilder, Symlinks,
    WriteAt, WriteOptions,
};
use millpond_pool::{ImportNote, ImportNotes};
use millpond_sim::{PowerCut, World};
use std::sync::{Arc, Mutex};

fn write_file(files: &Arc<FileSystem>, name: &[u8], content: &[u8]) -> Node {
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let (node, _) = files
        .create(&caller, &root, name, NewMode::exactly(0o644), true)
        .unwrap();
    let mut at = 0;
    for piece in content.chunks(100_000) {
        files
            .write(&caller, &node, WriteAt::Offset(at), piece)
            .unwrap();
        at += piece.len() as u64;
    }
    node
}

fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut seed = seed;
    (0..length)
        .map(|at| {
            if at % 512 < 256 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
            (seed >> 33) as u8
        })
        .collect()
}

fn life(rig: &Rig, plan: PoolBuilder) {
    let pool = plan.create().unwrap();
    pool.datasets().create_filesystem("tank/home", &[]).unwrap();
    let files = pool.file_system("tank/home").unwrap();
    let big = content(3_000_000, 1);
    write_file(&files, b"big", &big);
    for number in 0..50u64 {
        write_file(
            &files,
            format!("f{number}").as_bytes(),
            &content(number as usize * 700, number),
        );
    }
    pool.datasets().snapshot(&["tank/home@first"], &[]).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    for number in 0..25u64 {
        files
            .unlink(&root, format!("f{number}").as_bytes())
            .unwrap();
    }
    let node = root.lookup(b"big").unwrap();
    files
        .write(&caller, &node, WriteAt::Offset(1_000_000), b"changed")
        .unwrap();
    drop((node, root, files));
    pool.sync().unwrap();
    pool.export().unwrap();
    rig.judge("tank");

    let pool = rig.read("tank");
    for (dataset, expected) in [
        ("tank/home@first", &big),
        ("tank/home", &{
            let mut changed = big.clone();
            changed[1_000_000..1_000_007].copy_from_slice(b"changed");
            changed
        }),
    ] {
        let files = pool.dataset(dataset).unwrap().file_system().unwrap();
        let node = files.resolve(b"big", Symlinks::Follow).unwrap();
        let mut found = vec![0; node.size_bytes() as usize];
        node.read(0, &mut found).unwrap();
        assert!(found == **expected, "{dataset}");
    }
    drop(pool);

    let pool = rig.open("tank");
    let files = pool.file_system("tank/home").unwrap();
    write_file(&files, b"after", &content(500_000, 9));
    drop(files);
    pool.datasets()
        .destroy_snapshots(&["tank/home@first"], Default::default())
        .unwrap();
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
fn operations_on_one_disk_survive_reimport() {
    let rig = Rig::new(1, 128);
    life(&rig, rig.stripe("tank"));
}

#[test]
fn operations_on_a_mirror_survive_reimport() {
    let rig = Rig::new(2, 128);
    life(&rig, PoolBuilder::new("tank").mirror(&rig.images));
}

#[test]
fn operations_on_raidz2_survive_reimport() {
    let rig = Rig::new(5, 128);
    life(&rig, PoolBuilder::new("tank").raidz(2, &rig.images));
}

/// A power cut leaves a log, which the next import claims and replays.
#[test]
fn an_import_tells_its_steps_in_order() {
    let world = World::new(79);
    let pool = sim::create(&world, &[(NewLayout::Single, 1)], 128);
    (pool.datasets().create_filesystem("tank/logged", &[])).unwrap();
    let files = pool.file_system("tank/logged").unwrap();
    pool.sync().unwrap();
    // The first one waits for a txg, because there is no log yet.
    for name in [b"a", b"b"] {
        let node = write_file(&files, name, b"promised");
        files.fsync(&node).unwrap();
    }
    let world = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
    let steps = Arc::new(Mutex::new(vec![]));
    let told = Arc::clone(&steps);
    let writing = WriteOptions {
        notes: ImportNotes::new(move |note| {
            told.lock().unwrap().push(match note {
                ImportNote::Step(step) => step.to_owned(),
                ImportNote::Done { done, total } => format!("{done} of {total}"),
            });
        }),
        ..sim::by_caller()
    };
    let candidate = sim::candidate(&world);
    let options = OpenOptions::default();
    Pool::open_candidate(&world.env(), &candidate, &options, &writing).unwrap();
    let steps = steps.lock().unwrap().clone();
    let place = |step: &str| {
        let place = steps.iter().position(|told| told == step);
        place.unwrap_or_else(|| panic!("{step}: {steps:?}"))
    };
    let places = [
        place("Loading the configuration"),
        place("Claiming intent logs"),
        place("Replaying the intent log of tank/logged (1 of 1)"),
    ];
    assert!(places.is_sorted(), "{steps:?}");
    // Then how many of its records are replayed.
    let records = steps
        .iter()
        .filter(|step| step.contains(" of ") && !step.contains("log"));
    let records: Vec<&String> = records.collect();
    let total = records.len();
    assert!(total >= 2, "{steps:?}");
    for (number, told) in records.iter().enumerate() {
        assert_eq!(**told, format!("{number} of {total}"), "{steps:?}");
    }
}
