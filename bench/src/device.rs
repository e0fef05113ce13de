//! Measures batches of device requests with each backend: ordinary calls and a ring.
//!
//! Uses files of 256 MiB in the system's temporary directory and in `/dev/shm`. Each output line is
//! `device/FOLDER/WHAT/WAY<TAB>thousands of requests per second<TAB>microseconds of CPU time per request`,
//! the best of several rounds with the backends alternating. The CPU time includes the kernel's work for
//! this process.

use anyhow::Context;
use millpond_bench::SeededRng;
use millpond_device::{
    Device, DeviceRead, FileDevice, IoBackend, OpenOptions, ReadRequest, WriteRequest, read_batch,
    ring_is_permitted,
};
use std::path::Path;
use std::time::Instant;

const FILE_BYTES: u64 = 256 << 20;
const PIECE_BYTES: usize = 4096;
const BATCH: usize = 64;
const ROUNDS: usize = 25;

pub(crate) fn run() -> anyhow::Result<()> {
    if !ring_is_permitted() {
        eprintln!("io_uring is not permitted here: nothing to compare");
        return Ok(());
    }
    let disk = std::env::temp_dir();
    for (name, folder) in [("disk", disk.as_path()), ("memory", Path::new("/dev/shm"))] {
        if folder.is_dir() {
            compare(name, folder)?;
        }
    }
    Ok(())
}

/// One measurement.
///
/// It has a name, the number of batches per round, the number of requests per batch, and the batch.
struct Case {
    name: &'static str,
    batches: usize,
    requests: usize,
    is_cold: bool,
    batch: fn(&[FileDevice; 2], &mut SeededRng, &mut [u8]) -> anyhow::Result<()>,
}

const CASES: [Case; 6] = [
    Case {
        name: "read-64",
        batches: 50,
        requests: BATCH,
        is_cold: false,
        batch: read,
    },
    Case {
        name: "read-64-cold",
        batches: 10,
        requests: BATCH,
        is_cold: true,
        batch: read,
    },
    Case {
        name: "across-2",
        batches: 1000,
        requests: 2,
        is_cold: false,
        batch: across::<2, 4096>,
    },
    Case {
        name: "across-8-of-64k-cold",
        batches: 20,
        requests: 8,
        is_cold: true,
        batch: across::<8, 65536>,
    },
    Case {
        name: "across-8-of-64k",
        batches: 50,
        requests: 8,
        is_cold: false,
        batch: across::<8, 65536>,
    },
    Case {
        name: "write-64",
        batches: 20,
        requests: BATCH,
        is_cold: false,
        batch: write,
    },
];

fn compare(name: &str, folder: &Path) -> anyhow::Result<()> {
    let files = [
        tempfile::NamedTempFile::new_in(folder)?,
        tempfile::NamedTempFile::new_in(folder)?,
    ];
    let options = OpenOptions {
        write: true,
        refuse_if_live: false,
    };
    let mut rng = SeededRng(0x2545_f491_4f6c_dd1d);
    let mut memory = vec![7u8; BATCH * PIECE_BYTES];
    for file in &files {
        file.as_file().set_len(FILE_BYTES)?;
        let device = FileDevice::open(file.path(), options)?;
        let mebibyte = vec![7u8; 1 << 20];
        for at in 0..FILE_BYTES >> 20 {
            device.write(at << 20, &mebibyte)?;
        }
        device.flush()?;
    }
    for case in CASES {
        if case.is_cold && name == "memory" {
            continue;
        }
        // The previous case may have dropped the files from the page cache.
        for file in files.iter().filter(|_| !case.is_cold) {
            std::fs::read(file.path())?;
        }
        let mut best = [(0f64, f64::MAX); 2];
        for round in 0..ROUNDS * 2 {
            let (place, way) = match round % 2 {
                0 => (0, IoBackend::Threads),
                _ => (1, IoBackend::Ring),
            };
            let open = |at: usize| -> anyhow::Result<FileDevice> {
                Ok(FileDevice::open(files[at].path(), options)?.with_backend(way))
            };
            let devices = [open(0)?, open(1)?];
            for file in files.iter().filter(|_| case.is_cold) {
                file.as_file().sync_data()?;
                rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
            }
            let (begun, busy) = (Instant::now(), processor_us()?);
            for _ in 0..case.batches {
                (case.batch)(&devices, &mut rng, &mut memory)?;
            }
            let requests = (case.batches * case.requests) as f64;
            let speed = requests / begun.elapsed().as_secs_f64() / 1e3;
            let busy = (processor_us()? - busy) / requests;
            best[place] = (best[place].0.max(speed), best[place].1.min(busy));
        }
        for (way, (speed, busy)) in ["threads", "ring"].into_iter().zip(best) {
            println!("device/{name}/{}/{way}\t{speed:.1}\t{busy:.2}", case.name);
        }
    }
    Ok(())
}

/// CPU time of this process so far, in microseconds.
fn processor_us() -> anyhow::Result<f64> {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let parts = [usage.user_time(), usage.system_time()];
    Ok(parts
        .iter()
        .map(|part| part.tv_sec() as f64 * 1e6 + part.tv_usec() as f64)
        .sum())
}

fn read(devices: &[FileDevice; 2], rng: &mut SeededRng, memory: &mut [u8]) -> anyhow::Result<()> {
    let mut requests: Vec<ReadRequest<'_>> = memory
        .chunks_mut(PIECE_BYTES)
        .zip(offsets(rng, BATCH, PIECE_BYTES as u64))
        .map(|(buffer, offset_bytes)| ReadRequest {
            offset_bytes,
            buffer,
            outcome: Ok(()),
        })
        .collect();
    devices[0].read_many(&mut requests);
    requests
        .into_iter()
        .try_for_each(|request| request.outcome)
        .context("a read failed")
}

fn write(devices: &[FileDevice; 2], rng: &mut SeededRng, memory: &mut [u8]) -> anyhow::Result<()> {
    let mut offsets = offsets(rng, BATCH, PIECE_BYTES as u64);
    offsets.dedup();
    let mut requests: Vec<WriteRequest<'_>> = memory
        .chunks(PIECE_BYTES)
        .zip(offsets)
        .map(|(bytes, offset_bytes)| WriteRequest::new(offset_bytes, bytes))
        .collect();
    devices[0].write_many(&mut requests);
    requests
        .into_iter()
        .try_for_each(|request| request.outcome)
        .context("a write failed")
}

/// `COUNT` reads of `LENGTH` bytes, alternating between both devices, into new memory.
fn across<const COUNT: usize, const LENGTH: usize>(
    devices: &[FileDevice; 2],
    rng: &mut SeededRng,
    _memory: &mut [u8],
) -> anyhow::Result<()> {
    let reads: Vec<DeviceRead<'_>> = devices
        .iter()
        .cycle()
        .zip(offsets(rng, COUNT, LENGTH as u64))
        .map(|(device, offset_bytes)| DeviceRead {
            device,
            offset_bytes,
            length_bytes: LENGTH,
        })
        .collect();
    for outcome in read_batch(&reads) {
        std::hint::black_box(outcome?);
    }
    Ok(())
}

/// Sorted multiples of `unit` within the files.
fn offsets(rng: &mut SeededRng, count: usize, unit: u64) -> Vec<u64> {
    let mut offsets: Vec<u64> = (0..count)
        .map(|_| rng.below(FILE_BYTES / unit) * unit)
        .collect();
    offsets.sort_unstable();
    offsets
}
