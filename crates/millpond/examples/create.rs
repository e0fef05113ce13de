//! Makes a mirrored pool on two new image files, with a compressed file system.
//!
//! ```sh
//! cargo run --example create -- tank a.img b.img
//! ```

use millpond::{Error, Pool, PoolBuilder};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, first, second] = words.as_slice() else {
        return Err("usage: create POOL IMAGE IMAGE".into());
    };
    for image in [first, second] {
        std::fs::File::create_new(image)?.set_len(128 << 20)?;
    }
    let pool = create(name, [Path::new(first), Path::new(second)])?;
    println!("{name}: {} bytes free", pool.space()?.free_bytes);
    Ok(pool.export()?)
}

/// Makes the pool and its file system `POOL/home`.
pub fn create(name: &str, images: [&Path; 2]) -> Result<Pool, Error> {
    let pool = PoolBuilder::new(name)
        .mirror(images)
        .property("autotrim", "on")
        .root_property("atime", "off")
        .create()?;
    let home = pool
        .create_file_system(&format!("{name}/home"))
        .property("compression", "zstd")
        .property("quota", 32 << 20)
        .create()?;
    home.write("README", "This file is compressed and mirrored.\n")?;
    drop(home);
    Ok(pool)
}
