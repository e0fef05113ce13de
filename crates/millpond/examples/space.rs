//! Watches the space of pools, and says when one becomes too full.
//!
//! ```sh
//! cargo run --example space -- /images 80
//! ```

use millpond::{Error, OpenOptions};
use std::path::Path;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [images, percent] = words.as_slice() else {
        return Err("usage: space DIRECTORY PERCENT".into());
    };
    loop {
        for line in too_full(Path::new(images), percent.parse()?)? {
            println!("{line}");
        }
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// A line for each pool that is fuller than this, with its largest datasets.
pub fn too_full(images: &Path, percent: u64) -> Result<Vec<String>, Error> {
    let options = OpenOptions::new().search(images);
    let mut lines = vec![];
    for name in options.list() {
        let pool = options.open(&name)?;
        let space = pool.space()?;
        let full = space.allocated_bytes * 100 / space.size_bytes.max(1);
        if full < percent {
            continue;
        }
        let mut used: Vec<(u64, String)> = vec![];
        for dataset in pool.datasets()? {
            let dataset = dataset?;
            let property = dataset.property("usedbydataset")?;
            let bytes = property.and_then(|property| property.value.parse().ok());
            used.push((bytes.unwrap_or(0), dataset.name().to_owned()));
        }
        used.sort_unstable_by(|a, b| b.cmp(a));
        let largest: Vec<String> = used.into_iter().take(3).map(|(_, name)| name).collect();
        lines.push(format!(
            "{name}: {full} % full; largest: {}",
            largest.join(", ")
        ));
    }
    Ok(lines)
}
