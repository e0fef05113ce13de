//! Redaction bookmarks, redacted streams, and what receives make of them.

use crate::cloning::{RECORD, content, make, node, pool_on, remove};
use crate::crash::variants;
use crate::encryption::{KEY, root, unlock};
use crate::receive::{finish, receive, received, sent};
use crate::receive_cuts::{State, cuts_of_receive, state_of};
use crate::sim;
use millpond_engine::{
    Caller, NewLayout::Single, Pool, ReceiveProblem, ReceiveRequest, SendFlags, SendRequest,
    Unwatched, View, WriteAt,
};
use millpond_sim::{World, noise};
use millpond_tests::oracle::zdb;
use millpond_tests::recount;

pub(crate) const BOOK: &str = "tank/a#book";

/// The content by records of a head and its snapshots.
fn records_in(view: &View, name: &str) -> Option<State> {
    let head = view.dataset(name).ok()?;
    let mut state = State::new();
    for dataset in std::iter::once(head.clone()).chain(head.snapshots().unwrap()) {
        state.insert(dataset.name().to_owned(), vec![]);
        let root = dataset.file_system().unwrap().root().unwrap();
        for entry in root.entries().unwrap() {
            let entry = entry.unwrap();
            let file = root.lookup(&entry.name).unwrap();
            let own = format!(
                "{}/{}",
                dataset.name(),
                String::from_utf8_lossy(&entry.name)
            );
            for number in 0..file.size_bytes().div_ceil(RECORD) {
                let at = number * RECORD;
                let mut bytes = vec![0; RECORD.min(file.size_bytes() - at) as usize];
                let read = file.read(at, &mut bytes).unwrap();
                bytes.truncate(read);
                state.insert(format!("{own}:{number:03}"), bytes);
            }
        }
    }
    Some(state)
}

fn records_of(pool: &Pool, name: &str) -> Option<State> {
    records_in(&pool.committed().unwrap(), name)
}

/// The state without the name of the dataset.
fn below(state: Option<State>, name: &str) -> Vec<(String, Vec<u8>)> {
    let state = state.unwrap().into_iter();
    state
        .map(|(key, bytes)| (key.strip_prefix(name).unwrap().to_owned(), bytes))
        .collect()
}

/// Whether a record is a hole.
fn is_left_out((_, bytes): &(String, Vec<u8>)) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0)
}

fn overwrite(pool: &Pool, name: &str, file: &str, first: u64, count: u64) {
    let files = pool.file_system(name).unwrap();
    let bytes = noise(first + 7, (count * RECORD) as usize);
    let at = WriteAt::Offset(first * RECORD);
    files
        .write(&Caller::root(), &node(&files, file), at, &bytes)
        .unwrap();
}

/// A snapshot, and two clones that have both changed the record 1 of `f0` and removed `f1`.
pub(crate) fn scene(world: &World) -> Pool {
    let pool = pool_on(world, &[(Single, 1)]);
    let datasets = pool.datasets();
    let files = pool.file_system("tank/a").unwrap();
    for number in 0..4 {
        make(&files, &format!("f{number}"), &content(number));
    }
    drop(files);
    datasets.snapshot(&["tank/a@1"], &[]).unwrap();
    for clone in ["tank/one", "tank/two"] {
        datasets.clone_snapshot("tank/a@1", clone, &[]).unwrap();
        remove(&pool.file_system(clone).unwrap(), "f1");
    }
    overwrite(&pool, "tank/one", "f0", 0, 2);
    overwrite(&pool, "tank/two", "f0", 1, 2);
    overwrite(&pool, "tank/two", "f2", 0, 1);
    datasets
        .snapshot(&["tank/one@r", "tank/two@r"], &[])
        .unwrap();
    overwrite(&pool, "tank/a", "f3", 0, 1);
    datasets.snapshot(&["tank/a@2"], &[]).unwrap();
    pool
}

