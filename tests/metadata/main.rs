//! Checks every table and all file attributes of real pools.
//!
//! Each ZAP must be consistent down to the last chunk, and the recorded values of files must match their
//! attributes and directories.
//!
//! The pools are the golden set, and the old pools of OpenZFS's test suite if they were downloaded.

mod written;

use anyhow::{Context, Result, bail, ensure};
use millpond_dataset::{Dataset, Directory};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::{ByteswapClass, DslDatasetFlags, ObjectId, ObjectSetKind, ObjectType};
use millpond_pool::import::{ScanOptions, find_pools, scan};
use millpond_pool::{OpenOptions, PoolView};
use millpond_sa::{Attributes, FileFlags, SaError, SaRegistry, Timestamp};
use millpond_tests::{images, old_pools};
use millpond_zap::{NameMatch, Zap, ZapForm};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Counts what was checked, so that a test that checks nothing fails.
#[derive(Debug, Default)]
struct Seen {
    micro: u64,
    fat: u64,
    word_keyed: u64,
    folding: u64,
    entries: u64,
    files: u64,
    old_znodes: u64,
    spills: u64,
    acls: u64,
    changed: u64,
    rebuilt: u64,
    names: u64,
    compared: u64,
}

fn open(paths: &[PathBuf]) -> Result<Option<Arc<PoolView>>> {
    let options = ScanOptions {
        follow_label_paths: false,
        ..ScanOptions::default()
    };
    let pools = find_pools(&scan(paths, options), 0);
    let Some(candidate) = pools.first() else {
        bail!("no pool");
    };
    match PoolView::open(&Env::real(), candidate, &OpenOptions::default()) {
        Ok(pool) => Ok(Some(pool)),
        // Other tests check which pools must open.
        Err(error) => {
            println!("  does not open: {error}");
            Ok(None)
        }
    }
}

fn check_zaps(set: &Arc<ObjectSetView>, seen: &mut Seen) -> Result<()> {
    for object in set.objects() {
        let object = object?;
        let dnode = object.dnode();
        if dnode.object_type.byteswap() != Some(ByteswapClass::Zap)
            || dnode.block_pointers.iter().all(|pointer| pointer.is_hole())
        {
            continue;
        }
        let id = object.id();
        let zap = Zap::open(object.clone()).with_context(|| format!("object {id}"))?;
        let summary = zap.check().with_context(|| format!("object {id}"))?;
        match zap.form() {
            ZapForm::Micro => seen.micro += 1,
            ZapForm::Fat => seen.fat += 1,
        }
        seen.word_keyed += u64::from(zap.has_word_keys());
        seen.folding += u64::from(!zap.normalisation()?.is_identity());
        let mut listed = 0;
        for entry in zap.iter() {
            let entry = entry?;
            listed += 1;
            let found = if zap.has_word_keys() {
                zap.lookup_words(&entry.words())?
            } else {
                zap.lookup(&entry.name)?
            };
            ensure!(found.as_ref() == Some(&entry.value), "object {id}: lookup");
        }
        ensure!(listed == summary.entries, "object {id}: {listed} listed");
        ensure!(zap.entry_count()? == listed, "object {id}: count");
        seen.entries += listed;
        // Enough to split leaves occasionally; all of them would take minutes.
        let count = if seen.changed.is_multiple_of(16) {
            600
        } else {
            20
        };
        written::change_zap(object.clone(), count)
            .with_context(|| format!("object {id} changed"))?;
        written::copy_zap(&zap, object).with_context(|| format!("object {id} copied"))?;
        seen.changed += 1;
    }
    Ok(())
}

fn check_files(set: &Arc<ObjectSetView>, is_old: bool, seen: &mut Seen) -> Result<Arc<SaRegistry>> {
    let registry = SaRegistry::open(set)?;
    for object in set.objects() {
        let object = object?;
        let is_file = matches!(
            object.dnode().bonus_type,
            ObjectType::SA | ObjectType::ZNODE
        );
        match registry.attributes(&object) {
            Ok(file) => {
                ensure!(is_file);
                check_file(&file, seen).with_context(|| format!("object {}", object.id()))?;
                seen.spills += u64::from(object.dnode().spill.is_some());
                if object.dnode().bonus_type == ObjectType::SA {
                    let built = written::build_again(&registry, &object, is_old);
                    let built = built.with_context(|| format!("object {}", object.id()))?;
                    seen.rebuilt += u64::from(built);
                }
            }
            Err(SaError::NotAFile { .. }) => ensure!(!is_file),
            Err(error) => return Err(error).context(format!("object {}", object.id())),
        }
    }
    Ok(registry)
}

