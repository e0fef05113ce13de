//! A very large file on one image, for the programs that measure what happens to it.

use anyhow::{Context, Result};
use millpond_engine::{Pool, PoolBuilder};
use std::fs::File;
use std::path::{Path, PathBuf};

/// What to make: `[--folder FOLDER] [--blocks N] [--record BYTES]`.
#[derive(Debug)]
pub struct LargeFile {
    folder: PathBuf,
    /// The number of its blocks.
    pub blocks: u64,
    /// The size of a block in bytes.
    pub record_bytes: u64,
}

impl LargeFile {
    /// Reads the arguments of the program; `blocks` without one.
    ///
    /// # Errors
    /// For unknown or incomplete arguments.
    pub fn from_arguments(blocks: u64) -> Result<Self> {
        let mut plan = Self {
            folder: std::env::temp_dir(),
            blocks,
            record_bytes: 512,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{argument}: what?"))?;
            match argument.as_str() {
                "--folder" => plan.folder = PathBuf::from(value),
                "--blocks" => plan.blocks = value.parse()?,
                "--record" => plan.record_bytes = value.parse()?,
                _ => anyhow::bail!("unknown argument {argument}"),
            }
        }
        Ok(plan)
    }

    /// A directory that is removed when dropped.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn scratch(&self) -> Result<tempfile::TempDir> {
        Ok(tempfile::tempdir_in(&self.folder)?)
    }

    /// The size of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks * self.record_bytes
    }

    /// A new pool `bench` that has room for the file and `metadata_bytes` for each of its blocks.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn pool(&self, scratch: &Path, metadata_bytes: u64) -> Result<Pool> {
        let image = scratch.join("disk.img");
        let bytes = 2 * self.bytes() + self.blocks * metadata_bytes + (4 << 30);
        File::create(&image)?.set_len(bytes)?;
        let pool = PoolBuilder::new("bench")
            .single(&image)
            .ashift(9)
            .root_property("recordsize", &self.record_bytes.to_string())
            .root_property("compression", "off")
            .create()?;
        Ok(pool)
    }
}

/// Peak memory of the process in MiB, since it was last reset.
///
/// # Errors
/// If the kernel does not tell.
pub fn peak_mib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let words = line.and_then(|line| line.split_whitespace().next());
    let kib = words.context("no VmHWM in /proc/self/status")?;
    Ok(kib.parse::<u64>()? / 1024)
}
