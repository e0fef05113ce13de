//! Pools that OpenZFS made, opened for changes, changed in all the usual ways, exported: OpenZFS finds nothing
//! wrong, and everything old is as recorded. Pools that must not be written are refused by the right name.
//!
//! Every day a few small cases; all of them with `MILLPOND_WRITING_ALL` (`make test-writing-all`) or by name in
//! `MILLPOND_ADOPTED` (with commas; the images then stay in `target/adopted-CASE`).
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use millpond::live::{
    Caller, FoundLogs, LiveFileSystem, LivePool, NewMode, SetAttributes, WriteAt, WriteOptions,
    XattrMode,
};
use millpond::{Error, OpenError, OpenOptions, Pool, PropertyValue, Search};
use millpond_tests::compare::Findings;
use millpond_tests::images::{Disks, hex};
use millpond_tests::oracle::{Verdict, kernel, zdb};
use millpond_tests::reader::DatasetKind;
use millpond_tests::record::{Content, Entry, Record};
use millpond_tests::runner::{self, Outcome, Trial};
use millpond_tests::workload::manifest;
use millpond_tests::{adaptor, images, record, tree};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Of different layouts and kinds, and small.
const EVERY_DAY: &[&str] = &[
    "single",
    "gang-raidz",
    "snapshots",
    "names",
    "crypt",
    "removed",
];

/// What cannot be written, and a word that the refusal must have.
const REFUSED: &[(&str, &str)] = &[
    ("bclone", "com.fudosecurity:block_cloning"),
    ("checkpoint", "checkpoint"),
    ("classes", "fast_dedup"),
    ("crypt", "fast_dedup"),
    ("dedup-fast", "fast_dedup"),
    ("dedup-legacy", "deduplication table"),
    ("draid1", "draid"),
    ("draid2", "draid"),
    ("expanded", "raidz_expansion"),
    ("expanding", "raidz_expansion"),
    ("gang", "fast_dedup"),
    ("legacy-v28", "version 28"),
    ("removed", "removal"),
    ("resilver-mid", "resilver"),
    ("scrub-mid", "scrub"),
    ("sends", "redaction_bookmarks"),
    ("spare-used", "spare"),
    ("v24-clone", "block_cloning"),
    ("v24-raidz", "raidz_expansion"),
];

fn main() -> ExitCode {
    match trials() {
        Ok(trials) => runner::main(trials),
        Err(error) => {
            println!("the golden set cannot be listed: {error:#}");
            ExitCode::from(101)
        }
    }
}

fn trials() -> Result<Vec<Trial>> {
    let set = images::golden_set()?;
    println!("golden cases: {}", set.description);
    let named = std::env::var("MILLPOND_ADOPTED").ok();
    let named: Option<Vec<&str>> = named.as_ref().map(|names| names.split(',').collect());
    let is_all = std::env::var_os("MILLPOND_WRITING_ALL").is_some();
    let mut trials = vec![];
    for case in images::cases(&set.folder)? {
        let is_wanted = match &named {
            Some(named) => named.contains(&case.as_str()),
            None => is_all || EVERY_DAY.contains(&case.as_str()),
        };
        if !is_wanted {
            continue;
        }
        let folder = set.folder.join(&case);
        let keeps = named.is_some();
        trials.push(Trial {
            name: format!("adopted::{case}"),
            run: Box::new(move || {
                run(&case, &folder, keeps)
                    .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
            }),
        });
    }
    if is_all && named.is_none() {
        for shape in ZTEST_SHAPES {
            trials.push(Trial {
                name: format!("ztest::{}", shape.concat()),
                run: Box::new(|| {
                    ztest(shape).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
                }),
            });
        }
    }
    Ok(trials)
}