fn check_file(file: &Attributes, seen: &mut Seen) -> Result<()> {
    file.generation()?;
    file.links()?;
    file.crtime()?;
    file.uid()?;
    file.gid()?;
    file.parent()?;
    let entries = file.acl()?.context("no access control list")?;
    ensure!(!entries.is_empty());
    let has_project = file.flags()?.contains(FileFlags::PROJECT_ID);
    ensure!(has_project == file.project_id()?.is_some(), "project");
    if let Some(target) = file.symlink_target()? {
        ensure!(target.len() as u64 == file.size()?, "target's length");
    }
    seen.files += 1;
    seen.acls += u64::from(entries.len() > 3);
    seen.old_znodes += u64::from(file.is_old_znode());
    Ok(())
}

/// All datasets below a directory, with their snapshots.
fn datasets(directory: &Arc<Directory>, found: &mut Vec<Dataset>) -> Result<()> {
    if let Some(head) = directory.head()? {
        found.extend(head.snapshots()?);
        found.push(head);
    }
    for child in directory.children()? {
        datasets(&child, found)?;
    }
    Ok(())
}

fn check_pool(
    pool: &Arc<PoolView>,
    record: Option<&Value>,
    is_old: bool,
    seen: &mut Seen,
) -> Result<()> {
    check_zaps(pool.mos(), seen).context("pool metadata")?;
    let mut all = Vec::new();
    datasets(&Directory::root(pool)?, &mut all)?;
    for dataset in all {
        let name = dataset.name().to_owned();
        let set = dataset.object_set(None)?;
        if set.root().has_crypt_bit() {
            continue;
        }
        check_zaps(&set, seen).with_context(|| name.clone())?;
        // An unfinished receive lacks objects.
        let is_whole = !dataset.phys().flags.contains(DslDatasetFlags::INCONSISTENT);
        if set.kind() != ObjectSetKind::FileSystem || !is_whole {
            continue;
        }
        let registry = check_files(&set, is_old, seen).with_context(|| name.clone())?;
        let trees = record.and_then(|record| record["datasets"].as_array());
        let recorded = trees.and_then(|all| all.iter().find(|one| one["name"] == name.as_str()));
        if let Some(tree) = recorded.and_then(|one| one["tree"].as_array()) {
            compare(&set, &registry, tree, seen).with_context(|| name.clone())?;
        }
    }
    Ok(())
}

fn compare(
    set: &Arc<ObjectSetView>,
    registry: &Arc<SaRegistry>,
    tree: &[Value],
    seen: &mut Seen,
) -> Result<()> {
    let master = Zap::open(set.object(ObjectId(1))?)?;
    let root = master.lookup_u64(b"ROOT")?.context("no root")?;
    let ignores_case = master.lookup_u64(b"casesensitivity")? == Some(1);
    let mut folders = BTreeMap::from([(Vec::new(), root)]);
    for entry in tree {
        let path = path(entry)?;
        let said = || String::from_utf8_lossy(&path).into_owned();
        // The root of a mounted snapshot shows another inode number than its object id.
        let object = if path == b"." {
            root
        } else {
            entry["ino"].as_u64().context("ino")?
        };
        if path != b"." {
            let cut = path.iter().rposition(|byte| *byte == b'/');
            let (parent, name) = match cut {
                Some(at) => (&path[..at], &path[at + 1..]),
                None => (&b""[..], &path[..]),
            };
            // Directories with many entries are recorded in samples.
            let Some(folder) = folders.get(parent) else {
                continue;
            };
            let zap = Zap::open(set.object(ObjectId(*folder))?)?;
            let value = zap.lookup_u64(name)?.with_context(said)?;
            ensure!(value & 0xffff_ffff_ffff == object, "{}: object", said());
            let folded = zap.lookup_entry(name, NameMatch::Normalised)?;
            ensure!(folded.is_some(), "{}: folded lookup", said());
            // Letters next to invalid UTF-8 keep their case.
            if ignores_case && std::str::from_utf8(name).is_ok() {
                let other: Vec<u8> = name.iter().map(swap_case).collect();
                let found = zap.lookup_entry(&other, NameMatch::Normalised)?;
                ensure!(found == folded, "{}: other case", said());
            }
            seen.names += 1;
        }
        let file = registry.attributes(&set.object(ObjectId(object))?)?;
        compare_file(&file, entry).with_context(said)?;
        seen.compared += 1;
        if entry["type"] == "dir" {
            let folder = if path == b"." { Vec::new() } else { path };
            folders.insert(folder, object);
        }
    }
    Ok(())
}

