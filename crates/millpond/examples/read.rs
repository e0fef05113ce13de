//! Prints a file of a pool. Nothing is written to the pool's devices.
//!
//! ```sh
//! cargo run --example read -- /images tank/home@monday notes.txt
//! ```

use millpond::{Error, Pool};
use std::io::{Read, Write};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [images, dataset, file] = words.as_slice() else {
        return Err("usage: read DIRECTORY DATASET FILE".into());
    };
    let mut file = open(Path::new(images), dataset, Path::new(file))?;
    let mut piece = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        std::io::stdout().write_all(&piece[..count])?;
    }
}

/// Opens a file in a pool whose devices are in a directory.
pub fn open(images: &Path, dataset: &str, file: &Path) -> Result<millpond::File, Error> {
    let pool = dataset.split(['/', '@']).next().unwrap_or(dataset);
    Pool::open(pool, [images])?.file_system(dataset)?.open(file)
}
