//! Memory limits: memory use must not grow with the pool.
//!
//! The program runs with less memory for data than it reads. If it runs out of memory at any allocation, it
//! must leave its pool consistent.
//!
//! The limit (`ulimit -d`) covers all allocations, including thread stacks. An allocation beyond it ends
//! the program. The budgets are those of `docs/memory.md`.

use millpond_tests::{images, record};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Budget of `verify` for pools with records up to 1 MiB, without its threads.
const VERIFY_BYTES: u64 = 16 << 20;
/// Additional budget for each thread of `verify`. There are two threads per processor.
const VERIFY_THREAD_BYTES: u64 = 4 << 20;
/// Budget of an unsorted listing: the cache limit plus a margin.
const LIST_BYTES: u64 = (256 << 20) + (64 << 20);

fn verify_bytes() -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64 * 2;
    VERIFY_BYTES + threads * VERIFY_THREAD_BYTES
}

/// Runs the program with at most this many bytes of data.
fn limited(bytes: u64, arguments: &[&str]) -> Output {
    limited_for(600, bytes, arguments)
}

/// Like [`limited`], with a time limit in seconds.
///
/// A program without memory for its error message may hang: the standard library's message waits for a lock
/// that the same thread holds.
fn limited_for(seconds: u32, bytes: u64, arguments: &[&str]) -> Output {
    Command::new("sh")
        .arg("-c")
        .arg(format!(
            "ulimit -d {} && exec timeout -s KILL {seconds} \"$@\"",
            bytes >> 10
        ))
        .args(["sh", env!("CARGO_BIN_EXE_millpond")])
        .args(arguments)
        // The allocator may otherwise keep an arena per thread, and this memory would be wasted.
        .env("MALLOC_ARENA_MAX", "2")
        .output()
        .expect("a shell")
}

fn disks_of(folder: &Path, case: &str) -> Option<images::Disks> {
    let folder = folder.join(case);
    if !folder.is_dir() {
        return None;
    }
    let record = record::load(&folder).expect("a record");
    let mut present = vec![];
    for image in &record.images {
        let zipped = folder.join(&image.file);
        let path = images::unpacked(&zipped, &image.sha256, image.size_bytes).expect("an image");
        present.push((image.file.trim_end_matches(".zst").to_owned(), path));
    }
    Some(images::gather(&format!("memory-{case}"), &present).expect("a folder of disks"))
}

/// The pools created by `bench/make-pools`, if present.
fn large_pools() -> Option<PathBuf> {
    let folder = std::env::var_os("MILLPOND_BENCH_POOLS").map_or_else(
        || {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_default())
                .join(".cache/millpond/bench-pools")
        },
        PathBuf::from,
    );
    if folder.join("large.ready").exists() {
        return Some(folder);
    }
    println!("not tried on large pools: there are none (bench/make-pools makes them)");
    None
}

#[test]
fn the_limit_is_one() {
    let output = limited(4 << 20, &["--help"]);
    assert!(output.status.success(), "{output:?}");
    let Some(disks) = disks_of(&golden(), "snapshots") else {
        panic!("the case is in every golden set");
    };
    let folder = disks.folder.to_str().expect("UTF-8");
    let output = limited_for(20, 6 << 20, &["-d", folder, "verify", "-q"]);
    assert!(!output.status.success(), "{output:?}");
}

fn golden() -> PathBuf {
    images::golden_set().expect("a golden set").folder
}

#[test]
fn verifying_more_than_the_budget_stays_within_it() {
    let mut tried = 0;
    for case in ["snapshots", "zpl", "raidz2-5"] {
        let Some(disks) = disks_of(&golden(), case) else {
            println!("not tried: {case} is not in this golden set");
            continue;
        };
        let folder = disks.folder.to_str().expect("UTF-8");
        let output = limited(verify_bytes(), &["-d", folder, "verify", "-q"]);
        assert!(output.status.success(), "{case}: {output:?}");
        tried += 1;
    }
    assert!(tried > 0);
    let Some(folder) = large_pools() else { return };
    for (name, pool) in [
        ("mirror", "bmirror"),
        ("raidz1", "braidz1"),
        ("many", "bmany"),
    ] {
        let folder = folder.join(name);
        let folder = folder.to_str().expect("UTF-8");
        let output = limited(verify_bytes(), &["-d", folder, "verify", "-q", pool]);
        assert!(output.status.success(), "{name}: {output:?}");
    }
}

#[test]
fn listing_a_huge_directory_stays_within_the_budget() {
    let Some(folder) = large_pools() else { return };
    let folder = folder.join("many");
    let folder = folder.to_str().expect("UTF-8");
    let output = limited(LIST_BYTES, &["-d", folder, "ls", "-U", "bmany:/many"]);
    assert!(output.status.success(), "{:?}", output.stderr);
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    println!("{lines} entries");
    assert!(lines >= 10_000);
}

