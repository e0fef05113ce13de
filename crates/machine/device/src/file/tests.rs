use super::*;
use std::io::Write;

const WRITE: OpenOptions = OpenOptions {
    write: true,
    refuse_if_live: false,
};

fn image(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn reads_into_new_and_old_memory_are_equal() {
    let bytes: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
    let file = image(&bytes);
    let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    for (offset, length) in [(0, 0), (0, 100_000), (1, 99_999), (4097, 333), (99_999, 1)] {
        let read = device.read_vec(offset, length).unwrap();
        assert_eq!(read, bytes[offset as usize..][..length]);
    }
    assert!(matches!(
        device.read_vec(99_999, 2),
        Err(DeviceError::OutOfRange { .. })
    ));
    // The file is truncated behind the device.
    file.as_file().set_len(50_000).unwrap();
    assert!(matches!(
        device.read_vec(40_000, 20_000),
        Err(DeviceError::Io { .. })
    ));
}

#[test]
fn a_lock_ends_with_its_device_despite_child_processes() {
    let file = image(&[7; 8192]);
    let device = FileDevice::open(file.path(), WRITE).unwrap();
    // A child process has such a descriptor between fork and exec.
    let shared = device.file.try_clone().unwrap();
    drop(device);
    let again = FileDevice::open(file.path(), WRITE).unwrap();
    assert_eq!(again.lock_state(), LockState::Held);
    drop(shared);
}

#[test]
fn a_file_reads_writes_and_punches_holes_within_its_size() {
    let file = image(&[7; 8192]);
    let device = FileDevice::open(file.path(), WRITE).unwrap();
    assert_eq!((device.size_bytes(), device.sector_bytes()), (8192, 512));
    device.write(4096, &[1, 2, 3]).unwrap();
    device.flush().unwrap();
    let mut buffer = [0; 4];
    device.read(4095, &mut buffer).unwrap();
    assert_eq!(buffer, [7, 1, 2, 3]);
    device.discard(4096, 4096).unwrap();
    device.read(4095, &mut buffer).unwrap();
    // If the file system cannot punch holes, the bytes stay.
    assert!(buffer == [7, 0, 0, 0] || buffer == [7, 1, 2, 3]);
    for offset in [8189, 8192, u64::MAX] {
        assert!(matches!(
            device.read(offset, &mut buffer),
            Err(DeviceError::OutOfRange { .. })
        ));
        assert!(matches!(
            device.write(offset, &buffer),
            Err(DeviceError::OutOfRange { .. })
        ));
    }
    assert_eq!(file.as_file().metadata().unwrap().len(), 8192);
}

#[test]
fn discards_give_space_back_and_nothing_else_changes() {
    let file = image(&[7; 1 << 20]);
    let device = FileDevice::open(file.path(), WRITE).unwrap();
    let blocks = || file.as_file().metadata().unwrap().blocks();
    device.flush().unwrap();
    let before = blocks();
    let support = device.discard_support().unwrap();
    assert!(!support.secure);
    assert!(device.discard_securely(0, 4096).is_err());
    assert_eq!(file.as_file().metadata().unwrap().len(), 1 << 20);
    device.discard(65536, 65536).unwrap();
    assert_eq!(
        before - blocks() > 64,
        support.plain,
        "{before} {}",
        blocks()
    );
    let mut buffer = vec![0; 1 << 20];
    device.read(0, &mut buffer).unwrap();
    let (rest, hole) = (buffer.split_off(131_072), buffer.split_off(65536));
    assert!(buffer.iter().chain(&rest).all(|byte| *byte == 7));
    assert!(!support.plain || hole.iter().all(|byte| *byte == 0));
}

#[test]
fn a_read_only_device_takes_no_writes() {
    let file = image(&[7; 512]);
    let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    assert_eq!(device.write(0, b"a"), Err(DeviceError::ReadOnly));
    assert_eq!(device.discard(0, 1), Err(DeviceError::ReadOnly));
    assert_eq!(device.discard_support(), None);
    assert_eq!(device.flush(), Err(DeviceError::ReadOnly));
}

#[test]
fn one_writer_excludes_others_and_readers_see_its_lock() {
    let file = image(&[0; 512]);
    let writer = FileDevice::open(file.path(), WRITE).unwrap();
    assert_eq!(writer.lock_state(), LockState::Held);
    let own = std::process::id();
    let in_use = |error| match error {
        DeviceError::InUse { process, .. } => process.is_none_or(|id| id == own),
        _ => false,
    };
    assert!(in_use(FileDevice::open(file.path(), WRITE).unwrap_err()));
    let strict = OpenOptions {
        write: false,
        refuse_if_live: true,
    };
    assert!(in_use(FileDevice::open(file.path(), strict).unwrap_err()));
    let reader = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    assert!(matches!(
        reader.lock_state(),
        LockState::HeldElsewhere { .. }
    ));
    drop((writer, reader));
    let readers = [0, 1].map(|_| FileDevice::open(file.path(), strict).unwrap());
    assert!(
        readers
            .iter()
            .all(|reader| reader.lock_state() == LockState::Held)
    );
    assert!(in_use(FileDevice::open(file.path(), WRITE).unwrap_err()));
}

#[test]
fn a_batch_of_reads_fails_only_beyond_the_end() {
    let content: Vec<u8> = (0..=255).collect();
    let file = image(&content);
    let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    let mut buffers = vec![vec![0u8; 16]; 6];
    let offsets = [0u64, 16, 32, 100, 240, 256];
    let mut requests: Vec<_> = buffers
        .iter_mut()
        .zip(offsets)
        .map(|(buffer, offset_bytes)| ReadRequest {
            offset_bytes,
            buffer,
            outcome: Err(DeviceError::ReadOnly),
        })
        .collect();
    device.read_many(&mut requests);
    let outcomes: Vec<_> = requests
        .iter()
        .map(|request| request.outcome.is_ok())
        .collect();
    assert_eq!(outcomes, [true, true, true, true, true, false]);
    for (buffer, offset) in buffers.iter().zip(offsets).take(5) {
        assert_eq!(buffer[..], content[offset as usize..offset as usize + 16]);
    }
}

#[test]
fn a_batch_of_writes_fails_only_beyond_the_end() {
    let file = image(&[0; 4096]);
    let device = FileDevice::open(file.path(), WRITE).unwrap();
    let bytes: Vec<u8> = (1..=160).collect();
    // Two adjacent requests, a single one, then one within the device before one beyond it.
    let offsets = [512u64, 544, 1000, 4064, 4096];
    let mut requests: Vec<_> = offsets
        .iter()
        .zip(bytes.chunks(32))
        .map(|(offset, bytes)| WriteRequest::new(*offset, bytes))
        .collect();
    device.write_many(&mut requests);
    let outcomes: Vec<_> = requests.iter().map(|r| r.outcome.is_ok()).collect();
    assert_eq!(outcomes, [true, true, true, true, false]);
    let mut expected = vec![0; 4096];
    for (offset, bytes) in offsets.iter().zip(bytes.chunks(32)).take(4) {
        expected[*offset as usize..*offset as usize + 32].copy_from_slice(bytes);
    }
    assert_eq!(std::fs::read(file.path()).unwrap(), expected);
    // More adjacent requests than the system accepts buffers in one call.
    let many = vec![7u8; 3000];
    let mut requests: Vec<_> = (0..3000)
        .map(|at| WriteRequest::new(at as u64, &many[at..=at]))
        .collect();
    device.write_many(&mut requests);
    assert!(requests.iter().all(|r| r.outcome.is_ok()));
    assert_eq!(std::fs::read(file.path()).unwrap()[..3000], many);
    let reader = image(&[0; 512]);
    let reader = FileDevice::open(reader.path(), OpenOptions::default()).unwrap();
    let mut requests = [WriteRequest::new(0, b"a"), WriteRequest::new(1, b"b")];
    reader.write_many(&mut requests);
    assert!(
        requests
            .iter()
            .all(|r| r.outcome == Err(DeviceError::ReadOnly))
    );
}

#[test]
fn neighbours_are_found_and_nothing_follows_the_end_of_numbers() {
    let of = |requests: &[(u64, usize)]| adjacent(requests.iter().copied());
    assert_eq!(of(&[(0, 4), (4, 4), (8, 1), (10, 1)]), 3);
    assert_eq!(of(&[(5, 4), (4, 4)]), 1);
    assert_eq!(of(&[(u64::MAX, 4), (3, 4)]), 1);
    assert_eq!(of(&[(0, 0), (0, 4), (u64::MAX, 1)]), 2);
    assert_eq!(of(&vec![(0, 0); RUN_MAX + 5]), RUN_MAX);
}

#[test]
fn only_files_and_block_devices_are_opened() {
    for path in ["/dev/null", "/"] {
        assert!(matches!(
            FileDevice::open(Path::new(path), OpenOptions::default()),
            Err(DeviceError::WrongKind { .. })
        ));
    }
    let DeviceError::Open { errno, .. } =
        FileDevice::open(Path::new("/no/such"), OpenOptions::default()).unwrap_err()
    else {
        panic!("not an open error")
    };
    assert_eq!(errno, Errno::NOENT.raw_os_error());
}

#[test]
fn a_truncated_file_gives_an_error_and_no_stale_bytes() {
    let file = image(&[7; 8192]);
    let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    file.as_file().set_len(4096).unwrap();
    assert!(matches!(
        device.read(4000, &mut [0; 200]),
        Err(DeviceError::Io { action: "read", .. })
    ));
}

#[test]
fn durable_writes_land_where_they_belong_and_nowhere_else() {
    let file = image(&[0; 64 << 10]);
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let device = FileDevice::open(file.path(), options).unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(12 << 10).collect();
    let mut requests = [
        WriteRequest::new(0, &bytes[..4096]),
        WriteRequest::new(4096, &bytes[4096..8192]),
        WriteRequest::new(32 << 10, &bytes[8192..]),
        WriteRequest::new((64 << 10) - 1, &bytes[..2]),
    ];
    device.write_durable(&mut requests);
    let good: Vec<bool> = requests.iter().map(|r| r.outcome.is_ok()).collect();
    assert_eq!(good, [true, true, true, false]);
    let opened = device.durable.get().and_then(Option::as_ref);
    assert!(opened.is_some(), "an opening of its own");
    let mut expected = vec![0; 64 << 10];
    expected[..8192].copy_from_slice(&bytes[..8192]);
    expected[32 << 10..36 << 10].copy_from_slice(&bytes[8192..]);
    assert_eq!(std::fs::read(file.path()).unwrap(), expected);
    assert_eq!(device.write_back_errors(), 0);
    // Only the first opening holds the lock.
    drop(device);
    FileDevice::open(file.path(), options).unwrap();
    let reader = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    let mut requests = [WriteRequest::new(0, b"a")];
    reader.write_durable(&mut requests);
    assert_eq!(requests[0].outcome, Err(DeviceError::ReadOnly));
}

/// A loop device over an image; `None`, with a message, if none can be created.
struct Loop {
    path: PathBuf,
}

impl Loop {
    fn over(image: &Path) -> Option<Self> {
        let made = std::process::Command::new("losetup")
            .args(["--find", "--show"])
            .arg(image)
            .output();
        let path = made
            .ok()
            .filter(|made| made.status.success())
            .map(|made| PathBuf::from(String::from_utf8_lossy(&made.stdout).trim()));
        if path.is_none() {
            println!("no loop device can be made here; passed over");
        }
        Some(Self { path: path? })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup")
            .arg("--detach")
            .arg(&self.path)
            .status();
    }
}

#[test]
fn an_image_used_through_a_loop_device_is_in_use() {
    let file = image(&[7; 1 << 20]);
    let Some(device) = Loop::over(file.path()) else {
        return;
    };
    let through = FileDevice::open(&device.path, WRITE).unwrap();
    let direct = FileDevice::open(file.path(), WRITE);
    assert!(
        matches!(direct, Err(DeviceError::InUse { .. })),
        "{direct:?}"
    );
    let read = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
    assert!(matches!(read.lock_state(), LockState::HeldElsewhere { .. }));
    drop((through, read));
    // And the other way round.
    let direct = FileDevice::open(file.path(), WRITE).unwrap();
    let through = FileDevice::open(&device.path, WRITE);
    assert!(
        matches!(through, Err(DeviceError::InUse { .. })),
        "{through:?}"
    );
    drop(direct);
    // The system uses the loop device, as when it is mounted.
    let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let mut options = std::fs::OpenOptions::new();
    let claimed = options.read(true).custom_flags(flags).open(&device.path);
    let direct = FileDevice::open(file.path(), WRITE);
    assert!(
        matches!(direct, Err(DeviceError::InUse { .. })),
        "{direct:?}"
    );
    drop(claimed);
    FileDevice::open(file.path(), WRITE).unwrap();
}
