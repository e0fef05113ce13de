//! The power fails at every point of a small piece of work with `fsync`.
//!
//! Every subset of the unflushed requests is tested, as in [`crate::exhaustive`]. After log replay the
//! promised data is present, and any further data is what was written next.
//!
//! By default a sample is tested, with `MILLPOND_WRITING_ALL` everything.

use crate::exhaustive::{Files, JUDGED_OF, State, each_state, files_of, is_all, judge};
use crate::sim;
use millpond_engine::{
    AllocationClass, Caller, FileSystem, NewLayout, NewMode, Pool, WriteAt, WriteOptions,
};
use millpond_env::mark;
use millpond_sim::{Seed, World};
use std::sync::Arc;

const RECORD_BYTES: usize = 128 << 10;
/// Bytes per log record if the data is copied into the record.
const COPIED_BYTES: usize = 96 << 10;

/// The content of the file system after each record, and the promises.
///
/// A promise is the number of events and the promised state.
pub(crate) struct History {
    states: Vec<Files>,
    promises: Vec<(usize, usize)>,
    /// With a log device, data is copied into the log. Without one, blocks are written outside the log.
    has_log_device: bool,
}

impl History {
    fn now(&self) -> Files {
        self.states.last().cloned().unwrap_or_default()
    }
    fn change(&mut self, change: impl FnOnce(&mut Files)) {
        let mut state = self.now();
        change(&mut state);
        self.states.push(state);
    }
    fn promise(&mut self, world: &World) {
        self.promises
            .push((world.recorded(), self.states.len() - 1));
    }
    /// Records that the pool was opened again.
    ///
    /// Its content must be one of the states, and the next states follow it.
    pub(crate) fn go_on_from(&mut self, found: Files, world: &World) {
        let least = self.least(world.recorded());
        let is_one = self.states[least..].contains(&found);
        assert!(is_one, "opened again it is no state from {least} on");
        self.states.push(found);
        self.promise(world);
    }
    /// Changes a file and commits a txg.
    pub(crate) fn churn(&mut self, pool: &Pool, world: &World) {
        let files = pool.file_system("tank").unwrap();
        let round = u8::try_from(self.states.len() % 251).unwrap();
        write(&files, b"z", 0, &[round; 3000], self);
        pool.sync().unwrap();
        self.promise(world);
    }
    /// Opens the pool after a power cut behind this many events, and exports it.
    ///
    /// Its content must be one of the states that promises allow.
    pub(crate) fn reopen(&self, after: &World, events: usize, what: &str) -> Files {
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&pool.committed().unwrap());
        let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        let least = self.least(events);
        let is_one = self.states[least..].contains(&found);
        assert!(is_one, "{what}: is no state from {least} on");
        pool.export().unwrap();
        found
    }
    /// The state that was promised at this event.
    fn least(&self, events: usize) -> usize {
        let kept = self.promises.iter().filter(|(at, _)| *at <= events);
        kept.map(|(_, state)| *state).max().unwrap_or(0)
    }
}

/// Writes in the pieces that records have, and records each state.
fn write(files: &Arc<FileSystem>, name: &[u8], at: usize, bytes: &[u8], history: &mut History) {
    let node = files.root().unwrap().lookup(name).unwrap();
    let offset = WriteAt::Offset(at as u64);
    files.write(&Caller::root(), &node, offset, bytes).unwrap();
    let mut from = 0;
    while from < bytes.len() {
        let piece = match history.has_log_device {
            true => COPIED_BYTES,
            false => RECORD_BYTES - (at + from) % RECORD_BYTES,
        };
        let to = bytes.len().min(from + piece);
        history.change(|files| {
            let file = files.get_mut(name).unwrap();
            file.resize(file.len().max(at + to), 0);
            file[at + from..at + to].copy_from_slice(&bytes[from..to]);
        });
        from = to;
    }
}

