//! The latency of `fsync` while another file is written without pause.

use crate::cost::{Amount, Meter};
use crate::files::{PIECE, SMALL};
use crate::measurement::{Unit, print};
use crate::{Rows, seconds};
use anyhow::{Result, bail};
use millpond_bench::SeededRng;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const ROW: &str = "fsync beside a stream";
/// The size of the stream's file in pieces of 1 MiB. The stream overwrites it, round and round.
const STREAM_PIECES: u64 = 1024;

pub fn run(folder: &Path, rows: &Rows) -> Result<()> {
    if !rows.wants(ROW) {
        return Ok(());
    }
    let time = seconds("BENCH_FSYNC_SECONDS", 10)?;
    let (log_path, stream_path) = (folder.join("log"), folder.join("beside"));
    let (log, stream) = (File::create(&log_path)?, File::create(&stream_path)?);
    let mut rng = SeededRng(3);
    let pieces: Vec<Vec<u8>> = (0..16).map(|_| rng.bytes(PIECE, false)).collect();
    let meter = Meter::start()?;
    let (written, took) = std::thread::scope(|scope| -> Result<_> {
        let writer = scope.spawn(|| write_stream(&stream, &pieces, time));
        let took = append(&log, &pieces[0][..SMALL], time);
        let written = writer
            .join()
            .unwrap_or_else(|_| bail!("the stream panicked"))?;
        Ok((written, took?))
    })?;
    let bytes = written.bytes + took.len() as u64 * SMALL as u64;
    print_percentiles(ROW, took);
    print(
        &format!("{ROW}: the stream"),
        Unit::Megabytes,
        written.bytes as f64 / 1e6 / written.time.as_secs_f64(),
    );
    meter.cost(ROW, Amount::Bytes(bytes))?;
    std::fs::remove_file(log_path)?;
    Ok(std::fs::remove_file(stream_path)?)
}

struct Written {
    bytes: u64,
    time: Duration,
}

/// Writes pieces until the time is over; nothing is synced.
fn write_stream(file: &File, pieces: &[Vec<u8>], time: Duration) -> Result<Written> {
    let (begun, mut count) = (Instant::now(), 0);
    for piece in pieces.iter().cycle() {
        if begun.elapsed() >= time {
            break;
        }
        file.write_all_at(piece, count % STREAM_PIECES * PIECE as u64)?;
        count += 1;
    }
    Ok(Written {
        bytes: count * PIECE as u64,
        time: begun.elapsed(),
    })
}

/// Appends durably until the time is over. Returns the nanoseconds that each write with its `fsync` took.
fn append(file: &File, content: &[u8], time: Duration) -> Result<Vec<u64>> {
    let (begun, mut took) = (Instant::now(), vec![]);
    while begun.elapsed() < time {
        let before = Instant::now();
        file.write_all_at(content, took.len() as u64 * SMALL as u64)?;
        file.sync_all()?;
        took.push(before.elapsed().as_nanos() as u64);
    }
    Ok(took)
}

fn print_percentiles(row: &str, mut took: Vec<u64>) {
    took.sort_unstable();
    for (name, per_mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
        if let Some(latency_ms) = percentile_ms(&took, per_mille) {
            print(&format!("{row}: {name}"), Unit::Milliseconds, latency_ms);
        }
    }
}

/// The smallest latency that this share of all latencies does not exceed, in milliseconds.
pub fn percentile_ms(sorted_ns: &[u64], per_mille: usize) -> Option<f64> {
    let rank = (sorted_ns.len() * per_mille).div_ceil(1000);
    let latency_ns = *sorted_ns.get(rank.checked_sub(1)?)?;
    Some(latency_ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_latencies() {
        let took: Vec<u64> = (1..=1000).map(|ms| ms * 1_000_000).collect();
        let of = |per_mille| percentile_ms(&took, per_mille);
        assert_eq!(
            [of(500), of(990), of(999)],
            [Some(500.0), Some(990.0), Some(999.0)]
        );
        assert_eq!(percentile_ms(&took[..10], 999), Some(10.0));
        assert_eq!(percentile_ms(&took[..1], 500), Some(1.0));
        assert_eq!(percentile_ms(&[], 500), None);
    }
}
