//! Replays every saved input, and fuzzes briefly without guidance; no fuzzer is needed.
#![forbid(unsafe_code)]

use millpond_fuzz_targets::{TARGETS, Target};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn every_saved_fuzz_input_passes() {
    let mut count = 0;
    for kind in ["corpus", "crashes"] {
        for (name, target) in TARGETS {
            for path in files(&fuzz_folder().join(kind).join(name)) {
                let data = std::fs::read(&path).unwrap();
                println!("{}", path.display());
                target(&data);
                count += 1;
            }
        }
    }
    assert!(count >= TARGETS.len(), "{count} saved inputs only");
}

#[test]
fn every_target_has_a_corpus_and_every_folder_a_target() {
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len(), "two targets of one name");
    let folders = |kind: &str| -> BTreeSet<String> {
        let folders = std::fs::read_dir(fuzz_folder().join(kind))
            .into_iter()
            .flatten()
            .flatten();
        folders
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    assert_eq!(folders("corpus"), names);
    assert!(folders("crashes").is_subset(&names));
}

/// Changes, truncates, repeats and swaps bytes of saved inputs with a fixed seed.
///
/// A fuzzer begins in the same way, but continues with guidance.
#[test]
fn mutations_of_saved_inputs_are_survived() {
    for (number, (name, target)) in TARGETS.iter().enumerate() {
        let seeds: Vec<Vec<u8>> = files(&fuzz_folder().join("corpus").join(name))
            .iter()
            .map(|path| std::fs::read(path).unwrap())
            .collect();
        let mut rng = SeededRng(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
        for round in 0..ROUNDS {
            let mut data = seeds[round % seeds.len()].clone();
            for _ in 0..=rng.below(6) {
                mutate(&mut data, &mut rng);
            }
            survives(&(*name, *target), &data);
        }
    }
}

/// Runs the target.
///
/// An input that it does not survive is printed, so that it can be saved in `fuzz/crashes`.
fn survives((name, target): &Target, data: &[u8]) {
    let outcome = std::panic::catch_unwind(|| target(data));
    if outcome.is_err() {
        let hex: String = data
            .iter()
            .take(4096)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        panic!("{name} does not survive these {} bytes: {hex}", data.len());
    }
}

fn mutate(data: &mut Vec<u8>, rng: &mut SeededRng) {
    if data.is_empty() {
        data.push(rng.below(256) as u8);
        return;
    }
    let at = rng.below(data.len());
    match rng.below(8) {
        0 => data[at] ^= 1 << rng.below(8),
        1 => data[at] = rng.below(256) as u8,
        2 => data[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5)],
        3 => data.truncate(at),
        4 => data.insert(at, rng.below(256) as u8),
        5 => {
            let end = (at + 8).min(data.len());
            let fill = [0, 0xff][rng.below(2)];
            data[at..end].fill(fill);
        }
        6 => {
            let from = rng.below(data.len());
            data.swap(at, from);
        }
        _ => {
            let from = rng.below(data.len());
            let length = rng.below(64).min(data.len() - at).min(data.len() - from);
            data.copy_within(from..from + length, at);
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    paths
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A small seeded generator (xorshift64*), so that failures are reproducible.
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        number as usize % limit
    }
}

const ROUNDS: usize = 2000;