/// Shapes of pools for `ztest`: no dRAID and no widening, which are refused; no mirrors of RAID-Z, which it alone
/// makes (`-m 0` makes RAID-Z alone). It throws dice over everything
/// else, so some become pools that are refused all the same.
const ZTEST_SHAPES: &[&[&str]] = &[
    &["-v", "2", "-m", "1", "-r", "1"],
    &["-v", "2", "-m", "2", "-r", "1"],
    &["-v", "1", "-m", "0", "-r", "4", "-R", "1"],
    &["-v", "2", "-m", "0", "-r", "5", "-R", "2", "-a", "12"],
    &["-v", "1", "-m", "3", "-r", "1", "-a", "12"],
    &["-v", "1", "-m", "0", "-r", "6", "-R", "3", "-a", "10"],
];
/// So many times a shape is tried before it is passed over.
const ZTEST_TRIES: usize = 6;

/// A pool that OpenZFS's own tormentor lived in is changed, crashes, is opened again, exported, and is as clean
/// as before.
fn ztest(shape: &[&str]) -> Result<Outcome> {
    if let Some(why) = zdb::absent() {
        return Ok(Outcome::PassedOver(why));
    }
    let mut refusals = vec![];
    for _ in 0..ZTEST_TRIES {
        let place = tempfile::tempdir()?;
        // It starts `zdb` by that name.
        let tools = images::workspace().join("tools/oracle");
        let path = std::env::var("PATH").unwrap_or_default();
        let done = std::process::Command::new("timeout")
            .arg("600")
            .arg(tools.join("run"))
            .args(["ztest", "-T", "3", "-P", "1", "-s", "128m", "-K", "raidz"])
            .args(["-C", "special=off", "-f"])
            .arg(place.path())
            .args(shape)
            .env("PATH", format!("{}:{path}", tools.display()))
            .output()?;
        if !done.status.success() {
            let status = done.status.code();
            refusals.push(format!("ztest ended with {status:?}"));
            continue;
        }
        match ztest_pool(place.path())? {
            Ok(note) => return Ok(Outcome::Passed(note)),
            Err(why) => refusals.push(why),
        }
    }
    Ok(Outcome::PassedOver(refusals.join("; ")))
}

/// A note of what was done, or why it is refused.
fn ztest_pool(place: &Path) -> Result<Result<String, String>> {
    let already = zdb::judge(place, "ztest")?;
    let pool = match open(place, "ztest", FoundLogs::Replay) {
        Ok(pool) => pool,
        Err(Error::Open { error, .. }) => {
            return match *error {
                OpenError::ReadOnly(why) if !why.reasons.is_empty() => {
                    Ok(Err(format!("refused: {why}")))
                }
                error => Ok(Err(format!("does not open: {error}"))),
            };
        }
        Err(error) => return Ok(Err(error.to_string())),
    };
    let from = pool.engine().uberblock().txg.0;
    let record = Record {
        pool: "ztest".to_owned(),
        ..Record::default()
    };
    change_datasets(&pool, &record)?;
    pool.sync()?;
    drop(pool);
    let crashed = zdb::judge(place, "ztest")?.beyond(&already);
    ensure!(!is_accused(&crashed), "after a crash: {crashed:?}");
    let pool = open(place, "ztest", FoundLogs::Replay)?;
    goes_on(&pool, "ztest")?;
    let to = pool.engine().uberblock().txg.0;
    pool.export()?;
    let after = zdb::judge(place, "ztest")?.beyond(&already);
    ensure!(!is_accused(&after), "afterwards: {after:?}");
    let pool = Pool::open(&Search::new([place]), "ztest", &OpenOptions::default())?;
    let blocks = verified(&pool)?;
    let before = match already {
        Verdict::Faults(lines) => format!("; complaints before and after, the same: {lines:?}"),
        _ => String::new(),
    };
    Ok(Ok(format!(
        "changed, txg {from} to {to}, clean after a crash and after export, {blocks} blocks verified{before}"
    )))
}

