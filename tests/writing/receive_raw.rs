//! Raw streams of encrypted datasets: sent and received without the key, they are unlocked by the sender's key later.

use crate::cloning::{make, pool_on};
use crate::encryption::{KEY, prose, root, unlock};
use crate::receive::{finish, received, sent};
use crate::receive_cuts::{Slowly, State, change_in, cuts_of_receive, state_of};
use crate::sim;
use millpond_dataset::properties::ResumeToken;
use millpond_engine::{
    FileSystem, NewLayout, NewLayout::Mirror, NewLayout::Single, Pool, QuotaMeasure, QuotaOwner,
    ReceiveProblem, ReceiveRequest, ResumeFrom, SendFlags, SendRequest, Unwatched, View,
};
use millpond_sim::World;
use millpond_tests::workload::SUITES;

pub(crate) const RAW: SendFlags = SendFlags {
    large_blocks: true,
    embedded: true,
    compressed: true,
    raw: true,
};

/// A pool with an encrypted file system that has two snapshots.
fn world(seed: u64, tops: &[(NewLayout, usize)], suite: &str) -> (World, Pool) {
    let world = World::new(seed);
    let pool = pool_on(&world, tops);
    root(
        &world,
        &pool,
        "tank/e",
        suite,
        &[("dnodesize", "auto"), ("xattr", "sa")],
    );
    change_in(&pool, "tank/e");
    pool.sync().unwrap();
    (world, pool)
}

fn problem(pool: &Pool, name: &str, bytes: &[u8], is_forced: bool) -> Option<ReceiveProblem> {
    let request = ReceiveRequest {
        name: name.to_owned(),
        is_forced,
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, bytes, &mut Unwatched);
    outcome.failure.map(|failure| failure.problem)
}

/// The files of a head and of its snapshots, without its name.
fn files_of(view: &View, name: &str) -> Vec<(String, Vec<u8>)> {
    let state = state_of(view, name).unwrap();
    let own = state.into_iter().filter_map(|(key, bytes)| {
        let file = key.strip_prefix(name)?.to_owned();
        Some((file, bytes))
    });
    own.collect()
}

#[test]
fn a_raw_stream_is_unlocked_by_the_senders_key() {
    for (number, suite) in (0..).zip(SUITES) {
        let tops = [(if number % 2 == 0 { Mirror } else { Single }, 2)];
        let tops = if number % 2 == 0 {
            &tops[..]
        } else {
            &[(Single, 1)]
        };
        let (world, pool) = world(700 + number, tops, suite);
        let full = sent(&pool, "tank/e@1", None, RAW);
        let more = sent(&pool, "tank/e@2", Some("tank/e@1"), RAW);
        // Neither side needs the key.
        assert!(pool.datasets().unload_key("tank/e").unwrap());
        assert!(sent(&pool, "tank/e@1", None, RAW) == full);
        received(&pool, "tank/got", &full);
        received(&pool, "tank/got", &more);
        let view = pool.committed().unwrap();
        assert!(view.dataset("tank/got").unwrap().is_locked().unwrap());
        assert_eq!(
            view.encryption_root("tank/got").unwrap().as_deref(),
            Some("tank/got")
        );
        drop(view);
        finish(&world, pool, suite);
        let pool = sim::open(&world).unwrap();
        // Sent again, it is the same.
        assert!(sent(&pool, "tank/got@1", None, RAW).len() == full.len());
        unlock(&pool, "tank/e", KEY);
        unlock(&pool, "tank/got", KEY);
        let view = pool.committed().unwrap();
        assert!(
            files_of(&view, "tank/got") == files_of(&view, "tank/e"),
            "{suite}"
        );
        drop(view);
        // It can be changed, and the next change of the sender replaces that.
        let files = pool.file_system("tank/got").unwrap();
        make(&files, "own", &prose(1, 70_000));
        drop(files);
        let files = pool.file_system("tank/e").unwrap();
        make(&files, "later", &prose(2, 300_000));
        drop(files);
        pool.datasets().snapshot(&["tank/e@3"], &[]).unwrap();
        let last = sent(&pool, "tank/e@3", Some("tank/e@2"), RAW);
        let modified = Some(ReceiveProblem::Modified("tank/got".into()));
        assert_eq!(problem(&pool, "tank/got", &last, false), modified);
        assert_eq!(problem(&pool, "tank/got", &last, true), None);
        let view = pool.committed().unwrap();
        assert!(
            files_of(&view, "tank/got") == files_of(&view, "tank/e"),
            "{suite}"
        );
        drop(view);
        finish(&world, pool, suite);
    }
}

