//! Checkpoints keep their blocks while others are written, freed and discarded, also if the power
//! fails; a rewind brings it back, and discarding gives its space back.

use crate::exhaustive::{self, Files, State, each_state, files_of, is_all, judge, step};
use crate::initialize::{INITIALIZE, START, change, history};
use crate::scan::lived;
use crate::sim;
use millpond_engine::{
    AttachKind, Error, LeafActivity, NewDevice,
    NewLayout::{self, Mirror, Raidz, Single},
    NewTop, NewVdevOptions, NewVdevs, OpenOptions, Pool, ScrubRange, SliceLimits, View,
};
use millpond_env::mark;
use millpond_ondisk::{Endian, ObjectId, SpaceMapPhys};
use millpond_pool::{CheckpointRefusal, PoolError};
use millpond_sim::{Event, Seed, World};
use millpond_tests::leaves;
use millpond_tests::oracle::zdb;
use millpond_tests::workload::Life;

const SHAPES: [(&str, &[(NewLayout, usize)]); 4] = [
    ("one", &[(Single, 1)]),
    ("mirror", &[(Mirror, 2)]),
    ("raidz1", &[(Raidz(1), 3)]),
    ("two", &[(Single, 1), (Single, 1)]),
];

/// Options that open the state of the checkpoint.
fn at_checkpoint() -> OpenOptions {
    OpenOptions {
        at_checkpoint: true,
        cache_bytes: Some(16 << 20),
        ..OpenOptions::default()
    }
}

/// Opens the checkpointed state for reading.
fn look(world: &World) -> Result<View, Error> {
    View::open_candidate(&sim::candidate(world), &at_checkpoint())
}

/// Rewinds the pool to its checkpoint.
fn rewind(world: &World) -> Result<Pool, Error> {
    let candidate = sim::candidate(world);
    Pool::open_candidate(
        &world.env(),
        &candidate,
        &at_checkpoint(),
        &sim::by_caller(),
    )
}

fn kept_bytes(pool: &Pool) -> u64 {
    pool.inner().space().checkpoint_bytes
}

/// Everything that the pool has now is right.
fn is_sound(world: &World, life: &Life, what: &str) {
    let view = sim::read(world).unwrap();
    sim::verify(&view).unwrap_or_else(|found| panic!("{what}: {found}"));
    let faults = millpond_tests::recount::faults_of(view.inner());
    assert!(faults.is_empty(), "{what}: {}", faults.join("\n"));
    life.compare(&view, what);
    drop(view);
    judge(world, what);
}

/// Everything that the checkpoint has is right, and `zdb` reads all of it.
fn is_kept(world: &World, life: &Life, what: &str) {
    let view = look(world).unwrap();
    sim::verify(&view).unwrap_or_else(|found| panic!("{what}: {found}"));
    life.compare(&view, what);
    drop(view);
    if zdb::absent().is_some() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    let found = zdb::run(folder.path(), &["-k", "-bcc", "tank"]).unwrap();
    let text = found.lines.join("\n");
    assert_eq!(found.status, Some(0), "{what}: {text}");
    assert!(text.contains("No leaks"), "{what}: {text}");
    for bad in ["leaked space", "!=", "errors", "corrupt", "ERROR"] {
        let lines = found.lines.iter().filter(|line| line.contains(bad));
        let lines: Vec<_> = lines.collect();
        assert!(lines.is_empty(), "{what}: {lines:?}\n{text}");
    }
}