/// Every block is whole; how many there are.
fn verified(pool: &Pool) -> Result<u64> {
    let progress = millpond::verify::VerifyProgress::default();
    let problems = std::sync::Mutex::new(vec![]);
    let note = |problem: &millpond::verify::Problem| {
        let mut all = problems.lock().unwrap_or_else(|poison| poison.into_inner());
        all.push(format!("{problem:?}"));
    };
    let report = pool.verify(&progress, &note)?;
    let problems = problems
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    ensure!(report.is_clean(), "verify: {problems:#?}");
    Ok(report.blocks)
}

fn run(case: &str, folder: &Path, keeps: bool) -> Result<Outcome> {
    let mut record = record::load(folder)?;
    let temporary = tempfile::tempdir()?;
    let place = if keeps {
        let place = images::workspace().join(format!("target/adopted-{case}"));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place)?;
        place
    } else {
        temporary.path().to_owned()
    };
    for image in &record.images {
        let from = images::unpacked(&folder.join(&image.file), &image.sha256, image.size_bytes)?;
        images::copy_sparse(&from, &place.join(image.file.trim_end_matches(".zst")))?;
    }
    let must_refuse = REFUSED.iter().find(|(name, _)| *name == case);
    // Before it is opened: opening writes. What is refused is not touched.
    let already = match must_refuse {
        Some(_) => Verdict::Clean,
        None => judge(case, folder, &place, &record.pool)?,
    };
    if case.starts_with("zil") {
        // A log that cannot be kept is not given up unasked.
        match open(&place, &record.pool, FoundLogs::Replay) {
            Ok(_) => bail!("opens, although blocks were cloned in a locked log"),
            Err(error) => ensure!(
                error.to_string().contains("blocks were cloned"),
                "is refused in other words: {error}"
            ),
        }
        // What the module made of the logs; times of writes are those of the replay.
        record = record::load_state(folder, "CASE.json")?;
        let files = record
            .datasets
            .iter_mut()
            .filter_map(|one| one.tree.as_mut());
        files.flatten().for_each(touched);
        // What its log promised is given up here.
        let is_other = |dataset: &record::Dataset| !dataset.name.contains("/crypt");
        record.datasets.retain(is_other);
    }
    let pool = match (
        open(&place, &record.pool, FoundLogs::DiscardLocked),
        must_refuse,
    ) {
        (Ok(_), Some((_, word))) => bail!("opens, although it has {word}"),
        (Err(error), Some((_, word))) => {
            let words = error.to_string();
            ensure!(
                words.to_lowercase().contains(&word.to_lowercase()),
                "is refused in other words: {words}"
            );
            return Ok(Outcome::Passed(format!("refused: {words}")));
        }
        (Err(error), None) if case.starts_with("zil") => bail!("does not open: {error}"),
        (Err(error), None) => return Ok(Outcome::PassedOver(format!("does not open: {error}"))),
        (Ok(pool), None) => pool,
    };
    let mut notes = vec![];
    for number in 0..record.datasets.len() {
        let dataset = &record.datasets[number];
        if dataset.kind != DatasetKind::Filesystem || dataset.tree.is_none() {
            continue;
        }
        let name = dataset.name.clone();
        let files = match pool.file_system(&name) {
            Ok(files) => files,
            Err(error) => {
                notes.push(format!("{name}: {error}"));
                continue;
            }
        };
        if files.settings().is_read_only {
            notes.push(format!("{name}: readonly"));
            continue;
        }
        let lost = record.lost.clone();
        let below = below_the_pool(&name);
        let is_lost = |path: &[u8]| lost.contains(&[below.as_bytes(), path].concat());
        let entries = record.datasets[number].tree.as_mut().context("a tree")?;
        if case.starts_with("zil") {
            without_growth(&files, entries)?;
        }
        change_files(&pool, &name, &files, entries, &is_lost).with_context(|| name.clone())?;
    }
    change_datasets(&pool, &record)?;
    if std::env::var_os("MILLPOND_WRITING_ALL").is_some() {
        // As a crash leaves it; and on from there.
        pool.sync()?;
        drop(pool);
        let crashed = judge(case, folder, &place, &record.pool)?.beyond(&already);
        ensure!(!is_accused(&crashed), "after a crash: {crashed:?}");
        let pool = open(&place, &record.pool, FoundLogs::Replay)?;
        goes_on(&pool, &record.pool)?;
        pool.export()?;
    } else {
        pool.export()?;
    }

    let (found, count) = compare_old(&place, &record)?;
    ensure!(
        found.differences_count == 0,
        "{} differences:\n  {}",
        found.differences_count,
        found.differences.join("\n  ")
    );
    let after = judge(case, folder, &place, &record.pool)?.beyond(&already);
    ensure!(!is_accused(&after), "afterwards: {after:?}");
    match (&already, after) {
        (Verdict::Faults(lines), _) => notes.push(format!(
            "{} complaints before and after, the same",
            lines.len()
        )),
        (_, Verdict::Absent(why)) => notes.push(format!("not judged: {why}")),
        _ => {}
    }
    notes.push(format!("{count} old files compared"));
    Ok(Outcome::Passed(notes.join("; ")))
}

