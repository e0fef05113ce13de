//! The power fails while a stream is received: the state is the one before, or the one after.

use crate::cloning::{bytes_of, content, make, node, pool_on, remove};
use crate::crash::variants;
use crate::exhaustive::is_all;
use crate::receive::{received, sent};
use crate::sim;
use millpond_dataset::properties::ResumeToken;
use millpond_engine::{
    Caller, NewLayout, NewLayout::Mirror, NewLayout::Single, Pool, ReceiveRequest, ResumeFrom,
    SendFlags, SendRequest, Unwatched, View, WriteAt,
};
use millpond_sim::{World, noise};
use millpond_tests::oracle::zdb;
use millpond_tests::recount;
use std::collections::BTreeMap;
use std::io::Read;

pub(crate) type State = BTreeMap<String, Vec<u8>>;

/// Writes txgs between the reads, so that the stream takes several.
pub(crate) struct Slowly<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) left: &'a [u8],
}

impl Read for Slowly<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.left.len().is_multiple_of(3) {
            self.pool.sync().unwrap();
        }
        let count = into.len().min(20_000).min(self.left.len());
        let (now, later) = self.left.split_at(count);
        into[..count].copy_from_slice(now);
        self.left = later;
        Ok(count)
    }
}

/// The files of a head and of its snapshots; `None` if it does not exist.
pub(crate) fn state_of(view: &View, name: &str) -> Option<State> {
    let head = view.dataset(name).ok()?;
    let mut state = State::new();
    for dataset in std::iter::once(head.clone()).chain(head.snapshots().unwrap()) {
        state.insert(dataset.name().to_owned(), vec![]);
        let root = dataset.file_system().unwrap().root().unwrap();
        for entry in root.entries().unwrap() {
            let entry = entry.unwrap();
            let file = root.lookup(&entry.name).unwrap();
            let key = format!(
                "{}/{}",
                dataset.name(),
                String::from_utf8_lossy(&entry.name)
            );
            state.insert(key, bytes_of(&file));
        }
    }
    Some(state)
}

/// Changes the source: files are overwritten, removed, made, and their numbers used again.
pub(crate) fn change(pool: &Pool) {
    change_in(pool, "tank/a");
}

/// As [`change`], in another file system.
pub(crate) fn change_in(pool: &Pool, name: &str) {
    let files = pool.file_system(name).unwrap();
    for number in 0..6 {
        make(&files, &format!("f{number}"), &content(number));
    }
    let snapshot = |number| format!("{name}@{number}");
    pool.datasets().snapshot(&[&snapshot(1)], &[]).unwrap();
    files
        .write(
            &Caller::root(),
            &node(&files, "f1"),
            WriteAt::Offset(5000),
            &noise(77, 9000),
        )
        .unwrap();
    remove(&files, "f2");
    remove(&files, "f3");
    for number in 6..9 {
        make(&files, &format!("f{number}"), &content(number));
    }
    drop(files);
    pool.datasets().snapshot(&[&snapshot(2)], &[]).unwrap();
}

/// Cuts while a stream is received as or into `name`.
fn cut(seed: u64, tops: &[(NewLayout, usize)], is_incremental: bool, cuts: usize) {
    let world = World::new(seed);
    let pool = pool_on(&world, tops);
    change(&pool);
    let flags = SendFlags {
        compressed: seed.is_multiple_of(2),
        ..SendFlags::default()
    };
    let name = "tank/got";
    let full = sent(&pool, "tank/a@1", None, flags);
    let stream = match is_incremental {
        true => {
            received(&pool, name, &full);
            sent(&pool, "tank/a@2", Some("tank/a@1"), flags)
        }
        false => full,
    };
    cuts_of_receive(&world, pool, seed, cuts, &stream, |pool, name| {
        state_of(&pool.committed().unwrap(), name)
    });
}