pub(crate) fn both() -> Vec<String> {
    ["tank/one@r", "tank/two@r"].map(str::to_owned).to_vec()
}

pub(crate) fn redacted(pool: &Pool, bookmark: &str) -> Vec<u8> {
    let request = SendRequest {
        name: "tank/a@1".to_owned(),
        redaction: Some(bookmark.to_owned()),
        ..SendRequest::default()
    };
    let mut bytes = vec![];
    pool.send(&request, &mut bytes).unwrap();
    bytes
}

fn as_clone(pool: &Pool, name: &str, origin: &str, bytes: &[u8]) -> Option<ReceiveProblem> {
    let request = ReceiveRequest {
        name: name.to_owned(),
        origin: Some(origin.to_owned()),
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, bytes, &mut Unwatched);
    outcome.failure.map(|failure| failure.problem)
}

fn count(pool: &Pool, feature: &str) -> Option<u64> {
    pool.committed().unwrap().inner().features().count(feature)
}

#[test]
fn what_all_clones_changed_is_left_out_and_comes_with_each_of_them() {
    let world = World::without_journal(91);
    let pool = scene(&world);
    pool.redact("tank/a@1", BOOK, &both()).unwrap();
    let stream = redacted(&pool, BOOK);
    received(&pool, "tank/got", &stream);
    let whole = below(records_of(&pool, "tank/a"), "tank/a");
    let whole: Vec<_> = whole.iter().filter(|one| one.0.starts_with("@1")).collect();
    let got = below(records_of(&pool, "tank/got"), "tank/got");
    let got: Vec<_> = got.iter().filter(|one| one.0.starts_with("@1")).collect();
    assert_eq!(got.len(), whole.len());
    let mut left_out = 0;
    for (found, sent) in got.iter().zip(&whole) {
        assert_eq!(found.0, sent.0);
        let is_listed = found.0 == "@1/f0:001" || found.0.starts_with("@1/f1:");
        match is_listed {
            true => assert!(is_left_out(found), "{}", found.0),
            false => assert!(found.1 == sent.1, "{}", found.0),
        }
        left_out += usize::from(is_listed);
    }
    assert!(left_out > 2, "{left_out}");
    // One that is redacted for one clone only has less.
    pool.redact("tank/a@1", "tank/a#one", &both()[..1]).unwrap();
    assert!(redacted(&pool, "tank/a#one").len() < stream.len());
    // Each of the clones completes it.
    for clone in ["one", "two"] {
        let own = format!("tank/{clone}");
        let more = sent(
            &pool,
            &format!("{own}@r"),
            Some("tank/a@1"),
            SendFlags::default(),
        );
        let name = format!("tank/{clone}-got");
        assert_eq!(as_clone(&pool, &name, "tank/got@1", &more), None);
        let (found, whole) = (
            state_of(&pool.committed().unwrap(), &name),
            records_of(&pool, &own),
        );
        assert!(found.is_some());
        assert!(
            below(records_of(&pool, &name), &name) == below(whole, &own),
            "{name}"
        );
    }
    assert_eq!(count(&pool, "com.delphix:redacted_datasets"), Some(2));
    // What is left out needs no encryption.
    root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
    unlock(&pool, "tank/e", KEY);
    received(&pool, "tank/e/got", &stream);
    let sealed = below(records_of(&pool, "tank/e/got"), "tank/e/got");
    assert!(sealed == below(records_of(&pool, "tank/got"), "tank/got"));
    assert_eq!(count(&pool, "com.delphix:redacted_datasets"), Some(4));
    // What it is not redacted for does not fit.
    let other = sent(&pool, "tank/a@2", Some("tank/a@1"), SendFlags::default());
    let refused = receive(&pool, "tank/got", &other).failure.unwrap().problem;
    assert!(refused.to_string().contains("redacted"), "{refused}");
    finish(&world, pool, "redacted");
}