/// The module's replay of a block that was written as a whole makes a file that ends inside the block longer, up to
/// the block's end, by zeros that nobody wrote. Ours does not.
fn without_growth(files: &Arc<LiveFileSystem>, entries: &mut [Entry]) -> Result<()> {
    let root = files.root()?;
    for entry in entries {
        let is_concerned = entry.path == b"old-file" && entry.attributes.size == 524_288;
        let Some(Content::Whole(digest)) = entry.content.clone().filter(|_| is_concerned) else {
            continue;
        };
        let node = files.lookup(&root, &entry.path)?;
        let mut bytes = vec![0; node.size_bytes() as usize];
        files.read(&node, 0, &mut bytes)?;
        ensure!(bytes.len() == 500_000, "old-file has {} bytes", bytes.len());
        entry.content = Some(Content::Whole(hex(&Sha256::digest(&bytes))));
        entry.attributes.size = bytes.len() as u64;
        entry.extents = None;
        bytes.resize(524_288, 0);
        let padded = hex(&Sha256::digest(&bytes));
        ensure!(padded == digest, "old-file differs otherwise");
    }
    Ok(())
}

fn is_accused(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Faults(_))
}

/// These use what `zdb` 2.3 does not know or stumbles over; a machine with 2.4 judges them, by hand.
const JUDGED_BY_2_4: &[&str] = &["v24-gang", "v24-rewrite", "v24-special"];

/// Has the right judge look at a case.
fn judge(case: &str, folder: &Path, place: &Path, pool: &str) -> Result<Verdict> {
    if JUDGED_BY_2_4.contains(&case) {
        return judge_in_a_machine(place, pool);
    }
    // `zdb` takes images of whole disks, not of partitioned ones.
    let table = folder.join("sfdisk.txt");
    if table.exists() {
        let cut = tempfile::tempdir()?;
        cut_out(&table, &place.join("d0.img"), &cut.path().join("d0.img"))?;
        return zdb::judge(cut.path(), pool);
    }
    zdb::judge(place, pool)
}

/// Import, scrub, every file as we read it, and 2.4's own `zdb`.
fn judge_in_a_machine(place: &Path, name: &str) -> Result<Verdict> {
    if std::env::var_os("MILLPOND_KERNEL").is_none() {
        let why = "2.3 cannot judge it; MILLPOND_KERNEL=1 starts a machine with 2.4";
        return Ok(Verdict::Absent(why.to_owned()));
    }
    let mut paths: Vec<PathBuf> = std::fs::read_dir(place)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    paths.sort();
    let share = tempfile::tempdir()?;
    let verdict = kernel::judge(kernel::Release::V2_4, &paths, name, Some(share.path()))?;
    if verdict.is_clean() {
        let pool = Pool::open(&Search::new([place]), name, &OpenOptions::default())?;
        let ours: BTreeSet<String> = manifest(&pool)?.into_iter().collect();
        let text = std::fs::read_to_string(share.path().join("manifest.txt"))?;
        let theirs: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        println!("{name}: {} lines compared with 2.4's", ours.len());
        let differing: Vec<_> = ours.symmetric_difference(&theirs).take(20).collect();
        ensure!(differing.is_empty(), "we and 2.4 differ: {differing:#?}");
    }
    Ok(verdict)
}

