//! Heartbeats on simulated disks, and the system that watches them.

use super::claim::Claimant;
use super::{Promise, Written};
use crate::import::{ActivitySettings, PoolCandidate, WATCH_MAX_NS};
use crate::tests::made::{
    NoDatasets, Shape, candidate, count_up, counted, make, open_read_only, open_some,
};
use crate::{
    DatasetPort, OpenError, OpenOptions, Pool, PoolError, PoolSetting, SettingTime, SpaceChange,
    SuspensionCause, SyncContext, SyncMode, WriteOptions,
};
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::{Clock, Tunable, mark, thread};
use millpond_ondisk::{Uberblock, UberblockRank};
use millpond_sim::{Event, SimDisk, World};
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;
const OURS: u64 = 0x11;
const THEIRS: u64 = 0x22;

fn set_multihost(pool: &Pool, value: &str) {
    let setting = PoolSetting::parse("multihost", value, SettingTime::Later).unwrap();
    pool.set_property(&setting).unwrap();
}

/// A pool with multihost on, opened by the system [`OURS`].
fn shared(world: &World, shape: Shape, sync_mode: SyncMode) -> Arc<Pool> {
    let pool = make(world, shape, Arc::new(NoDatasets::default()));
    set_multihost(&pool, "on");
    count_up(&pool).unwrap();
    drop(pool);
    let writing = WriteOptions {
        sync_mode,
        hostid: OURS,
        is_hostid_set: true,
        can_be_resumed: true,
        ..WriteOptions::default()
    };
    let mut found = candidate(&world.disks()).unwrap();
    found.hostid = OURS;
    let (options, port) = (OpenOptions::default(), Arc::new(NoDatasets::default()));
    Pool::open(&world.env(), &found, &options, &writing, port).unwrap()
}

/// Opens a pool of [`shared`] again on the system that had it.
fn open_again(
    world: &World,
    found: &PoolCandidate,
    sync_mode: SyncMode,
    port: Arc<dyn DatasetPort>,
) -> Result<Arc<Pool>, OpenError> {
    open_on(OURS, world, found, sync_mode, port)
}

fn open_on(
    hostid: u64,
    world: &World,
    found: &PoolCandidate,
    sync_mode: SyncMode,
    port: Arc<dyn DatasetPort>,
) -> Result<Arc<Pool>, OpenError> {
    let writing = WriteOptions {
        sync_mode,
        hostid,
        is_hostid_set: true,
        ..WriteOptions::default()
    };
    let options = OpenOptions::default();
    Pool::open(&world.env(), found, &options, &writing, port)
}

fn newest(world: &World) -> (PoolCandidate, UberblockRank) {
    let found = candidate(&world.disks()).unwrap();
    let rank = found.newest().unwrap().uberblock.rank();
    (found, rank)
}

/// Another system watches the pool, and `meanwhile` happens each second.
fn watch(
    world: &World,
    found: &PoolCandidate,
    settings: ActivitySettings,
    meanwhile: &mut dyn FnMut(),
) -> Result<u64, OpenError> {
    let before_ns = world.env().clock.monotonic_ns();
    found.watch_with(&world.env(), settings, &mut |pause| {
        world.advance(u64::try_from(pause.as_nanos()).unwrap());
        meanwhile();
    })?;
    Ok(world.env().clock.monotonic_ns() - before_ns)
}

fn nap() {
    let mutex: Mutex<_> = Mutex::new(());
    Condvar::new().wait_for(&mut mutex.lock(), Duration::from_millis(1));
}

#[test]
fn each_heartbeat_is_newer_and_shows_the_same_state() {
    let _mark = mark::expect("heartbeat");
    let world = World::without_journal(70);
    let pool = shared(&world, Shape::MIRROR, SyncMode::Caller);
    assert_eq!(count_up(&pool).unwrap(), 2);
    let committed = pool.uberblock();
    let mmp = committed.mmp().unwrap();
    let fields = (mmp.interval_ms, mmp.sequence, mmp.fail_intervals);
    assert_eq!(fields, (Some(1000), Some(0), Some(10)));
    let (_, mut last) = newest(&world);
    assert_eq!(last, committed.rank());
    for beat in 0..70 {
        assert!(pool.beat());
        let (found, rank) = newest(&world);
        assert!(rank > last, "{beat}");
        let newest = found.newest().unwrap();
        let of_beat = newest.uberblock;
        assert_eq!((of_beat.txg, of_beat.root), (committed.txg, committed.root));
        assert_ne!(of_beat.mmp().unwrap().delay_ns, 0);
        // One label of one leaf, in the last slot of the ring.
        assert_eq!(newest.places.len(), 1);
        assert_eq!(newest.places[0].slot, 31);
        last = rank;
        world.advance(SECOND_NS * beat / 64);
    }
    // The uberblocks of txgs are never in that slot, and outrank heartbeats.
    for count in 3..70 {
        assert_eq!(count_up(&pool).unwrap(), count);
        let (found, rank) = newest(&world);
        assert_eq!(rank, pool.uberblock().rank());
        let places = &found.newest().unwrap().places;
        assert!(places.iter().all(|place| place.slot != 31));
    }
    assert_eq!(counted(&open_read_only(&world).unwrap()), 69);
}

