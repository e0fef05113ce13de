//! How many redaction snapshots a dataset, a stream and a bookmark may have. What is above is refused before anything is
//! changed.

use crate::cloning::{content, make};
use crate::receive::{finish, receive};
use crate::receive_hostile::{records, written};
use crate::redaction::{BOOK, both, redacted, scene};
use crate::sim;
use millpond_dataset::{
    Dataset, DatasetError, IncomingSnapshot, NewRedaction, ReceiveTarget, Refusal, ResumeAllowances,
};
use millpond_engine::{
    AllocationClass::Normal, NewLayout::Single, Pool, ReceiveRequest, Unwatched,
};
use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::{Guid, ObjectSetKind};
use millpond_sim::World;
use millpond_stream::Record;

/// The most snapshots that a dataset lists: as many words as a value of a ZAP has.
const SNAPSHOTS_MAX: usize = 1024;
/// The most that a redaction list has without a spill block.
const IN_BONUS_MAX: usize = 36;

/// A redacted stream that names this many snapshots instead of its own, under this key.
fn naming(stream: &[u8], key: &str, count: usize) -> Vec<u8> {
    let mut all = records(stream);
    assert!(matches!(all[0].record, Record::Begin(_)));
    let mut list = NvList::decode(&all[0].payload).unwrap();
    let guids = (0..count as u64).map(|number| number + 1).collect();
    list.insert(key, NvValue::Uint64Array(guids));
    all[0].payload = list.encode_xdr().unwrap();
    written(&all)
}

/// A redacted stream of a pool that is gone.
fn redacted_stream() -> Vec<u8> {
    let world = World::without_journal(91);
    let pool = scene(&world);
    pool.redact("tank/a@1", BOOK, &both()).unwrap();
    redacted(&pool, BOOK)
}

/// The pool can be changed and committed.
fn works(pool: &Pool, name: &str) {
    let files = pool.file_system("tank").unwrap();
    make(&files, name, &content(1));
    drop(files);
    pool.sync().unwrap();
}

fn is_refused<T>(outcome: Result<T, DatasetError>, wanted: &Refusal) -> bool {
    matches!(outcome, Err(DatasetError::Refused { why, .. }) if why == *wanted)
}

#[test]
fn a_stream_that_names_too_many_redaction_snapshots_is_refused() {
    let stream = redacted_stream();
    let world = World::without_journal(95);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    for key in ["redact_snaps", "redact_from_snaps"] {
        let problem = |count, name: &str| {
            let request = ReceiveRequest {
                name: format!("tank/{name}"),
                is_resumable: true,
                ..ReceiveRequest::default()
            };
            let stream = naming(&stream, key, count);
            let outcome = pool.receive(&request, &stream[..], &mut Unwatched);
            outcome.failure.map(|failure| failure.problem)
        };
        assert_eq!(problem(SNAPSHOTS_MAX, &format!("most-{key}")), None);
        for count in [SNAPSHOTS_MAX + 1, 1 << 14, (1 << 14) + 1] {
            let refused = problem(count, &format!("more-{key}"));
            let text = refused.map_or_else(String::new, |problem| problem.to_string());
            assert!(
                text.contains("at most 1024 snapshots"),
                "{key}, {count}: {text}"
            );
            works(&pool, &format!("{key}-{count}"));
        }
    }
    finish(&world, pool, "redaction limits");
}

/// The library takes what a stream says from its caller.
#[test]
fn a_receive_that_names_too_many_redaction_snapshots_does_not_begin() {
    let world = World::without_journal(96);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    let guids = |count: usize| Some((1..=count as u64).collect::<Vec<u64>>());
    for (redacted, redacted_from) in [
        (guids(SNAPSHOTS_MAX + 1), None),
        (guids(1), guids(SNAPSHOTS_MAX + 1)),
    ] {
        let incoming = IncomingSnapshot {
            guid: Guid(5),
            from: None,
            creation_s: 1,
            kind: ObjectSetKind::FileSystem,
            is_case_insensitive: false,
            needs_system_attributes: true,
            has_large_blocks: false,
            needs: vec![],
            uses: vec![],
            sent_name: "other/a@1".into(),
            raw: None,
            redacted,
            redacted_from,
        };
        let target = ReceiveTarget {
            name: "tank/got".into(),
            snapshot: "1".into(),
            resume: Some(ResumeAllowances::default()),
            ..ReceiveTarget::default()
        };
        let outcome = pool.datasets().begin_receive(&incoming, &target);
        assert!(is_refused(outcome, &Refusal::ManyRedactionSnapshots));
    }
    works(&pool, "after");
    finish(&world, pool, "redaction limits");
}

#[test]
fn a_redaction_bookmark_for_too_many_snapshots_is_refused() {
    let world = World::without_journal(97);
    let pool = scene(&world);
    let view = pool.committed().unwrap();
    let snapshot = Dataset::find(view.inner(), "tank/a@1").unwrap();
    let new = |count: usize, bookmark: &str| NewRedaction {
        snapshot: "tank/a@1".into(),
        guid: snapshot.guid(),
        bookmark: format!("tank/a#{bookmark}"),
        redacted_for: (1..=count as u64).map(Guid).collect(),
        entries: vec![],
    };
    let datasets = pool.datasets();
    datasets
        .create_redaction_bookmark(&new(SNAPSHOTS_MAX, "most"))
        .unwrap();
    let outcome = datasets.create_redaction_bookmark(&new(SNAPSHOTS_MAX + 1, "more"));
    assert!(is_refused(outcome, &Refusal::ManyRedactionSnapshots));
    finish(&world, pool, "redaction limits");
}

/// The bookmark of a redacted snapshot has a list of its own. A long one needs a feature.
#[test]
fn a_bookmark_with_a_long_list_needs_the_feature() {
    let stream = redacted_stream();
    let world = World::without_journal(98);
    let without = Some("redaction_list_spill");
    let tops = [(Normal, Single, 1)];
    let pool = sim::create_without(&world, &tops, 128, sim::by_caller(), without);
    for (name, count) in [("short", IN_BONUS_MAX), ("long", IN_BONUS_MAX + 1)] {
        let stream = naming(&stream, "redact_snaps", count);
        let outcome = receive(&pool, &format!("tank/{name}"), &stream);
        assert_eq!(outcome.failure, None);
    }
    let datasets = pool.datasets();
    datasets
        .bookmark("tank/short@1", "tank/short#mark")
        .unwrap();
    let outcome = datasets.bookmark("tank/long@1", "tank/long#mark");
    assert!(
        is_refused(outcome, &Refusal::FeatureDisabled),
        "a list in a spill block"
    );
    works(&pool, "after");
    finish(&world, pool, "redaction limits");
}
