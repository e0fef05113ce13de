//! The pool whose scans are measured.

use anyhow::{Context, Result};
use millpond_bench::SeededRng;
use millpond_bench::files::{new_file, write_file};
use millpond_engine::{
    Caller, OpenOptions, Pool, PoolBuilder, Search, WriteAt, WriteOptions, open_device,
};
use millpond_pool::{AttachKind, NewVdevOptions, ScrubRange};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CACHE_BYTES: u64 = 256 << 20;
const LARGE_BYTES: u64 = 256 << 20;
const SMALL_BYTES: u64 = 16 << 10;
/// One byte of sixteen is in small files.
const SMALL_SHARE: u64 = 16;

pub struct Stage {
    folder: PathBuf,
    pool: Option<Pool>,
    image_bytes: u64,
}

/// How long each request of a program took, in nanoseconds.
#[derive(Default)]
pub struct Times {
    pub reads: Vec<u64>,
    pub syncs: Vec<u64>,
}

impl Stage {
    /// Makes the pool and its files.
    pub fn make(folder: &Path, data_bytes: u64) -> Result<Self> {
        let image_bytes = data_bytes * 2;
        let images = [folder.join("d0.img"), folder.join("d1.img")];
        for image in &images {
            std::fs::File::create(image)?.set_len(image_bytes)?;
        }
        let pool = PoolBuilder::new("bench")
            .cache_bytes(CACHE_BYTES)
            .mirror(&images)
            .root_property("compression", "off")
            .create()?;
        let files = pool.file_system("bench")?;
        let small = data_bytes / SMALL_SHARE / SMALL_BYTES;
        for number in 0..small {
            write_file(&files, &format!("s{number}"), SMALL_BYTES, number)?;
        }
        let large = (data_bytes - data_bytes / SMALL_SHARE) / LARGE_BYTES;
        for number in 0..large {
            write_file(&files, &format!("l{number}"), LARGE_BYTES, 1 << 40 | number)?;
        }
        drop(files);
        pool.sync()?;
        Ok(Self {
            folder: folder.to_owned(),
            pool: Some(pool),
            image_bytes,
        })
    }

    pub fn open(&mut self) -> Result<()> {
        let options = OpenOptions {
            cache_bytes: Some(CACHE_BYTES),
            ..OpenOptions::default()
        };
        let search = Search::new([&self.folder]);
        let pool = Pool::open(&search, "bench", &options, &WriteOptions::default())?;
        self.pool = Some(pool);
        Ok(())
    }

    pub fn close(&mut self) -> Result<()> {
        Ok(self.pool.take().context("closed")?.export()?)
    }

    fn pool(&self) -> Result<&Pool> {
        self.pool.as_ref().context("closed")
    }

    /// Bytes read from and written to the images of these names so far. Of a leaf that left the pool nothing is known.
    fn stats(&self, names: &[&str]) -> Result<(u64, u64)> {
        let topology = self.pool()?.inner().store().topology();
        let mut sums = (0, 0);
        for (leaf, node) in topology.tree.leaves() {
            let path = Path::new(node.config.path.as_deref().unwrap_or_default());
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| names.contains(&name)) {
                let stats = topology.leaf_stats(leaf);
                sums = (sums.0 + stats.read_bytes, sums.1 + stats.write_bytes);
            }
        }
        Ok(sums)
    }

    /// Bytes read from both sides so far.
    pub fn read_bytes(&self) -> Result<u64> {
        Ok(self.stats(&["d0.img", "d1.img"])?.0)
    }

    pub fn begin_scrub(&self) -> Result<()> {
        let pool = self.pool()?;
        pool.inner().start_scrub(ScrubRange::All)?;
        // The thread may run since an earlier scan.
        let _ = pool.start_scanner();
        Ok(())
    }

    pub fn end_scrub(&self) -> Result<()> {
        let inner = self.pool()?.inner();
        while inner.is_scanning() {
            let _ = inner.wait_for_scan(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn has_scanned(&self) -> bool {
        self.pool
            .as_ref()
            .is_none_or(|pool| !pool.inner().is_scanning())
    }

    pub fn scrub(&self) -> Result<()> {
        self.begin_scrub()?;
        self.end_scrub()?;
        let scan = self.pool()?.inner().scan();
        anyhow::ensure!(scan.is_some_and(|(state, _)| state.errors == 0), "errors");
        Ok(())
    }

    /// Replaces a side by a new image, and resilvers it. Returns the bytes read from both sides and written to the new one.
    pub fn replace(&self, old: &Path, new: &Path) -> Result<(u64, u64)> {
        std::fs::File::create(new)?.set_len(self.image_bytes)?;
        let inner = self.pool()?.inner();
        let topology = inner.store().topology();
        // They stay when the old side leaves the pool.
        let sides = topology.counters.clone();
        let read_bytes = || -> u64 { sides.iter().map(|side| side.stats().read_bytes).sum() };
        let before = read_bytes();
        let leaf = topology.tree.leaves().find_map(|(_, node)| {
            let path = node.config.path.as_deref()?;
            (Path::new(path).file_name() == old.file_name()).then_some(node.config.guid)
        });
        let (device, options) = (open_device(new)?, NewVdevOptions::default());
        let kind = AttachKind::Replacement;
        inner.attach_leaf(
            leaf.context("no such leaf")?,
            &device,
            kind,
            options,
            &|_| false,
        )?;
        // What was written in the txgs in which it was attached may need a second resilver.
        while inner.is_scanning() || inner.needs_resilver() {
            let _ = inner.wait_for_scan(Duration::from_millis(20));
        }
        Ok((read_bytes() - before, self.stats(&["d2.img"])?.1))
    }

    /// Reads 4 KiB at random in large files, and writes 4 KiB with `fsync`, in turn.
    pub fn work(&self, at_most: Duration, has_ended: &dyn Fn() -> bool) -> Result<Times> {
        let files = self.pool()?.file_system("bench")?;
        let (caller, root) = (Caller::root(), files.root()?);
        let large = root.lookup(b"l0")?;
        let log = new_file(&files, "log")?;
        let mut rng = SeededRng(11);
        let mut buffer = vec![0; 4096];
        let mut times = Times::default();
        let begun = Instant::now();
        while begun.elapsed() < at_most && !has_ended() {
            for _ in 0..16 {
                let offset = rng.below(LARGE_BYTES / 4096) * 4096;
                let at = Instant::now();
                large.read(offset, &mut buffer)?;
                times.reads.push(u64::try_from(at.elapsed().as_nanos())?);
            }
            let offset = rng.below(1024) * 4096;
            let at = Instant::now();
            files.write(&caller, &log, WriteAt::Offset(offset), &buffer)?;
            files.fsync(&log)?;
            times.syncs.push(u64::try_from(at.elapsed().as_nanos())?);
        }
        Ok(times)
    }
}
