//! What an interrupted receive left is sent on, received elsewhere, and completed there by the first sender.

use crate::cloning::{content, make, pool_on};
use crate::receive::{finish, received, sent};
use crate::receive_cuts::{State, change, rest_as, rest_of, state_of};
use millpond_dataset::properties::ResumeToken;
use millpond_engine::{
    Error, NewLayout::Single, Pool, ReceiveProblem, ReceiveRequest, SendError, SendFlags,
    SendRequest, Unwatched,
};
use millpond_sim::{World, noise};
use millpond_stream::{Record, StreamReader};
use millpond_tests::workload::text;

/// Receives what can be resumed if it is not complete. Returns the token then.
fn receive(pool: &Pool, name: &str, bytes: &[u8]) -> Option<String> {
    receive_over(pool, name, None, bytes)
}

fn receive_over(pool: &Pool, name: &str, origin: Option<&str>, bytes: &[u8]) -> Option<String> {
    let request = ReceiveRequest {
        name: name.to_owned(),
        origin: origin.map(str::to_owned),
        is_resumable: true,
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, bytes, &mut Unwatched);
    match outcome.failure?.problem {
        ReceiveProblem::Interrupted(token) => Some(token),
        other => panic!("{name}: {other}"),
    }
}

fn unfinished(pool: &Pool, name: &str) -> Result<Vec<u8>, Error> {
    let request = SendRequest {
        name: name.to_owned(),
        is_unfinished: true,
        ..SendRequest::default()
    };
    let mut bytes = vec![];
    pool.send(&request, &mut bytes).map(|_| bytes)
}

fn files(pool: &Pool, name: &str) -> State {
    let state = state_of(&pool.committed().unwrap(), name).unwrap();
    let own = state.into_iter();
    own.map(|(key, bytes)| (key.replacen(name, "", 1), bytes))
        .collect()
}

#[test]
fn a_state_that_was_sent_on_is_completed_by_the_first_sender() {
    let flags = [
        SendFlags::default(),
        SendFlags {
            compressed: true,
            embedded: true,
            large_blocks: true,
            ..SendFlags::default()
        },
    ];
    for (number, flags) in flags.into_iter().enumerate() {
        let world = World::without_journal(95);
        let pool = pool_on(&world, &[(Single, 1)]);
        change(&pool);
        let full = sent(&pool, "tank/a@1", None, flags);
        let more = sent(&pool, "tank/a@2", Some("tank/a@1"), flags);
        for percent in [20, 45, 70, 95] {
            let what = format!("{number}, {percent} %");
            let part = |bytes: &[u8]| bytes[..bytes.len() * percent / 100].to_vec();
            let [first, second] = ["one", "two"].map(|name| format!("tank/{name}-{percent}"));
            for (stream, snapshot) in [(&full, 1), (&more, 2)] {
                let token = receive(&pool, &first, &part(stream)).expect(&what);
                let on = unfinished(&pool, &first).unwrap();
                assert!(on.len() < stream.len(), "{what}");
                let taken = StreamReader::new(&on[..]).take().unwrap().unwrap();
                let Record::Begin(begin) = taken.record else {
                    panic!("{what}: {:?}", taken.record);
                };
                let known = ResumeToken::parse(&token).unwrap();
                assert_eq!(begin.to_guid, known.to_guid, "{what}");
                assert_eq!(begin.from_guid, known.from_guid, "{what}");
                assert_eq!(begin.to_name, known.to_name.as_bytes(), "{what}");
                let again = receive(&pool, &second, &on).expect(&what);
                let at = |token: &str| {
                    let token = ResumeToken::parse(token).unwrap();
                    (token.object, token.offset)
                };
                assert_eq!(at(&again), at(&token), "{what}");
                for (name, token) in [(&second, again), (&first, token)] {
                    assert_eq!(
                        receive(&pool, name, &rest_of(&pool, &token)),
                        None,
                        "{what}"
                    );
                    let view = pool.committed().unwrap();
                    view.dataset(&format!("{name}@{snapshot}")).unwrap();
                }
            }
            assert!(files(&pool, &first) == files(&pool, "tank/a"), "{what}");
            assert!(files(&pool, &second) == files(&pool, "tank/a"), "{what}");
        }
        finish(&world, pool, "sent on");
    }
}