pub(crate) fn work(pool: &Pool, world: &World, history: &mut History) {
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let noise: Vec<u8> = (0..3 * RECORD_BYTES as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 9) as u8)
        .collect();
    let create = |name: &[u8], history: &mut History| {
        let mode = NewMode::exactly(0o600);
        let (node, _) = files.create(&caller, &root, name, mode, true).unwrap();
        history.change(|files| drop(files.insert(name.to_vec(), vec![])));
        node
    };
    let a = create(b"a", history);
    write(&files, b"a", 0, &noise[..5000], history);
    files.fsync(&a).unwrap();
    history.promise(world);
    write(&files, b"a", 3000, &noise[7..9007], history);
    files.fsync(&a).unwrap();
    history.promise(world);
    // Two blocks, each written outside the log.
    write(&files, b"a", 0, &noise[..2 * RECORD_BYTES], history);
    files.fsync(&a).unwrap();
    history.promise(world);
    // One block again, which its txg includes, and a later change that the txg must not include.
    write(
        &files,
        b"a",
        RECORD_BYTES,
        &noise[99..99 + RECORD_BYTES],
        history,
    );
    files.fsync(&a).unwrap();
    history.promise(world);
    write(&files, b"a", 100, b"changed behind", history);
    pool.sync().unwrap();
    history.promise(world);
    let b = create(b"b", history);
    write(&files, b"b", 0, b"small", history);
    files.fsync(&b).unwrap();
    history.promise(world);
    write(&files, b"a", 0, &noise[50..50 + RECORD_BYTES], history);
    files.fsync(&a).unwrap();
    history.promise(world);
    drop(a);
    files.unlink(&root, b"a").unwrap();
    history.change(|files| drop(files.remove(&b"a"[..])));
    files.commit_log().unwrap();
    history.promise(world);
    files.reap().unwrap();
    pool.sync().unwrap();
    history.promise(world);
}

/// Creates a pool with an empty file and an existing log chain.
///
/// The simulated world forgets the events so far.
pub(crate) fn begin(
    tops: &[(AllocationClass, NewLayout, usize)],
    writing: WriteOptions,
) -> (World, Pool, History) {
    let world = World::new(13);
    let pool = sim::create_of(&world, tops, 64, writing);
    {
        // Create the chain now, because creating one waits for a txg.
        let files = pool.file_system("tank").unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        let mode = NewMode::exactly(0o600);
        files.create(&caller, &root, b"z", mode, true).unwrap();
        files.commit_log().unwrap();
    }
    pool.sync().unwrap();
    world.forget();
    let history = History {
        states: vec![Files::from([(b"z".to_vec(), vec![])])],
        promises: vec![(0, 0)],
        has_log_device: tops.iter().any(|(class, ..)| *class == Log),
    };
    (world, pool, history)
}

fn exhaust(shape: &str, tops: &[(AllocationClass, NewLayout, usize)]) {
    let (world, pool, mut history) = begin(tops, sim::by_caller());
    work(&pool, &world, &mut history);
    drop(pool);
    let (mut judged, mut replayed, mut seed) = (0, 0usize, Seed::new(14));
    let tried = each_state(shape, &world, &mut seed, &mut |state| {
        let State {
            count,
            after,
            what,
            tried,
        } = state;
        let is_judged = tried % JUDGED_OF == JUDGED_OF / 2 || (!is_all() && tried == 10);
        if is_judged {
            judge(after, what);
            judged += 1;
        }
        let before = {
            let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
            files_of(&read).unwrap_or_else(|error| panic!("{what}: {error}"))
        };
        let found = history.reopen(after, count, what);
        replayed += usize::from(found != before);
        let read = sim::read(after).unwrap();
        sim::verify(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(files_of(&read).unwrap(), found, "{what}, exported");
        drop(read);
        if is_judged {
            judge(after, &format!("{what}, replayed"));
        }
    });
    println!("{shape}: a log brought something back in {replayed}, {judged} judged by zdb");
    assert!(
        tried > 9 && replayed > 2,
        "{shape}: {tried} states, {replayed} replayed prove nothing"
    );
}

use AllocationClass::{Log, Normal};
use NewLayout::{Mirror, Single};

#[test]
fn fsynced_data_survives_every_unflushed_subset_on_one_disk() {
    let _mark = mark::expect("burst-of-several-log-blocks");
    let _mark = mark::expect("log-record-points-to-block");
    exhaust("exhaustive fsync", &[(Normal, Single, 1)]);
}

#[test]
fn fsynced_data_survives_every_unflushed_subset_with_a_log() {
    let tops = [(Normal, Single, 1), (Log, Mirror, 2)];
    exhaust("exhaustive fsync, log device", &tops);
}
