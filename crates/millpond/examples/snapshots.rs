//! Takes a snapshot of a file system, and keeps only the newest few.
//!
//! ```sh
//! cargo run --example snapshots -- /images tank/home 7
//! ```

use millpond::{Error, ErrorKind, OpenOptions, Pool};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [images, dataset, keep] = words.as_slice() else {
        return Err("usage: snapshots DIRECTORY DATASET COUNT".into());
    };
    let name = dataset.split('/').next().unwrap_or(dataset);
    let options = OpenOptions::new().search(images).write(true);
    let pool = options.open(name)?;
    rotate(&pool, dataset, keep.parse()?)?;
    for snapshot in pool.dataset(dataset)?.snapshots()? {
        println!("{}", snapshot.name());
    }
    Ok(pool.export()?)
}

/// Takes the next snapshot `DATASET@auto-N` and destroys all but the newest `keep` of this name.
pub fn rotate(pool: &Pool, dataset: &str, keep: usize) -> Result<(), Error> {
    let number = |name: &str| name.rsplit_once("@auto-")?.1.parse::<u64>().ok();
    let mut numbers: Vec<u64> = pool
        .dataset(dataset)?
        .snapshots()?
        .iter()
        .filter_map(|snapshot| number(snapshot.name()))
        .collect();
    let next = numbers.iter().max().map_or(1, |newest| newest + 1);
    pool.snapshot([format!("{dataset}@auto-{next}").as_str()])?;
    numbers.push(next);
    numbers.sort_unstable();
    for old in &numbers[..numbers.len().saturating_sub(keep)] {
        match pool.destroy(&format!("{dataset}@auto-{old}")) {
            // It has a hold or a clone: it stays.
            Err(error) if error.kind() == ErrorKind::Busy => {}
            outcome => outcome?,
        }
    }
    Ok(())
}
