use super::{DEPTH, Outcome, Transfer, is_permitted, trouble};
use crate::{
    Device, DeviceError, DeviceRead, DirectIo, FileDevice, IoBackend, MemoryDevice, OpenOptions,
    PartitionDevice, ReadRequest, WriteRequest, read_batch,
};
use millpond_env::thread;
use proptest::prelude::*;
use rustix::io::Errno;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;

const SIZE: usize = 1 << 20;

fn image(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// A backend, and whether the page cache is bypassed.
type Way = (IoBackend, DirectIo);

const RING: Way = (IoBackend::Ring, DirectIo::Never);

fn open(file: &tempfile::NamedTempFile, way: Way) -> FileDevice {
    let options = OpenOptions {
        write: true,
        refuse_if_live: false,
    };
    let device = FileDevice::open(file.path(), options).unwrap();
    let device = device.with_backend(way.0).with_direct_io(way.1);
    if way.1 == DirectIo::Always && !device.is_direct() {
        println!("direct I/O is not possible here: the page cache was used");
    }
    device
}

/// The backends that this system supports, through the page cache and past it.
fn ways() -> Vec<Way> {
    let mut backends = vec![IoBackend::Threads, IoBackend::Measured];
    if is_permitted() {
        backends.push(IoBackend::Ring);
    } else {
        println!("io_uring is not permitted here: its way was not tried");
    }
    let both = [DirectIo::Never, DirectIo::Always];
    (backends.into_iter())
        .flat_map(|backend| both.map(|direct| (backend, direct)))
        .collect()
}

fn counting(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// Reads with one call and returns each outcome.
fn read_many(device: &dyn Device, wanted: &[(u64, usize)]) -> Vec<Result<Vec<u8>, DeviceError>> {
    let mut buffers: Vec<Vec<u8>> = wanted.iter().map(|(_, length)| vec![0; *length]).collect();
    let mut requests: Vec<_> = wanted
        .iter()
        .zip(&mut buffers)
        .map(|((offset_bytes, _), buffer)| ReadRequest {
            offset_bytes: *offset_bytes,
            buffer,
            outcome: Err(DeviceError::ReadOnly),
        })
        .collect();
    device.read_many(&mut requests);
    let outcomes: Vec<_> = requests.into_iter().map(|r| r.outcome).collect();
    let pairs = outcomes.into_iter().zip(buffers);
    pairs
        .map(|(outcome, buffer)| outcome.map(|()| buffer))
        .collect()
}

/// Consecutive ranges, each with a gap before it and a length, mostly small. Some exceed the device.
/// All are multiples of `unit`.
fn ranges(unit: usize) -> impl Strategy<Value = Vec<(u64, usize)>> {
    let gap = prop_oneof![3 => Just(0usize), 2 => 1usize..9000];
    let length = prop_oneof![1 => Just(0usize), 12 => 1usize..6000, 1 => 60_000usize..200_000];
    proptest::collection::vec((gap, length), 1..300).prop_map(move |parts| {
        let mut at = 0u64;
        let ranges = parts.into_iter().map(|(gap, length)| {
            let (gap, length) = (gap / unit * unit, length / unit * unit);
            let start = at + gap as u64;
            at = start + length as u64;
            (start, length)
        });
        // A batch may begin anywhere; the end of the device cuts it.
        ranges.collect()
    })
}

fn expected(model: &[u8], offset: u64, length: usize) -> Option<Vec<u8>> {
    let start = usize::try_from(offset).ok()?;
    model
        .get(start..start.checked_add(length)?)
        .map(<[u8]>::to_vec)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_backend_runs_batches_like_an_array(
        (writes, reads, shift) in prop_oneof![Just(1usize), Just(512)].prop_flat_map(|unit| {
            let shift = (0u64..700_000).prop_map(move |shift| shift / unit as u64 * unit as u64);
            (ranges(unit), ranges(unit), shift)
        }),
    ) {
        let source = counting(200_000);
        for way in ways() {
            let file = image(&counting(SIZE));
            let device = open(&file, way);
            let mut model = counting(SIZE);
            let mut requests: Vec<_> = writes
                .iter()
                .map(|(offset, length)| WriteRequest::new(offset + shift, &source[..*length]))
                .collect();
            device.write_many(&mut requests);
            for request in &requests {
                let range = request.offset_bytes as usize
                    ..request.offset_bytes as usize + request.bytes.len();
                if let Some(part) = model.get_mut(range) {
                    part.copy_from_slice(request.bytes);
                    prop_assert_eq!(&request.outcome, &Ok(()));
                } else {
                    let is_refused = matches!(request.outcome, Err(DeviceError::OutOfRange { .. }));
                    prop_assert!(is_refused);
                }
            }
            prop_assert!(std::fs::read(file.path()).unwrap() == model, "{way:?}: the file differs");
            let wanted: Vec<_> = reads.iter().map(|(at, length)| (at + shift, *length)).collect();
            for ((offset, length), outcome) in wanted.iter().zip(read_many(&device, &wanted)) {
                match (expected(&model, *offset, *length), outcome) {
                    (Some(bytes), Ok(read)) => prop_assert!(bytes == read, "{way:?}: {offset}"),
                    (None, Err(DeviceError::OutOfRange { .. })) => {}
                    (_, outcome) => prop_assert!(false, "{:?}", outcome.map(|bytes| bytes.len())),
                }
            }
        }
    }
}

#[test]
fn reads_of_mixed_devices_complete_in_order() {
    for way in ways() {
        let content = [counting(SIZE), counting(SIZE / 2), vec![9; 4096]];
        let files: Vec<_> = content.iter().map(|bytes| image(bytes)).collect();
        let whole = open(&files[0], way);
        let part = PartitionDevice::new(Arc::new(open(&files[1], way)), 5000, 100_000).unwrap();
        let memory = MemoryDevice::new(content[2].clone());
        let mut reads = vec![];
        let mut wanted = vec![];
        for at in 0..100u64 {
            for (device, start, bytes) in [
                (&whole as &dyn Device, 0, &content[0]),
                (&part, 5000, &content[1]),
                (&memory, 0, &content[2]),
            ] {
                let length_bytes = 100 + at as usize * 7;
                let offset_bytes = at * 1001;
                reads.push(DeviceRead {
                    device,
                    offset_bytes,
                    length_bytes,
                });
                let is_within = offset_bytes + length_bytes as u64 <= device.size_bytes();
                let from = start + offset_bytes;
                wanted.push(is_within.then(|| expected(bytes, from, length_bytes).unwrap()));
            }
        }
        let outcomes = read_batch(&reads);
        assert_eq!(outcomes.len(), wanted.len());
        for (outcome, wanted) in outcomes.into_iter().zip(&wanted) {
            match outcome {
                Ok(bytes) => assert!(Some(&*bytes) == wanted.as_deref()),
                Err(error) => {
                    assert!(matches!(error, DeviceError::OutOfRange { .. }), "{error}");
                    assert!(wanted.is_none());
                }
            }
        }
        assert!(wanted.iter().any(Option::is_none));
        assert!(read_batch(&[]).is_empty());
    }
}

#[test]
fn a_file_truncated_during_a_batch_fails_beyond_its_end() {
    for way in ways() {
        let file = image(&counting(SIZE));
        let device = open(&file, way);
        file.as_file().set_len(100_000).unwrap();
        let wanted: Vec<_> = (0..128).map(|at| (at * 8000, 4096)).collect();
        let reads: Vec<_> = wanted
            .iter()
            .map(|(offset_bytes, length_bytes)| DeviceRead {
                device: &device,
                offset_bytes: *offset_bytes,
                length_bytes: *length_bytes,
            })
            .collect();
        let batch = read_batch(&reads).into_iter();
        let batch = batch.map(|outcome| outcome.map(|bytes| bytes.to_vec()));
        for outcomes in [read_many(&device, &wanted), batch.collect()] {
            for ((offset, length), outcome) in wanted.iter().zip(outcomes) {
                if offset + *length as u64 <= 100_000 {
                    let bytes = expected(&counting(SIZE), *offset, *length);
                    assert!(outcome.ok() == bytes);
                } else {
                    assert!(matches!(
                        outcome,
                        Err(DeviceError::Io { action: "read", .. })
                    ));
                }
            }
        }
    }
}

#[test]
fn a_read_only_device_refuses_batched_writes() {
    for way in ways() {
        let file = image(&[7; 8192]);
        let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
        let device = device.with_backend(way.0).with_direct_io(way.1);
        let mut requests = [WriteRequest::new(0, b"a"), WriteRequest::new(4096, b"b")];
        device.write_many(&mut requests);
        for request in requests {
            assert_eq!(request.outcome, Err(DeviceError::ReadOnly));
        }
        assert_eq!(std::fs::read(file.path()).unwrap(), [7; 8192]);
    }
}

#[test]
fn without_io_uring_batches_use_the_thread_backend() {
    let file = image(&counting(SIZE));
    let device = open(&file, RING);
    let wanted: Vec<_> = (0..100).map(|at| (at * 9000, 4096)).collect();
    trouble::refused(|| {
        for ((offset, length), outcome) in wanted.iter().zip(read_many(&device, &wanted)) {
            assert!(outcome.ok() == expected(&counting(SIZE), *offset, *length));
        }
        let reads: Vec<_> = wanted
            .iter()
            .map(|(offset_bytes, length_bytes)| DeviceRead {
                device: &device,
                offset_bytes: *offset_bytes,
                length_bytes: *length_bytes,
            })
            .collect();
        assert!(read_batch(&reads).iter().all(Result::is_ok));
        let mut requests = [WriteRequest::new(0, b"ab"), WriteRequest::new(4096, b"cd")];
        device.write_many(&mut requests);
        assert!(requests.iter().all(|request| request.outcome == Ok(())));
    });
    assert_eq!(std::fs::read(file.path()).unwrap()[4096..4098], *b"cd");
}

/// Offsets and lengths in bytes.
type Reads = Vec<(u64, usize)>;

/// A file, and more reads of it than fit in flight; `None` where there is no ring.
fn several_calls() -> Option<(tempfile::NamedTempFile, FileDevice, Reads)> {
    if !is_permitted() {
        println!("io_uring is not permitted here: not tried");
        return None;
    }
    let file = image(&counting(SIZE));
    let device = open(&file, RING);
    let wanted = (0..DEPTH as u64 * 3).map(|at| (at * 5000, 4096)).collect();
    Some((file, device, wanted))
}

#[test]
fn a_full_kernel_ring_only_costs_speed() {
    let Some((_file, device, wanted)) = several_calls() else {
        return;
    };
    for good in 0..3 {
        trouble::fail_enter(good, false);
        for ((offset, length), outcome) in wanted.iter().zip(read_many(&device, &wanted)) {
            assert!(outcome.ok() == expected(&counting(SIZE), *offset, *length));
        }
        trouble::fail_enter(good, false);
        let bytes = counting(4096 + good as usize);
        let mut requests: Vec<_> = (wanted.iter())
            .map(|(offset, _)| WriteRequest::new(*offset, &bytes[good as usize..]))
            .collect();
        device.write_many(&mut requests);
        assert!(requests.iter().all(|request| request.outcome == Ok(())));
        for outcome in read_many(&device, &wanted) {
            assert!(outcome.unwrap() == bytes[good as usize..]);
        }
        device.write(0, &counting(SIZE)).unwrap();
    }
}

#[test]
fn a_panic_while_operations_are_under_way_waits_for_them() {
    let Some((_file, device, wanted)) = several_calls() else {
        return;
    };
    for good in 0..3 {
        trouble::fail_enter(good, true);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            read_many(&device, &wanted);
        }));
        assert!(outcome.is_err());
        // No completion of the failed batch appears in another batch.
        for ((offset, length), outcome) in wanted.iter().zip(read_many(&device, &wanted)) {
            assert!(outcome.ok() == expected(&counting(SIZE), *offset, *length));
        }
    }
}

