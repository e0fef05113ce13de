//! Changes one file in every possible way and compares it with a copy in memory.

use crate::mapped::Mapping;
use crate::rig::{Rig, is_full, seed};
use millpond_sim::Seed;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
use std::path::Path;

const LENGTH_MAX: u64 = 1 << 20;

struct Exerciser {
    file: File,
    direct: File,
    path: std::path::PathBuf,
    model: Vec<u8>,
    rng: Seed,
    log: Vec<String>,
}

impl Exerciser {
    fn new(path: &Path, seed: u64) -> Self {
        let (file, direct) = open(path);
        Self {
            file,
            direct,
            path: path.to_owned(),
            model: vec![],
            rng: Seed::new(seed),
            log: vec![],
        }
    }
    fn range(&mut self, end_max: u64, is_aligned: bool) -> (u64, usize) {
        let longest = match self.rng.below(4) {
            0 => 200_000,
            1 => 64,
            _ => 20_000,
        };
        let mut at = self.rng.below(end_max.max(1));
        let mut count = 1 + self.rng.below(longest);
        if is_aligned {
            at -= at % 512;
            count = count.next_multiple_of(512);
        }
        (at, count.min(end_max.saturating_sub(at)) as usize)
    }
    fn store(&mut self, at: u64, bytes: &[u8]) {
        let (at, end) = (at as usize, at as usize + bytes.len());
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at..end].copy_from_slice(bytes);
    }

    fn step(&mut self) {
        let size = self.model.len() as u64;
        match self.rng.below(20) {
            0..=3 => {
                let (at, count) = self.range(LENGTH_MAX, false);
                self.log.push(format!("write {at} {count}"));
                let bytes = self.rng.bytes(count);
                write_all(&self.file, &bytes, at);
                self.store(at, &bytes);
            }
            4..=5 => {
                let (at, count) = self.range(LENGTH_MAX, true);
                self.log.push(format!("direct write {at} {count}"));
                let bytes = self.rng.bytes(count);
                write_all(&self.direct, &bytes, at);
                self.store(at, &bytes);
            }
            6..=7 if size > 0 => {
                let (at, count) = self.range(size, false);
                self.log.push(format!("mapped write {at} {count}"));
                let bytes = self.rng.bytes(count);
                let mut mapping = Mapping::new(&self.file, self.model.len());
                mapping.write(at as usize, &bytes);
                if self.rng.below(3) == 0 {
                    mapping.sync();
                }
                drop(mapping);
                self.store(at, &bytes);
            }
            8..=9 => {
                let (at, count) = self.range(LENGTH_MAX, false);
                self.log.push(format!("read {at} {count}"));
                let bytes = read(&self.file, at, count);
                self.compare(at, &bytes, count, "read");
            }
            10 => {
                let (at, count) = self.range(LENGTH_MAX, true);
                self.log.push(format!("direct read {at} {count}"));
                let bytes = read(&self.direct, at, count);
                self.compare(at, &bytes, count, "direct read");
            }
            11..=12 if size > 0 => {
                let (at, count) = self.range(size, false);
                self.log.push(format!("mapped read {at} {count}"));
                let bytes = Mapping::new(&self.file, self.model.len()).read(at as usize, count);
                self.compare(at, &bytes, count, "mapped read");
            }
            13 => {
                let size = self.rng.below(LENGTH_MAX);
                self.log.push(format!("length {size}"));
                self.file.set_len(size).unwrap();
                self.model.resize(size as usize, 0);
            }
            14 => {
                let (at, count) = self.range(LENGTH_MAX, false);
                self.log.push(format!("hole {at} {count}"));
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, at, count.max(1) as u64).unwrap();
                let end = (at as usize + count.max(1)).min(self.model.len());
                if (at as usize) < end {
                    self.model[at as usize..end].fill(0);
                }
            }
            15 => {
                let (at, count) = self.range(LENGTH_MAX, false);
                self.log.push(format!("zeros {at} {count}"));
                let flags = FallocateFlags::ZERO_RANGE;
                rustix::fs::fallocate(&self.file, flags, at, count.max(1) as u64).unwrap();
                self.store(at, &vec![0; count.max(1)]);
            }
            16 if size > 0 => {
                let (from, count) = self.range(size, false);
                let to = self.rng.below(LENGTH_MAX - count as u64);
                if from.abs_diff(to) < count as u64 {
                    return;
                }
                self.log.push(format!("copy {from} {count} to {to}"));
                self.copy(from, to, count);
            }
            17 => {
                self.log.push("fsync".to_owned());
                self.file.sync_all().unwrap();
            }
            18 => {
                self.log.push("open again".to_owned());
                (self.file, self.direct) = open(&self.path);
            }
            _ => {
                let length = self.file.metadata().unwrap().len();
                assert_eq!(length, size, "length\n{}", self.log.join("\n"));
                self.seek();
            }
        }
    }

    fn copy(&mut self, from: u64, to: u64, count: usize) {
        let (mut from_at, mut to_at) = (from, to);
        let mut left = count;
        while left > 0 {
            let (one, other) = (Some(&mut from_at), Some(&mut to_at));
            let done = rustix::fs::copy_file_range(&self.file, one, &self.file, other, left);
            let done = done.unwrap();
            assert!(done > 0, "nothing was copied\n{}", self.log.join("\n"));
            left -= done;
        }
        let bytes = self.model[from as usize..from as usize + count].to_vec();
        self.store(to, &bytes);
    }

    /// A reported hole contains only zeros.
    fn seek(&mut self) {
        let size = self.model.len() as u64;
        let mut at = 0;
        while at < size {
            let data = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => size,
                Err(error) => panic!("seek: {error}"),
            };
            let hole = &self.model[at as usize..data as usize];
            assert!(hole.iter().all(|byte| *byte == 0), "a hole with data");
            if data == size {
                return;
            }
            at = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(data)).unwrap();
            assert!(at > data && at <= size);
        }
    }

    fn compare(&self, at: u64, found: &[u8], asked: usize, what: &str) {
        let at = (at as usize).min(self.model.len());
        let end = (at + asked).min(self.model.len());
        let expected = &self.model[at..end];
        if found == expected {
            return;
        }
        let first = found.iter().zip(expected).position(|(a, b)| a != b);
        panic!(
            "{what} at {at}: {} bytes instead of {}, first difference {first:?}\n{}",
            found.len(),
            expected.len(),
            self.log.join("\n")
        );
    }
}