fn objects(pool: &Pool, name: &str) -> Vec<u64> {
    let view = pool.committed().unwrap();
    let dataset = view.dataset(name).unwrap();
    let set = dataset.inner().object_set(None).unwrap();
    let numbers = set.objects().map(|object| object.unwrap().id().0);
    numbers.collect()
}

/// The stream that resumes does not name the origin again.
#[test]
fn nothing_of_an_origin_stays_when_a_full_stream_is_resumed() {
    let world = World::without_journal(97);
    let pool = pool_on(&world, &[(Single, 1)]);
    change(&pool);
    pool.datasets().create_filesystem("tank/base", &[]).unwrap();
    let base = pool.file_system("tank/base").unwrap();
    for number in 0..60 {
        make(&base, &format!("old{number}"), &content(number % 9));
    }
    drop(base);
    pool.datasets().snapshot(&["tank/base@o"], &[]).unwrap();
    let full = sent(&pool, "tank/a@1", None, SendFlags::default());
    let wanted = objects(&pool, "tank/a@1");
    assert!(objects(&pool, "tank/base@o").len() > wanted.len() + 20);
    for percent in [10, 45, 70, 99] {
        let name = format!("tank/new-{percent}");
        let part = &full[..full.len() * percent / 100];
        let token = receive_over(&pool, &name, Some("tank/base@o"), part).unwrap();
        assert_eq!(receive(&pool, &name, &rest_of(&pool, &token)), None);
        assert_eq!(objects(&pool, &format!("{name}@1")), wanted, "{percent} %");
        let own = |name: &str| {
            let all = files(&pool, name).into_iter();
            all.filter(|(key, _)| key.starts_with("@1"))
                .collect::<State>()
        };
        assert!(own(&name) == own("tank/a"), "{percent} %");
    }
    finish(&world, pool, "resumed over an origin");
}

/// Blocks of another size would replace what was received.
#[test]
fn a_rest_with_blocks_of_another_size_is_refused() {
    let world = World::without_journal(98);
    let pool = pool_on(&world, &[(Single, 1)]);
    let properties = [text("recordsize", "1048576"), text("compression", "off")];
    pool.datasets()
        .create_filesystem("tank/l", &properties)
        .unwrap();
    let large = pool.file_system("tank/l").unwrap();
    for name in ["first", "second"] {
        make(&large, name, &noise(name.len() as u64, 6 << 20));
    }
    drop(large);
    pool.datasets().snapshot(&["tank/l@1"], &[]).unwrap();
    for is_large in [false, true] {
        let flags = |large_blocks| SendFlags {
            large_blocks,
            ..SendFlags::default()
        };
        let full = sent(&pool, "tank/l@1", None, flags(is_large));
        let name = format!("tank/got-{is_large}");
        let part = &full[..full.len() * 3 / 4];
        let token = receive(&pool, &name, part).unwrap();
        let other = rest_as(
            &pool,
            &ResumeToken::parse(&token).unwrap(),
            flags(!is_large),
        );
        let request = ReceiveRequest {
            name: name.clone(),
            is_resumable: true,
            ..ReceiveRequest::default()
        };
        let outcome = pool.receive(&request, other.as_slice(), &mut Unwatched);
        assert!(outcome.failure.is_some(), "{is_large}");
        assert_eq!(receive(&pool, &name, &rest_of(&pool, &token)), None);
        assert!(files(&pool, &name) == files(&pool, "tank/l"), "{is_large}");
    }
    finish(&world, pool, "blocks of another size");
}

#[test]
fn a_dataset_without_such_a_state_is_refused() {
    let world = World::without_journal(96);
    let pool = pool_on(&world, &[(Single, 1)]);
    change(&pool);
    let full = sent(&pool, "tank/a@1", None, SendFlags::default());
    received(&pool, "tank/got", &full);
    for name in ["tank/a", "tank/got", "tank/got@1"] {
        let refused = unfinished(&pool, name);
        let is_refused =
            matches!(&refused, Err(Error::Send(SendError::NotPartlyReceived(of))) if of == name);
        assert!(is_refused, "{name}: {refused:?}");
    }
}
