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
    let topology = inner.store().topology();
    let top = topology
        .tree
        .tops()
        .nth(1)
        .context("no second vdev")?
        .1
        .config
        .guid;
    // They stay when the vdev has left the pool.
    let leaves = topology.counters.clone();
    let written = || -> u64 { leaves.iter().map(|leaf| leaf.stats().write_bytes).sum() };
    let before = written();
    let (seconds, ()) = timed(|| {
        inner.remove_data(top)?;
        wait_while(&pool, &|| inner.is_removing())
    })?;
    let moved = (written() - before) as f64 / 1e6;
    rows.add("vdev removed, s", seconds);
    rows.add("vdev removed, MB/s written", moved / seconds);
    rows.add("vdev removed: over plain copy", moved / seconds / plain);
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
    // Rows move only while nobody holds an older tree.
    let top = first_vdev(&pool)?;
    let before = written_bytes(&pool);
    let (seconds, ()) = timed(|| {
        let options = NewVdevOptions::default();
        inner.expand_raidz(top, &open_device(new)?, options, &|_| false)?;
        wait_while(&pool, &|| inner.is_expanding())
    })?;
    let moved = (written_bytes(&pool) - before) as f64 / 1e6;
    rows.add("RAID-Z vdev expanded, s", seconds);
    rows.add("RAID-Z vdev expanded, MB/s written", moved / seconds);
    rows.add(
        "RAID-Z vdev expanded: over plain copy",
        moved / seconds / plain,
    );
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

fn first_vdev(pool: &Pool) -> Result<Guid> {
    let topology = pool.inner().store().topology();
    let first = topology.tree.tops().next();
    Ok(first.context("no vdev")?.1.config.guid)
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
