//! Full pools: writes that do not fit are refused, existing data is kept, and deleting works.

use crate::cloning::{bytes_of, copy_file, make, node, pool_on};
use crate::exhaustive::judge;
use crate::rig::Rig;
use millpond_engine::{
    Caller, Error, FileError, FileSystem, NewLayout::Single, NewMode, Node, Pool, PoolBuilder,
    PropertyValue, WriteAt,
};
use millpond_env::mark;
use millpond_posix::Errno;
use millpond_sim::{World, noise};
use std::sync::Arc;

pub(crate) fn is_no_space(error: &FileError) -> bool {
    error.errno() == Errno::ENOSPC
}

fn is_over_quota(error: &FileError) -> bool {
    error.errno() == Errno::EDQUOT
}

pub(crate) fn create(files: &Arc<FileSystem>, name: &str) -> Result<Node, FileError> {
    let (root, caller) = (files.root()?, Caller::root());
    let mode = NewMode::exactly(0o600);
    Ok(files.create(&caller, &root, name.as_bytes(), mode, true)?.0)
}

/// Writes files until the first refusal. Returns the number of complete files and the error.
pub(crate) fn fill(files: &Arc<FileSystem>, prefix: &str, bytes: usize) -> (u64, FileError) {
    for number in 0..100_000u64 {
        let node = match create(files, &format!("{prefix}{number}")) {
            Ok(node) => node,
            Err(error) => return (number, error),
        };
        let content = noise(number, bytes);
        if let Err(error) = files.write(&Caller::root(), &node, WriteAt::Offset(0), &content) {
            return (number, error);
        }
    }
    panic!("never full");
}

/// Checks that all written files are present, then deletes half of them, which frees space.
fn is_whole_and_can_be_emptied(rig: &Rig, pool: Pool, prefix: &str, count: u64, bytes: usize) {
    pool.export().unwrap();
    rig.judge("tank");
    let pool = rig.open("tank");
    let files = pool.file_system("tank").unwrap();
    let root = files.root().unwrap();
    for number in 0..count {
        let node = root.lookup(format!("{prefix}{number}").as_bytes()).unwrap();
        let mut found = vec![0; bytes + 1];
        assert_eq!(node.read(0, &mut found).unwrap(), bytes, "{number}");
        found.truncate(bytes);
        assert!(found == noise(number, bytes), "{number}");
    }
    for number in (0..count).step_by(2) {
        files
            .unlink(&root, format!("{prefix}{number}").as_bytes())
            .unwrap();
    }
    files.reap().unwrap();
    for _ in 0..4 {
        pool.sync().unwrap();
    }
    let again = count / 4;
    for number in 0..again {
        let node = create(&files, &format!("again{number}")).unwrap();
        let content = noise(number, bytes);
        files
            .write(&Caller::root(), &node, WriteAt::Offset(0), &content)
            .unwrap();
    }
    drop((root, files));
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
fn a_pool_full_of_data_refuses_writes_until_deletes() {
    let _mark = mark::expect("pool-full");
    let rig = Rig::new(1, 96);
    let pool = rig.stripe("tank").create().unwrap();
    let files = pool.file_system("tank").unwrap();
    let (count, refusal) = fill(&files, "f", 500_000);
    assert!(is_no_space(&refusal), "{refusal:?}");
    assert!(count * 500_000 > 40 << 20, "only {count} files fit");
    drop(files);
    is_whole_and_can_be_emptied(&rig, pool, "f", count, 500_000);
}

#[test]
fn a_raidz_full_of_small_files_refuses_until_deletes() {
    let rig = Rig::new(3, 64);
    let plan = PoolBuilder::new("tank").raidz(1, &rig.images).ashift(12);
    let pool = plan.create().unwrap();
    let files = pool.file_system("tank").unwrap();
    let (count, refusal) = fill(&files, "f", 9_000);
    assert!(is_no_space(&refusal), "{refusal:?}");
    drop(files);
    is_whole_and_can_be_emptied(&rig, pool, "f", count, 9_000);
}

#[test]
fn a_pool_full_of_names_refuses_creates_until_deletes() {
    let rig = Rig::new(1, 64);
    let pool = rig.stripe("tank").create().unwrap();
    let files = pool.file_system("tank").unwrap();
    // First data, then names until they do not fit either.
    let (large, _) = fill(&files, "large", 1_000_000);
    let (count, refusal) = fill(&files, "f", 0);
    assert!(is_no_space(&refusal), "{refusal:?}");
    let root = files.root().unwrap();
    files.unlink(&root, b"large0").unwrap();
    files.reap().unwrap();
    assert!(large > 10);
    drop((root, files));
    is_whole_and_can_be_emptied(&rig, pool, "f", count, 0);
}

#[test]
fn overwriting_in_a_full_pool_with_snapshots_ends_in_a_refusal() {
    let rig = Rig::new(1, 96);
    let pool = rig.stripe("tank").create().unwrap();
    let files = pool.file_system("tank").unwrap();
    let node = create(&files, "file").unwrap();
    let caller = Caller::root();
    let (mut taken, mut is_full) = (0, false);
    'rounds: for round in 0..40u64 {
        for at in 0..8u64 {
            let bytes = noise(round * 8 + at, 1 << 20);
            if let Err(error) = files.write(&caller, &node, WriteAt::Offset(at << 20), &bytes) {
                assert!(is_no_space(&error), "{error:?}");
                is_full = true;
                break 'rounds;
            }
        }
        // Its last bytes can go to a write, and then the snapshot is refused.
        if let Err(error) = pool.datasets().snapshot(&[&format!("tank@{round}")], &[]) {
            assert!(error.to_string().contains("out of space"), "{error}");
            is_full = true;
            break;
        }
        taken += 1;
    }
    assert!(is_full && taken > 2, "{taken} snapshots");
    pool.sync().unwrap();
    // Snapshots can still be destroyed.
    for number in 0..taken {
        let name = format!("tank@{number}");
        pool.datasets()
            .destroy_snapshots(&[&name], Default::default())
            .unwrap();
    }
    for _ in 0..4 {
        pool.sync().unwrap();
    }
    files
        .write(&caller, &node, WriteAt::Offset(0), &noise(1, 4 << 20))
        .unwrap();
    drop((node, files));
    pool.export().unwrap();
    rig.judge("tank");
}

