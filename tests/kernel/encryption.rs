//! Encrypted datasets of every suite and key format: made here, read and changed by the module, and changed here again.
//! A log that is sealed here is replayed there.

use crate::cloning::file;
use crate::log::copy_of;
use crate::{Rig, run_script};
use millpond_engine::{
    Caller, FileSystem, KeyChange, KeyFormat, NewMode, Pool, PropertyValue, RootKey, View, WriteAt,
    WriteOptions, XattrMode,
};
use millpond_env::Env;
use millpond_ondisk::ObjectSetKind;
use millpond_sim::noise;
use millpond_tests::oracle::kernel::{self, Release, written};
use millpond_tests::workload::{SUITES, text};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

const NAME: &str = "encryption";
pub(crate) const HEX: &str = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";
const PASSPHRASE: &str = "an otter sleeps on its back";

fn key(format: KeyFormat) -> RootKey {
    let bytes = match format {
        KeyFormat::Raw => &HEX.as_bytes()[..32],
        KeyFormat::Hex => HEX.as_bytes(),
        _ => PASSPHRASE.as_bytes(),
    };
    RootKey::derive(&Env::real(), format, "prompt", Some(100_000), bytes).unwrap()
}

pub(crate) fn root(pool: &Pool, name: &str, suite: &str, format: KeyFormat, more: &[(&str, &str)]) {
    let mut properties = vec![
        text("encryption", suite),
        text("keyformat", format.name()),
        text("mountpoint", &format!("/{name}")),
    ];
    properties.extend(more.iter().map(|(name, value)| text(name, value)));
    let kind = ObjectSetKind::FileSystem;
    (pool.datasets())
        .create_encryption_root(name, kind, &properties, &key(format))
        .unwrap();
}

pub(crate) fn prose(seed: u64, length: usize) -> Vec<u8> {
    let line = |number: u64| format!("line {} of a long text\n", number * seed);
    let text: String = (0..).take(length / 20 + 1).map(line).collect();
    text.into_bytes()[..length].to_vec()
}

pub(crate) fn fill(files: &Arc<FileSystem>, seed: u64) {
    file(files, "noise", &noise(seed, 300_000));
    file(files, "prose", &prose(seed + 1, 500_000));
    file(files, "tiny", b"seven b");
    file(files, "empty", b"");
    let caller = Caller::root();
    let node = file(files, "attributes", b"x");
    for number in 0..12u64 {
        let (name, value) = (format!("user.{number}"), noise(number, 150));
        (files.set_xattr(&caller, &node, name.as_bytes(), &value, XattrMode::Set)).unwrap();
    }
    let root = files.root().unwrap();
    let mode = NewMode::exactly(0o755);
    let directory = files.make_directory(&caller, &root, b"many", mode).unwrap();
    for number in 0..300 {
        let name = format!("a name that is not short, number {number}");
        let mode = NewMode::exactly(0o600);
        (files.create(&caller, &directory, name.as_bytes(), mode, true)).unwrap();
    }
    (files.make_symlink(&caller, &root, b"link", b"many")).unwrap();
}

fn make(rig: &Rig) {
    let mut writing = WriteOptions::default();
    // No automatic txg: what is synced last is only in the logs.
    writing.limits.period = std::time::Duration::from_secs(3600);
    let builder = rig.stripe(NAME).writing(writing);
    let pool = builder
        .root_property("mountpoint", &format!("/{NAME}"))
        .create()
        .unwrap();
    let datasets = pool.datasets();
    for (number, suite) in (0u64..).zip(SUITES) {
        let name = format!("{NAME}/{suite}");
        let more = match number % 3 {
            0 => vec![("recordsize", "16384"), ("compression", "off")],
            1 => vec![("copies", "2"), ("checksum", "sha256"), ("xattr", "sa")],
            _ => vec![
                ("recordsize", "1048576"),
                ("dnodesize", "auto"),
                ("xattr", "sa"),
                ("compression", "zstd"),
            ],
        };
        root(&pool, &name, suite, KeyFormat::Hex, &more);
        fill(&pool.file_system(&name).unwrap(), number);
        datasets
            .create_filesystem(&format!("{name}/child"), &[])
            .unwrap();
        fill(
            &pool.file_system(&format!("{name}/child")).unwrap(),
            number + 10,
        );
        pool.sync().unwrap();
        datasets.snapshot(&[&format!("{name}@s")], &[]).unwrap();
    }
    let (phrase, raw) = (format!("{NAME}/phrase"), format!("{NAME}/raw"));
    root(&pool, &phrase, "on", KeyFormat::Passphrase, &[]);
    root(
        &pool,
        &raw,
        "aes-192-ccm",
        KeyFormat::Raw,
        &[("checksum", "blake3")],
    );
    fill(&pool.file_system(&phrase).unwrap(), 20);
    fill(&pool.file_system(&raw).unwrap(), 21);
    let size = [
        ("volsize".to_owned(), PropertyValue::Number(8 << 20)),
        ("volblocksize".to_owned(), PropertyValue::Number(16 << 10)),
    ];
    datasets
        .create_volume(&format!("{phrase}/disk"), &size)
        .unwrap();
    let volume = pool.volume(&format!("{phrase}/disk")).unwrap();
    volume.write(0, &noise(30, 500_000)).unwrap();
    drop(volume);
    // Shared keys: a clone, and one that was promoted.
    datasets
        .clone_snapshot(
            &format!("{NAME}/aes-256-gcm@s"),
            &format!("{NAME}/clone"),
            &[],
        )
        .unwrap();
    datasets
        .clone_snapshot(
            &format!("{NAME}/aes-128-gcm@s"),
            &format!("{NAME}/new-root"),
            &[],
        )
        .unwrap();
    datasets.promote(&format!("{NAME}/new-root")).unwrap();
    file(
        &pool.file_system(&format!("{NAME}/clone")).unwrap(),
        "of-clone",
        &prose(5, 40_000),
    );
    // Wrapped anew, and a child as a root of its own.
    let changed = key(KeyFormat::Passphrase);
    let child = format!("{NAME}/aes-128-ccm/child");
    datasets
        .change_key(&child, KeyChange::Own(&changed))
        .unwrap();
    datasets
        .change_key(&format!("{NAME}/aes-192-gcm"), KeyChange::Own(&changed))
        .unwrap();
    pool.sync().unwrap();
    // Two logs that are not replayed here.
    for name in [format!("{NAME}/aes-256-gcm"), phrase] {
        let files = pool.file_system(&name).unwrap();
        let begun = file(&files, "begun", b"the first commit makes the chain");
        files.fsync(&begun).unwrap();
        pool.sync().unwrap();
        let small = file(&files, "logged", &prose(9, 3000));
        files.fsync(&small).unwrap();
        let large = file(&files, "logged-large", &noise(77, 400_000));
        files.fsync(&large).unwrap();
    }
    // Not exported: the logs wait.
}

