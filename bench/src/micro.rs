//! Measures the codecs once and prints `name<TAB>MB/s` per line; `bench/run` repeats it and takes medians.
//!
//! `micro PREFIX` measures only those whose name starts with PREFIX. `micro device` measures batches of a
//! device instead.
//!
//! Each result is the best of a few tenths of a second on one core, with 128 KiB blocks, as in the rivals'
//! own benchmarks. MB are 10^6 bytes of user data.
#![forbid(unsafe_code)]

use millpond_bench::text_like;
use millpond_checksum::{Checksummer, Salt, checksum};
use millpond_compress::{ZstdLevel, compress, decompress};
use millpond_ondisk::{ChecksumKind, CompressionKind, Endian};
use std::hint::black_box;
use std::time::{Duration, Instant};

mod device;

fn main() -> anyhow::Result<()> {
    if std::env::args().nth(1).as_deref() == Some("device") {
        return device::run();
    }
    let block = text_like(BLOCK_BYTES);
    let mut copied = vec![0; block.len()];
    report("memcpy", block.len(), || {
        copied.copy_from_slice(black_box(&block));
        black_box(&mut copied);
    });
    checksums(&block);
    codecs(&block);
    parity(&block);
    Ok(())
}

fn checksums(block: &[u8]) {
    for (name, kind) in [
        ("fletcher2", ChecksumKind::Fletcher2),
        ("fletcher4", ChecksumKind::Fletcher4),
        ("sha256", ChecksumKind::Sha256),
        ("sha512", ChecksumKind::Sha512),
    ] {
        report(&format!("checksum/{name}"), block.len(), || {
            let _ = black_box(checksum(kind, black_box(block), Endian::Little, None));
        });
    }
    let salted = Checksummer::new(Some(Salt([7; 32])));
    for (name, kind) in [
        ("skein", ChecksumKind::Skein),
        ("edonr", ChecksumKind::Edonr),
        ("blake3", ChecksumKind::Blake3),
    ] {
        report(&format!("checksum/{name}"), block.len(), || {
            let _ = black_box(salted.checksum(kind, black_box(block), Endian::Little));
        });
    }
}

fn codecs(block: &[u8]) {
    for (name, kind) in [
        ("lzjb", CompressionKind::Lzjb),
        ("lz4", CompressionKind::Lz4),
        ("gzip-6", CompressionKind::Gzip(6)),
        ("zstd-3", CompressionKind::Zstd),
    ] {
        report(&format!("compress/{name}"), block.len(), || {
            black_box(compress(
                kind,
                ZstdLevel::DEFAULT,
                black_box(block),
                block.len(),
            ));
        });
        let Some(stored) = compress(kind, ZstdLevel::DEFAULT, block, block.len()) else {
            continue;
        };
        let mut out = vec![0; block.len()];
        report(&format!("decompress/{name}"), block.len(), || {
            let _ = black_box(decompress(kind, black_box(&stored), &mut out));
            black_box(&mut out);
        });
    }
}

/// Eight data columns, the default of `raidz_test -B`.
///
/// Besides the lost data, parity that the name leaves out is missing; it is recomputed too.
fn parity(block: &[u8]) {
    let columns: Vec<&[u8]> = block.chunks(block.len() / 8).collect();
    for (count, name) in [(1, "p"), (2, "pq"), (3, "pqr")] {
        let mut rows = vec![vec![0; block.len() / 8]; count];
        report(&format!("parity/gen_{name}"), block.len(), || {
            let mut rows: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
            let _ = black_box(millpond_parity::generate(black_box(&columns), &mut rows));
            black_box(&mut rows);
        });
    }
    let patterns: [(&str, usize, &[usize], &[usize]); 7] = [
        ("p", 1, &[0], &[]),
        ("q", 2, &[0], &[0]),
        ("r", 3, &[0], &[0, 1]),
        ("pq", 2, &[0, 1], &[]),
        ("pr", 3, &[0, 1], &[1]),
        ("qr", 3, &[0, 1], &[0]),
        ("pqr", 3, &[0, 1, 2], &[]),
    ];
    for (name, count, data_lost, parity_lost) in patterns {
        let mut rows = vec![vec![0; block.len() / 8]; count];
        let mut data: Vec<Vec<u8>> = columns.iter().map(|column| column.to_vec()).collect();
        report(&format!("parity/rec_{name}"), block.len(), || {
            let mut data: Vec<&mut [u8]> = data.iter_mut().map(Vec::as_mut_slice).collect();
            let mut rows: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
            let lost = millpond_parity::reconstruct(&mut data, &mut rows, data_lost, parity_lost);
            let _ = black_box(lost);
            black_box(&mut data);
        });
    }
}

/// Runs the work in batches for a while and prints the best batch.
fn report(name: &str, bytes: usize, mut work: impl FnMut()) {
    if let Some(prefix) = std::env::args().nth(1)
        && !name.starts_with(&prefix)
    {
        return;
    }
    let begun = Instant::now();
    let mut best = f64::MAX;
    while begun.elapsed() < MEASURE {
        let started = Instant::now();
        for _ in 0..BATCH {
            work();
        }
        best = best.min(started.elapsed().as_secs_f64() / f64::from(BATCH));
    }
    println!("{name}\t{:.1}", bytes as f64 / best / 1e6);
}

const BLOCK_BYTES: usize = 128 << 10;
const BATCH: u32 = 16;
const MEASURE: Duration = Duration::from_millis(250);