fn open(path: &Path) -> (File, File) {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let open = |flags| File::from(rustix::fs::open(path, flags, Mode::from(0o644)).unwrap());
    (open(flags), open(flags | OFlags::DIRECT))
}
fn write_all(file: &File, bytes: &[u8], at: u64) {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at).unwrap();
}
fn read(file: &File, at: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut done = 0;
    while done < count {
        let more = std::os::unix::fs::FileExt::read_at(file, &mut bytes[done..], at + done as u64);
        match more.unwrap() {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    bytes
}

/// Parameters of the exercising process.
///
/// These are the file, the seed, the steps, and where to write the copy in memory.
const FILE: &str = "MILLPOND_MOUNT_FILE";
const STEPS: &str = "MILLPOND_MOUNT_STEPS";
const MODEL: &str = "MILLPOND_MOUNT_MODEL";

/// The process that maps a file must not be the one that serves it.
///
/// Unmapping waits until dirty pages are written, and holds the lock that the serving threads need to
/// allocate memory.
#[test]
fn the_process_that_exercises() {
    let variable = |name: &str| std::env::var(name).ok();
    let (Some(path), Some(steps), Some(model)) = (variable(FILE), variable(STEPS), variable(MODEL))
    else {
        return;
    };
    let steps: u64 = steps.parse().unwrap();
    let mut exerciser = Exerciser::new(Path::new(&path), seed());
    for _ in 0..steps {
        exerciser.step();
    }
    exerciser.file.sync_all().unwrap();
    let whole = exerciser.model.len();
    let bytes = read(&exerciser.file, 0, whole);
    exerciser.compare(0, &bytes, whole, "at the end");
    std::fs::write(model, &exerciser.model).unwrap();
}

#[test]
fn a_mounted_file_matches_its_model_after_random_changes() {
    let seed = seed();
    let shapes: &[&[(&str, &str)]] = match is_full() {
        true => &[
            &[],
            &[("recordsize", "8192"), ("compression", "zstd")],
            &[("recordsize", "1048576")],
        ],
        false => &[&[("recordsize", "16384")]],
    };
    for properties in shapes {
        // Otherwise direct I/O must be aligned to pages.
        let properties = [properties, [("direct", "disabled")].as_slice()].concat();
        let Some(rig) = Rig::new(&properties) else {
            return;
        };
        let asked = std::env::var("MILLPOND_MOUNT_FSX").ok();
        let steps = if is_full() { 10_000 } else { 400 };
        let steps = asked.map_or(steps, |asked| asked.parse().unwrap());
        let path = rig.path("file");
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fsx::the_process_that_exercises", "--nocapture"])
            .env("MILLPOND_MOUNT_SEED", seed.to_string())
            .env(FILE, &path)
            .env(STEPS, steps.to_string())
            .env(MODEL, &model)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{properties:?}\n{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        // The kernel's cache of the file is dropped, so that the bytes come from the file system.
        rig.mount.invalidate_all().unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&model).unwrap());
        rig.finish();
    }
}

#[test]
fn direct_io_is_aligned_to_pages_where_the_property_says_so() {
    use std::os::unix::fs::FileExt;
    let written = |file: &File, at: u64, count: usize| file.write_at(&vec![1; count], at);
    for (direct, demands) in [("standard", true), ("always", false), ("disabled", false)] {
        let Some(rig) = Rig::new(&[("direct", direct)]) else {
            return;
        };
        let (buffered, unbuffered) = open(&rig.path("file"));
        assert_eq!(written(&buffered, 100, 700).unwrap(), 700);
        assert_eq!(written(&unbuffered, 4096, 8192).unwrap(), 8192);
        for (at, count) in [(512, 4096), (4096, 512)] {
            let refused = written(&unbuffered, at, count).is_err();
            assert_eq!(refused, demands, "{direct} {at} {count}");
            let mut bytes = vec![0; count];
            let refused = unbuffered.read_at(&mut bytes, at).is_err();
            assert_eq!(refused, demands, "{direct} {at} {count}");
        }
        drop((buffered, unbuffered));
        rig.finish();
    }
}
