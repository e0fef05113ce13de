//! Raw streams after the sender changed the user's key: whatever the receiver has can be opened with a key that its user knows.

use crate::cloning::{bytes_of, node, pool_on};
use crate::encryption::{KEY, OTHER, hex_key, root, unlock};
use crate::receive::{finish, sent};
use crate::receive_packages::{package, receive, snapshot, write};
use crate::receive_raw::RAW;
use crate::sim;
use millpond_engine::{KeyChange, NewLayout::Single, Pool, ReceiveRequest, Unwatched};
use millpond_env::mark;
use millpond_sim::World;

pub(crate) const THIRD: &[u8] = b"2123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";

/// A pool whose `tank/e` has a child and the snapshot `1` of both.
fn world(seed: u64) -> (World, Pool) {
    let world = World::without_journal(seed);
    let pool = pool_on(&world, &[(Single, 1)]);
    root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
    pool.datasets()
        .create_filesystem("tank/e/kid", &[])
        .unwrap();
    write(&pool, "tank/e", "one");
    write(&pool, "tank/e/kid", "one");
    snapshot(&pool, "tank/e", "1");
    (world, pool)
}

pub(crate) fn change(world: &World, pool: &Pool, name: &str, key: &[u8]) {
    let key = hex_key(world, key);
    (pool.datasets())
        .change_key(name, KeyChange::Own(&key))
        .unwrap();
}

pub(crate) fn root_of(pool: &Pool, name: &str) -> Option<String> {
    pool.committed().unwrap().encryption_root(name).unwrap()
}

pub(crate) fn is_open(pool: &Pool, name: &str, file: &str) -> bool {
    let view = pool.committed().unwrap();
    let dataset = view.dataset(name).unwrap();
    if dataset.is_locked().unwrap() {
        return false;
    }
    let files = dataset.file_system().unwrap();
    !bytes_of(&node(&files, file)).is_empty()
}

/// Opens the pool anew, so that no key is known.
pub(crate) fn reopened(world: &World, pool: Pool) -> Pool {
    finish(world, pool, "keys");
    sim::open(world).unwrap()
}

#[test]
fn a_dataset_that_inherits_its_key_keeps_it() {
    let _mark = mark::expect("sent-key-left");
    let (world, pool) = world(750);
    root(&world, &pool, "tank/p", "aes-256-gcm", &[]);
    change(&world, &pool, "tank/p", THIRD);
    receive(&pool, "tank/p/c", &sent(&pool, "tank/e@1", None, RAW));
    unlock(&pool, "tank/p/c", KEY);
    (pool.datasets())
        .change_key("tank/p/c", KeyChange::Inherit)
        .unwrap();
    assert_eq!(root_of(&pool, "tank/p/c").as_deref(), Some("tank/p"));
    write(&pool, "tank/e", "two");
    snapshot(&pool, "tank/e", "2");
    let more = sent(&pool, "tank/e@2", Some("tank/e@1"), RAW);
    receive(&pool, "tank/p/c", &more);
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/p", THIRD);
    assert_eq!(root_of(&pool, "tank/p/c").as_deref(), Some("tank/p"));
    assert!(is_open(&pool, "tank/p/c", "two"));
    finish(&world, pool, "inherits");
}

#[test]
fn what_inherits_from_a_received_root_can_still_be_opened() {
    let (world, pool) = world(751);
    receive(&pool, "tank/d", &sent(&pool, "tank/e@1", None, RAW));
    unlock(&pool, "tank/d", KEY);
    pool.datasets()
        .create_filesystem("tank/d/own", &[])
        .unwrap();
    write(&pool, "tank/d/own", "mine");
    change(&world, &pool, "tank/e", OTHER);
    write(&pool, "tank/e", "two");
    snapshot(&pool, "tank/e", "2");
    let more = sent(&pool, "tank/e@2", Some("tank/e@1"), RAW);
    receive(&pool, "tank/d", &more);
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/d", KEY);
    assert!(is_open(&pool, "tank/d", "two"));
    assert!(is_open(&pool, "tank/d/own", "mine"));
    finish(&world, pool, "own");
}

