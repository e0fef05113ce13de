//! Throughput of generation and reconstruction in GB/s (10^9 bytes of *data* columns per second). Prints one
//! line `name<TAB>GB/s` each, the best of several rounds on one core.
//!
//! `cargo bench -p millpond-parity`

use std::{hint::black_box, time::Instant};

use millpond_parity::{generate, implementations, reconstruct_with};

const COLUMNS: usize = 8;
/// A 128 KiB block over eight data columns.
const COLUMN_BYTES: usize = 16 << 10;

fn main() {
    let mut data: Vec<Vec<u8>> = (0..COLUMNS)
        .map(|c| (0..COLUMN_BYTES).map(|i| (i * 31 + c * 7) as u8).collect())
        .collect();
    let mut parity = vec![vec![0u8; COLUMN_BYTES]; 3];

    for (count, name) in [(1, "P"), (2, "PQ"), (3, "PQR")] {
        let rate = measure(|| {
            let data: Vec<&[u8]> = data.iter().map(|c| &c[..]).collect();
            let mut sums: Vec<&mut [u8]> = parity[..count].iter_mut().map(|c| &mut c[..]).collect();
            generate(black_box(&data), black_box(&mut sums)).expect("a sound shape");
        });
        println!("generate-{name}\t{rate:.2}");
    }
    for implementation in implementations() {
        for lost in 1..=3usize {
            let missing: Vec<usize> = (0..lost).collect();
            let rate = measure(|| {
                let mut data: Vec<&mut [u8]> = data.iter_mut().map(|c| &mut c[..]).collect();
                let mut sums: Vec<&mut [u8]> = parity.iter_mut().map(|c| &mut c[..]).collect();
                reconstruct_with(
                    implementation,
                    black_box(&mut data),
                    &mut sums,
                    &missing,
                    &[],
                )
                .expect("a bearable loss");
            });
            println!("reconstruct-{lost}-{}\t{rate:.2}", implementation.name());
        }
    }
}

/// The best rate of seven rounds of about 40 ms.
fn measure(mut work: impl FnMut()) -> f64 {
    let bytes = (COLUMNS * COLUMN_BYTES) as f64;
    let start = Instant::now();
    work();
    let once = start.elapsed().as_secs_f64().max(1e-7);
    let times = ((0.04 / once) as usize).max(1);
    (0..7)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..times {
                work();
            }
            bytes * times as f64 / start.elapsed().as_secs_f64() / 1e9
        })
        .fold(0.0, f64::max)
}