/// A pool of two images that contains a tree, and a copy of the tree outside.
struct Filled {
    folder: tempfile::TempDir,
}

impl Filled {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let this = Self { folder };
        let tree = this.path("tree");
        for number in 0..60_u32 {
            let place = tree.join(format!("d{}", number % 7));
            std::fs::create_dir_all(&place).expect("a folder");
            let length = 1 << (number % 19);
            let content: Vec<u8> = (0..length).map(|at| (at * number) as u8).collect();
            std::fs::write(place.join(format!("f{number}")), content).expect("a file");
        }
        std::fs::create_dir(this.path("pristine")).expect("a folder");
        let images = [this.word("pristine/a.img"), this.word("pristine/b.img")];
        let made = Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(["mkimage", "-n", "tank", "--size", "64M"])
            .args(["--snapshot", "made", &this.word("tree")])
            .args(&images)
            .output()
            .expect("the program");
        assert!(made.status.success(), "{made:?}");
        this
    }
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    fn word(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }
    /// Copies the original pool into a directory of its own.
    fn afresh(&self) -> String {
        let images = self.path("images");
        let _ = std::fs::remove_dir_all(&images);
        std::fs::create_dir(&images).expect("a folder");
        for name in ["a.img", "b.img"] {
            let from = self.path("pristine").join(name);
            std::fs::copy(from, images.join(name)).expect("a copy");
        }
        self.word("images")
    }
    /// Copies the content of an address out of the pool.
    fn content(&self, images: &str, address: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let out = self.path("out");
        let _ = std::fs::remove_dir_all(&out);
        well(images, &["cp", "-r", address, out.to_str().expect("UTF-8")]);
        files_below(&out)
    }
}

fn files_below(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).expect("below").to_owned();
                found.insert(name, std::fs::read(&path).expect("a file"));
            }
        }
    }
    found
}

fn run(images: &str, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(["-d", images])
        .args(words)
        .output()
        .expect("the program")
}

fn well(images: &str, words: &[&str]) {
    let output = run(images, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// Runs the change `words` with a little more memory each time until it succeeds.
///
/// After each failure the pool must be consistent, its snapshot unchanged, and each file below `/tree` a
/// prefix of its source (as of the last txg). Unless the change is already complete, it must then succeed.
/// Returns the number of failures.
fn until_it_passes(filled: &Filled, words: &[&str], step_bytes: u64) -> u32 {
    let tree = files_below(&filled.path("tree"));
    let images = filled.afresh();
    well(&images, words);
    let after = filled.content(&images, "tank:/");
    for lacking in 0_u32.. {
        let limit = (6 << 20) + u64::from(lacking + 1) * step_bytes;
        assert!(limit < 1 << 30, "{words:?} does not pass with 1 GiB");
        let images = filled.afresh();
        let arguments = [&["-d", &images], words].concat();
        let output = limited_for(10, limit, &arguments);
        well(&images, &["check", "-q", "tank"]);
        let kept = filled.content(&images, "tank@made:/");
        assert!(kept == tree, "{limit}: {words:?} changed the snapshot");
        for (name, content) in filled.content(&images, "tank:/") {
            let mut parts = name.components();
            if parts.next().is_some_and(|part| part.as_os_str() == "tree") {
                let source = tree.get(parts.as_path());
                let is_beginning = source.is_some_and(|source| source.starts_with(&content));
                assert!(
                    is_beginning,
                    "{limit}: {words:?}: {name:?} holds something else"
                );
            }
        }
        if !output.status.success() {
            run(&images, words);
        }
        let made = filled.content(&images, "tank:/");
        assert!(
            made == after,
            "{limit}: {words:?}: not made by the second try"
        );
        if output.status.success() {
            return lacking;
        }
        well(&images, &["check", "-q", "tank"]);
    }
    unreachable!("the limits end with an assertion")
}

#[test]
fn a_change_that_runs_out_of_memory_leaves_the_pool_whole() {
    let filled = Filled::new();
    let all = std::env::var_os("MILLPOND_WRITING_ALL").is_some();
    let step_bytes = if all { 1 << 20 } else { 8 << 20 };
    let tree = filled.word("tree");
    let changes = [
        &["cp", "-r", &tree, "tank:/"][..],
        &["rm", "-r", "tank:/d1", "tank:/d2", "tank:/d3"],
        &["mv", "tank:/d4", "tank:/moved"],
    ];
    // A program without memory may hang until it is killed, so each attempt takes seconds.
    for words in changes.into_iter().take(if all { 3 } else { 1 }) {
        let lacking = until_it_passes(&filled, words, step_bytes);
        println!("{} ran out of memory {lacking} times", words[0]);
        assert!(lacking > 0, "{words:?}: the smallest limit was enough");
    }
}