/// The first partition of an image, by the listing of its table, as an image of its own.
fn cut_out(table: &Path, image: &Path, to: &Path) -> Result<()> {
    let listing = std::fs::read_to_string(table)?;
    let figure = |name: &str| {
        let (_, rest) = listing.split_once(name)?;
        rest.split(',').next()?.trim().parse::<u64>().ok()
    };
    let (start, sectors) = (
        figure("start=").context("no start")?,
        figure("size=").context("no size")?,
    );
    let mut from = std::fs::File::open(image)?;
    from.seek(SeekFrom::Start(start * 512))?;
    let mut partition = std::fs::File::create(to)?;
    std::io::copy(&mut from.take(sectors * 512), &mut partition)?;
    Ok(())
}

/// A few more changes, after a crash.
fn goes_on(pool: &LivePool, name: &str) -> Result<()> {
    let (datasets, caller) = (pool.datasets(), Caller::root());
    let made = format!("{name}/after-the-crash");
    datasets.create_filesystem(&made, &[])?;
    let files = pool.file_system(&made)?;
    let root = files.root()?;
    for number in 0..40usize {
        let file = format!("file{number}").into_bytes();
        let (node, _) = files.create(&caller, &root, &file, NewMode::exactly(0o600), true)?;
        let bytes = vec![number as u8; number * 3000];
        files.write(&caller, &node, WriteAt::Offset(0), &bytes)?;
    }
    datasets.snapshot(&[&format!("{made}@then")], &[])?;
    for number in (0..40).step_by(2) {
        files.unlink(&root, format!("file{number}").as_bytes())?;
    }
    Ok(())
}

fn open(place: &Path, name: &str, found_logs: FoundLogs) -> Result<LivePool, Error> {
    let writing = WriteOptions {
        found_logs,
        ..WriteOptions::default()
    };
    let options = OpenOptions::default();
    LivePool::open(&Search::new([place]), name, &options, &writing)
}

