//! Measures features that change how blocks are stored, beside the same work without them.
//!
//! Usage: `features [--rounds N] [--folder FOLDER] [--mib N] [--only copies|clones|streams|evacuation|expansion]`.
//!
//! Each round makes pools of images in `FOLDER` with `--mib` MiB of files (default 1024), and measures in turn: a tree copied
//! twice with and without dedup; the clone of a file, and of one ten times as long; streams of a plain and of an encrypted file
//! system; a vdev that is removed and a RAID-Z vdev that is expanded, beside plain copies of images. A table in Markdown goes
//! to standard output.
#![forbid(unsafe_code)]

mod clones;
mod copies;
mod moves;
mod streams;

use anyhow::{Context, Result};
use millpond_bench::rows::Rows;
use millpond_engine::PoolBuilder;
use std::path::{Path, PathBuf};

/// What is measured in a round.
struct Stage<'a> {
    folder: &'a Path,
    /// Bytes of the files of a pool.
    bytes: u64,
    round: u64,
}

impl Stage<'_> {
    /// A new image, sparse, with room for `times` copies of the files.
    fn image(&self, name: &str, times: u64) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let length = (times + 1) * self.bytes + (1 << 30);
        std::fs::File::create(&path)?.set_len(length)?;
        Ok(path)
    }

    /// A pool `bench` without compression, whose cache holds a fraction of the files.
    fn pool(&self) -> PoolBuilder {
        PoolBuilder::new("bench")
            .cache_bytes(CACHE_BYTES)
            .root_property("compression", "off")
    }
}

const CACHE_BYTES: u64 = 256 << 20;

type Measure = fn(&Stage<'_>, &mut Rows) -> Result<()>;

const MEASURES: [(&str, Measure); 5] = [
    ("copies", copies::measure),
    ("clones", clones::measure),
    ("streams", streams::measure),
    ("evacuation", moves::evacuation),
    ("expansion", moves::expansion),
];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut rounds, mut mib) = (3u64, 1024u64);
    let mut folder = PathBuf::from("target/bench");
    let mut only = None;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().context(argument.clone());
        match argument.as_str() {
            "--rounds" => rounds = value()?.parse()?,
            "--mib" => mib = value()?.parse()?,
            "--folder" => folder = value()?.into(),
            "--only" => only = Some(value()?),
            _ => anyhow::bail!("unknown argument {argument}"),
        }
    }
    let mut rows = Rows::of("features");
    for round in 1..=rounds {
        eprintln!("features: round {round} of {rounds}");
        for (name, measure) in MEASURES {
            if only.as_deref().is_some_and(|only| only != name) {
                continue;
            }
            let scratch = tempfile::tempdir_in(&folder)?;
            let stage = Stage {
                folder: scratch.path(),
                bytes: mib << 20,
                round,
            };
            measure(&stage, &mut rows)?;
        }
    }
    print!("{}", rows.markdown());
    Ok(())
}
