//! The power fails while files are cloned, changed and freed, also while their logs are replayed.

use crate::cloning::{
    LENGTH, RECORD, bytes_of, content, copy, judged, judged_by_zdb, make, node, pool_on, remove,
};
use crate::crash::variants;
use crate::exhaustive::is_all;
use crate::sim;
use millpond_engine::{
    Caller, NewLayout, NewLayout::Mirror, NewLayout::Single, SetAttributes, View, WriteAt,
};
use millpond_env::mark;
use millpond_pool::CloneTotals;
use millpond_sim::{Seed, World, noise};
use std::collections::BTreeMap;

/// What the files of `tank/a` and `tank/b` contain.
pub(crate) type State = BTreeMap<String, Vec<u8>>;

pub(crate) fn state_of(view: &View) -> State {
    let mut state = State::new();
    for name in ["tank/a", "tank/b"] {
        let files = view.dataset(name).unwrap().file_system().unwrap();
        let root = files.root().unwrap();
        for entry in root.entries().unwrap() {
            let entry = entry.unwrap();
            let node = root.lookup(&entry.name).unwrap();
            let name = format!("{name}/{}", String::from_utf8_lossy(&entry.name));
            state.insert(name, bytes_of(&node));
        }
    }
    state
}

/// Whether the last write or copy of `after` was done up to a record. A cut may lie between the log blocks of one call, and
/// nothing was promised before it returned.
fn is_between(found: &State, before: &State, after: &State) -> bool {
    after.iter().all(|(name, end)| {
        let (Some(found), Some(start)) = (found.get(name), before.get(name)) else {
            return false;
        };
        let records = (0..=end.len()).step_by(RECORD as usize);
        let part = |at: usize| {
            let rest = start.get(at..).unwrap_or(&[]);
            [&end[..at], rest].concat()
        };
        found == end || records.into_iter().any(|at| *found == part(at))
    })
}

/// Clones, overwrites, cuts and removes files at random. Each round is one state; some are promised.
fn cut_during_cloning(seed: u64, tops: &[(NewLayout, usize)], does_fsync: bool, cuts: usize) {
    let world = World::new(seed);
    let pool = pool_on(&world, tops);
    let (a, b) = (
        pool.file_system("tank/a").unwrap(),
        pool.file_system("tank/b").unwrap(),
    );
    for number in 0..3 {
        make(&a, &format!("f{number}"), &content(number));
        make(&b, &format!("f{number}"), &content(10 + number));
    }
    pool.sync().unwrap();
    world.forget();
    let mut random = Seed::new(seed);
    let mut state = state_of(&pool.committed().unwrap());
    let mut states = vec![(0, state.clone())];
    let sides = [("tank/a", &a), ("tank/b", &b)];
    for round in 0..24 {
        let (from_name, from_files) = sides[random.below(2) as usize];
        let (to_name, to_files) = sides[random.below(2) as usize];
        let (from, to) = (random.below(3), random.below(3));
        let source = node(from_files, &format!("f{from}"));
        let target = node(to_files, &format!("f{to}"));
        let key = format!("{to_name}/f{to}");
        match random.below(6) {
            0 => {
                let at = random.below(LENGTH as u64 - 30_000);
                let bytes = noise(random.bits(), 1 + random.below(30_000) as usize);
                let file = state.get_mut(&key).unwrap();
                let end = at as usize + bytes.len();
                file.resize(file.len().max(end), 0);
                file[at as usize..end].copy_from_slice(&bytes);
                to_files
                    .write(&Caller::root(), &target, WriteAt::Offset(at), &bytes)
                    .unwrap();
            }
            1 => {
                let size = random.below(LENGTH as u64);
                let set = SetAttributes {
                    size_bytes: Some(size),
                    ..SetAttributes::default()
                };
                (to_files.set_attributes(&Caller::root(), &target, &set)).unwrap();
                state.get_mut(&key).unwrap().resize(size as usize, 0);
            }
            _ if key != format!("{from_name}/f{from}") => {
                let source_bytes = state[&format!("{from_name}/f{from}")].clone();
                let (at, count) = match random.below(3) {
                    0 => (RECORD * random.below(5), RECORD * (1 + random.below(5))),
                    _ => (0, source_bytes.len() as u64),
                };
                let count = count.min((source_bytes.len() as u64).saturating_sub(at));
                let copied = copy(to_files, (&source, at), (&target, at), count as usize);
                assert_eq!(copied, count);
                let file = state.get_mut(&key).unwrap();
                if count > 0 {
                    let (at, end) = (at as usize, (at + count) as usize);
                    file.resize(file.len().max(end), 0);
                    file[at..end].copy_from_slice(&source_bytes[at..end]);
                }
            }
            _ => {}
        }
        let at = if does_fsync {
            (to_files.fsync(&target)).unwrap();
            world.journal().len()
        } else {
            usize::MAX
        };
        states.push((at, state.clone()));
        if round % 4 == 3 {
            pool.sync().unwrap();
            states.last_mut().unwrap().0 = world.journal().len();
        }
    }
    drop((a, b, pool));
    let journal = world.journal().len();
    let cuts = if is_all() { cuts * 20 } else { cuts };
    let step = (journal / cuts).max(1);
    let mut shared = 0;
    for (round, count) in (0..=journal).step_by(step).enumerate() {
        let variants = variants(seed, round, count);
        let variant = &variants[round % 5];
        let what = format!("seed {seed}: after {count} of {journal} requests, {variant:?}");
        let after = world.reborn(count, variant);
        shared += u64::from(judged(&after).entries > 0);
        // Opening replays the logs.
        let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
        pool.sync().unwrap();
        let found = state_of(&pool.committed().unwrap());
        let least = states.iter().rposition(|(at, _)| *at <= count).unwrap();
        let is_known = states[least..].iter().any(|(_, state)| *state == found);
        let mut next = states[least..].windows(2);
        let is_known = is_known || next.any(|pair| is_between(&found, &pair[0].1, &pair[1].1));
        assert!(is_known, "{what}: is no state at or after {least}");
        // The run continues, and everything is freed.
        judged(&after);
        let b = pool.file_system("tank/b").unwrap();
        for number in 0..3 {
            remove(&b, &format!("f{number}"));
        }
        drop(b);
        pool.datasets()
            .destroy("tank/a", Default::default())
            .unwrap();
        for _ in 0..3 {
            pool.sync().unwrap();
        }
        assert_eq!(judged(&after), CloneTotals::default(), "{what}");
        pool.export().unwrap();
        if round % 10 == 3 {
            judged_by_zdb(&after, &what);
        }
    }
    assert!(shared > 5, "{shared}");
}

#[test]
fn power_cuts_while_cloning_lose_nothing() {
    cut_during_cloning(531, &[(Single, 1)], false, 60);
    cut_during_cloning(532, &[(Mirror, 2)], false, 30);
    cut_during_cloning(533, &[(Single, 1), (Single, 1)], false, 30);
}

#[test]
fn clones_are_replayed_from_the_log() {
    let _linked = mark::expect("clone-replayed-by-reference");
    cut_during_cloning(541, &[(Single, 1)], true, 60);
    cut_during_cloning(542, &[(Single, 1), (Single, 1)], true, 30);
}
