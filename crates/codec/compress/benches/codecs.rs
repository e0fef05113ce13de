//! Speed of each function in both directions. Prints one line `name<TAB>MB/s` each, over the files named on
//! the command line (or this crate's own source, repeated), cut into blocks of 128 KiB.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for people"
)]

use millpond_compress::{ZstdLevel, compress_into, decompress};
use millpond_ondisk::CompressionKind;
use std::time::Instant;

const BLOCK_BYTES: usize = 128 << 10;
const PASS_SECONDS: f64 = 0.5;

fn main() {
    let mut content: Vec<u8> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .flat_map(|path| std::fs::read(path).unwrap())
        .collect();
    if content.is_empty() {
        content = concat!(
            include_str!("../src/tests.rs"),
            include_str!("../src/lzjb.rs")
        )
        .repeat(64)
        .into_bytes();
    }
    let blocks: Vec<&[u8]> = content.chunks(BLOCK_BYTES).collect();
    let zstd = |name, level| (name, CompressionKind::Zstd, level);
    let plain = |name, kind| (name, kind, ZstdLevel::DEFAULT);
    for (name, kind, level) in [
        plain("lzjb", CompressionKind::Lzjb),
        plain("zle", CompressionKind::Zle),
        plain("gzip-1", CompressionKind::Gzip(1)),
        plain("gzip-6", CompressionKind::Gzip(6)),
        plain("lz4", CompressionKind::Lz4),
        zstd("zstd-1", ZstdLevel::standard(1).unwrap()),
        zstd("zstd-3", ZstdLevel::DEFAULT),
        zstd("zstd-9", ZstdLevel::standard(9).unwrap()),
        zstd("zstd-fast-10", ZstdLevel::fast(10).unwrap()),
    ] {
        let mut scratch = vec![0; BLOCK_BYTES * 2];
        let encoded: Vec<Vec<u8>> = blocks
            .iter()
            .map(|block| {
                let length = compress_into(kind, level, block, &mut scratch).unwrap();
                scratch.get(..length).unwrap().to_vec()
            })
            .collect();
        measure(&format!("{name}-compress"), content.len(), || {
            for block in &blocks {
                compress_into(kind, level, block, &mut scratch).unwrap();
            }
        });
        measure(&format!("{name}-decompress"), content.len(), || {
            for (block, stored) in blocks.iter().zip(&encoded) {
                let back = scratch.get_mut(..block.len()).unwrap();
                decompress(kind, stored, back).unwrap();
            }
        });
    }
}

fn measure(name: &str, bytes: usize, mut pass: impl FnMut()) {
    let start = Instant::now();
    let mut passes = 0u32;
    while start.elapsed().as_secs_f64() < PASS_SECONDS {
        pass();
        passes += 1;
    }
    let megabytes = bytes as f64 * f64::from(passes) / 1e6;
    println!("{name}\t{:.0}", megabytes / start.elapsed().as_secs_f64());
}
