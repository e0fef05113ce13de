//! The workload for every contender.

use anyhow::Result;
use millpond_bench::SeededRng;
use std::fmt;
use std::time::Instant;

/// The measured implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    Millpond,
    Btrfs,
    Xfs,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Millpond => "Millpond",
            Self::Btrfs => "Btrfs",
            Self::Xfs => "XFS",
        })
    }
}

/// A file system under test. Names are in one directory.
pub trait Subject {
    /// Opens the file for `read_at` and `write_at`, and creates it if it does not exist.
    fn open(&mut self, name: &str, small_records: bool) -> Result<()>;
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()>;
    fn create(&mut self, name: &str, content: &[u8]) -> Result<()>;
    /// Returns a file's length.
    fn stat(&mut self, name: &str) -> Result<u64>;
    fn rename(&mut self, from: &str, to: &str) -> Result<()>;
    fn unlink(&mut self, name: &str) -> Result<()>;
    /// Takes a snapshot. Returns false if snapshots are not supported.
    fn snapshot(&mut self, name: &str) -> Result<bool>;
    /// Writes everything to stable storage.
    fn sync(&mut self) -> Result<()>;
    /// Closes and reopens the file system, so that nothing is cached above the devices.
    fn reopen(&mut self) -> Result<()>;
    fn finish(self: Box<Self>) -> Result<()>;
}

/// The result of a piece of work.
pub struct Measurement {
    pub row: &'static str,
    pub seconds: f64,
    /// Bytes or operations.
    pub amount: f64,
    pub is_bytes: bool,
}

const PIECE: usize = 1 << 20;
const STREAM_BYTES: u64 = 256 << 20;
const SMALL_STREAM_BYTES: u64 = 32 << 20;
const RANDOM: u64 = 4096;
const FILES: u64 = 10_000;
const SNAPSHOTS: u64 = 20;

/// Does all work, or only the rows whose names start with `only` and what they depend on.
pub fn run(
    subject: &mut dyn Subject,
    compressed: bool,
    only: Option<&str>,
) -> Result<Vec<Measurement>> {
    let wants = |row: &str| only.is_none_or(|only| row.starts_with(only));
    let mut measurements = vec![];
    let mut timed = |row, amount: u64, is_bytes, run: &mut dyn FnMut() -> Result<bool>| {
        let begun = Instant::now();
        let is_done = run()?;
        let seconds = begun.elapsed().as_secs_f64();
        if is_done && wants(row) {
            measurements.push(Measurement {
                row,
                seconds,
                amount: amount as f64,
                is_bytes,
            });
        }
        anyhow::Ok(())
    };
    if compressed {
        stream(
            subject,
            &mut timed,
            ["stream write, compressed", "stream read, compressed"],
            true,
        )?;
        return Ok(measurements);
    }
    if wants("stream") || wants("random") {
        stream(subject, &mut timed, ["stream write", "stream read"], false)?;
        random(
            subject,
            &mut timed,
            ["random read 4k", "random overwrite 4k"],
            STREAM_BYTES,
        )?;
    }
    if wants("records") {
        subject.open("records", true)?;
        let mut rng = SeededRng(7);
        timed(
            "records of 4k: stream write",
            SMALL_STREAM_BYTES,
            true,
            &mut || write_stream(subject, SMALL_STREAM_BYTES, &mut rng, false),
        )?;
        let rows = [
            "records of 4k: random read",
            "records of 4k: random overwrite",
        ];
        random(subject, &mut timed, rows, SMALL_STREAM_BYTES)?;
    }
    if wants("files") {
        files(subject, &mut timed)?;
    }
    if wants("snapshot") {
        timed("snapshots", SNAPSHOTS, false, &mut || {
            for number in 0..SNAPSHOTS {
                if !subject.snapshot(&format!("s{number}"))? {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
    }
    Ok(measurements)
}

type Timed<'t> =
    dyn FnMut(&'static str, u64, bool, &mut dyn FnMut() -> Result<bool>) -> Result<()> + 't;

fn write_stream(
    subject: &mut dyn Subject,
    total: u64,
    rng: &mut SeededRng,
    compressible: bool,
) -> Result<bool> {
    // Sixteen different mebibytes, prepared before the measurement.
    let pieces: Vec<Vec<u8>> = (0..16).map(|_| rng.bytes(PIECE, compressible)).collect();
    for (number, piece) in (0..total / PIECE as u64).zip(pieces.iter().cycle()) {
        subject.write_at(number * PIECE as u64, piece)?;
    }
    subject.sync()?;
    Ok(true)
}

fn stream(
    subject: &mut dyn Subject,
    timed: &mut Timed<'_>,
    rows: [&'static str; 2],
    compressible: bool,
) -> Result<()> {
    subject.open("stream", false)?;
    let mut rng = SeededRng(1);
    timed(rows[0], STREAM_BYTES, true, &mut || {
        write_stream(subject, STREAM_BYTES, &mut rng, compressible)
    })?;
    subject.reopen()?;
    subject.open("stream", false)?;
    let mut buffer = vec![0; PIECE];
    timed(rows[1], STREAM_BYTES, true, &mut || {
        for number in 0..STREAM_BYTES / PIECE as u64 {
            subject.read_at(number * PIECE as u64, &mut buffer)?;
        }
        Ok(true)
    })
}

fn random(
    subject: &mut dyn Subject,
    timed: &mut Timed<'_>,
    rows: [&'static str; 2],
    total: u64,
) -> Result<()> {
    let mut rng = SeededRng(2);
    let name = if total == STREAM_BYTES {
        "stream"
    } else {
        "records"
    };
    subject.reopen()?;
    subject.open(name, total != STREAM_BYTES)?;
    let mut buffer = vec![0; 4096];
    timed(rows[0], RANDOM, false, &mut || {
        for _ in 0..RANDOM {
            subject.read_at(rng.below(total / 4096) * 4096, &mut buffer)?;
        }
        Ok(true)
    })?;
    let piece = rng.bytes(4096, false);
    timed(rows[1], RANDOM, false, &mut || {
        for _ in 0..RANDOM {
            subject.write_at(rng.below(total / 4096) * 4096, &piece)?;
        }
        subject.sync()?;
        Ok(true)
    })
}

fn files(subject: &mut dyn Subject, timed: &mut Timed<'_>) -> Result<()> {
    let mut rng = SeededRng(3);
    let content = rng.bytes(4096, false);
    timed("files of 4k: create", FILES, false, &mut || {
        for number in 0..FILES {
            subject.create(&format!("file-{number:06}"), &content)?;
        }
        subject.sync()?;
        Ok(true)
    })?;
    subject.reopen()?;
    timed("files of 4k: stat", FILES, false, &mut || {
        for number in 0..FILES {
            anyhow::ensure!(subject.stat(&format!("file-{number:06}"))? == 4096);
        }
        Ok(true)
    })?;
    timed("files of 4k: rename", FILES, false, &mut || {
        for number in 0..FILES {
            subject.rename(&format!("file-{number:06}"), &format!("name-{number:06}"))?;
        }
        subject.sync()?;
        Ok(true)
    })?;
    timed("files of 4k: unlink", FILES, false, &mut || {
        for number in 0..FILES {
            subject.unlink(&format!("name-{number:06}"))?;
        }
        subject.sync()?;
        Ok(true)
    })
}