#[test]
fn heartbeats_get_newer_even_if_the_clock_is_behind() {
    let world = World::without_journal(75);
    let pool = shared(&world, Shape::ONE, SyncMode::Caller);
    let ahead = Uberblock {
        timestamp_s: pool.uberblock().timestamp_s + 86_400,
        ..pool.uberblock()
    };
    let promise = Promise::of(&world.env().tunables);
    let (mut written, mut last) = (Written::default(), ahead.rank());
    for _ in 0..140_000 {
        let rank = pool.next_beat(&mut written, &ahead, promise, 0).rank();
        assert!(rank > last, "{rank:?} after {last:?}");
        last = rank;
    }
}

#[test]
fn no_promise_is_longer_than_a_watch() {
    let world = World::without_journal(76);
    let tunables = &world.env().tunables;
    for (interval, fails) in [(1, 1), (1000, 10), (400_000, 10), (0xff_ffff, 0xffff)] {
        assert!(tunables.set(Tunable::MultihostInterval, interval));
        assert!(tunables.set(Tunable::MultihostFailIntervals, fails));
        let lease_ns = Promise::of(tunables).lease_until_ns(0);
        assert!(
            lease_ns >= 200_000_000 && 2 * lease_ns <= WATCH_MAX_NS,
            "{lease_ns}"
        );
    }
}

