//! The power fails while encrypted datasets are written, and while keys change.

use crate::cloning::{bytes_of, judged, judged_by_zdb, make, node, remove};
use crate::crash::variants;
use crate::encryption::{KEY, OTHER, hex_key, root, unlock};
use crate::exhaustive::{State, each_state, is_all, judge};
use crate::sim;
use millpond_engine::{
    Caller, KeyChange, NewLayout, NewLayout::Mirror, NewLayout::Single, View, WriteAt,
};
use millpond_sim::{Seed, World, noise};
use millpond_tests::recount;
use millpond_tests::workload::SUITES;
use std::collections::BTreeMap;

type Contents = BTreeMap<String, Vec<u8>>;

const NAMES: [&str; 3] = ["tank/e", "tank/e/below", "tank/f"];

fn contents_of(view: &View) -> Contents {
    let mut all = Contents::new();
    for name in NAMES {
        let files = view.dataset(name).unwrap().file_system().unwrap();
        let root = files.root().unwrap();
        for entry in root.entries().unwrap() {
            let entry = entry.unwrap();
            let name = format!("{name}/{}", String::from_utf8_lossy(&entry.name));
            all.insert(name, bytes_of(&root.lookup(&entry.name).unwrap()));
        }
    }
    all
}

/// Writes at random with and without fsync. Whatever was promised is there after a cut, once the keys are loaded.
fn cut_while_writing(seed: u64, tops: &[(NewLayout, usize)], cuts: usize) {
    let world = World::new(seed);
    let pool = sim::create(&world, tops, 128);
    let suite = |at: u64| SUITES[(seed + at) as usize % SUITES.len()];
    root(
        &world,
        &pool,
        "tank/e",
        suite(0),
        &[("recordsize", "16384")],
    );
    root(&world, &pool, "tank/f", suite(3), &[]);
    pool.datasets()
        .create_filesystem("tank/e/below", &[])
        .unwrap();
    pool.sync().unwrap();
    world.forget();
    let mut random = Seed::new(seed);
    let mut state = Contents::new();
    let mut states = vec![(0, state.clone())];
    for round in 0..30u64 {
        let name = NAMES[random.below(3) as usize];
        let files = pool.file_system(name).unwrap();
        let file = format!("f{}", random.below(4));
        let key = format!("{name}/{file}");
        match (state.contains_key(&key), random.below(6)) {
            (true, 0) => {
                remove(&files, &file);
                state.remove(&key);
            }
            (false, _) => {
                let bytes = noise(random.bits(), 1 + random.below(60_000) as usize);
                make(&files, &file, &bytes);
                state.insert(key, bytes);
            }
            (true, _) => {
                let (at, bytes) = (random.below(50_000), noise(random.bits(), 9_000));
                let file = node(&files, &file);
                (files.write(&Caller::root(), &file, WriteAt::Offset(at), &bytes)).unwrap();
                let own = state.get_mut(&key).unwrap();
                let end = at as usize + bytes.len();
                own.resize(own.len().max(end), 0);
                own[at as usize..end].copy_from_slice(&bytes);
            }
        }
        // Each dataset has a log of its own, so all are committed.
        let promised = match round % 3 {
            0 => {
                for name in NAMES {
                    pool.file_system(name).unwrap().commit_log().unwrap();
                }
                world.journal().len()
            }
            1 if round % 4 == 1 => {
                pool.sync().unwrap();
                world.journal().len()
            }
            _ => usize::MAX,
        };
        states.push((promised, state.clone()));
    }
    drop(pool);
    let journal = world.journal().len();
    let cuts = if is_all() { cuts * 20 } else { cuts };
    let step = (journal / cuts).max(1);
    for (round, count) in (0..=journal).step_by(step).enumerate() {
        let variant = &variants(seed, round, count)[round % 5];
        let what = format!("seed {seed}: after {count} of {journal} requests, {variant:?}");
        let after = world.reborn(count, variant);
        // A side of a mirror may lack the last log block, so the copies are compared only at the end.
        let faults = recount::faults_after_a_cut(&sim::read(&after).unwrap());
        assert!(faults.is_empty(), "{what}: {faults:#?}");
        let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
        for root in ["tank/e", "tank/f"] {
            unlock(&pool, root, KEY);
        }
        for name in NAMES {
            let files = pool.file_system(name);
            drop(files.unwrap_or_else(|error| panic!("{what}: {error}")));
        }
        pool.sync().unwrap();
        let found = contents_of(&pool.committed().unwrap());
        let least = states.iter().rposition(|(at, _)| *at <= count).unwrap();
        // Each dataset is at a state of its own from there on.
        for name in NAMES {
            let of = |all: &Contents| -> Contents {
                let own = |key: &String| key.rsplit_once('/').unwrap().0 == name;
                let own = all.iter().filter(|(key, _)| own(key));
                own.map(|(key, bytes)| (key.clone(), bytes.clone()))
                    .collect()
            };
            let found = of(&found);
            let is_known = states[least..].iter().any(|(_, state)| of(state) == found);
            assert!(is_known, "{what}: {name} is no state at or after {least}");
        }
        make(&pool.file_system("tank/e").unwrap(), "on", b"and on");
        pool.export().unwrap();
        judged(&after);
        if round % 10 == 3 {
            judged_by_zdb(&after, &what);
        }
    }
}