#[test]
fn raw_volumes_and_clones_are_received() {
    let (world, pool) = world(711, &[(Single, 1)], "aes-256-gcm");
    let datasets = pool.datasets();
    datasets.clone_snapshot("tank/e@1", "tank/c", &[]).unwrap();
    let files = pool.file_system("tank/c").unwrap();
    make(&files, "in-clone", &prose(3, 200_000));
    drop(files);
    datasets.snapshot(&["tank/c@c"], &[]).unwrap();
    let full = sent(&pool, "tank/e@1", None, RAW);
    let clone = sent(&pool, "tank/c@c", Some("tank/e@1"), RAW);
    received(&pool, "tank/got", &full);
    let request = ReceiveRequest {
        name: "tank/got-clone".to_owned(),
        origin: Some("tank/got@1".to_owned()),
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, &clone[..], &mut Unwatched);
    assert_eq!(outcome.failure, None);
    unlock(&pool, "tank/got", KEY);
    let view = pool.committed().unwrap();
    assert!(files_of(&view, "tank/got-clone") == files_of(&view, "tank/c"));
    drop(view);
    finish(&world, pool, "raw clone");
}

/// The space of owners is counted at the first mount with the key: that needs the key.
#[test]
fn space_is_counted_by_owner_once_the_key_is_there() {
    let (world, pool) = world(713, &[(Single, 1)], "aes-192-gcm");
    received(&pool, "tank/got", &sent(&pool, "tank/e@1", None, RAW));
    received(
        &pool,
        "tank/got",
        &sent(&pool, "tank/e@2", Some("tank/e@1"), RAW),
    );
    unlock(&pool, "tank/got", KEY);
    let used = |files: &FileSystem| {
        let of = |measure| files.used(QuotaOwner::User, measure, 0).unwrap();
        (of(QuotaMeasure::Bytes), of(QuotaMeasure::Objects))
    };
    let theirs = used(&pool.file_system("tank/e").unwrap());
    let served = pool.served("tank/got").unwrap();
    while served.files().incomplete_accounting() != 0 {
        pool.sync().unwrap();
    }
    pool.sync().unwrap();
    assert_eq!(used(served.files()), theirs);
    drop(served);
    // Sums are not sent.
    pool.datasets().snapshot(&["tank/got@own"], &[]).unwrap();
    received(&pool, "tank/back", &sent(&pool, "tank/got@own", None, RAW));
    // Nor can they follow a raw change, so that is refused.
    let files = pool.file_system("tank/got").unwrap();
    make(&files, "more", &prose(4, 5000));
    drop(files);
    pool.datasets().snapshot(&["tank/got@more"], &[]).unwrap();
    let back = sent(&pool, "tank/got@more", Some("tank/got@2"), RAW);
    let problem = problem(&pool, "tank/e", &back, false);
    let is_named = |why: &String| why.contains("counted by owner");
    assert!(
        matches!(&problem, Some(ReceiveProblem::Failed(why)) if is_named(why)),
        "{problem:?}"
    );
    finish(&world, pool, "counted");
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (world, pool) = world(712, &[(Single, 1)], "aes-256-ccm");
    let full = sent(&pool, "tank/e@1", None, RAW);
    let more = sent(&pool, "tank/e@2", Some("tank/e@1"), RAW);
    let plain_flags = SendFlags {
        raw: false,
        embedded: false,
        ..RAW
    };
    let plain = sent(&pool, "tank/e@1", None, plain_flags);
    let plain_more = sent(&pool, "tank/e@2", Some("tank/e@1"), plain_flags);
    // The target is not encrypted.
    received(&pool, "tank/plain", &plain);
    let onto_plain = Some(ReceiveProblem::RawOntoPlain);
    assert_eq!(problem(&pool, "tank/plain", &more, false), onto_plain);
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/empty", &[]).unwrap();
    let replaced = Some(ReceiveProblem::EncryptionReplaced);
    assert_eq!(problem(&pool, "tank/empty", &full, true), replaced);
    // Onto another key.
    root(&world, &pool, "tank/other", "aes-256-ccm", &[]);
    received(&pool, "tank/other/got", &plain);
    let other = Some(ReceiveProblem::OtherKey);
    assert_eq!(problem(&pool, "tank/other/got", &more, false), other);
    // A change that is not raw needs the key, and ends what can be received raw.
    received(&pool, "tank/got", &full);
    let locked = Some(ReceiveProblem::Locked);
    assert_eq!(problem(&pool, "tank/got", &plain_more, false), locked);
    unlock(&pool, "tank/got", KEY);
    received(&pool, "tank/got", &plain_more);
    let files = pool.file_system("tank/e").unwrap();
    make(&files, "later", &prose(2, 3000));
    drop(files);
    datasets.snapshot(&["tank/e@3"], &[]).unwrap();
    let last = sent(&pool, "tank/e@3", Some("tank/e@2"), RAW);
    let mismatch = Some(ReceiveProblem::IvSetMismatch);
    assert_eq!(problem(&pool, "tank/got", &last, false), mismatch);
    // The suite is that of the stream.
    let request = ReceiveRequest {
        name: "tank/new".to_owned(),
        excluded: vec!["encryption".to_owned()],
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, &full[..], &mut Unwatched);
    let property = ReceiveProblem::RawProperty("encryption".to_owned());
    assert_eq!(outcome.failure.unwrap().problem, property);
    finish(&world, pool, "refused");
}