/// Changes old files (and what is recorded of them), makes new ones, a snapshot between, and takes the new
/// ones away again.
fn change_files(
    pool: &LivePool,
    name: &str,
    files: &Arc<LiveFileSystem>,
    entries: &mut Vec<Entry>,
    is_lost: &dyn Fn(&[u8]) -> bool,
) -> Result<()> {
    let (root, caller) = (files.root()?, Caller::root());
    let mode = NewMode::exactly(0o755);
    let ours = files.make_directory(&caller, &root, OURS, mode)?;
    for number in 0..60usize {
        let file = format!("file{number}").into_bytes();
        let (node, _) = files.create(&caller, &ours, &file, NewMode::exactly(0o600), true)?;
        let bytes = vec![number as u8; number * 700];
        files.write(&caller, &node, WriteAt::Offset(0), &bytes)?;
        if number % 9 == 0 && files.settings().xattr != millpond_posix::live::XattrPlace::Off {
            files.set_xattr(&caller, &node, b"user.ours", &[b'x'; 300], XattrMode::Set)?;
        }
    }
    let mut changed = 0;
    let mut removed = vec![];
    for (index, entry) in entries.iter_mut().enumerate() {
        let is_plain = entry.attributes.kind == "file" && entry.attributes.nlink == 1;
        let is_whole = matches!(entry.content, Some(Content::Whole(_)));
        let size = entry.attributes.size as usize;
        if !is_plain
            || !is_whole
            || entry.is_unreadable
            || is_lost(&entry.path)
            || size == 0
            || size > 4 << 20
        {
            continue;
        }
        let mut holder = root.clone();
        let parts: Vec<&[u8]> = entry.path.split(|byte| *byte == b'/').collect();
        let Some((last, above)) = parts.split_last() else {
            continue;
        };
        for part in above {
            holder = files.lookup(&holder, part)?;
        }
        let node = files.lookup(&holder, last)?;
        if !node.state_flags_allow_changes(files) {
            continue;
        }
        changed += 1;
        match changed {
            1 => {
                drop(node);
                files.unlink(&holder, last)?;
                removed.push((index, above.join(&b'/')));
            }
            2 | 3 => {
                let mut bytes = vec![0; size];
                files.read(&node, 0, &mut bytes)?;
                let (at, with) = (size / 2, b"changed by another hand");
                files.write(&caller, &node, WriteAt::Offset(at as u64), with)?;
                bytes.resize(size.max(at + with.len()), 0);
                bytes[at..at + with.len()].copy_from_slice(with);
                if changed == 3 {
                    let half = bytes.len() / 2 + 1;
                    let set = SetAttributes {
                        size_bytes: Some(half as u64),
                        ..SetAttributes::default()
                    };
                    files.set_attributes(&caller, &node, &set)?;
                    bytes.truncate(half);
                }
                entry.content = Some(Content::Whole(hex(&Sha256::digest(&bytes))));
                entry.extents = None;
                entry.attributes.size = bytes.len() as u64;
                entry.attributes.mode &= 0o1777
                    | if entry.attributes.mode & 0o6000 == 0 {
                        0o6000
                    } else {
                        0
                    };
                touched(entry);
            }
            _ => break,
        }
    }
    pool.datasets()
        .snapshot(&[&format!("{name}@{SNAPSHOT}")], &[])?;
    for number in 0..60usize {
        let file = format!("file{number}").into_bytes();
        if number % 2 == 0 {
            files.unlink(&ours, &file)?;
        } else {
            let node = files.lookup(&ours, &file)?;
            files.write(&caller, &node, WriteAt::End, &[9; 10_000])?;
        }
    }
    for number in (1..60).step_by(2) {
        files.unlink(&ours, format!("file{number}").as_bytes())?;
    }
    drop(ours);
    files.remove_directory(&root, OURS)?;
    files.reap()?;
    // Directories that lost or had an entry were touched.
    let mut above = vec![b".".to_vec()];
    for (index, directory) in removed.into_iter().rev() {
        entries.remove(index);
        above.push(directory);
    }
    for entry in entries.iter_mut() {
        if above.contains(&entry.path) || (entry.path == b"." && above.contains(&vec![])) {
            touched(entry);
            entry.sampled = None;
        }
    }
    Ok(())
}

/// Times and space are no longer as recorded: [`compare_old`] takes them as they are found.
fn touched(entry: &mut Entry) {
    entry.attributes.mtime_ns = TOUCHED;
}

trait MayChange {
    fn state_flags_allow_changes(&self, files: &LiveFileSystem) -> bool;
}

impl MayChange for millpond::live::LiveNode {
    fn state_flags_allow_changes(&self, files: &LiveFileSystem) -> bool {
        use millpond::FileFlags;
        let flags = files.stat(self).flags;
        !flags.intersects(
            FileFlags::IMMUTABLE
                | FileFlags::APPENDONLY
                | FileFlags::NOUNLINK
                | FileFlags::READONLY,
        )
    }
}