#[test]
fn everything_is_kept_until_it_is_discarded_or_the_pool_rewound() {
    let _marks = [
        mark::expect("checkpoint-keeps-freed"),
        mark::expect("checkpoint-discarded-in-steps"),
    ];
    for (number, (shape, tops)) in SHAPES.into_iter().enumerate() {
        for rewinds in [false, true] {
            let what = format!("{shape}, {}", if rewinds { "rewound" } else { "discarded" });
            let world = World::without_journal(300 + number as u64);
            let (pool, mut life) = lived(&world, shape, tops, 60);
            pool.inner().take_checkpoint().unwrap();
            let kept = life.clone();
            let view = pool.inner().committed().unwrap();
            let taken = view.checkpoint().unwrap().unwrap();
            assert_eq!(taken.checkpoint_txg, taken.txg);
            drop(view);
            life.steps(&pool, 60);
            pool.sync().unwrap();
            assert!(kept_bytes(&pool) > 100_000, "{what}: {}", kept_bytes(&pool));
            // In the present state too, and after it was opened again.
            pool.export().unwrap();
            is_sound(&world, &life, &what);
            is_kept(&world, &kept, &what);
            let pool = sim::open(&world).unwrap();
            life.steps(&pool, 30);
            pool.export().unwrap();
            is_kept(&world, &kept, &what);
            if rewinds {
                let newest = sim::candidate(&world).newest().unwrap().uberblock;
                let pool = rewind(&world).unwrap();
                assert!(pool.inner().uberblock().txg > newest.txg);
                assert_eq!(pool.inner().checkpoint_refusal(), None);
                assert_eq!(kept_bytes(&pool), 0);
                assert!(history(&pool).contains("rewound state to txg="), "{what}");
                life = kept.clone();
                life.steps(&pool, 30);
                pool.export().unwrap();
                is_sound(&world, &life, &what);
                let refused = look(&world).map(drop).unwrap_err().to_string();
                assert!(refused.contains("no checkpoint"), "{refused}");
            } else {
                let pool = sim::open(&world).unwrap();
                let before = kept_bytes(&pool);
                pool.inner().set_discarded_at_once(20);
                // Files change meanwhile, and halfway the pool is opened again.
                pool.inner().discard_checkpoint().unwrap();
                life.steps(&pool, 5);
                pool.sync().unwrap();
                assert!((1..before).contains(&kept_bytes(&pool)), "{what}");
                drop(pool);
                judge(&world, &what);
                let pool = sim::open(&world).unwrap();
                while pool.inner().has_more_to_discard() {
                    pool.sync().unwrap();
                }
                assert_eq!(kept_bytes(&pool), 0);
                assert_eq!(pool.inner().checkpoint_refusal(), None);
                assert!(before > 0);
                let text = history(&pool);
                let said = |words: &str| assert!(text.contains(words), "{what}: no {words}");
                said(&format!("checkpointed uberblock txg={}", taken.txg));
                said("started discarding checkpointed state from the pool");
                said("finished discarding checkpointed state from the pool");
                life.steps(&pool, 30);
                // Another one.
                pool.inner().take_checkpoint().unwrap();
                let kept = life.clone();
                life.steps(&pool, 20);
                pool.export().unwrap();
                is_sound(&world, &life, &what);
                is_kept(&world, &kept, &what);
            }
        }
    }
}

/// What happens to the checkpoint of a small pool.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// It is taken, and files change beside it.
    Take,
    /// It is discarded while files change.
    Discard,
    /// The pool is rewound to it.
    Rewind,
}

/// A pool on which files were written, with a checkpoint unless that is the work, and what the checkpoint has.
fn prepared(world: &World, tops: &[(NewLayout, usize)], work: Work) -> (Pool, Files, Files) {
    let pool = sim::create(world, tops, 64);
    pool.sync().unwrap();
    let mut files = Files::new();
    step(&pool, 0, &mut files);
    step(&pool, 1, &mut files);
    pool.sync().unwrap();
    let kept = files.clone();
    if work != Work::Take {
        pool.inner().take_checkpoint().unwrap();
        step(&pool, 2, &mut files);
        pool.sync().unwrap();
        step(&pool, 3, &mut files);
        pool.sync().unwrap();
    }
    (pool, files, kept)
}