fn sent_from(pool: &Pool, name: &str, from: &str, redaction: Option<&str>) -> Vec<u8> {
    let request = SendRequest {
        name: name.to_owned(),
        from: Some(from.to_owned()),
        redaction: redaction.map(str::to_owned),
        ..SendRequest::default()
    };
    let mut bytes = vec![];
    pool.send(&request, &mut bytes).unwrap();
    // The plan knows the length without reading data.
    let plan = pool.committed().unwrap().send_plan(&request).unwrap();
    assert_eq!(plan.steps[0].bytes, Some(bytes.len() as u64), "{from}");
    bytes
}

/// The records of a snapshot, without the dataset's name.
fn of_snapshot(pool: &Pool, dataset: &str, snapshot: &str) -> Vec<(String, Vec<u8>)> {
    let mut all = below(records_of(pool, dataset), dataset);
    all.retain(|(name, _)| {
        name.strip_prefix('@')
            .is_some_and(|n| n.split('/').next() == Some(snapshot))
    });
    all
}

#[test]
fn a_stream_from_a_redaction_bookmark_brings_what_was_left_out() {
    let world = World::without_journal(98);
    let pool = scene(&world);
    let datasets = pool.datasets();
    pool.redact("tank/a@1", BOOK, &both()).unwrap();
    for name in ["tank/got", "tank/less", "tank/clone-got"] {
        received(&pool, name, &redacted(&pool, BOOK));
    }
    // Blocks that did not change since, of objects whose dnodes did not change.
    let more = sent_from(&pool, "tank/a@2", BOOK, None);
    received(&pool, "tank/got", &more);
    assert!(of_snapshot(&pool, "tank/got", "2") == of_snapshot(&pool, "tank/a", "2"));
    let plain = sent(&pool, "tank/a@2", Some("tank/a@1"), SendFlags::default());
    assert!(more.len() > plain.len() + RECORD as usize);
    // What is redacted again is not mentioned: the record 1 of `f0`, but not `f1`.
    datasets
        .clone_snapshot("tank/a@2", "tank/three", &[])
        .unwrap();
    overwrite(&pool, "tank/three", "f0", 1, 2);
    overwrite(&pool, "tank/three", "f3", 1, 1);
    datasets.snapshot(&["tank/three@r"], &[]).unwrap();
    pool.redact("tank/a@2", "tank/a#less", &["tank/three@r".to_owned()])
        .unwrap();
    let less = sent_from(&pool, "tank/a@2", BOOK, Some("tank/a#less"));
    assert!(less.len() < more.len());
    received(&pool, "tank/less", &less);
    let (found, whole) = (
        of_snapshot(&pool, "tank/less", "2"),
        of_snapshot(&pool, "tank/a", "2"),
    );
    assert_eq!(found.len(), whole.len());
    for (found, whole) in found.iter().zip(&whole) {
        assert_eq!(found.0, whole.0);
        match ["@2/f0:001", "@2/f0:002", "@2/f3:001"].contains(&found.0.as_str()) {
            true => assert!(is_left_out(found), "{}", found.0),
            false => assert!(found.1 == whole.1, "{}", found.0),
        }
    }
    // A clone elsewhere, from the bookmark of its origin.
    let clone = sent_from(&pool, "tank/two@r", BOOK, None);
    assert_eq!(
        as_clone(&pool, "tank/two-got", "tank/clone-got@1", &clone),
        None
    );
    assert!(of_snapshot(&pool, "tank/two-got", "r") == of_snapshot(&pool, "tank/two", "r"));
    finish(&world, pool, "from a redaction bookmark");
}

