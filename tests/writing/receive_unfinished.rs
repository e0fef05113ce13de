//! What an interrupted receive left is sent on, received elsewhere, and completed there by the first sender.

use crate::cloning::pool_on;
use crate::receive::{finish, received, sent};
use crate::receive_cuts::{State, change, rest_of, state_of};
use millpond_dataset::properties::ResumeToken;
use millpond_engine::{
    Error, NewLayout::Single, Pool, ReceiveProblem, ReceiveRequest, SendError, SendFlags,
    SendRequest, Unwatched,
};
use millpond_sim::World;
use millpond_stream::{Record, StreamReader};

/// Receives what can be resumed if it is not complete. Returns the token then.
fn receive(pool: &Pool, name: &str, bytes: &[u8]) -> Option<String> {
    let request = ReceiveRequest {
        name: name.to_owned(),
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