#[test]
fn concurrent_batches_each_get_their_own_bytes() {
    if !is_permitted() {
        return println!("io_uring is not permitted here: not tried");
    }
    let content = counting(SIZE);
    let file = image(&content);
    let device = open(&file, RING);
    thread::scope(|scope| {
        for number in 0..24u64 {
            let (device, content) = (&device, &content);
            scope.spawn(move || {
                for round in 0..10 {
                    let wanted: Vec<_> = (0..90)
                        .map(|at| ((at * 11_003 + number * 37 + round * 4099) % 1_000_000, 2000))
                        .collect();
                    for ((offset, length), outcome) in wanted.iter().zip(read_many(device, &wanted))
                    {
                        assert!(outcome.ok() == expected(content, *offset, *length));
                    }
                }
            });
        }
    });
}

#[test]
fn short_transfers_continue_inside_a_piece() {
    let file = image(&[0; 64]);
    let mut memory = [[0u8; 4]; 4];
    let mut transfer = Transfer::default();
    for (piece, offset) in memory.iter_mut().zip([0u64, 4, 8, 40]) {
        transfer.read_over(file.as_file().as_fd(), offset, piece);
    }
    assert_eq!(transfer.operations(), 2);
    assert_eq!(transfer.outcomes(), [Outcome::Again; 4]);
    assert!(transfer.advance(0, 6));
    let stretch = &transfer.stretches[0];
    assert_eq!((stretch.next, stretch.offset_bytes), (1, 6));
    assert_eq!(transfer.pieces[1].length, 2);
    assert!(!transfer.advance(0, 6));
    assert!(transfer.operation(0).is_none());
    // An end of file and an error of a merged range are retried; an error of a single request is final.
    assert!(!transfer.advance(1, 0));
    let done = [Outcome::Done; 3];
    assert_eq!(transfer.outcomes(), [&done[..], &[Outcome::Again]].concat());
    assert!(!transfer.advance(1, -Errno::IO.raw_os_error()));
    let failed = [Outcome::Failed(Errno::IO)];
    assert_eq!(transfer.outcomes(), [&done[..], &failed].concat());
    assert!(!transfer.advance(1, -Errno::AGAIN.raw_os_error()));
    assert_eq!(transfer.outcomes()[3], Outcome::Again);
    assert!(!transfer.advance(7, 5));
}

#[test]
fn adjacent_pieces_merge_up_to_1_mib_and_1000_pieces() {
    let file = image(&[0; 64]);
    let bytes = vec![0u8; 1 << 20];
    let operations = |parts: &[(u64, usize)]| {
        let mut transfer = Transfer::default();
        for (offset, length) in parts {
            transfer.write(file.as_file().as_fd(), *offset, &bytes[..*length]);
        }
        transfer.operations()
    };
    assert_eq!(operations(&[(0, 512), (512, 512), (2000, 10)]), 2);
    assert_eq!(
        operations(&[(0, 1 << 20), (1 << 20, 512), (1_049_088, 3)]),
        2
    );
    assert_eq!(operations(&[(u64::MAX, 4), (3, 4)]), 2);
    let many: Vec<_> = (0..1025).map(|at| (at, 1)).collect();
    assert_eq!(operations(&many), 2);
    let other = image(&[0; 64]);
    let mut transfer = Transfer::default();
    transfer.write(file.as_file().as_fd(), 0, b"ab");
    transfer.write(other.as_file().as_fd(), 2, b"cd");
    assert_eq!(transfer.operations(), 2);
}