fn compare_file(file: &Attributes, entry: &Value) -> Result<()> {
    let number = |key: &str| entry[key].as_i64().with_context(|| key.to_owned());
    let mode = i64::from_str_radix(entry["mode"].as_str().context("mode")?, 8)?;
    let kind = match entry["type"].as_str().context("type")? {
        "fifo" => 1,
        "chr" => 2,
        "dir" => 4,
        "blk" => 6,
        "file" => 8,
        "symlink" => 10,
        "sock" => 12,
        other => bail!("unknown type {other}"),
    };
    ensure!(file.mode()? as i64 == kind << 12 | mode, "mode");
    ensure!(file.size()? as i64 == number("size")?, "size");
    ensure!(i64::from(file.uid()?.id()) == number("uid")?, "uid");
    ensure!(i64::from(file.gid()?.id()) == number("gid")?, "gid");
    for (time, key) in [
        (file.mtime()?, "mtime_ns"),
        (file.ctime()?, "ctime_ns"),
        (file.atime()?, "atime_ns"),
    ] {
        ensure!(nanoseconds(time) == number(key)?.into(), "{key}");
    }
    if let Some(target) = entry["target"].as_str() {
        let stored = file.symlink_target()?.context("no target")?;
        ensure!(stored.as_ref() == target.as_bytes(), "target");
    }
    if let Some([major, minor]) = entry["rdev"].as_array().map(Vec::as_slice) {
        let expected = major.as_u64().zip(minor.as_u64());
        let expected = expected.map(|(major, minor)| major << 20 | minor);
        ensure!(file.rdev()? == expected, "rdev");
    }
    Ok(())
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

fn swap_case(byte: &u8) -> u8 {
    if byte.is_ascii_alphabetic() {
        byte ^ 0x20
    } else {
        *byte
    }
}

fn path(entry: &Value) -> Result<Vec<u8>> {
    if let Some(text) = entry["path"].as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    let coded = entry["path_b64"].as_str().context("path")?;
    let digit = |byte: u8| {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        digits.iter().position(|digit| *digit == byte)
    };
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0usize, 0u32);
    for byte in coded.bytes().filter(|byte| *byte != b'=') {
        bits = bits << 6 | digit(byte).context("base64")?;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Ok(bytes)
}

#[test]
fn every_zap_and_file_of_golden_pools_matches_its_record() {
    let set = images::golden_set().unwrap();
    println!("{}", set.description);
    let mut seen = Seen::default();
    // `MILLPOND_CASES=all` reads every case; these have all kinds of tables and files.
    let chosen = [
        "bclone",
        "dedup-fast",
        "embedded",
        "legacy-v28",
        "mirror2",
        "names",
        "quotas",
        "snapshots",
        "v24-default",
        "zpl",
    ];
    let wants_all = std::env::var_os("MILLPOND_CASES").is_some_and(|word| word == "all");
    for name in images::cases(&set.folder).unwrap() {
        if !wants_all && !chosen.contains(&name.as_str()) {
            continue;
        }
        println!("{name}");
        let case = set.folder.join(&name);
        let record = images::read_file(&case, "CASE.json").unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let mut disks = Vec::new();
        for image in record["images"].as_array().unwrap() {
            let file = image["file"].as_str().unwrap();
            let sha256 = image["sha256"].as_str().unwrap();
            let size = image["size"].as_u64().unwrap();
            disks.push(images::unpacked(&case.join(file), sha256, size).unwrap());
        }
        let Some(pool) = open(&disks).unwrap() else {
            continue;
        };
        // The record of a pool that was not exported describes a later state.
        let is_same_state = record["state"].as_str().is_none_or(str::is_empty);
        if let Err(error) = check_pool(&pool, is_same_state.then_some(&record), false, &mut seen) {
            panic!("{name}: {error:#}");
        }
    }
    println!("{seen:?}");
    assert!(seen.micro > 50 && seen.fat > 10 && seen.entries > 500 && seen.folding > 0);
    assert!(seen.files > 100 && seen.compared > 100 && seen.names > 100);
    assert!(seen.changed > 60 && seen.rebuilt > 100 && seen.spills > 0);
}

/// The directory entries of an object, in the order in which `zdb` lists them.
fn entries_by_zdb(zdb: &Path, folder: &Path, dataset: &str, object: ObjectId) -> Vec<u64> {
    let output = Command::new(zdb)
        .args(["-e", "-p"])
        .arg(folder)
        .args(["-dddd", dataset, &object.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|line| line.rsplit_once(" (type: ")?.0.rsplit_once(" = "))
        .map(|(_, number)| number.parse().unwrap())
        .collect()
}

#[test]
fn directories_are_listed_in_the_order_of_zdb() {
    let zdb = images::workspace().join("tools/oracle/zdb");
    let is_there = Command::new(&zdb).arg("-?").output();
    if !is_there.is_ok_and(|output| output.status.code() != Some(127))
        || old_pools::folder().is_none()
    {
        println!("the oracle was not fetched: nothing is tested");
        return;
    }
    let set = images::golden_set().unwrap();
    let mut compared = 0;
    for (name, dataset) in [
        ("names", "names/insensitive-none"),
        ("names", "names/sensitive-formD"),
        ("zpl", "zpl/dirs"),
    ] {
        let case = set.folder.join(name);
        if !case.is_dir() {
            println!("{name} is absent");
            continue;
        }
        let record = images::read_file(&case, "CASE.json").unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let image = &record["images"][0];
        let sha256 = image["sha256"].as_str().unwrap();
        let packed = case.join(image["file"].as_str().unwrap());
        let size = image["size"].as_u64().unwrap();
        let unpacked = images::unpacked(&packed, sha256, size).unwrap();
        let disks = images::gather("zdb-order", &[("d0.img".into(), unpacked)]).unwrap();
        let pool = open(&disks.paths).unwrap().unwrap();
        let objects = Dataset::find(&pool, dataset)
            .unwrap()
            .object_set(None)
            .unwrap();
        let mut folders = Vec::new();
        for object in objects.objects().map(Result::unwrap) {
            if object.dnode().object_type == ObjectType::DIRECTORY {
                folders.push((Zap::open(object.clone()).unwrap(), object.id()));
            }
        }
        folders.sort_by_key(|(zap, _)| u64::MAX - zap.entry_count().unwrap());
        for (zap, id) in folders.into_iter().take(3) {
            let ours: Vec<u64> = zap
                .iter()
                .map(|entry| entry.unwrap().value.first().unwrap() & 0xffff_ffff_ffff)
                .collect();
            let theirs = entries_by_zdb(&zdb, &disks.folder, dataset, id);
            assert_eq!(ours, theirs, "{dataset} object {id}");
            println!(
                "{dataset} object {id}: {} entries, {:?}",
                ours.len(),
                zap.form()
            );
            compared += ours.len();
        }
    }
    assert!(compared > 20 || !set.folder.join("names").is_dir());
}

#[test]
fn every_zap_and_file_of_old_pools_agrees_with_itself() {
    let Some(folder) = old_pools::folder() else {
        println!("the old pools were not fetched: nothing is tested");
        return;
    };
    let mut seen = Seen::default();
    for old in old_pools::list(&folder).unwrap() {
        if old.must_be_refused.is_some() {
            continue;
        }
        println!("{}", old.name);
        let disks: Vec<PathBuf> = old
            .packed
            .iter()
            .map(|packed| images::unpacked_bzip2(packed).unwrap())
            .collect();
        let Some(pool) = open(&disks).unwrap() else {
            continue;
        };
        if let Err(error) = check_pool(&pool, None, true, &mut seen) {
            panic!("{}: {error:#}", old.name);
        }
    }
    println!("{seen:?}");
    assert!(seen.micro > 50 && seen.old_znodes > 10);
}
