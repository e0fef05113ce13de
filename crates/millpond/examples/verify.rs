//! Reads every block of a pool and names the files that are damaged. Shows how far it has come.
//!
//! ```sh
//! cargo run --example verify -- /images tank
//! ```

use millpond::{Error, Pool, Progress, VerifySummary};
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [images, name] = words.as_slice() else {
        return Err("usage: verify DIRECTORY POOL".into());
    };
    let pool = Pool::open(name, [images])?;
    let whole = pool.space()?.allocated_bytes.max(1);
    let progress = Progress::new();
    let seen = Arc::clone(&progress);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            eprintln!("{} %", seen.allocated_bytes() * 100 / whole);
        }
    });
    let summary = verify(&pool, &progress)?;
    println!(
        "{name}: {} blocks, {} problems",
        summary.blocks, summary.problems
    );
    for file in &summary.lost {
        println!("lost: {:?} {:?}", file.dataset, file.path);
    }
    match summary.problems {
        0 => Ok(()),
        _ => Err("the pool is damaged".into()),
    }
}

/// Verifies the pool and prints each problem.
pub fn verify(pool: &Pool, progress: &Progress) -> Result<VerifySummary, Error> {
    pool.verify(progress, &|problem| println!("{problem}"))
}
