//! The power fails at every point of a small piece of work, with every subset of the unflushed requests.
//!
//! Between two flushes a disk may keep any subset of the requests that it received. The set of unflushed
//! requests is largest just before each flush, and an earlier cut leaves a subset of it. Cutting there with
//! every subset therefore covers all cases.
//!
//! Up to [`EVERY_SUBSET_MAX`] requests, all subsets are tested. For more requests: every prefix, all but
//! each one, each one alone, and random subsets. In addition each request is torn: any number of its first
//! sectors, or of its last, with all other requests complete.
//!
//! By default a sample is tested, with `MILLPOND_WRITING_ALL` everything.

use crate::sim;
use millpond_engine::{
    Caller, Dataset, FileKind, NewLayout, NewLayout::Mirror, NewLayout::Raidz, NewLayout::Single,
    NewMode, Pool, SetAttributes, View, WriteAt,
};
use millpond_sim::{Event, Kept, PowerCut, Seed, World};
use millpond_tests::oracle::zdb;
use std::collections::BTreeMap;

/// Up to this number of requests every subset is tested: 4,096.
const EVERY_SUBSET_MAX: usize = 12;
/// Number of random subsets for more requests.
const RANDOM_SUBSETS: usize = 400;
/// One of this many states is judged by `zdb`, and one of this many is used for further work.
pub(crate) const JUDGED_OF: usize = 700;
const GONE_ON_OF: usize = 40;

pub(crate) type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// The files of the pool's root.
pub(crate) fn files_of(pool: &View) -> Result<Files, millpond_engine::Error> {
    files_in(&pool.dataset("tank")?)
}

/// The files in the root directory of a file system.
pub(crate) fn files_in(dataset: &Dataset) -> Result<Files, millpond_engine::Error> {
    let mut all = Files::new();
    let files = dataset.file_system()?;
    for entry in files.root()?.entries()? {
        let entry = entry?;
        let node = files.node(entry.id)?;
        assert_eq!(node.kind(), FileKind::Regular);
        let mut bytes = vec![0; node.size_bytes() as usize];
        node.read(0, &mut bytes)?;
        all.insert(entry.name, bytes);
    }
    Ok(all)
}

/// The work, one step each: what a program does before it calls `fsync` for everything.
pub(crate) fn step(pool: &Pool, number: usize, state: &mut Files) {
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let noise: Vec<u8> = (0..9000u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> (8 + number)) as u8)
        .collect();
    match number {
        0 => {
            let (node, _) = files.create(&caller, &root, b"a", mode, true).unwrap();
            let at = WriteAt::Offset(0);
            files.write(&caller, &node, at, &noise[..5000]).unwrap();
            state.insert(b"a".to_vec(), noise[..5000].to_vec());
        }
        1 => {
            let node = root.lookup(b"a").unwrap();
            let at = WriteAt::Offset(3000);
            files.write(&caller, &node, at, &noise).unwrap();
            let old = state.get_mut(&b"a"[..]).unwrap();
            old.truncate(3000);
            old.extend(&noise);
        }
        2 => {
            let (node, _) = files.create(&caller, &root, b"b", mode, true).unwrap();
            let at = WriteAt::Offset(0);
            files.write(&caller, &node, at, b"small").unwrap();
            state.insert(b"b".to_vec(), b"small".to_vec());
            let node = root.lookup(b"a").unwrap();
            let set = SetAttributes {
                size_bytes: Some(100),
                ..SetAttributes::default()
            };
            files.set_attributes(&caller, &node, &set).unwrap();
            state.get_mut(&b"a"[..]).unwrap().truncate(100);
        }
        _ => {
            files.unlink(&root, b"a").unwrap();
            state.remove(&b"a"[..]);
        }
    }
    files.reap().unwrap();
}

/// The possible cuts with these unflushed requests, given by their sector counts.
fn cuts(unflushed: &[usize], seed: &mut Seed) -> Vec<PowerCut> {
    let count = unflushed.len();
    let only = |which: &mut dyn Iterator<Item = usize>| {
        PowerCut::Only(which.map(|one| (one, Kept::Whole)).collect())
    };
    let mut all = vec![];
    if count <= EVERY_SUBSET_MAX {
        for mask in 0..1usize << count {
            all.push(only(&mut (0..count).filter(|one| mask >> one & 1 != 0)));
        }
    } else {
        for first in 0..=count {
            all.push(only(&mut (0..first)));
        }
        for one in 0..count {
            all.push(only(&mut (0..count).filter(|other| *other != one)));
            all.push(only(&mut std::iter::once(one)));
        }
        for _ in 0..RANDOM_SUBSETS {
            all.push(only(&mut (0..count).filter(|_| seed.below(2) == 0)));
        }
    }
    for (one, sectors) in unflushed.iter().enumerate() {
        // Large requests such as a label's uberblock ring: only some of the possible tears.
        let step = (sectors / 8).max(1);
        for cut in (1..*sectors).step_by(step) {
            for range in [0..cut, cut..*sectors] {
                let mut kept: BTreeMap<usize, Kept> =
                    (0..count).map(|other| (other, Kept::Whole)).collect();
                kept.insert(one, Kept::Sectors(range));
                all.push(PowerCut::Only(kept));
            }
        }
    }
    all
}