fn number(name: &str, value: u64) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Number(value))
}

#[test]
fn quotas_end_in_a_refusal_of_their_own_and_reservations_hold() {
    let rig = Rig::new(1, 128);
    let pool = rig.stripe("tank").create().unwrap();
    let datasets = pool.datasets();
    for (name, property) in [("tank/q", "quota"), ("tank/r", "refquota")] {
        datasets
            .create_filesystem(name, &[number(property, 10 << 20)])
            .unwrap();
        let files = pool.file_system(name).unwrap();
        let (count, refusal) = fill(&files, "f", 200_000);
        assert!(is_over_quota(&refusal), "{name}: {refusal:?}");
        assert!((20..=60).contains(&count), "{name}: {count} files");
        let root = files.root().unwrap();
        files.unlink(&root, b"f0").unwrap();
        files.unlink(&root, b"f1").unwrap();
        files.reap().unwrap();
        for _ in 0..4 {
            pool.sync().unwrap();
        }
        let node = create(&files, "again").unwrap();
        files
            .write(
                &Caller::root(),
                &node,
                WriteAt::Offset(0),
                &noise(3, 100_000),
            )
            .unwrap();
    }
    datasets
        .create_filesystem("tank/kept", &[number("reservation", 20 << 20)])
        .unwrap();
    datasets
        .create_filesystem("tank/refkept", &[number("refreservation", 10 << 20)])
        .unwrap();
    let files = pool.file_system("tank").unwrap();
    let (_, refusal) = fill(&files, "f", 500_000);
    assert!(is_no_space(&refusal), "{refusal:?}");
    for (name, count) in [("tank/kept", 30), ("tank/refkept", 15)] {
        let files = pool.file_system(name).unwrap();
        for number in 0..count {
            let node = create(&files, &format!("f{number}"))
                .unwrap_or_else(|e| panic!("{name} {number}: {e}"));
            let content = noise(number, 500_000);
            files
                .write(&Caller::root(), &node, WriteAt::Offset(0), &content)
                .unwrap_or_else(|error| panic!("{name}, file {number}: {error}"));
        }
    }
    drop(files);
    let too_much = datasets.create_filesystem("tank/more", &[number("reservation", 1 << 30)]);
    assert!(too_much.is_err());
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
fn a_user_over_the_quota_is_refused() {
    use millpond_engine::SetAttributes;
    use millpond_posix::{QuotaMeasure, QuotaOwner};
    let rig = Rig::new(1, 128);
    let pool = rig.stripe("tank").create().unwrap();
    let files = pool.file_system("tank").unwrap();
    files
        .set_quota(QuotaOwner::User, QuotaMeasure::Bytes, 1000, 4 << 20)
        .unwrap();
    pool.sync().unwrap();
    let caller = Caller::user(1000, 1000);
    let root = files.root().unwrap();
    let open = SetAttributes {
        permissions: Some(0o777),
        ..SetAttributes::default()
    };
    files.set_attributes(&Caller::root(), &root, &open).unwrap();
    let mut refused = None;
    for number in 0..100u64 {
        let name = format!("f{number}").into_bytes();
        let outcome = files
            .create(&caller, &root, &name, NewMode::exactly(0o600), true)
            .and_then(|(node, _)| {
                files.write(&caller, &node, WriteAt::Offset(0), &noise(number, 500_000))
            });
        if let Err(error) = outcome {
            refused = Some((number, error));
            break;
        }
        pool.sync().unwrap();
    }
    let (number, error) = refused.expect("never over the quota");
    assert!(is_over_quota(&error), "{error:?}");
    assert!((6..=12).contains(&number), "{number} files of 500 kB");
    drop((root, files));
    pool.export()
        .map_err(|error: Error| error.to_string())
        .unwrap();
    rig.judge("tank");
}

/// Fills a file system, removes a few files, and writes again before a txg is committed.
fn refill(files: &Arc<FileSystem>, is_expected: &dyn Fn(&FileError) -> bool) {
    let (count, refusal) = fill(files, "f", 1_000_000);
    assert!(count > 8 && is_expected(&refusal), "{count} {refusal:?}");
    let root = files.root().unwrap();
    for number in 0..4 {
        let name = format!("f{number}");
        files.unlink(&root, name.as_bytes()).unwrap();
    }
    files.close_unused().unwrap();
    let node = create(files, "again").unwrap();
    let content = noise(1, 1_000_000);
    files
        .write(&Caller::root(), &node, WriteAt::Offset(0), &content)
        .unwrap();
}

#[test]
fn removing_files_frees_space_at_once() {
    let _mark = mark::expect("space-known-after-frees");
    let rig = Rig::new(1, 128);
    let pool = rig.stripe("tank").create().unwrap();
    let quota = ("quota".to_owned(), PropertyValue::Number(30 << 20));
    pool.datasets()
        .create_filesystem("tank/small", &[quota])
        .unwrap();
    refill(&pool.file_system("tank/small").unwrap(), &is_over_quota);
    refill(&pool.file_system("tank").unwrap(), &is_no_space);
    pool.export().unwrap();
    rig.judge("tank");
}

/// The rest of each block must be written again, too.
#[test]
fn small_changes_of_many_blocks_fit_into_an_almost_full_pool_or_are_refused() {
    let rig = Rig::new(1, 512);
    let pool = rig.stripe("tank").create().unwrap();
    let files = pool.file_system("tank").unwrap();
    let node = create(&files, "f").unwrap();
    let caller = Caller::root();
    let available = || {
        let stat = files.stat_file_system(&node).unwrap();
        stat.blocks_free * stat.block_bytes
    };
    let mut end = 0;
    while available() > 24 << 20 {
        let bytes = noise(end, 1 << 20);
        files
            .write(&caller, &node, WriteAt::Offset(end), &bytes)
            .unwrap();
        end += 1 << 20;
        if end.is_multiple_of(4 << 20) {
            pool.sync().unwrap();
        }
    }
    pool.sync().unwrap();
    assert!(end > 256 << 20, "{end}");
    for at in (777..end).step_by(128 << 10) {
        if let Err(error) = files.write(&caller, &node, WriteAt::Offset(at), &[1; 512]) {
            assert!(is_no_space(&error), "{error:?}");
        }
    }
    pool.sync().unwrap();
    drop((node, files));
    pool.export().unwrap();
    rig.judge("tank");
}

/// What clones and dedup save becomes available with the txg that saves it: more fits into the pool than it could hold as
/// copies.
#[test]
fn shared_blocks_take_no_space_from_the_next_ones() {
    const BYTES: usize = 40 << 20;
    for is_dedup in [false, true] {
        let world = World::without_journal(71);
        let pool = pool_on(&world, &[(Single, 1)]);
        let text = |name: &str, value: &str| {
            let value = PropertyValue::Text(value.to_owned());
            (name.to_owned(), value)
        };
        if is_dedup {
            let properties = [text("dedup", "on"), text("checksum", "sha256")];
            pool.datasets()
                .set_properties("tank/a", &properties)
                .unwrap();
        }
        let files = pool.file_system("tank/a").unwrap();
        let content = noise(5, BYTES);
        let source = make(&files, "source", &content);
        pool.sync().unwrap();
        // 160 MiB on a disk of 128, of which datasets may use half.
        for number in 0..3 {
            let name = format!("copy{number}");
            match is_dedup {
                true => drop(make(&files, &name, &content)),
                false => drop(copy_file(&files, &source, &name)),
            }
            pool.sync().unwrap();
        }
        drop(source);
        for number in 0..3 {
            let found = bytes_of(&node(&files, &format!("copy{number}")));
            assert!(found == content, "{number}");
        }
        drop(files);
        pool.export().unwrap();
        judge(&world, "shared blocks");
    }
}