/// Unlocks what is there, reads its state, and locks it again.
fn unlocked_state(pool: &Pool, name: &str) -> Option<State> {
    let view = pool.committed().unwrap();
    view.dataset(name).ok()?;
    view.load_key(name, KEY).unwrap();
    let state = state_of(&view, name);
    view.unload_key(name).unwrap();
    state
}

/// Cuts while a raw stream is received as or into `tank/got`.
fn cut(seed: u64, tops: &[(NewLayout, usize)], is_incremental: bool, cuts: usize) {
    let suite = SUITES[seed as usize % SUITES.len()];
    let (world, pool) = world(seed, tops, suite);
    let name = "tank/got";
    let full = sent(&pool, "tank/e@1", None, RAW);
    let stream = match is_incremental {
        true => {
            received(&pool, name, &full);
            sent(&pool, "tank/e@2", Some("tank/e@1"), RAW)
        }
        false => full,
    };
    cuts_of_receive(&world, pool, seed, cuts, &stream, unlocked_state);
}

#[test]
fn a_cut_leaves_no_half_of_a_raw_stream() {
    cut(721, &[(Single, 1)], false, 30);
    cut(722, &[(Mirror, 2)], true, 30);
}

#[test]
fn an_interrupted_raw_receive_goes_on() {
    let (world, pool) = world(731, &[(Single, 1)], "aes-128-gcm");
    let more = sent(&pool, "tank/e@2", Some("tank/e@1"), RAW);
    let full = sent(&pool, "tank/e@1", None, RAW);
    let request = ReceiveRequest {
        name: "tank/got".to_owned(),
        is_resumable: true,
        ..ReceiveRequest::default()
    };
    for stream in [&full, &more] {
        let mut left = stream[..stream.len() / 3].to_vec();
        for round in 0..4 {
            let outcome = pool.receive(
                &request,
                Slowly {
                    pool: &pool,
                    left: &left,
                },
                &mut Unwatched,
            );
            let problem = outcome.failure.map(|failure| failure.problem);
            let Some(ReceiveProblem::Interrupted(token)) = problem else {
                assert_eq!((problem, round), (None, 3));
                break;
            };
            let token = ResumeToken::parse(&token).unwrap();
            assert!(token.is_raw);
            let rest = SendRequest {
                name: token.to_name,
                flags: RAW,
                resume: Some(ResumeFrom {
                    object: token.object,
                    offset: token.offset,
                }),
                guids: Some((token.to_guid, token.from_guid)),
                ..SendRequest::default()
            };
            let mut bytes = vec![];
            pool.send(&rest, &mut bytes).unwrap();
            let cut = if round == 2 {
                bytes.len()
            } else {
                bytes.len() / 2
            };
            left = bytes[..cut].to_vec();
        }
    }
    unlock(&pool, "tank/got", KEY);
    let view = pool.committed().unwrap();
    assert!(files_of(&view, "tank/got") == files_of(&view, "tank/e"));
    drop(view);
    finish(&world, pool, "resumed");
}

/// A raw increment frees the only object of a block of dnodes, and writes another object into the same block.
#[test]
fn a_freed_object_is_followed_by_another_in_its_block_of_dnodes() {
    const DNODES_OF_BLOCK: u64 = 32;
    let world = World::new(741);
    let pool = pool_on(&world, &[(Single, 1)]);
    root(
        &world,
        &pool,
        "tank/e",
        "aes-256-gcm",
        &[("dnodesize", "legacy"), ("xattr", "sa")],
    );
    let files = pool.file_system("tank/e").unwrap();
    let directory = files.root().unwrap();
    // The file that is the object with this offset in its block of dnodes.
    let keep = |offset: u64, kept: &str| {
        for number in 0..200 {
            let name = format!("{kept}{number}");
            let object = make(&files, &name, &prose(5, 3000)).id().0;
            if object % DNODES_OF_BLOCK == offset {
                return (name, object);
            }
            files.unlink(&directory, name.as_bytes()).unwrap();
        }
        panic!("no object has this number");
    };
    let (first, object) = keep(0, "first");
    pool.datasets().snapshot(&["tank/e@a"], &[]).unwrap();
    let (_, next) = keep(1, "second");
    assert_eq!(object / DNODES_OF_BLOCK, next / DNODES_OF_BLOCK);
    files.unlink(&directory, first.as_bytes()).unwrap();
    drop((directory, files));
    pool.datasets().snapshot(&["tank/e@b"], &[]).unwrap();
    received(&pool, "tank/got", &sent(&pool, "tank/e@a", None, RAW));
    let more = sent(&pool, "tank/e@b", Some("tank/e@a"), RAW);
    received(&pool, "tank/got", &more);
    unlock(&pool, "tank/got", KEY);
    let view = pool.committed().unwrap();
    assert!(files_of(&view, "tank/got") == files_of(&view, "tank/e"));
    drop(view);
    finish(&world, pool, "freed and followed");
}
