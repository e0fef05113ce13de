//! Streams that are not raw are received below encrypted datasets: what they hold is encrypted there.

use crate::cloning::{judged, judged_by_zdb, pool_on};
use crate::encryption::{KEY, root, unlock};
use crate::receive::{receive, received, sent};
use crate::receive_cuts::{change, state_of};
use millpond_engine::{NewLayout::Single, Pool, ReceiveProblem, SendFlags};
use millpond_sim::World;

pub(crate) fn is_encrypted(pool: &Pool, name: &str) -> bool {
    let view = pool.committed().unwrap();
    let dataset = view.dataset(name).unwrap();
    let root = dataset.inner().directory().encryption_root().unwrap();
    root.is_some()
}

/// The files of a file system, without its name.
fn files_of(pool: &Pool, name: &str) -> Vec<(String, Vec<u8>)> {
    let state = state_of(&pool.committed().unwrap(), name).unwrap();
    let own = format!("{name}/");
    let files = state.into_iter().filter_map(|(key, bytes)| {
        let file = key.strip_prefix(&own)?.to_owned();
        Some((file, bytes))
    });
    files.collect()
}

fn problem(pool: &Pool, name: &str, bytes: &[u8]) -> Option<ReceiveProblem> {
    receive(pool, name, bytes)
        .failure
        .map(|failure| failure.problem)
}

#[test]
fn what_is_received_below_an_encrypted_root_is_encrypted() {
    for compressed in [false, true] {
        let world = World::without_journal(82);
        let pool = pool_on(&world, &[(Single, 1)]);
        change(&pool);
        root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
        unlock(&pool, "tank/e", KEY);
        let flags = |embedded| SendFlags {
            large_blocks: true,
            embedded,
            compressed,
            raw: false,
        };
        let full = sent(&pool, "tank/a@1", None, flags(false));
        let more = sent(&pool, "tank/a@2", Some("tank/a@1"), flags(false));
        received(&pool, "tank/e/got", &full);
        assert!(is_encrypted(&pool, "tank/e/got"));

        let embedded = sent(&pool, "tank/a@2", Some("tank/a@1"), flags(true));
        let refused = Some(ReceiveProblem::EmbeddedEncrypted);
        assert_eq!(problem(&pool, "tank/e/got", &embedded), refused);

        pool.datasets().unload_key("tank/e").unwrap();
        assert_eq!(
            problem(&pool, "tank/e/got", &more),
            Some(ReceiveProblem::Locked)
        );
        assert!(problem(&pool, "tank/e/other", &full).is_some());

        unlock(&pool, "tank/e", KEY);
        received(&pool, "tank/e/got", &more);
        assert!(is_encrypted(&pool, "tank/e/got"));
        assert!(files_of(&pool, "tank/e/got") == files_of(&pool, "tank/a"));
        // What is encrypted is sent in plain again.
        let again = sent(&pool, "tank/e/got@2", None, flags(false));
        received(&pool, "tank/plain", &again);
        assert!(!is_encrypted(&pool, "tank/plain"));
        assert!(files_of(&pool, "tank/plain") == files_of(&pool, "tank/a"));
        for _ in 0..3 {
            pool.sync().unwrap();
        }
        pool.export().unwrap();
        judged(&world);
        judged_by_zdb(&world, "received-encrypted");
    }
}
