//! The power fails while deduplicated files are written, changed and freed, also while their logs are replayed.

use crate::cloning::{RECORD, judged_by_zdb, make, node, remove};
use crate::cloning_cuts::state_of;
use crate::crash::variants;
use crate::dedup::{content, counted, pool_on};
use crate::exhaustive::is_all;
use crate::sim;
use millpond_engine::{Caller, NewLayout, NewLayout::Mirror, NewLayout::Single, WriteAt};
use millpond_env::mark;
use millpond_pool::PruneBy;
use millpond_sim::{Seed, World};

/// Overwrites files with parts of each other at random. Each round is one state; those that were synced are promised.
fn cut_during_writes(seed: u64, tops: &[(NewLayout, usize)], is_fast: bool, does_fsync: bool) {
    let world = World::new(seed);
    let pool = pool_on(&world, tops, "on", is_fast);
    let a = pool.file_system("tank/a").unwrap();
    let b = pool.file_system("tank/b").unwrap();
    for number in 0..3 {
        make(&a, &format!("f{number}"), &content(number));
        make(&b, &format!("f{number}"), &content(number / 2));
    }
    for _ in 0..12 {
        // Until the logs were swapped.
        pool.inner()
            .sync_task(|ctx| ctx.set_directory_number("test:count", ctx.txg().0))
            .unwrap();
    }
    world.forget();
    let mut random = Seed::new(seed);
    let mut state = state_of(&pool.committed().unwrap());
    let mut states = vec![(0, state.clone())];
    let sides = [("tank/a", &a), ("tank/b", &b)];
    for round in 0..20 {
        let (name, files) = sides[random.below(2) as usize];
        let number = random.below(3);
        let target = node(files, &format!("f{number}"));
        let file = state.get_mut(&format!("{name}/f{number}")).unwrap();
        let other = content(random.below(3));
        let from = (random.below(6) * RECORD) as usize;
        let to = random.below(6) * RECORD;
        let part = &other[from..(from + 3 * RECORD as usize).min(other.len())];
        let end = to as usize + part.len();
        file.resize(file.len().max(end), 0);
        file[to as usize..end].copy_from_slice(part);
        (files.write(&Caller::root(), &target, WriteAt::Offset(to), part)).unwrap();
        if does_fsync {
            files.fsync(&target).unwrap();
        }
        let at = if does_fsync {
            world.journal().len()
        } else {
            usize::MAX
        };
        states.push((at, state.clone()));
        if round == 10 && is_fast {
            pool.inner().prune_dedup(PruneBy::Percent(50)).unwrap();
        }
        if round % 4 == 3 || round == 10 {
            pool.sync().unwrap();
            states.last_mut().unwrap().0 = world.journal().len();
        }
    }
    drop((a, b, pool));
    let journal = world.journal().len();
    let cuts = if is_all() { 400 } else { 20 };
    for (round, count) in (0..=journal).step_by((journal / cuts).max(1)).enumerate() {
        let variants = variants(seed, round, count);
        let variant = &variants[round % 5];
        let what = format!("seed {seed}: after {count} of {journal} requests, {variant:?}");
        let after = world.reborn(count, variant);
        counted(&after);
        // Opening replays the logs.
        let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
        pool.sync().unwrap();
        let found = state_of(&pool.committed().unwrap());
        let least = states.iter().rposition(|(at, _)| *at <= count).unwrap();
        let is_known = states[least..].iter().any(|(_, state)| *state == found);
        assert!(is_known, "{what}: is no state at or after {least}");
        // The run continues, and everything is freed.
        counted(&after);
        let b = pool.file_system("tank/b").unwrap();
        for number in 0..3 {
            remove(&b, &format!("f{number}"));
        }
        make(&b, "again", &content(1));
        drop(b);
        pool.datasets()
            .destroy("tank/a", Default::default())
            .unwrap();
        pool.sync().unwrap();
        counted(&after);
        remove(&pool.file_system("tank/b").unwrap(), "again");
        for _ in 0..3 {
            pool.sync().unwrap();
        }
        assert_eq!(counted(&after).total().blocks, 0, "{what}");
        pool.export().unwrap();
        if round % 10 == 3 {
            judged_by_zdb(&after, &what);
        }
    }
}

#[test]
fn a_fast_table_is_that_of_one_txg_after_a_power_cut() {
    let _swapped = mark::expect("dedup-logs-swapped");
    cut_during_writes(620, &[(Single, 1)], true, false);
    cut_during_writes(621, &[(Mirror, 2)], true, true);
}

#[test]
fn a_legacy_table_is_that_of_one_txg_after_a_power_cut() {
    cut_during_writes(622, &[(Single, 1), (Single, 1)], false, true);
}
