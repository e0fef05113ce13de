//! Streams of a plain and of an encrypted file system.

use crate::{CACHE_BYTES, Stage};
use anyhow::Result;
use millpond_bench::files::{read_file, write_file};
use millpond_bench::rows::{Rows, drop_caches, timed};
use millpond_engine::{KeyFormat, OpenOptions, Pool, RootKey, Search, WriteOptions};
use millpond_env::Env;

const KEY: &[u8] = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const NAME: &str = "stream";

pub fn measure(stage: &Stage<'_>, rows: &mut Rows) -> Result<()> {
    let (plain_write, plain_read) = of_one(stage, false)?;
    let (write, read) = of_one(stage, true)?;
    rows.add("stream write, MB/s", plain_write);
    rows.add("encrypted: stream write, MB/s", write);
    rows.add("encrypted: stream write over plain", write / plain_write);
    rows.add("stream read, MB/s", plain_read);
    rows.add("encrypted: stream read, MB/s", read);
    rows.add("encrypted: stream read over plain", read / plain_read);
    Ok(())
}

/// MB/s of a stream written until it is on stable storage, and read after the pool was opened again.
fn of_one(stage: &Stage<'_>, is_encrypted: bool) -> Result<(f64, f64)> {
    let image = stage.image("streams.img", 2)?;
    let mut plan = stage.pool().single(&image);
    if is_encrypted {
        let key = RootKey::derive(&Env::real(), KeyFormat::Hex, "prompt", None, KEY)?;
        plan = plan
            .root_property("encryption", "aes-256-gcm")
            .root_property("keyformat", "hex")
            .root_key(key);
    }
    let pool = plan.create()?;
    let files = pool.file_system("bench")?;
    let megabytes = stage.bytes as f64 / 1e6;
    let (written_s, ()) = timed(|| {
        write_file(&files, NAME, stage.bytes, stage.round)?;
        Ok(pool.sync()?)
    })?;
    drop(files);
    pool.export()?;
    drop_caches();
    let options = OpenOptions {
        cache_bytes: Some(CACHE_BYTES),
        ..OpenOptions::default()
    };
    let search = Search::new([stage.folder]);
    let pool = Pool::open(&search, "bench", &options, &WriteOptions::default())?;
    if is_encrypted {
        pool.committed()?.load_key("bench", KEY)?;
    }
    let node = pool.file_system("bench")?.root()?.lookup(NAME.as_bytes())?;
    let (read_s, bytes) = timed(|| read_file(&node))?;
    anyhow::ensure!(bytes == stage.bytes, "{bytes} bytes were read");
    drop(node);
    pool.export()?;
    std::fs::remove_file(&image)?;
    Ok((megabytes / written_s, megabytes / read_s))
}
