//! A vdev that is removed, and a RAID-Z vdev that is expanded: both move all that is stored.

use crate::Stage;
use anyhow::{Context, Result};
use millpond_bench::files::write_file;
use millpond_bench::plain;
use millpond_bench::rows::{Rows, drop_caches, timed};
use millpond_engine::{Pool, open_device};
use millpond_ondisk::Guid;
use millpond_pool::NewVdevOptions;
use std::path::Path;
use std::time::Duration;

const FILE_BYTES: u64 = 64 << 20;
const REMOVED: [&str; 3] = [
    "vdev removed, s",
    "vdev removed, MB/s written",
    "vdev removed: over plain copy",
];
const EXPANDED: [&str; 3] = [
    "RAID-Z vdev expanded, s",
    "RAID-Z vdev expanded, MB/s written",
    "RAID-Z vdev expanded: over plain copy",
];

pub fn evacuation(stage: &Stage<'_>, rows: &mut Rows) -> Result<()> {
    let images = [stage.image("d0.img", 2)?, stage.image("d1.img", 2)?];
    let plan = images
        .iter()
        .fold(stage.pool(), |plan, image| plan.single(image));
    let pool = plan.create()?;
    write_files(stage, &pool)?;
    let plain = copied(stage, &images[1])?;
    rows.add("plain copy of one image, MB/s", plain);
    let inner = pool.inner();
    let top = vdev(&pool, 1)?;
    // They stay when the vdev has left the pool.
    let leaves = inner.store().topology().counters.clone();
    let written = || -> u64 { leaves.iter().map(|leaf| leaf.stats().write_bytes).sum() };
    let before = written();
    let (seconds, ()) = timed(|| {
        inner.remove_data(top)?;
        wait_while(&pool, &|| inner.is_removing())
    })?;
    let moved = (written() - before) as f64 / 1e6;
    add(rows, REMOVED, seconds, moved / seconds, plain);
    Ok(pool.export()?)
}

pub fn expansion(stage: &Stage<'_>, rows: &mut Rows) -> Result<()> {
    let names = ["r0.img", "r1.img", "r2.img", "r3.img"];
    let images = names.map(|name| stage.image(name, 2));
    let images = images.into_iter().collect::<Result<Vec<_>>>()?;
    let (new, first) = images.split_last().context("no image")?;
    let pool = stage.pool().raidz(1, first).create()?;
    write_files(stage, &pool)?;
    let plain = copied(stage, &images[0])?;
    let inner = pool.inner();
    // An expansion waits for those who hold an older vdev tree. None is kept here.
    let top = vdev(&pool, 0)?;
    let before = written_bytes(&pool);
    let (seconds, ()) = timed(|| {
        let options = NewVdevOptions::default();
        inner.expand_raidz(top, &open_device(new)?, options, &|_| false)?;
        wait_while(&pool, &|| inner.is_expanding())
    })?;
    let moved = (written_bytes(&pool) - before) as f64 / 1e6;
    add(rows, EXPANDED, seconds, moved / seconds, plain);
    Ok(pool.export()?)
}

fn write_files(stage: &Stage<'_>, pool: &Pool) -> Result<()> {
    let files = pool.file_system("bench")?;
    for number in 0..stage.bytes / FILE_BYTES {
        write_file(
            &files,
            &format!("f{number}"),
            FILE_BYTES,
            stage.round << 32 | number,
        )?;
    }
    drop(files);
    Ok(pool.sync()?)
}

/// MB/s of a plain copy of what an image stores.
fn copied(stage: &Stage<'_>, image: &Path) -> Result<f64> {
    drop_caches();
    let copy = stage.folder.join("copy");
    let (seconds, bytes) = timed(|| plain::copy(image, &copy))?;
    std::fs::remove_file(&copy)?;
    drop_caches();
    Ok(bytes as f64 / seconds / 1e6)
}

/// The guid of a top-level vdev.
fn vdev(pool: &Pool, number: usize) -> Result<Guid> {
    let topology = pool.inner().store().topology();
    let found = topology.tree.tops().nth(number);
    Ok(found.context("no such vdev")?.1.config.guid)
}

/// Adds a row for the time, for the speed in MB/s, and for this speed over that of the plain copy.
fn add(rows: &mut Rows, names: [&'static str; 3], seconds: f64, speed: f64, plain: f64) {
    for (name, value) in names.into_iter().zip([seconds, speed, speed / plain]) {
        rows.add(name, value);
    }
}

fn written_bytes(pool: &Pool) -> u64 {
    let topology = pool.inner().store().topology();
    let counters = topology.counters.iter();
    counters.map(|leaf| leaf.stats().write_bytes).sum()
}

fn wait_while(pool: &Pool, is_busy: &dyn Fn() -> bool) -> Result<()> {
    let _ = pool.start_scanner();
    while is_busy() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