#[test]
fn power_cuts_lose_nothing_that_was_promised() {
    cut_while_writing(621, &[(Single, 1)], 40);
    cut_while_writing(622, &[(Mirror, 2)], 20);
    cut_while_writing(623, &[(Single, 1), (Single, 1)], 20);
}

/// Which of the keys opens a dataset.
fn opens(view: &View, name: &str, root: &str, file: &[u8]) -> usize {
    let all = [KEY, OTHER];
    let at = all.iter().position(|key| view.load_key(root, key).is_ok());
    let at = at.unwrap_or_else(|| panic!("{root}: no key opens it"));
    let files = view.dataset(name).unwrap().file_system().unwrap();
    assert!(bytes_of(&node(&files, "f")) == file, "{name}");
    view.unload_key(root).unwrap();
    at
}

#[test]
fn a_cut_while_keys_change_leaves_the_old_or_the_new_for_all() {
    for (number, tops) in [(0, [(Single, 1)]), (1, [(Mirror, 2)])] {
        let world = World::new(631 + number);
        let pool = sim::create(&world, &tops, 64);
        let datasets = pool.datasets();
        root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
        datasets.create_filesystem("tank/e/below", &[]).unwrap();
        let bytes = noise(1, 20_000);
        for name in ["tank/e", "tank/e/below"] {
            make(&pool.file_system(name).unwrap(), "f", &bytes);
        }
        pool.sync().unwrap();
        datasets.snapshot(&["tank/e@s"], &[]).unwrap();
        datasets
            .clone_snapshot("tank/e@s", "tank/clone", &[])
            .unwrap();
        pool.sync().unwrap();
        world.forget();
        // To another key, then a root of its own, which inherits again.
        let new = hex_key(&world, OTHER);
        datasets.change_key("tank/e", KeyChange::Own(&new)).unwrap();
        let changed = world.recorded();
        let old = hex_key(&world, KEY);
        datasets
            .change_key("tank/e/below", KeyChange::Own(&old))
            .unwrap();
        let split = world.recorded();
        datasets
            .change_key("tank/e/below", KeyChange::Inherit)
            .unwrap();
        let joined = world.recorded();
        drop(pool);
        let mut seed = Seed::new(5);
        let tried = each_state("keys change", &world, &mut seed, &mut |state| {
            let State {
                count,
                after,
                what,
                tried,
            } = state;
            let view = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let root_of = |name: &str| view.encryption_root(name).unwrap().unwrap();
            assert_eq!(
                (root_of("tank/e"), root_of("tank/clone")),
                ("tank/e".into(), "tank/e".into())
            );
            let below = root_of("tank/e/below");
            let key = opens(&view, "tank/e", "tank/e", &bytes);
            assert_eq!(opens(&view, "tank/clone", "tank/e", &bytes), key, "{what}");
            let own = opens(&view, "tank/e/below", &below, &bytes);
            assert!(key == 1 || count < changed, "{what}: the old key");
            match below.as_str() {
                "tank/e" => {
                    assert_eq!(own, key, "{what}");
                    assert!(
                        count < split || count > split && key == 1,
                        "{what}: not split"
                    );
                }
                _ => {
                    assert_eq!((key, own), (1, 0), "{what}");
                    assert!(count < joined, "{what}: still split");
                }
            }
            drop(view);
            if tried.is_multiple_of(if is_all() { 300 } else { 15 }) {
                judge(after, what);
                let pool = sim::open(after).unwrap();
                unlock(&pool, "tank/e", [KEY, OTHER][key]);
                make(&pool.file_system("tank/clone").unwrap(), "on", b"");
                pool.export().unwrap();
                judged(after);
            }
        });
        assert!(tried > 15, "{tried} states prove nothing");
    }
}