/// Receives a stream as or into `tank/got`, and cuts after some of the requests. The state is the one before or the one
/// after.
pub(crate) fn cuts_of_receive(
    world: &World,
    pool: Pool,
    seed: u64,
    cuts: usize,
    stream: &[u8],
    state: fn(&Pool, &str) -> Option<State>,
) {
    let name = "tank/got";
    pool.sync().unwrap();
    let before = state(&pool, name);
    world.forget();
    let request = ReceiveRequest {
        name: name.to_owned(),
        ..ReceiveRequest::default()
    };
    let input = Slowly {
        pool: &pool,
        left: stream,
    };
    let outcome = pool.receive(&request, input, &mut Unwatched);
    assert_eq!(outcome.failure, None);
    let promised = world.journal().len();
    pool.sync().unwrap();
    let after = state(&pool, name);
    assert_ne!(before, after);
    drop(pool);
    let journal = world.journal().len();
    let cuts = if is_all() { journal } else { cuts };
    let step = (journal / cuts).max(1);
    let (mut judged, mut seen) = (0, [0, 0]);
    let counts = (0..journal).step_by(step).chain([journal]);
    for (round, count) in counts.enumerate() {
        let variants = variants(seed, round, count);
        let variant = &variants[round % 5];
        let what = format!("seed {seed}: after {count} of {journal} requests, {variant:?}");
        let reborn = world.reborn(count, variant);
        let pool = sim::open(&reborn).unwrap_or_else(|error| panic!("{what}: {error}"));
        for _ in 0..3 {
            pool.sync().unwrap();
        }
        let found = state(&pool, name);
        let is_after = found == after;
        assert!(
            is_after || found == before && count < promised,
            "{what}: {found:?}"
        );
        seen[usize::from(is_after)] += 1;
        // What was half received is gone, so the stream can come again.
        if !is_after {
            received(&pool, name, stream);
            assert_eq!(state(&pool, name), after, "{what}");
        }
        pool.export().unwrap();
        let view = sim::read(&reborn).unwrap();
        let faults = recount::faults_after_a_cut(&view);
        assert!(faults.is_empty(), "{what}: {faults:#?}");
        sim::verify(&view).unwrap_or_else(|error| panic!("{what}: {error}"));
        judged += 1;
        if judged % 20 == 1 {
            let folder = tempfile::tempdir().unwrap();
            sim::to_files(&reborn, folder.path());
            zdb::judge(folder.path(), "tank").unwrap().require(&what);
        }
    }
    println!("seed {seed}: {journal} requests, before and after: {seen:?}");
    assert!(seen[0] > 3 && seen[1] > 0, "{seen:?}");
}

/// A receive that can be resumed is cut. What is there afterwards is the state before, one that continues, or the end.
#[test]
fn a_cut_leaves_a_state_that_goes_on() {
    let world = World::new(35);
    let pool = pool_on(&world, &[(Single, 1)]);
    change(&pool);
    let (name, flags) = ("tank/got", SendFlags::default());
    received(&pool, name, &sent(&pool, "tank/a@1", None, flags));
    let stream = sent(&pool, "tank/a@2", Some("tank/a@1"), flags);
    pool.sync().unwrap();
    world.forget();
    let request = ReceiveRequest {
        name: name.to_owned(),
        is_resumable: true,
        ..ReceiveRequest::default()
    };
    let input = Slowly {
        pool: &pool,
        left: &stream,
    };
    let outcome = pool.receive(&request, input, &mut Unwatched);
    assert_eq!(outcome.failure, None);
    let after = state_of(&pool.committed().unwrap(), name);
    drop(pool);
    let journal = world.journal().len();
    let mut seen = [0; 3];
    for (round, count) in (0..=journal).step_by((journal / 40).max(1)).enumerate() {
        let variants = variants(35, round, count);
        let what = format!("after {count} of {journal} requests");
        let reborn = world.reborn(count, &variants[round % 5]);
        let pool = sim::open(&reborn).unwrap();
        let token = {
            let view = pool.committed().unwrap();
            view.dataset(name).unwrap().inner().resume_token().unwrap()
        };
        let is_done = state_of(&pool.committed().unwrap(), name) == after;
        let rest = match &token {
            Some(token) => rest_of(&pool, token),
            None => stream.clone(),
        };
        seen[if is_done {
            2
        } else {
            usize::from(token.is_some())
        }] += 1;
        if !is_done {
            let outcome = pool.receive(&request, &rest[..], &mut Unwatched);
            assert_eq!(outcome.failure, None, "{what}");
        }
        assert_eq!(state_of(&pool.committed().unwrap(), name), after, "{what}");
        pool.export().unwrap();
        let view = sim::read(&reborn).unwrap();
        let faults = recount::faults_after_a_cut(&view);
        assert!(faults.is_empty(), "{what}: {faults:#?}");
        if round % 20 == 7 {
            let folder = tempfile::tempdir().unwrap();
            sim::to_files(&reborn, folder.path());
            zdb::judge(folder.path(), "tank").unwrap().require(&what);
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

pub(crate) fn rest_of(pool: &Pool, token: &str) -> Vec<u8> {
    let token = ResumeToken::parse(token).unwrap();
    let flags = SendFlags {
        large_blocks: token.large_blocks,
        embedded: token.embedded,
        compressed: token.compressed,
        raw: token.is_raw,
    };
    rest_as(pool, &token, flags)
}

/// The same, with flags of another stream.
pub(crate) fn rest_as(pool: &Pool, token: &ResumeToken, flags: SendFlags) -> Vec<u8> {
    let request = SendRequest {
        name: token.to_name.clone(),
        resume: Some(ResumeFrom {
            object: token.object,
            offset: token.offset,
        }),
        guids: Some((token.to_guid, token.from_guid)),
        flags,
        ..SendRequest::default()
    };
    let mut bytes = vec![];
    pool.send(&request, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_cut_leaves_no_half_of_a_new_file_system() {
    cut(31, &[(Single, 1)], false, 40);
    cut(32, &[(Mirror, 2)], false, 20);
}

#[test]
fn a_cut_leaves_the_state_before_an_incremental_stream_or_after_it() {
    cut(33, &[(Single, 1)], true, 50);
    cut(34, &[(Mirror, 2)], true, 20);
}