/// Every state after a power cut is one that was promised, or was on its way; so is the checkpoint in it.
fn cut(shape: &str, tops: &[(NewLayout, usize)], work: Work) {
    let world = World::new(311);
    let (pool, mut files, kept) = prepared(&world, tops, work);
    // What may be found: with the number of events after which it was promised.
    let mut states = vec![(0, files.clone())];
    // After this many events the checkpoint must be there, and after those it may be gone.
    let (is_taken_at, may_be_gone_at);
    match work {
        Work::Take => {
            world.forget();
            pool.inner().take_checkpoint().unwrap();
            is_taken_at = world.recorded();
            may_be_gone_at = usize::MAX;
            for number in [2, 3] {
                step(&pool, number, &mut files);
                pool.sync().unwrap();
                states.push((world.recorded(), files.clone()));
            }
            drop(pool);
        }
        Work::Discard => {
            world.forget();
            is_taken_at = 0;
            may_be_gone_at = 0;
            pool.inner().set_discarded_at_once(5);
            pool.inner().discard_checkpoint().unwrap();
            step(&pool, 0, &mut files);
            pool.sync().unwrap();
            states.push((world.recorded(), files.clone()));
            while pool.inner().has_more_to_discard() {
                pool.sync().unwrap();
            }
            drop(pool);
        }
        Work::Rewind => {
            pool.export().unwrap();
            world.forget();
            is_taken_at = 0;
            may_be_gone_at = 0;
            let pool = rewind(&world).unwrap();
            files = kept.clone();
            states.push((world.recorded(), files.clone()));
            step(&pool, 2, &mut files);
            pool.sync().unwrap();
            states.push((world.recorded(), files.clone()));
            drop(pool);
        }
    }
    let (mut judged, mut seed) = (0, Seed::new(12));
    let tried = each_state(shape, &world, &mut seed, &mut |state| {
        let State {
            count,
            after,
            what,
            tried,
        } = state;
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
        let least = states.iter().rposition(|(at, _)| *at <= count).unwrap();
        let matching = states.iter().skip(least).find(|(_, state)| *state == found);
        assert!(matching.is_some(), "{what}: is no state from {least} on");
        sim::verify_blocks(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
        let faults = millpond_tests::recount::faults_after_a_cut(&read);
        assert!(faults.is_empty(), "{what}: {}", faults.join("\n"));
        drop(read);
        match look(after) {
            Ok(view) => {
                assert_eq!(files_of(&view).unwrap(), kept, "{what}: the checkpoint");
                sim::verify_blocks(&view).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            Err(error) => {
                let may_lack = count < is_taken_at || count >= may_be_gone_at;
                assert!(may_lack, "{what}: {error}");
                assert!(
                    error.to_string().contains("no checkpoint"),
                    "{what}: {error}"
                );
            }
        }
        if tried % exhaustive::JUDGED_OF == exhaustive::JUDGED_OF / 2 || (!is_all() && tried == 20)
        {
            judge(after, what);
            judged += 1;
        }
        if tried % 10 == 7 {
            goes_on(after, found, &kept, what);
        }
    });
    println!("{shape}: {judged} judged by zdb");
    assert!(tried > 10, "{shape}: {tried} states prove nothing");
}

/// A pool can be used after a cut: its discarding continues, and a checkpoint still leads back.
fn goes_on(after: &World, mut files: Files, kept: &Files, what: &str) {
    let has_one = look(after).is_ok();
    let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
    files.remove(&b"a"[..]);
    let root = pool.file_system("tank").unwrap();
    if root.root().unwrap().lookup(b"a").is_ok() {
        root.unlink(&root.root().unwrap(), b"a").unwrap();
    }
    drop(root);
    step(&pool, 0, &mut files);
    pool.sync().unwrap();
    while pool.inner().has_more_to_discard() {
        pool.sync().unwrap();
    }
    let refusal = has_one.then_some(CheckpointRefusal::Exists);
    assert_eq!(pool.inner().checkpoint_refusal(), refusal, "{what}");
    pool.export().unwrap();
    let read = sim::read(after).unwrap();
    assert_eq!(files_of(&read).unwrap(), files, "{what}, gone on");
    sim::verify_blocks(&read).unwrap_or_else(|error| panic!("{what}, gone on: {error}"));
    drop(read);
    if has_one {
        rewind(after)
            .unwrap_or_else(|error| panic!("{what}: {error}"))
            .export()
            .unwrap();
        let read = sim::read(after).unwrap();
        assert_eq!(&files_of(&read).unwrap(), kept, "{what}, rewound");
        sim::verify_blocks(&read).unwrap_or_else(|error| panic!("{what}, rewound: {error}"));
    }
}

#[test]
fn power_cuts_while_it_is_taken_lose_nothing() {
    cut("checkpoint taken, one", &[(Single, 1)], Work::Take);
    cut("checkpoint taken, mirror", &[(Mirror, 2)], Work::Take);
}

#[test]
fn power_cuts_while_it_is_discarded_lose_nothing() {
    cut("checkpoint discarded, one", &[(Single, 1)], Work::Discard);
    cut(
        "checkpoint discarded, raidz",
        &[(Raidz(1), 3)],
        Work::Discard,
    );
}

#[test]
fn power_cuts_during_a_rewind_leave_one_of_both_states() {
    cut("checkpoint rewound, one", &[(Single, 1)], Work::Rewind);
    cut("checkpoint rewound, mirror", &[(Mirror, 2)], Work::Rewind);
}

#[test]
fn changes_of_the_tree_are_refused_while_it_exists() {
    let world = World::without_journal(321);
    let (pool, _) = lived(&world, "refused", &[(Mirror, 2)], 20);
    let engine = pool.inner();
    let refused = |error: PoolError| match error {
        PoolError::Checkpoint(why) => why,
        other => panic!("{other}"),
    };
    let missing = refused(engine.discard_checkpoint().unwrap_err());
    assert_eq!(missing, CheckpointRefusal::Missing);
    engine.take_checkpoint().unwrap();
    let again = refused(engine.take_checkpoint().unwrap_err());
    assert_eq!(again, CheckpointRefusal::Exists);
    let words = |error: String| assert_eq!(error, "checkpoint exists");
    words(engine.reguid(None).unwrap_err().to_string());
    let leaf = leaves::all(&pool)[0];
    words(engine.detach_leaf(leaf).unwrap_err().to_string());
    words(engine.split_off(&[leaf]).map(drop).unwrap_err().to_string());
    words(
        engine
            .remove_auxiliary(leaf)
            .map(drop)
            .unwrap_err()
            .to_string(),
    );
    let disk = world.disk(128 << 20, 512);
    let device = NewDevice::file("/sim/new.img", disk);
    let options = NewVdevOptions {
        ashift: None,
        force: true,
    };
    let attached = engine.attach_leaf(leaf, &device, AttachKind::Mirror, options, &|_| false);
    words(attached.unwrap_err().to_string());
    engine.set_discarded_at_once(1);
    engine.discard_checkpoint().unwrap();
    assert_eq!(
        engine.reguid(None).unwrap_err().to_string(),
        "currently discarding checkpoint"
    );
    while engine.has_more_to_discard() {
        pool.sync().unwrap();
    }
    engine.reguid(None).unwrap();
}

#[test]
fn a_vdev_that_was_added_later_is_gone_after_a_rewind() {
    let world = World::without_journal(322);
    let (pool, mut life) = lived(&world, "added", &[(Single, 1)], 40);
    pool.inner().take_checkpoint().unwrap();
    let kept = life.clone();
    let disk = world.disk(128 << 20, 512);
    let device = NewDevice::file("/sim/d1.img", disk);
    let vdevs = NewVdevs::of(vec![NewTop::normal(Single, vec![device])]);
    let options = NewVdevOptions {
        ashift: Some(9),
        force: true,
    };
    pool.inner().add_vdevs(&vdevs, options, &|_| false).unwrap();
    life.steps(&pool, 40);
    pool.export().unwrap();
    is_sound(&world, &life, "added");
    is_kept(&world, &kept, "added");
    let pool = rewind(&world).unwrap();
    assert_eq!(leaves::all(&pool).len(), 1);
    life = kept;
    life.steps(&pool, 20);
    pool.sync().unwrap();
    drop(pool);
    // As after a crash, with the labels of the other disk still there.
    let pool = sim::open(&world).unwrap();
    assert_eq!(leaves::all(&pool).len(), 1);
    life.steps(&pool, 20);
    pool.export().unwrap();
    is_sound(&world, &life, "added and gone");
}

#[test]
fn trims_initializations_and_scrubs_spare_what_it_keeps() {
    let world = World::without_journal(323);
    world.set_discards(Seed::new(4));
    let (pool, mut life) = lived(&world, "trimmed", &[(Mirror, 2)], 60);
    pool.inner().take_checkpoint().unwrap();
    let kept = life.clone();
    life.steps(&pool, 60);
    let all = leaves::all(&pool);
    let refused = (pool.inner())
        .change_leaf_activity(&all, LeafActivity::Trim, START)
        .unwrap();
    assert_eq!(refused, []);
    let limits = SliceLimits::default();
    while pool.inner().leaf_activity_slice(&limits).unwrap() {
        life.steps(&pool, 3);
        pool.inner().autotrim(&limits);
    }
    change(&pool, &all, START);
    while pool.inner().is_leaf_active(INITIALIZE)
        && pool.inner().leaf_activity_slice(&limits).unwrap()
    {
        life.steps(&pool, 3);
    }
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    crate::scan::finish(&pool);
    pool.export().unwrap();
    is_sound(&world, &life, "trimmed");
    is_kept(&world, &kept, "trimmed");
}

#[test]
fn a_resilver_beside_it_leaves_what_it_did_not_visit() {
    let world = World::without_journal(324);
    let (pool, mut life) = lived(&world, "resilvered", &[(Mirror, 2)], 40);
    // One side lacks blocks that only the checkpoint will have.
    let leaf = leaves::all(&pool)[1];
    let how = millpond_pool::Offline {
        is_fault: false,
        is_temporary: false,
    };
    pool.inner().offline_leaf(leaf, how).unwrap();
    life.steps(&pool, 40);
    pool.sync().unwrap();
    pool.inner().take_checkpoint().unwrap();
    let kept = life.clone();
    life.steps(&pool, 60);
    crate::scan::online(&world, &pool, 1);
    pool.inner().start_resilver().unwrap();
    crate::scan::finish(&pool);
    assert!(pool.inner().needs_resilver());
    pool.export().unwrap();
    is_sound(&world, &life, "resilvered");
    // Rewound, it is resilvered again, and then the other side is not needed.
    let pool = rewind(&world).unwrap();
    life = kept;
    crate::scan::online(&world, &pool, 1);
    assert!(pool.inner().needs_resilver());
    pool.inner().start_resilver().unwrap();
    crate::scan::finish(&pool);
    assert!(!pool.inner().needs_resilver());
    pool.export().unwrap();
    world.disks()[0].set_absent(true);
    let view = sim::read(&world).unwrap();
    life.compare(&view, "resilvered, rewound");
}

#[test]
fn without_it_the_next_resilver_completes_a_leaf() {
    let world = World::without_journal(326);
    let (pool, mut life) = lived(&world, "completed", &[(Mirror, 2)], 40);
    pool.inner().take_checkpoint().unwrap();
    let leaf = leaves::all(&pool)[1];
    let how = millpond_pool::Offline {
        is_fault: false,
        is_temporary: false,
    };
    pool.inner().offline_leaf(leaf, how).unwrap();
    life.steps(&pool, 40);
    pool.sync().unwrap();
    crate::scan::online(&world, &pool, 1);
    pool.inner().start_resilver().unwrap();
    crate::scan::finish(&pool);
    let need = pool.inner().resilver_need();
    assert!(need.is_some());
    pool.inner().discard_checkpoint().unwrap();
    while pool.inner().has_more_to_discard() {
        pool.sync().unwrap();
    }
    // The thread that scans starts one only if something changed.
    assert_ne!(pool.inner().resilver_need(), need);
    pool.inner().start_resilver().unwrap();
    crate::scan::finish(&pool);
    assert_eq!(pool.inner().resilver_need(), None);
    pool.export().unwrap();
    is_sound(&world, &life, "completed");
}

#[test]
fn the_same_work_makes_the_same_requests() {
    // Otherwise cuts would prove nothing.
    let requests = || {
        let world = World::new(311);
        let (pool, ..) = prepared(&world, &[(Single, 1)], Work::Discard);
        pool.export().unwrap();
        let journal = world.journal();
        journal
            .events()
            .iter()
            .filter(|event| matches!(event, Event::Write { .. }))
            .count()
    };
    assert_eq!(requests(), requests());
}

/// One-word entry of a space map that frees `units` from a unit on.
fn free_entry(from: u64, units: u64) -> u64 {
    from << 16 | 1 << 15 | (units - 1)
}

#[test]
fn a_forged_map_ends_the_discarding_and_harms_nothing() {
    let forged: [(&str, &[u64]); 5] = [
        ("behind the vdev", &[free_entry(1 << 40, 8)]),
        ("free already", &[free_entry((100 << 20) >> 9, 8)]),
        ("twice", &[free_entry(0x200, 8), free_entry(0x204, 8)]),
        ("allocates", &[0x200 << 16 | 7]),
        ("half an entry", &[3 << 62]),
    ];
    for (what, words) in forged {
        let world = World::without_journal(325);
        let (pool, mut life) = lived(&world, what, &[(Single, 1)], 40);
        pool.inner().take_checkpoint().unwrap();
        life.steps(&pool, 40);
        pool.sync().unwrap();
        let engine = pool.inner();
        let zap = engine.config().root.children[0].zap_top.unwrap();
        let name = millpond_ondisk::pool_directory::vdev_key::CHECKPOINT_SPACE_MAP;
        let forging = engine.sync_task(|ctx| {
            let map = ObjectId(ctx.table_number(zap, name)?.unwrap());
            let object = ctx.mos().object(map).unwrap();
            let phys = SpaceMapPhys::decode(&object.bonus(), Endian::Little).unwrap();
            let at = phys.length_bytes - 8 * words.len() as u64;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            object.write(ctx.tx(), at, &bytes).unwrap();
            Ok(())
        });
        forging.unwrap();
        engine.discard_checkpoint().unwrap();
        pool.sync().unwrap();
        assert!(!engine.has_more_to_discard(), "{what}");
        let refusal = Some(CheckpointRefusal::Discarding);
        assert_eq!(engine.checkpoint_refusal(), refusal, "{what}");
        life.steps(&pool, 20);
        pool.export().unwrap();
        // The same when it is opened again.
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 5);
        pool.sync().unwrap();
        assert!(!pool.inner().has_more_to_discard(), "{what}");
        assert!(pool.inner().suspension().is_none(), "{what}");
        pool.export().unwrap();
        life.compare(&sim::read(&world).unwrap(), what);
    }
}
