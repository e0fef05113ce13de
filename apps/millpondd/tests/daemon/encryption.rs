//! Keys of encrypted datasets: created, unloaded, loaded and changed by requests.

use crate::{Stage, client, create, mounted, property};
use millpond_control::{
    ChangeError, DatasetChange, KeyProblem, MountProblem, MountRequest, PoolChange, Secret,
    Service, Value,
};
use millpond_engine::{KeyRefusal, Refusal};

const KEY: &[u8] = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OTHER: &[u8] = b"a passphrase that is long enough";

fn text(name: &str, value: &str) -> (String, Value) {
    (name.into(), Value::Text(value.into()))
}

fn words(problem: KeyProblem) -> String {
    match problem {
        KeyProblem::Text(words) => words,
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_are_made_unloaded_loaded_and_changed() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    let request = stage.request("tank", "a");
    asked.create_pool(&request, "zpool create tank a").unwrap();
    let made = PoolChange::Dataset(DatasetChange::CreateFileSystem {
        name: "tank/e".into(),
        properties: vec![text("encryption", "on"), text("keyformat", "hex")],
        mount: true,
        key: Some(Secret::new(KEY)),
    });
    let child = create("tank/e/child");
    asked.change("tank", &[made, child], "zfs create").unwrap();
    let is_mounted = |name: &str| {
        let start = format!("{name} ");
        mounted(&asked).iter().any(|line| line.starts_with(&start))
    };
    assert!(is_mounted("tank/e") && is_mounted("tank/e/child"));
    let shown = |name: &str| property(&asked, "tank/e/child", name).and_then(|p| p.value);
    assert_eq!(shown("encryptionroot"), Some(Value::Text("tank/e".into())));
    assert_eq!(shown("encryption"), Some(Value::Number(8)));
    assert_eq!(shown("keystatus"), Some(Value::Number(2)));
    // Not while a dataset of the root is mounted.
    let busy = asked.unload_key("tank/e").unwrap_err();
    assert_eq!(words(busy), "'tank/e' is busy.");
    asked.unmount("tank/e", false).unwrap();
    asked.unload_key("tank/e").unwrap();
    let again = asked.unload_key("tank/e").unwrap_err();
    assert_eq!(words(again), "Key already unloaded for 'tank/e'.");
    let mount = |name: &str| asked.mount(name, &MountRequest::default());
    assert_eq!(mount("tank/e"), Err(MountProblem::Locked));
    // Nothing is created below a locked root.
    let refused = asked.change("tank", &[create("tank/e/new")], "zfs create");
    let why = Refusal::Key(KeyRefusal::RootKeyMissing);
    let missing = ChangeError::Refused {
        name: "tank/e/new".into(),
        why,
    };
    assert_eq!(refused.unwrap_err().error, missing);
    let wrong = asked.load_key("tank/e", &Secret::new(&[b'0'; 64]), false);
    assert_eq!(
        words(wrong.unwrap_err()),
        "Incorrect key provided for 'tank/e'."
    );
    let short = asked.load_key("tank/e", &Secret::new(b"0"), false);
    assert_eq!(
        words(short.unwrap_err()),
        "Hex key too short (expected 64)."
    );
    // A check loads nothing.
    asked.load_key("tank/e", &Secret::new(KEY), true).unwrap();
    assert_eq!(mount("tank/e"), Err(MountProblem::Locked));
    asked.load_key("tank/e", &Secret::new(KEY), false).unwrap();
    let again = asked.load_key("tank/e", &Secret::new(KEY), false);
    assert_eq!(
        words(again.unwrap_err()),
        "Key already loaded for 'tank/e'."
    );
    mount("tank/e").unwrap();
    // The new key counts from now on, also for a mounted dataset.
    let changed = PoolChange::Dataset(DatasetChange::ChangeKey {
        name: "tank/e".into(),
        properties: vec![
            text("keyformat", "passphrase"),
            ("pbkdf2iters".into(), Value::Number(100_000)),
        ],
        key: Secret::new(OTHER),
    });
    asked.change("tank", &[changed], "zfs change-key").unwrap();
    asked.unmount("tank/e", false).unwrap();
    asked.unload_key("tank/e").unwrap();
    let old = asked.load_key("tank/e", &Secret::new(KEY), false);
    assert_eq!(
        words(old.unwrap_err()),
        "Incorrect key provided for 'tank/e'."
    );
    asked
        .load_key("tank/e", &Secret::new(OTHER), false)
        .unwrap();
    mount("tank/e/child").unwrap();
}
