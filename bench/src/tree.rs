//! Creates a tree of files to copy: `tree FOLDER [SMALL_FILES] [LARGE_FILES]`.
//!
//! The small files (20,000 by default) have 1 to 32 KiB, a hundred in each directory; the large ones (8)
//! have 64 MiB. Every second file contains words that compress to about half, the others are
//! incompressible. The same call creates the same tree.
#![forbid(unsafe_code)]

use anyhow::Context;
use millpond_bench::SeededRng;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(
        arguments
            .next()
            .context("usage: tree FOLDER [SMALL] [LARGE]")?,
    );
    let small: u64 = arguments.next().map_or(Ok(20_000), |text| text.parse())?;
    let large: u64 = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let mut rng = SeededRng(0x2545_f491_4f6c_dd1d);
    for number in 0..small {
        let place = folder.join(format!("small/{:03}", number / 100));
        if number % 100 == 0 {
            fs::create_dir_all(&place)?;
        }
        let length = 1024 + rng.roll() % (31 << 10);
        fs::write(
            place.join(format!("file-{number:06}")),
            content(number, length, &mut rng),
        )?;
    }
    fs::create_dir_all(folder.join("large"))?;
    for number in 0..large {
        let mut file = fs::File::create(folder.join(format!("large/file-{number}")))?;
        for _ in 0..64 {
            file.write_all(&content(number, 1 << 20, &mut rng))?;
        }
    }
    Ok(())
}

fn content(number: u64, length: u64, rng: &mut SeededRng) -> Vec<u8> {
    let length = length as usize;
    let mut bytes = Vec::with_capacity(length + 16);
    while bytes.len() < length {
        let word = rng.roll();
        if number.is_multiple_of(2) {
            bytes.extend_from_slice(WORDS[word as usize % WORDS.len()]);
            bytes.extend_from_slice(format!("{:x}", word >> 52).as_bytes());
        } else {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes.truncate(length);
    bytes
}

const WORDS: [&[u8]; 8] = [
    b"pool ",
    b"dataset ",
    b"let mut ",
    b"\n    ",
    b"return ",
    b"snapshot",
    b"0x",
    b"block pointer ",
];
