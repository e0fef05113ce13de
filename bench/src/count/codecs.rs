//! Benchmarks that operate on blocks of bytes.

use super::{Step, Work};
use anyhow::Context;
use millpond_bench::text_like;
use millpond_checksum::{Checksummer, Salt};
use millpond_compress::{ZstdLevel, compress, decompress};
use millpond_crypt::{CryptSuite, DatasetKey};
use millpond_ondisk::{ChecksumKind, CompressionKind, Endian, Guid};
use std::hint::black_box;

const BLOCK_BYTES: usize = 128 << 10;

pub fn works() -> Vec<Work> {
    let mut works = vec![];
    for (name, times, kind) in [
        ("fletcher2", 64, ChecksumKind::Fletcher2),
        ("fletcher4", 64, ChecksumKind::Fletcher4),
        ("sha256", 8, ChecksumKind::Sha256),
        ("sha512", 8, ChecksumKind::Sha512),
        ("skein", 8, ChecksumKind::Skein),
        ("edonr", 8, ChecksumKind::Edonr),
        ("blake3", 8, ChecksumKind::Blake3),
    ] {
        works.push(Work::new(format!("checksum/{name}"), times, move || {
            let block = text_like(BLOCK_BYTES);
            let salted = Checksummer::new(Some(Salt([7; 32])));
            Ok(Box::new(move |_| {
                black_box(salted.checksum(kind, black_box(&block), Endian::Little)?);
                Ok(())
            }) as Step)
        }));
    }
    for (name, kind) in [
        ("lzjb", CompressionKind::Lzjb),
        ("lz4", CompressionKind::Lz4),
        ("gzip-6", CompressionKind::Gzip(6)),
        ("zstd-3", CompressionKind::Zstd),
    ] {
        works.push(Work::new(format!("compress/{name}"), 4, move || {
            let block = text_like(BLOCK_BYTES);
            Ok(Box::new(move |_| {
                let stored = compress(kind, ZstdLevel::DEFAULT, black_box(&block), BLOCK_BYTES);
                black_box(stored).context("not compressed")?;
                Ok(())
            }))
        }));
        works.push(Work::new(format!("decompress/{name}"), 8, move || {
            let stored = compress(
                kind,
                ZstdLevel::DEFAULT,
                &text_like(BLOCK_BYTES),
                BLOCK_BYTES,
            );
            let stored = stored.context("not compressed")?;
            let mut out = vec![0; BLOCK_BYTES];
            Ok(Box::new(move |_| {
                decompress(kind, black_box(&stored), &mut out)?;
                black_box(&mut out);
                Ok(())
            }))
        }));
    }
    for (name, suite) in [
        ("aes-256-gcm", CryptSuite::Aes256Gcm),
        ("aes-256-ccm", CryptSuite::Aes256Ccm),
    ] {
        let key = move || DatasetKey::new(suite, Guid(1), 1, &[7; 32], &[9; 64]);
        works.push(Work::new(format!("encrypt/{name}"), 4, move || {
            let (key, mut block) = (key()?, text_like(BLOCK_BYTES));
            Ok(Box::new(move |_| {
                black_box(key.encrypt_data([1; 8], [2; 12], black_box(&mut block))?);
                Ok(())
            }))
        }));
        works.push(Work::new(format!("decrypt/{name}"), 4, move || {
            let (key, mut block) = (key()?, text_like(BLOCK_BYTES));
            let mac = key.encrypt_data([1; 8], [2; 12], &mut block)?;
            Ok(Box::new(move |_| {
                let mut copy = block.clone();
                key.decrypt_data([1; 8], [2; 12], mac, black_box(&mut copy))?;
                Ok(())
            }))
        }));
    }
    works.extend(parity());
    works
}

fn parity() -> Vec<Work> {
    let mut works = vec![];
    for (count, name) in [(1, "p"), (2, "pq"), (3, "pqr")] {
        works.push(Work::new(format!("parity/gen_{name}"), 64, move || {
            let block = text_like(BLOCK_BYTES);
            let mut rows = vec![vec![0; BLOCK_BYTES / 8]; count];
            Ok(Box::new(move |_| {
                let columns: Vec<&[u8]> = block.chunks(BLOCK_BYTES / 8).collect();
                let mut rows: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
                millpond_parity::generate(black_box(&columns), &mut rows)?;
                Ok(())
            }))
        }));
    }
    let patterns: [(&str, usize, &[usize], &[usize]); 5] = [
        ("p", 1, &[0], &[]),
        ("q", 2, &[0], &[0]),
        ("r", 3, &[0], &[0, 1]),
        ("pq", 2, &[0, 1], &[]),
        ("pqr", 3, &[0, 1, 2], &[]),
    ];
    for (name, count, data_lost, parity_lost) in patterns {
        works.push(Work::new(format!("parity/rec_{name}"), 32, move || {
            let block = text_like(BLOCK_BYTES);
            let mut rows = vec![vec![0; BLOCK_BYTES / 8]; count];
            let mut data: Vec<Vec<u8>> = block.chunks(BLOCK_BYTES / 8).map(Vec::from).collect();
            Ok(Box::new(move |_| {
                let mut data: Vec<&mut [u8]> = data.iter_mut().map(Vec::as_mut_slice).collect();
                let mut rows: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
                millpond_parity::reconstruct(&mut data, &mut rows, data_lost, parity_lost)?;
                Ok(())
            }))
        }));
    }
    works
}