#[test]
fn one_removed_file_of_many_redacts_no_other() {
    let world = World::without_journal(99);
    let pool = pool_on(&world, &[(Single, 1)]);
    let datasets = pool.datasets();
    let files = pool.file_system("tank/a").unwrap();
    // They take several blocks of dnodes.
    for number in 0..256 {
        let bytes = noise(number, 512 * (1 + number as usize % 97));
        make(&files, &format!("f{number:03}"), &bytes);
    }
    drop(files);
    datasets.snapshot(&["tank/a@1"], &[]).unwrap();
    datasets
        .clone_snapshot("tank/a@1", "tank/one", &[])
        .unwrap();
    let files = pool.file_system("tank/one").unwrap();
    for number in 32..97 {
        remove(&files, &format!("f{number:03}"));
    }
    drop(files);
    datasets.snapshot(&["tank/one@r"], &[]).unwrap();
    pool.redact("tank/a@1", BOOK, &both()[..1]).unwrap();
    received(&pool, "tank/got", &redacted(&pool, BOOK));
    let (found, whole) = (
        of_snapshot(&pool, "tank/got", "1"),
        of_snapshot(&pool, "tank/a", "1"),
    );
    assert_eq!(found.len(), whole.len());
    for (found, whole) in found.iter().zip(&whole) {
        let number = found
            .0
            .get(4..7)
            .and_then(|digits| digits.parse::<u32>().ok());
        match number.is_some_and(|number| (32..97).contains(&number)) {
            true => assert!(is_left_out(found), "{}", found.0),
            false => assert!(found.1 == whole.1, "{}", found.0),
        }
    }
    finish(&world, pool, "many files");
}

#[test]
fn a_redacted_dataset_is_renamed_cloned_bookmarked_sent_and_destroyed() {
    let world = World::without_journal(92);
    let pool = scene(&world);
    let datasets = pool.datasets();
    pool.redact("tank/a@1", BOOK, &both()).unwrap();
    received(&pool, "tank/got", &redacted(&pool, BOOK));
    datasets.rename("tank/got", "tank/moved").unwrap();
    datasets
        .clone_snapshot("tank/moved@1", "tank/clone", &[])
        .unwrap();
    datasets.snapshot(&["tank/clone@c"], &[]).unwrap();
    datasets
        .bookmark("tank/moved@1", "tank/moved#mark")
        .unwrap();
    assert_eq!(count(&pool, "com.delphix:redacted_datasets"), Some(4));
    assert_eq!(count(&pool, "com.delphix:redaction_bookmarks"), Some(2));
    let again = sent(&pool, "tank/moved@1", None, SendFlags::default());
    received(&pool, "tank/again", &again);
    let own = |name: &str| below(records_of(&pool, name), name);
    assert!(own("tank/again") == own("tank/moved"));
    // A block that is written is whole again.
    overwrite(&pool, "tank/clone", "f0", 1, 1);
    pool.sync().unwrap();
    let state = records_of(&pool, "tank/clone").unwrap();
    assert_eq!(state["tank/clone/f0:001"], noise(8, RECORD as usize));
    let files = pool.file_system("tank/clone").unwrap();
    remove(&files, "f1");
    drop(files);
    pool.redact(
        "tank/moved@1",
        "tank/moved#no",
        &["tank/clone@c".to_owned()],
    )
    .unwrap_err();
    for name in ["tank/moved#mark", BOOK, "tank/again@1", "tank/again"] {
        datasets.destroy(name, Default::default()).unwrap();
    }
    assert_eq!(count(&pool, "com.delphix:redaction_bookmarks"), Some(0));
    finish(&world, pool, "redacted");
}

#[test]
fn many_snapshots_need_a_spill_block() {
    let world = World::without_journal(93);
    let pool = scene(&world);
    let datasets = pool.datasets();
    let names: Vec<String> = (0..40).map(|number| format!("tank/one@{number}")).collect();
    for name in &names {
        datasets.snapshot(&[name], &[]).unwrap();
    }
    pool.redact("tank/a@1", BOOK, &names[..36]).unwrap();
    assert_eq!(count(&pool, "com.delphix:redaction_list_spill"), Some(0));
    pool.redact("tank/a@1", "tank/a#long", &names).unwrap();
    assert_eq!(count(&pool, "com.delphix:redaction_list_spill"), Some(1));
    assert_eq!(
        redacted(&pool, "tank/a#long").len(),
        redacted(&pool, BOOK).len() + 32
    );
    pool.sync().unwrap();
    let again = sim::read(&world).unwrap();
    let faults = recount::faults_of(again.inner());
    assert!(faults.is_empty(), "{faults:#?}");
    datasets.destroy("tank/a#long", Default::default()).unwrap();
    assert_eq!(count(&pool, "com.delphix:redaction_list_spill"), Some(0));
    finish(&world, pool, "redacted");
}