/// Deriving a key takes long. What the older of two keys wrapped could not be opened again.
#[test]
fn a_key_that_changes_while_it_is_loaded_is_refused() {
    let (world, pool) = world(753);
    receive(&pool, "tank/d", &sent(&pool, "tank/e@1", None, RAW));
    let before = pool.committed().unwrap();
    let refused = |name: &str| {
        let words = before.load_key(name, KEY).unwrap_err().to_string();
        let expected = format!("Incorrect key provided for '{name}'.");
        assert!(words.contains(&expected), "{words}");
    };
    change(&world, &pool, "tank/e", OTHER);
    refused("tank/e");
    assert!(pool.datasets().unload_key("tank/e").unwrap());
    refused("tank/e");
    let load = |name: &str| pool.committed().unwrap().load_key(name, OTHER).unwrap();
    assert!(load("tank/e"));
    assert!(!load("tank/e"), "loaded already");
    // By a raw stream.
    snapshot(&pool, "tank/e", "2");
    let more = sent(&pool, "tank/e@2", Some("tank/e@1"), RAW);
    receive(&pool, "tank/d", &more);
    refused("tank/d");
    assert!(load("tank/d"));
    // As a root that inherits now.
    (pool.datasets()).rename("tank/d", "tank/e/d").unwrap();
    let before = pool.committed().unwrap();
    (pool.datasets())
        .change_key("tank/e/d", KeyChange::Inherit)
        .unwrap();
    let words = before.load_key("tank/e/d", OTHER).unwrap_err().to_string();
    assert!(
        words.contains("stopped being an encryption root"),
        "{words}"
    );
    drop(before);
    for name in ["tank/e/new", "tank/e/d/new"] {
        pool.datasets().create_filesystem(name, &[]).unwrap();
        write(&pool, name, "mine");
    }
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/e", OTHER);
    for name in ["tank/e/new", "tank/e/d/new"] {
        assert!(is_open(&pool, name, "mine"), "{name}");
    }
    finish(&world, pool, "changed");
}

/// The sender's new key comes with a package of the whole tree, unless something here inherits from it that the sender does
/// not have.
#[test]
fn a_package_changes_the_key_of_a_whole_tree_or_of_none_of_it() {
    let _mark = mark::expect("sent-root-left");
    let (world, pool) = world(752);
    let full = package(&pool, "tank/e@1", None, RAW);
    for tree in ["tank/same", "tank/more"] {
        receive(&pool, tree, &full);
        let kid = root_of(&pool, &format!("{tree}/kid"));
        assert_eq!(kid.as_deref(), Some(tree));
        unlock(&pool, tree, KEY);
    }
    pool.datasets()
        .create_filesystem("tank/more/kid/own", &[])
        .unwrap();
    write(&pool, "tank/more/kid/own", "mine");
    snapshot(&pool, "tank/more/kid/own", "kept");
    change(&world, &pool, "tank/e", OTHER);
    change(&world, &pool, "tank/e/kid", THIRD);
    write(&pool, "tank/e", "two");
    write(&pool, "tank/e/kid", "two");
    snapshot(&pool, "tank/e", "2");
    let more = package(&pool, "tank/e@2", Some("tank/e@1"), RAW);
    receive(&pool, "tank/same", &more);
    let request = ReceiveRequest {
        name: "tank/more".to_owned(),
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, more.as_slice(), &mut Unwatched);
    assert_eq!(outcome.failure, None);
    let pool = reopened(&world, pool);
    // Here the child has a key of its own, too.
    unlock(&pool, "tank/same", OTHER);
    unlock(&pool, "tank/same/kid", THIRD);
    // Here nothing changed.
    unlock(&pool, "tank/more", KEY);
    for (name, file) in [
        ("tank/same", "two"),
        ("tank/same/kid", "two"),
        ("tank/more", "two"),
        ("tank/more/kid", "two"),
        ("tank/more/kid/own", "mine"),
    ] {
        assert!(is_open(&pool, name, file), "{name}");
    }
    assert_eq!(
        root_of(&pool, "tank/same/kid").as_deref(),
        Some("tank/same/kid")
    );
    assert_eq!(
        root_of(&pool, "tank/more/kid").as_deref(),
        Some("tank/more")
    );
    finish(&world, pool, "packages");
}