/// The state after a cut.
pub(crate) struct State<'s> {
    /// The number of events before the cut.
    pub(crate) count: usize,
    pub(crate) after: &'s World,
    /// A description of the cut.
    pub(crate) what: &'s str,
    /// The number of this state among the tested states, starting at 1.
    pub(crate) tried: usize,
}

/// Whether every state is tested instead of a sample.
pub(crate) fn is_all() -> bool {
    std::env::var_os("MILLPOND_WRITING_ALL").is_some()
}

/// Cuts at every point with every subset, or a sample of them. Returns the number of states visited.
pub(crate) fn each_state(
    shape: &str,
    world: &World,
    seed: &mut Seed,
    visit: &mut dyn FnMut(State<'_>),
) -> usize {
    let journal = world.journal();
    let is_flush = |index: &usize| matches!(journal.events()[*index], Event::Flush { .. });
    let mut places: Vec<usize> = (0..journal.len()).filter(is_flush).collect();
    places.push(journal.len());
    let (mut tried, mut whole, mut largest, mut number) = (0usize, 0, 0, 0usize);
    for count in &places {
        let unflushed = journal.unflushed_at(*count);
        whole += usize::from(unflushed.len() <= EVERY_SUBSET_MAX);
        largest = largest.max(unflushed.len());
        for cut in cuts(&unflushed, seed) {
            number += 1;
            // By default, a sample.
            if !is_all() && !number.is_multiple_of(97) {
                continue;
            }
            let events = journal.len();
            let what = format!("{shape}: after {count} of {events} events, {cut:?}");
            let after = world.reborn(*count, &cut);
            tried += 1;
            visit(State {
                count: *count,
                after: &after,
                what: &what,
                tried,
            });
        }
    }
    println!(
        "{shape}: {} events, {} places to cut ({whole} with every subset, at most {largest} requests unflushed), \
         {tried} of {number} states tried",
        journal.len(),
        places.len()
    );
    tried
}

/// Judges a state with `zdb`.
pub(crate) fn judge(after: &World, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(after, folder.path());
    zdb::judge(folder.path(), "tank").unwrap().require(what);
}

fn exhaust(shape: &str, tops: &[(NewLayout, usize)]) {
    let world = World::new(11);
    let pool = sim::create(&world, tops, 64);
    pool.sync().unwrap();
    world.forget();
    let mut state = Files::new();
    // The states, with the number of events after which each was promised.
    let mut states = vec![(0, state.clone())];
    for number in 0..4 {
        step(&pool, number, &mut state);
        pool.sync().unwrap();
        states.push((world.recorded(), state.clone()));
    }
    drop(pool);
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
        sim::verify(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(read);
        if tried % JUDGED_OF == JUDGED_OF / 2 || (!is_all() && tried == 20) {
            judge(after, what);
            judged += 1;
        }
        if tried % GONE_ON_OF == 7 {
            let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let files = pool.file_system("tank").unwrap();
            let (root, caller) = (files.root().unwrap(), Caller::root());
            let mode = NewMode::exactly(0o600);
            files.create(&caller, &root, b"on", mode, true).unwrap();
            drop((root, files));
            pool.export().unwrap();
            let read = sim::read(after).unwrap();
            let mut wanted = found;
            wanted.insert(b"on".to_vec(), vec![]);
            assert_eq!(files_of(&read).unwrap(), wanted, "{what}, gone on");
            sim::verify(&read).unwrap_or_else(|error| panic!("{what}, gone on: {error}"));
        }
    });
    println!("{shape}: {judged} judged by zdb");
    assert!(tried > 20, "{shape}: {tried} states prove nothing");
}

#[test]
fn every_unflushed_subset_is_survived_on_one_disk() {
    exhaust("exhaustive one", &[(Single, 1)]);
}

#[test]
fn every_unflushed_subset_is_survived_on_a_mirror() {
    exhaust("exhaustive mirror", &[(Mirror, 2)]);
}

#[test]
fn every_unflushed_subset_is_survived_on_a_raidz() {
    exhaust("exhaustive raidz", &[(Raidz(1), 3)]);
}
