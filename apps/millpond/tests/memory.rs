//! Memory does not grow with the pool: the program is run with a limit on its data that is smaller than
//! what it reads.
//!
//! The limit (`ulimit -d`) covers everything the program allocates, thread stacks included; an
//! allocation beyond it ends the program. Budgets are those of `docs/memory.md`.

use millpond_tests::{images, record};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Budget of `verify` for pools with records up to 1 MiB: so much...
const VERIFY_BYTES: u64 = 16 << 20;
/// ...and so much for each of its threads, of which there are two for each processor.
const VERIFY_THREAD_BYTES: u64 = 4 << 20;
/// Budget of an unsorted listing: the cache's limit and a little more.
const LIST_BYTES: u64 = (256 << 20) + (64 << 20);

fn verify_bytes() -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64 * 2;
    VERIFY_BYTES + threads * VERIFY_THREAD_BYTES
}

/// Runs the program with so many bytes of data at most.
fn limited(bytes: u64, arguments: &[&str]) -> Output {
    limited_for(600, bytes, arguments)
}

/// As [`limited`], and for so many seconds at most: a program that has no memory left to say so may
/// also stand still (the standard library's message for that waits for a lock that it holds).
fn limited_for(seconds: u32, bytes: u64, arguments: &[&str]) -> Output {
    Command::new("sh")
        .arg("-c")
        .arg(format!(
            "ulimit -d {} && exec timeout -s KILL {seconds} \"$@\"",
            bytes >> 10
        ))
        .args(["sh", env!("CARGO_BIN_EXE_millpond")])
        .args(arguments)
        // The allocator may keep an arena for each thread; what it keeps is no use here.
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

/// The pools that `bench/make-pools` made, if it made them.
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
