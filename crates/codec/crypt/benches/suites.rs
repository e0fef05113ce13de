//! Speed of each suite in both directions on blocks of 128 KiB, of the derivation of a block key (in
//! thousands per second), and of the MAC of an indirect block. Prints one line `name<TAB>MB/s` each.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for people"
)]

use millpond_crypt::{CryptSuite, DatasetKey, indirect_block_mac};
use millpond_ondisk::{Endian, Guid};
use std::time::Instant;

const BLOCK_BYTES: usize = 128 << 10;
const PASS_SECONDS: f64 = 0.5;

fn main() {
    let mut block = vec![7; BLOCK_BYTES];
    for suite in CryptSuite::ALL {
        let master = vec![5; suite.key_bytes()];
        let key = DatasetKey::new(suite, Guid(7), 1, &master, &[6; 64]).unwrap();
        measure(&format!("{}-encrypt", suite.name()), BLOCK_BYTES, || {
            key.encrypt_data([1; 8], [2; 12], &mut block).unwrap();
        });
        let mac = key.encrypt_data([1; 8], [2; 12], &mut block).unwrap();
        let stored = block.clone();
        measure(&format!("{}-decrypt", suite.name()), BLOCK_BYTES, || {
            block.copy_from_slice(&stored);
            key.decrypt_data([1; 8], [2; 12], mac, &mut block).unwrap();
        });
        // With an empty message almost only the derivation remains; each counts as 1000 bytes.
        measure(&format!("{}-kilokeys", suite.name()), 1000, || {
            key.encrypt_data([1; 8], [2; 12], &mut []).unwrap();
        });
    }
    let key = DatasetKey::new(CryptSuite::Aes256Gcm, Guid(7), 1, &[5; 32], &[6; 64]).unwrap();
    measure("authenticate", BLOCK_BYTES, || {
        std::hint::black_box(key.plain_mac(&block));
    });
    measure("indirect-mac", BLOCK_BYTES, || {
        std::hint::black_box(indirect_block_mac(&block, Endian::Little, 1).unwrap());
    });
}

fn measure(name: &str, bytes: usize, mut pass: impl FnMut()) {
    let start = Instant::now();
    let mut passes = 0u32;
    while start.elapsed().as_secs_f64() < PASS_SECONDS {
        pass();
        passes += 1;
    }
    let megabytes = bytes as f64 * f64::from(passes) / 1e6;
    println!("{name}\t{:.0}", megabytes / start.elapsed().as_secs_f64());
}