/// Clones, destroys, sets properties, makes and writes volumes.
fn change_datasets(pool: &LivePool, record: &Record) -> Result<()> {
    let datasets = pool.datasets();
    let root = &record.pool;
    let text = |name: &str, value: &str| (name.to_owned(), PropertyValue::Text(value.to_owned()));
    datasets.set_properties(
        root,
        &[
            text("compression", "gzip-1"),
            text("org.example:was", "here"),
        ],
    )?;
    let snapshot = format!("{root}@{SNAPSHOT}");
    let clone = format!("{root}/clone-of-ours");
    if datasets
        .snapshot(&[&format!("{root}@{SNAPSHOT}-2")], &[])
        .is_ok()
    {
        let from = format!("{root}@{SNAPSHOT}-2");
        datasets.clone_snapshot(&from, &clone, &[])?;
        // `ztest` has heads that are no file systems.
        if let Ok(files) = pool.file_system(&clone) {
            let at_root = files.root()?;
            let caller = Caller::root();
            let mode = NewMode::exactly(0o600);
            let (node, _) = files.create(&caller, &at_root, b"in the clone", mode, true)?;
            files.write(&caller, &node, WriteAt::Offset(0), &[7; 300_000])?;
        }
    }
    let made = format!("{root}/made-by-us");
    datasets.create_filesystem(&made, &[text("compression", "gzip-9")])?;
    let files = pool.file_system(&made)?;
    let (node, _) = files.create(
        &Caller::root(),
        &files.root()?,
        b"file",
        NewMode::exactly(0o600),
        true,
    )?;
    files.write(&Caller::root(), &node, WriteAt::Offset(0), &[1; 500_000])?;
    let volume = format!("{root}/volume-by-us");
    let size = ("volsize".to_owned(), PropertyValue::Number(1 << 20));
    let sparse = ("refreservation".to_owned(), PropertyValue::Number(0));
    datasets.create_volume(&volume, &[size, sparse])?;
    pool.volume(&volume)?.write(100_000, &[3; 200_000])?;
    pool.sync()?;
    drop((node, files));
    datasets.destroy(&made, Default::default())?;
    // A snapshot of ours goes wherever nothing hangs on it.
    let _ = datasets.destroy_snapshots(&[&snapshot], Default::default());
    Ok(())
}

/// Compares every file of the record with what is there. Also gives how many.
fn compare_old(place: &Path, record: &Record) -> Result<(Findings, u64)> {
    let paths: Vec<PathBuf> = record
        .images
        .iter()
        .map(|image| place.join(image.file.trim_end_matches(".zst")))
        .collect();
    // The folder must not go when this is dropped.
    let disks = std::mem::ManuallyDrop::new(Disks {
        folder: place.to_owned(),
        paths,
    });
    let mut pool = adaptor::open(&disks, &record.keys)
        .map_err(|error| anyhow::anyhow!("afterwards: {error}"))?;
    let mut findings = Findings::default();
    for dataset in &record.datasets {
        let Some(entries) = &dataset.tree else {
            continue;
        };
        let mut entries = entries.clone();
        for entry in &mut entries {
            if entry.attributes.mtime_ns != TOUCHED {
                continue;
            }
            let found = pool
                .attributes(&dataset.name, entry.object)
                .map_err(|error| anyhow::anyhow!("{}: {error}", dataset.name))?;
            let recorded = &mut entry.attributes;
            recorded.mtime_ns = found.mtime_ns;
            recorded.ctime_ns = found.ctime_ns;
            recorded.atime_ns = found.atime_ns;
            recorded.blocks = found.blocks;
            if recorded.kind == "dir" {
                recorded.size = found.size;
            }
        }
        let below = below_the_pool(&dataset.name);
        let is_lost = |path: &[u8]| record.lost.contains(&[below.as_bytes(), path].concat());
        let expected = tree::Expected {
            dataset: &dataset.name,
            entries: &entries,
            is_lost: &is_lost,
            // What the last txg wrote went with the newest uberblock.
            may_differ: &|path| record.pool == "pcorrupt-uberblock" && path == b"last",
        };
        tree::compare(&mut *pool, &expected, &mut findings);
    }
    let count = findings.files;
    Ok((findings, count))
}

/// `pool/a/b@s` as the beginning of paths below the pool's mount point: `a/b/`.
fn below_the_pool(dataset: &str) -> String {
    let name = dataset.split('@').next().unwrap_or(dataset);
    name.split_once('/')
        .map_or(String::new(), |(_, path)| format!("{path}/"))
}

const OURS: &[u8] = b"written-by-another-hand";
const SNAPSHOT: &str = "by-another-hand";
const TOUCHED: i128 = i128::MIN;
