//! Clones of a file, and of one ten times as long.

use crate::Stage;
use anyhow::Result;
use millpond_bench::files::{new_file, write_file};
use millpond_bench::rows::{Rows, timed};
use millpond_engine::Caller;

/// The length of the longer file, in lengths of the other.
const LONGER: u64 = 10;

pub fn measure(stage: &Stage<'_>, rows: &mut Rows) -> Result<()> {
    let image = stage.image("clones.img", LONGER + 1)?;
    let pool = stage.pool().single(&image).create()?;
    let files = pool.file_system("bench")?;
    for (times, row) in [
        (1, "clone of a file, ms"),
        (LONGER, "clone of a longer file, ms"),
    ] {
        let (name, length) = (format!("source-{times}"), stage.bytes * times);
        write_file(&files, &name, length, stage.round << 8 | times)?;
        pool.sync()?;
        let source = files.root()?.lookup(name.as_bytes())?;
        let copy = new_file(&files, &format!("copy-{times}"))?;
        let (seconds, ()) = timed(|| {
            let mut at = 0;
            // One call shares what fits into a txg.
            while at < length {
                let caller = Caller::root();
                let copied = files.copy_range(&caller, (&source, at), (&copy, at), length - at)?;
                anyhow::ensure!(copied > 0, "nothing was copied at {at}");
                at += copied;
            }
            Ok(pool.sync()?)
        })?;
        rows.add(row, seconds * 1e3);
    }
    let clones = pool.committed()?.inner().space()?.clones;
    anyhow::ensure!(clones.entries > 0, "nothing was cloned");
    drop(files);
    Ok(pool.export()?)
}
