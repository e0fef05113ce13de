//! Measures scrubs and resilvers beside what the devices give.
//!
//! Usage: `scan [--rounds N] [--folder FOLDER] [--gib N] [--zdb PROGRAM]`.
//!
//! Each round makes a mirror of two images in `FOLDER`, with large files and small ones, and measures in turn: reading the
//! stored bytes of both images plainly, a scrub, `zdb -bcc`; copying the stored bytes of one image plainly, a resilver of
//! a new side; reads and `fsync` of a program alone and while a scrub runs. A table in Markdown goes to standard output.
#![forbid(unsafe_code)]

mod pool;

use anyhow::{Context, Result};
use millpond_bench::plain;
use millpond_bench::rows::{Rows, drop_caches, timed};
use pool::Stage;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut rounds, mut gib) = (3u32, 4u64);
    let mut folder = PathBuf::from("target/bench");
    let mut zdb = None;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().context(argument.clone());
        match argument.as_str() {
            "--rounds" => rounds = value()?.parse()?,
            "--gib" => gib = value()?.parse()?,
            "--folder" => folder = value()?.into(),
            "--zdb" => zdb = Some(PathBuf::from(value()?)),
            _ => anyhow::bail!("unknown argument {argument}"),
        }
    }
    let mut rows = Rows::of("scan");
    for round in 1..=rounds {
        eprintln!("scan: round {round} of {rounds}");
        let scratch = folder.join(format!("millpond-scan-{}", std::process::id()));
        std::fs::create_dir_all(&scratch)?;
        let outcome = measure(&scratch, gib << 30, zdb.as_ref(), &mut rows);
        std::fs::remove_dir_all(&scratch)?;
        outcome?;
    }
    print!("{}", rows.markdown());
    Ok(())
}

fn measure(
    scratch: &std::path::Path,
    data_bytes: u64,
    zdb: Option<&PathBuf>,
    rows: &mut Rows,
) -> Result<()> {
    let images = scratch.join("images");
    std::fs::create_dir_all(&images)?;
    let mut stage = Stage::make(&images, data_bytes)?;
    let sides = [images.join("d0.img"), images.join("d1.img")];

    // Scrub.
    stage.close()?;
    drop_caches();
    let (plain_s, plain_bytes) = timed(|| plain::read(&sides))?;
    let plain = plain_bytes as f64 / plain_s / 1e6;
    rows.add("plain reads of both images, MB/s", plain);
    if let Some(zdb) = zdb {
        drop_caches();
        let (seconds, ()) = timed(|| run_zdb(zdb, &images))?;
        rows.add("`zdb -bcc`, s", seconds);
    }
    drop_caches();
    stage.open()?;
    let before = stage.read_bytes()?;
    let (seconds, ()) = timed(|| stage.scrub())?;
    let read = (stage.read_bytes()? - before) as f64;
    rows.add("scrub, s", seconds);
    rows.add("scrub, MB/s", read / seconds / 1e6);
    // The disk's speed changes within minutes: plain reads before and after.
    drop_caches();
    let (after_s, after_bytes) = timed(|| plain::read(&sides))?;
    let after = after_bytes as f64 / after_s / 1e6;
    rows.add("plain reads after the scrub, MB/s", after);
    let plain = f64::midpoint(plain, after);
    rows.add(
        "scrub over plain reads before and after",
        read / seconds / 1e6 / plain,
    );

    // Resilver.
    let copy = scratch.join("copy.img");
    let (plain_s, plain_bytes) = timed(|| plain::copy(&sides[0], &copy))?;
    std::fs::remove_file(&copy)?;
    let plain = plain_bytes as f64 / plain_s / 1e6;
    rows.add("plain copy of one image, MB/s", plain);
    let (seconds, (read, written)) = timed(|| stage.replace(&sides[1], &images.join("d2.img")))?;
    rows.add("resilver, s", seconds);
    rows.add("resilver, MB/s", written as f64 / seconds / 1e6);
    rows.add(
        "resilver over plain copy",
        written as f64 / seconds / 1e6 / plain,
    );
    rows.add(
        "bytes read for each byte rebuilt",
        read as f64 / written as f64,
    );

    // A program beside a scrub.
    let mut alone = stage.work(std::time::Duration::from_secs(10), &|| false)?;
    stage.begin_scrub()?;
    let mut beside = stage.work(std::time::Duration::from_secs(10), &|| stage.has_scanned())?;
    stage.end_scrub()?;
    add_times(rows, READ_ROWS, &mut alone.reads, &mut beside.reads);
    add_times(rows, SYNC_ROWS, &mut alone.syncs, &mut beside.syncs);
    stage.close()
}

const READ_ROWS: [&str; 4] = [
    "read of 4 KiB alone, p50 µs",
    "read of 4 KiB alone, p99 µs",
    "read of 4 KiB beside a scrub, p50 µs",
    "read of 4 KiB beside a scrub, p99 µs",
];
const SYNC_ROWS: [&str; 4] = [
    "`fsync` alone, p50 µs",
    "`fsync` alone, p99 µs",
    "`fsync` beside a scrub, p50 µs",
    "`fsync` beside a scrub, p99 µs",
];

fn add_times(rows: &mut Rows, names: [&'static str; 4], alone: &mut [u64], beside: &mut [u64]) {
    alone.sort_unstable();
    beside.sort_unstable();
    let at = |times: &[u64], share: f64| {
        let at = (times.len() as f64 * share) as usize;
        times.get(at).or(times.last()).map(|ns| *ns as f64 / 1e3)
    };
    let values = [
        at(alone, 0.5),
        at(alone, 0.99),
        at(beside, 0.5),
        at(beside, 0.99),
    ];
    for (name, value) in names.into_iter().zip(values) {
        if let Some(us) = value {
            rows.add(name, us);
        }
    }
}

fn run_zdb(zdb: &std::path::Path, images: &std::path::Path) -> Result<()> {
    let status = Command::new(zdb)
        .args(["-e", "-p"])
        .arg(images)
        .args(["-bcc", "bench"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    anyhow::ensure!(status.success(), "zdb: {status}");
    Ok(())
}