#[test]
fn names_that_do_not_fit_are_refused() {
    let world = World::without_journal(94);
    let pool = scene(&world);
    let refused = |bookmark: &str, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        pool.redact("tank/a@1", bookmark, &names)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(BOOK, &["tank/a@2"]).contains("not a descendent of snapshot"));
    assert!(refused(BOOK, &["tank/one"]).contains("not a descendent of snapshot"));
    assert!(refused("tank/b#book", &["tank/one@r"]).contains("not in the dataset"));
    pool.redact("tank/a@1", BOOK, &both()).unwrap();
    assert!(refused(BOOK, &["tank/one@r"]).contains("exists"));
    pool.datasets()
        .bookmark("tank/a@1", "tank/a#plain")
        .unwrap();
    for (name, redaction) in [("tank/a@1", "tank/a#plain"), ("tank/a@2", BOOK)] {
        let request = SendRequest {
            name: name.to_owned(),
            redaction: Some(redaction.to_owned()),
            ..SendRequest::default()
        };
        let error = pool.send(&request, std::io::sink()).unwrap_err();
        assert!(
            error.to_string().contains("is not a redaction bookmark"),
            "{error}"
        );
    }
    finish(&world, pool, "redacted");
}

#[test]
fn a_cut_leaves_all_of_a_redacted_stream_or_nothing() {
    for seed in [95, 96] {
        let world = World::new(seed);
        let pool = scene(&world);
        pool.redact("tank/a@1", BOOK, &both()).unwrap();
        let stream = redacted(&pool, BOOK);
        cuts_of_receive(&world, pool, seed, 40, &stream, records_of);
    }
}

#[test]
fn a_cut_leaves_a_whole_redaction_bookmark_or_none() {
    let world = World::new(97);
    let pool = scene(&world);
    pool.sync().unwrap();
    world.forget();
    pool.redact("tank/a@1", BOOK, &both()).unwrap();
    let promised = world.journal().len();
    pool.sync().unwrap();
    let stream = redacted(&pool, BOOK);
    drop(pool);
    let journal = world.journal().len();
    let mut seen = [0, 0];
    for (round, until) in (0..=journal).enumerate() {
        let variants = variants(97, round, until);
        let reborn = world.reborn(until, &variants[round % 5]);
        let pool = sim::open(&reborn).unwrap();
        let view = pool.committed().unwrap();
        let marks = view.dataset("tank/a").unwrap().inner().bookmarks().unwrap();
        let exists = !marks.is_empty();
        assert!(exists || until < promised, "after {until} of {journal}");
        seen[usize::from(exists)] += 1;
        if !exists {
            pool.redact("tank/a@1", BOOK, &both()).unwrap();
        }
        assert!(
            redacted(&pool, BOOK) == stream,
            "after {until} of {journal}"
        );
        pool.export().unwrap();
        let view = sim::read(&reborn).unwrap();
        let faults = recount::faults_after_a_cut(&view);
        assert!(faults.is_empty(), "after {until}: {faults:#?}");
        if round % 10 == 0 {
            let folder = tempfile::tempdir().unwrap();
            sim::to_files(&reborn, folder.path());
            let judged = zdb::judge(folder.path(), "tank").unwrap();
            judged.require(&format!("after {until} of {journal}"));
        }
    }
    assert!(seen[0] > 3 && seen[1] > 0, "{seen:?}");
}