fn run(release: Release, rig: &Rig, share: &Path) {
    let arguments = [NAME, HEX, PASSPHRASE];
    run_script(release, rig, "encryption", Some(share), &arguments);
}

fn unlock(view: &View) {
    for dataset in view.datasets() {
        let name = dataset.unwrap().name().to_owned();
        let root = view.encryption_root(&name).unwrap();
        if root.as_deref() != Some(&name) {
            continue;
        }
        let keys = [HEX.as_bytes(), PASSPHRASE.as_bytes(), &HEX.as_bytes()[..32]];
        let loaded = keys.iter().any(|key| view.load_key(&name, key).is_ok());
        assert!(loaded, "{name}");
    }
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares the module's sums with the files as they are read here.
fn is_as_it_says(view: &View, share: &Path, list: &str) -> usize {
    let sums = written(share, list);
    for line in &sums {
        let (sum, path) = line.split_once(' ').unwrap();
        let path = path.trim();
        // The longest dataset name that the path begins with.
        let mut at = format!("{NAME}/{path}");
        let (files, rest) = loop {
            at.truncate(at.rfind('/').unwrap());
            if let Ok(dataset) = view.dataset(&at)
                && let Ok(files) = dataset.file_system()
            {
                break (files, format!("{NAME}/{path}")[at.len() + 1..].to_owned());
            }
        };
        let mut node = files.root().unwrap();
        for component in rest.split('/') {
            node = node.lookup(component.as_bytes()).unwrap();
        }
        let mut bytes = vec![0; node.size_bytes() as usize];
        let mut done = 0;
        while done < bytes.len() {
            done += node.read(done as u64, &mut bytes[done..]).unwrap();
        }
        assert_eq!(digest(&bytes), sum, "{path}");
    }
    sums.len()
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 512);
    make(&rig);
    // What we make of the pool, logs included.
    let ours = copy_of(&rig);
    let pool = ours.open(NAME);
    unlock(&pool.committed().unwrap());
    for name in ["aes-256-gcm", "phrase"] {
        drop(pool.file_system(&format!("{NAME}/{name}")).unwrap());
    }
    pool.export().unwrap();
    ours.judge(NAME);
    let share = tempfile::tempdir().unwrap();
    run(release, &rig, share.path());
    let expected = ours.read(NAME);
    unlock(&expected);
    let count = is_as_it_says(&expected, share.path(), "found.txt");
    println!("    {count} files are read there as here");
    let disk = expected.dataset(&format!("{NAME}/phrase/disk")).unwrap();
    let mut bytes = vec![0; 8 << 20];
    disk.volume().unwrap().read(0, &mut bytes).unwrap();
    let found = written(share.path(), "volumes.txt");
    assert_eq!(found.len(), 1, "volumes");
    assert!(
        found[0].starts_with(&digest(&bytes)),
        "the volume: {found:?}"
    );
    assert!(count > 60, "{count}");
    rig.judge(NAME);
    // What the module wrote is read and changed here.
    let pool = rig.open(NAME);
    let view = pool.committed().unwrap();
    unlock(&view);
    let count = is_as_it_says(&view, share.path(), "sums.txt");
    println!("    {count} files are read here as there");
    drop(view);
    for suite in SUITES {
        let files = pool.file_system(&format!("{NAME}/{suite}")).unwrap();
        // The module writes at encryption roots; one of these is none since the promotion.
        let name: &[u8] = match suite {
            "aes-128-gcm" => b"prose",
            _ => b"by-module",
        };
        let node = files.root().unwrap().lookup(name).unwrap();
        let at = WriteAt::Offset(1000);
        files
            .write(&Caller::root(), &node, at, &noise(1, 200_000))
            .unwrap();
        file(&files, "again", &prose(3, 100_000));
        files.unlink(&files.root().unwrap(), b"tiny").unwrap();
    }
    pool.export().unwrap();
    rig.judge(NAME);
    run(release, &rig, share.path());
    let view = rig.read(NAME);
    unlock(&view);
    is_as_it_says(&view, share.path(), "sums.txt");
    rig.judge(NAME);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn encrypted_datasets_go_to_2_3_and_back() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn encrypted_datasets_go_to_2_4_and_back() {
    to_and_fro(Release::V2_4);
}