#[test]
fn other_systems_see_heartbeats_and_refuse() {
    let _mark = mark::expect("activity-watched");
    let world = World::without_journal(71);
    let pool = shared(&world, Shape::MIRROR, SyncMode::Caller);
    assert!(pool.beat());
    let (mut found, _) = newest(&world);
    // The pool here writes no host id into its labels that differs from 0 otherwise.
    (found.hostid, found.hostname) = (OURS, Some("one".into()));
    let theirs = ActivitySettings::of(&world.env(), THEIRS, true);
    let refused = watch(&world, &found, theirs, &mut || {
        assert!(pool.beat());
    });
    let Err(OpenError::InUseElsewhere { hostid, hostname }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((hostid, hostname.as_deref()), (OURS, Some("one")));
    // A txg is activity, too.
    let (mut found, _) = newest(&world);
    found.hostid = OURS;
    let refused = watch(&world, &found, theirs, &mut || {
        count_up(&pool).unwrap();
    });
    assert!(matches!(refused, Err(OpenError::InUseElsewhere { .. })));
    // Who has no host id of an administrator cannot be told apart.
    let unset = ActivitySettings::of(&world.env(), THEIRS, false);
    let refused = watch(&world, &found, unset, &mut || {});
    assert!(matches!(refused, Err(OpenError::NeedsHostid)));
    // The same system may open it at once.
    let ours = ActivitySettings::of(&world.env(), OURS, true);
    let (mut found, _) = newest(&world);
    found.hostid = OURS;
    assert_eq!(watch(&world, &found, ours, &mut || {}).unwrap(), 0);
    // A silent pool is free after twice the time in which its system would have suspended it.
    drop(pool);
    let waited_ns = watch(&world, &found, theirs, &mut || {}).unwrap();
    assert!((20..26).contains(&(waited_ns / SECOND_NS)), "{waited_ns}");
}

#[test]
fn a_system_that_was_stopped_too_long_never_writes_again() {
    let _mark = mark::expect("multihost-suspends");
    for late in [false, true] {
        let world = World::new(72);
        let pool = shared(&world, Shape::MIRROR, SyncMode::Caller);
        assert!(pool.beat());
        world.advance(9 * SECOND_NS);
        assert_eq!(count_up(&pool).unwrap(), 2);
        assert!(pool.beat());
        world.advance(10 * SECOND_NS);
        let written = world.recorded();
        // First after the stop comes a txg, or the next heartbeat.
        if late {
            let refused = count_up(&pool);
            assert!(refused.is_err(), "{refused:?}");
        }
        assert!(!pool.beat());
        let suspension = pool.suspension().unwrap();
        assert!(!suspension.can_resume);
        assert_eq!(suspension.cause, SuspensionCause::Multihost);
        assert!(matches!(count_up(&pool), Err(PoolError::Suspended { .. })));
        assert!(pool.resume().is_err() && pool.begin(0).is_err());
        drop(pool);
        let journal = world.journal();
        let since = journal.events().get(written..).unwrap_or_default();
        assert!(
            !since
                .iter()
                .any(|event| matches!(event, Event::Write { .. })),
            "{since:?}"
        );
        assert_eq!(counted(&open_read_only(&world).unwrap()), 2);
    }
}

#[test]
fn a_pool_that_waits_for_its_devices_is_suspended_for_good() {
    let _mark = mark::expect("heartbeat-failed");
    let world = World::without_journal(73);
    let pool = shared(&world, Shape::ONE, SyncMode::Thread);
    thread::scope(|scope| {
        world.disks().iter().for_each(|disk| disk.set_absent(true));
        assert!(!pool.beat());
        let counting = scope.spawn(|| count_up(&pool));
        while pool.suspension().is_none() {
            nap();
        }
        world.advance(11 * SECOND_NS);
        while pool.suspension().is_none_or(|why| why.can_resume) {
            pool.beat();
            nap();
        }
        let outcome = counting.join().unwrap();
        assert!(outcome.is_err(), "{outcome:?}");
    });
    assert_eq!(pool.suspension().unwrap().cause, SuspensionCause::Multihost);
    // The disks work again, and another system may have them.
    world.disks().iter().for_each(|disk| disk.set_absent(false));
    assert!(!pool.beat());
    assert!(count_up(&pool).is_err());
    drop(pool);
    assert_eq!(counted(&open_read_only(&world).unwrap()), 1);
}

#[test]
fn a_pool_with_threads_beats_by_itself_while_multihost_is_on() {
    let world = World::without_journal(74);
    let tunables = &world.env().tunables;
    assert!(tunables.set(Tunable::MultihostInterval, 100));
    // The clock of this test does not wait for the thread.
    assert!(tunables.set(Tunable::MultihostFailIntervals, 0));
    let pool = shared(&world, Shape::ONE, SyncMode::Thread);
    let await_beats = || {
        let (_, mut last) = newest(&world);
        for _ in 0..3 {
            loop {
                world.advance(SECOND_NS / 10);
                let (_, rank) = newest(&world);
                if rank > last {
                    last = rank;
                    break;
                }
                nap();
            }
        }
    };
    await_beats();
    assert_eq!(count_up(&pool).unwrap(), 2);
    await_beats();
    set_multihost(&pool, "off");
    assert_eq!(
        newest(&world)
            .0
            .newest()
            .unwrap()
            .uberblock
            .mmp()
            .unwrap()
            .delay_ns,
        0
    );
    let (_, last) = newest(&world);
    for _ in 0..50 {
        world.advance(SECOND_NS);
        nap();
    }
    assert_eq!(newest(&world).1, last);
    set_multihost(&pool, "on");
    await_beats();
    pool.export().unwrap();
    let (found, last) = newest(&world);
    // An exported pool is free at once, with heartbeats in its rings.
    let theirs = ActivitySettings::of(&world.env(), THEIRS, true);
    assert_eq!(watch(&world, &found, theirs, &mut || {}).unwrap(), 0);
    for _ in 0..50 {
        world.advance(SECOND_NS);
        nap();
    }
    assert_eq!(newest(&world).1, last);
    drop(pool);
    let again = open_some(&world, &world.disks(), SyncMode::Caller);
    assert!(matches!(again, Err(OpenError::NeedsHostid)));
}

/// A pool whose system crashed, and its newest uberblock.
fn crashed(world: &World) -> (PoolCandidate, Uberblock) {
    let pool = shared(world, Shape::MIRROR, SyncMode::Caller);
    count_up(&pool).unwrap();
    assert!(pool.beat());
    drop(pool);
    let (found, _) = newest(world);
    let uberblock = found.newest().unwrap().uberblock;
    (found, uberblock)
}

#[test]
fn a_claim_ends_the_watches_of_others_and_changes_nothing_else() {
    let _mark = mark::expect("multihost-claimed");
    let world = World::without_journal(77);
    let (found, mut uberblock) = crashed(&world);
    let topology = open_read_only(&world).unwrap().store().topology();
    let env = world.env();
    // The numbers never run out, however often systems crash just then.
    for _ in 0..40 {
        let (again, before) = newest(&world);
        let mut waits = vec![];
        let mut claimant = Claimant::new(&env, &topology, &again, uberblock);
        let claimed = claimant.claim(&mut |pause| waits.push(pause));
        let (rank, _) = claimed.unwrap();
        assert!(rank > before && rank == newest(&world).1);
        assert_eq!(waits, [Duration::from_secs(1); 3]);
        let (now, _) = newest(&world);
        let claim = now.newest().unwrap().uberblock;
        assert_eq!((claim.txg, claim.root), (uberblock.txg, uberblock.root));
        uberblock = claim;
    }
    let mut watched = found;
    watched.hostid = OURS;
    let theirs = ActivitySettings::of(&world.env(), THEIRS, true);
    let refused = watch(&world, &watched, theirs, &mut || {});
    assert!(matches!(refused, Err(OpenError::InUseElsewhere { .. })));
    assert_eq!(counted(&open_read_only(&world).unwrap()), 2);
    let (mut found, _) = newest(&world);
    found.hostid = OURS;
    let port = Arc::new(NoDatasets::default());
    let pool = open_again(&world, &found, SyncMode::Caller, port).unwrap();
    assert_eq!(count_up(&pool).unwrap(), 3);
}

#[test]
fn a_claim_writes_nothing_to_a_pool_that_is_in_use() {
    for is_txg in [false, true] {
        let world = World::new(78);
        let pool = shared(&world, Shape::MIRROR, SyncMode::Caller);
        let (found, _) = newest(&world);
        match is_txg {
            true => assert_eq!(count_up(&pool).unwrap(), 2),
            false => assert!(pool.beat()),
        }
        let topology = open_read_only(&world).unwrap().store().topology();
        let uberblock = found.newest().unwrap().uberblock;
        let written = world.recorded();
        let env = world.env();
        let mut claimant = Claimant::new(&env, &topology, &found, uberblock);
        let refused = claimant.claim(&mut |_| panic!("it waits"));
        assert!(matches!(refused, Err(OpenError::InUseElsewhere { .. })));
        assert_eq!(world.recorded(), written);
    }
}

/// Whatever two systems do first that both have watched the pool, one of them gets it at most.
#[test]
fn one_of_two_claims_wins() {
    for order in ["aabb", "abab", "abba", "baab", "baba", "bbaa"] {
        let world = World::without_journal(79);
        let (found, uberblock) = crashed(&world);
        let topology = open_read_only(&world).unwrap().store().topology();
        let env = world.env();
        let mut both = ["a", "b"].map(|_| Claimant::new(&env, &topology, &found, uberblock));
        let (mut steps, mut refused) = ([0, 0], [false, false]);
        for letter in order.chars() {
            let who = usize::from(letter == 'b');
            match steps[who] {
                0 => refused[who] = both[who].look().is_err(),
                _ if !refused[who] => assert!(both[who].write()),
                _ => {}
            }
            steps[who] += 1;
        }
        let winners = (0..2).filter(|who| !refused[*who] && both[*who].look().is_ok());
        assert_eq!(winners.count(), 1, "{order}");
    }
}

/// A clock that runs ahead at each look, as often as told.
struct Late {
    now_ns: AtomicU64,
    left: AtomicU64,
}

impl Clock for Late {
    fn wall_ns(&self) -> u64 {
        0
    }
    fn monotonic_ns(&self) -> u64 {
        let left = self.left.load(Ordering::SeqCst);
        self.left.store(left.saturating_sub(1), Ordering::SeqCst);
        let step_ns = if left > 0 { SECOND_NS } else { 0 };
        self.now_ns.fetch_add(step_ns, Ordering::SeqCst)
    }
}

#[test]
fn a_claim_that_was_written_late_does_not_count() {
    let _mark = mark::expect("multihost-claim-late");
    let world = World::without_journal(82);
    let (_, uberblock) = crashed(&world);
    let topology = open_read_only(&world).unwrap().store().topology();
    for (left, wanted) in [(0, Some(3)), (3, Some(5)), (u64::MAX, None)] {
        let (again, _) = newest(&world);
        let mut env = world.env();
        env.clock = Arc::new(Late {
            now_ns: AtomicU64::new(0),
            left: AtomicU64::new(left),
        });
        let newest = again.newest().map_or(uberblock, |newest| newest.uberblock);
        let mut waits = 0;
        let claimed = Claimant::new(&env, &topology, &again, newest).claim(&mut |_| waits += 1);
        match wanted {
            Some(wanted) => assert_eq!((claimed.is_ok(), waits), (true, wanted)),
            None => assert!(matches!(claimed, Err(OpenError::State { .. }))),
        }
    }
}

/// Another system got the pool while this one read it.
#[test]
fn what_was_written_since_the_pool_was_found_is_seen_before_the_first_write() {
    let world = World::new(80);
    let pool = shared(&world, Shape::MIRROR, SyncMode::Caller);
    let (mut found, _) = newest(&world);
    found.hostid = OURS;
    assert!(pool.beat());
    let written = world.recorded();
    let port = Arc::new(NoDatasets::default());
    let refused = open_again(&world, &found, SyncMode::Caller, port).map(drop);
    assert!(
        matches!(refused, Err(OpenError::InUseElsewhere { .. })),
        "{refused:?}"
    );
    assert_eq!(world.recorded(), written);
}

/// Takes long to claim the intent logs: until another system would see a heartbeat.
struct SlowClaim {
    disks: Vec<Arc<SimDisk>>,
    before: UberblockRank,
    rest: NoDatasets,
}

impl DatasetPort for SlowClaim {
    fn create_root(
        &self,
        ctx: &SyncContext<'_>,
        properties: &BTreeMap<String, String>,
    ) -> Result<(), PoolError> {
        self.rest.create_root(ctx, properties)
    }
    fn attach(&self, pool: &Arc<Pool>) -> Result<(), PoolError> {
        self.rest.attach(pool)
    }
    fn claim_logs(&self, _: &SyncContext<'_>) -> Result<(), PoolError> {
        for _ in 0..60_000 {
            let found = candidate(&self.disks).unwrap();
            if found.newest().unwrap().uberblock.rank() > self.before {
                return Ok(());
            }
            nap();
        }
        panic!("no heartbeat before the first txg");
    }
    fn sync_datasets(&self, ctx: &SyncContext<'_>) -> Result<bool, PoolError> {
        self.rest.sync_datasets(ctx)
    }
    fn background(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        self.rest.background(ctx)
    }
    fn charge_mos(&self, ctx: &SyncContext<'_>, change: SpaceChange) -> Result<(), PoolError> {
        self.rest.charge_mos(ctx, change)
    }
}

#[test]
fn heartbeats_begin_before_the_first_txg() {
    let world = World::without_journal(81);
    // The clock of this test does not wait for the thread.
    let tunables = &world.env().tunables;
    assert!(tunables.set(Tunable::MultihostFailIntervals, 0));
    drop(shared(&world, Shape::MIRROR, SyncMode::Caller));
    let (mut found, before) = newest(&world);
    found.hostid = OURS;
    let port = SlowClaim {
        disks: world.disks(),
        before,
        rest: NoDatasets::default(),
    };
    let pool = open_again(&world, &found, SyncMode::Thread, Arc::new(port)).unwrap();
    assert_eq!(count_up(&pool).unwrap(), 2);
    pool.export().unwrap();
}

/// An exported pool is not watched, so two systems may open it at once.
#[test]
fn a_pool_that_another_system_exported_is_claimed() {
    let world = World::without_journal(83);
    let tunables = &world.env().tunables;
    assert!(tunables.set(Tunable::MultihostInterval, 100));
    assert!(tunables.set(Tunable::MultihostFailIntervals, 0));
    shared(&world, Shape::MIRROR, SyncMode::Caller)
        .export()
        .unwrap();
    let (mut found, before) = newest(&world);
    found.hostid = OURS;
    let begun_ns = world.env().clock.monotonic_ns();
    let is_open = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let port = Arc::new(NoDatasets::default());
            let opened = open_on(THEIRS, &world, &found, SyncMode::Thread, port);
            is_open.store(1, Ordering::SeqCst);
            opened.unwrap().export().unwrap();
        });
        // Time passes only while a claim stands.
        while is_open.load(Ordering::SeqCst) == 0 {
            if newest(&world).1 > before {
                world.advance(SECOND_NS / 100);
            }
            nap();
        }
    });
    let waited_ns = world.env().clock.monotonic_ns() - begun_ns;
    assert!(waited_ns >= 3 * SECOND_NS / 10, "{waited_ns}");
}
