//! Throughput of each checksum function in GB/s (10^9 bytes per second) over a 128 KiB block. Prints one line
//! `name<TAB>GB/s` per function, the best of several rounds on one core.
//!
//! `cargo bench -p millpond-checksum`

use std::{hint::black_box, time::Instant};

use millpond_checksum::{
    Checksummer, Salt, fletcher2_by_definition, fletcher4_by_definition, seal_label, verify_label,
};
use millpond_ondisk::{ChecksumKind, Endian};

const BLOCK_BYTES: usize = 128 << 10;

fn main() {
    let mut block: Vec<u8> = (0..BLOCK_BYTES).map(|i| (i * 31 / 7) as u8).collect();
    let pool = Checksummer::new(Some(Salt([5; 32])));
    for kind in ChecksumKind::ALL {
        if pool.checksum(kind, &block, Endian::Little).is_err()
            || matches!(kind, ChecksumKind::Off | ChecksumKind::NoParity)
        {
            continue;
        }
        for endian in [Endian::Little, Endian::Big] {
            let rate = measure(|| {
                let _ = black_box(pool.checksum(kind, black_box(&block), endian));
            });
            let order = if endian == Endian::Little {
                ""
            } else {
                "-big-endian"
            };
            println!("{}{order}\t{rate:.2}", kind.name());
        }
    }
    let rate = measure(|| {
        black_box(fletcher2_by_definition(black_box(&block), Endian::Little));
    });
    println!("fletcher2-by-definition\t{rate:.2}");
    let rate = measure(|| {
        black_box(fletcher4_by_definition(black_box(&block), Endian::Little));
    });
    println!("fletcher4-by-definition\t{rate:.2}");
    // Small blocks and parts, to measure the setup cost.
    for bytes in [64, 512, 4096] {
        let rate = measure_of(bytes, || {
            let part = black_box(&block[..bytes]);
            let _ = black_box(pool.checksum(ChecksumKind::Fletcher4, part, Endian::Little));
        });
        println!("fletcher4-{bytes}-bytes\t{rate:.2}");
    }
    seal_label(&mut block, 0).expect("long enough");
    let rate = measure(|| {
        let _ = black_box(verify_label(black_box(&block), 0));
    });
    println!("label\t{rate:.2}");
}

fn measure(work: impl FnMut()) -> f64 {
    measure_of(BLOCK_BYTES, work)
}

/// The best rate of seven rounds of about 40 ms, with this many bytes per call.
fn measure_of(bytes: usize, mut work: impl FnMut()) -> f64 {
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
            (bytes * times) as f64 / start.elapsed().as_secs_f64() / 1e9
        })
        .fold(0.0, f64::max)
}
