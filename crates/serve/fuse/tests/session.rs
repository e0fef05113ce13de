//! Tests a session on a real pool, without a kernel: sends messages and checks the replies.

use millpond_engine::{OpenOptions, Pool, PoolBuilder, Search, Vfs, WriteOptions};
use millpond_fuse::abi::{REPLY_BYTES_MAX, ROOT_NODE, feature, opcode};
use millpond_fuse::session::{Session, WriteBack};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

struct Rig {
    session: Session,
    pool: Pool,
    folder: TempDir,
}

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EPROTO: i32 = 71;
const ESTALE: i32 = 116;

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("disk.img");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(64 << 20)
            .unwrap();
        let pool = PoolBuilder::new("tank").single(&image).create().unwrap();
        let files = pool.served("tank").unwrap();
        let session = Session::new(files as Arc<dyn Vfs>).unwrap();
        Self {
            session,
            pool,
            folder,
        }
    }
    fn begun() -> Self {
        let rig = Self::new();
        let (error, body) = rig.ask(opcode::INIT, 0, &init(7, 45)).unwrap();
        assert_eq!((error, body.len()), (0, 64));
        rig
    }
    /// The error (as a positive number) and the body of a reply; `None` if there is no reply.
    fn ask(&self, opcode: u32, node: u64, body: &[u8]) -> Option<(i32, Vec<u8>)> {
        let message = message(opcode, node, body);
        let mut buffer = vec![0; REPLY_BYTES_MAX];
        let reply = self.session.answer(&message, &mut buffer)?;
        let length = u32::from_ne_bytes(*reply.first_chunk().unwrap());
        assert_eq!(length as usize, reply.len());
        assert_eq!(reply[8..16], 7u64.to_ne_bytes());
        let error = i32::from_ne_bytes(*reply[4..].first_chunk().unwrap());
        Some((-error, reply[16..].to_vec()))
    }
    /// Like [`Rig::ask`], for a request that must succeed.
    fn done(&self, opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let (error, body) = self.ask(opcode, node, body).unwrap();
        assert_eq!(error, 0, "request {opcode}");
        body
    }
    /// The error of a request by a uid other than that of the file's creator.
    fn error_of(&self, user: u32, opcode: u32, node: u64, body: &[u8]) -> i32 {
        let mut message = message(opcode, node, body);
        message[24..28].copy_from_slice(&user.to_ne_bytes());
        let mut buffer = vec![0; REPLY_BYTES_MAX];
        let reply = self.session.answer(&message, &mut buffer).unwrap();
        -i32::from_ne_bytes(*reply[4..].first_chunk().unwrap())
    }
    fn error(&self, opcode: u32, node: u64, body: &[u8]) -> i32 {
        self.ask(opcode, node, body).unwrap().0
    }
    fn create(&self, name: &[u8]) -> u64 {
        let body = [&words(&[0o102, 0o100_644, 0o022, 0])[..], name, b"\0"].concat();
        let reply = self.done(opcode::CREATE, ROOT_NODE, &body);
        assert_eq!(reply.len(), 128 + 16);
        u64::from_ne_bytes(*reply.first_chunk().unwrap())
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
fn init(major: u32, minor: u32) -> Vec<u8> {
    let all = !(feature::NO_OPEN_SUPPORT as u32);
    [words(&[major, minor, 1 << 20, all, u32::MAX]), vec![0; 44]].concat()
}
fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(40 + body.len()).unwrap();
    let mut message = words(&[length, opcode]);
    message.extend(7u64.to_ne_bytes());
    message.extend(node.to_ne_bytes());
    message.extend(words(&[1000, 100, 4242, 0]));
    message.extend(body);
    message
}
fn write(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 8];
    body.extend(offset.to_ne_bytes());
    body.extend(words(&[data.len() as u32, 0, 0, 0, 0, 0]));
    body.extend(data);
    body
}
fn read(offset: u64, length: u32) -> Vec<u8> {
    let mut body = vec![0; 8];
    body.extend(offset.to_ne_bytes());
    body.extend(words(&[length, 0, 0, 0, 0, 0]));
    body
}

#[test]
fn requests_need_an_agreed_protocol_version() {
    let rig = Rig::new();
    assert_eq!(rig.error(opcode::GETATTR, ROOT_NODE, &[0; 16]), EPROTO);
    assert_eq!(rig.error(opcode::INIT, 0, &init(7, 12)), EPROTO);
    assert_eq!(rig.error(opcode::INIT, 0, &init(6, 45)), EPROTO);
    // A newer kernel gets the supported version and sends `INIT` again.
    let reply = rig.done(opcode::INIT, 0, &init(8, 0));
    assert_eq!(reply[..4], 7u32.to_ne_bytes());
    assert_eq!(rig.error(opcode::GETATTR, ROOT_NODE, &[0; 16]), EPROTO);
    rig.done(opcode::INIT, 0, &init(7, 45));
    rig.done(opcode::GETATTR, ROOT_NODE, &[0; 16]);
}

/// `FS_IOC_SETFLAGS`.
fn set_flags(flags: u32) -> Vec<u8> {
    let mut body = vec![0; 12];
    body.extend(words(&[0x4008_6602]));
    body.extend(0u64.to_ne_bytes());
    body.extend(words(&[8, 8, flags, 0]));
    body
}

#[test]
fn flags_that_an_old_kernel_does_not_judge_are_judged_here() {
    const EPERM: i32 = 1;
    const IMMUTABLE: u32 = 0x10;
    const NODUMP: u32 = 0x40;
    let old = Rig::new();
    let mut agreed = init(7, 32);
    let features = u32::from_ne_bytes(*agreed[12..].first_chunk().unwrap());
    let without = features & !(feature::SETXATTR_EXT as u32);
    agreed[12..16].copy_from_slice(&without.to_ne_bytes());
    old.done(opcode::INIT, 0, &agreed);
    let node = old.create(b"note");
    let error = |user, flags| old.error_of(user, opcode::IOCTL, node, &set_flags(flags));
    assert_eq!(error(4711, NODUMP), EPERM);
    assert_eq!(error(1000, NODUMP), 0);
    assert_eq!(error(1000, IMMUTABLE | NODUMP), EPERM);
    assert_eq!(error(0, IMMUTABLE), 0);
    assert_eq!(error(1000, 0), EPERM);
    // A kernel that checks permissions itself only sends permitted requests.
    let new = Rig::begun();
    let node = new.create(b"note");
    let error = |user, flags| new.error_of(user, opcode::IOCTL, node, &set_flags(flags));
    assert_eq!(error(4711, IMMUTABLE), 0);
}

#[test]
fn generations_are_told_in_four_bytes() {
    let rig = Rig::begun();
    let node = rig.create(b"note");
    let mut get_version = vec![0; 12];
    get_version.extend(words(&[0x8008_7601]));
    get_version.extend(0u64.to_ne_bytes());
    get_version.extend(words(&[0, 8]));
    let found = rig.done(opcode::LOOKUP, ROOT_NODE, b"note\0");
    let generation = &found[8..16];
    let reply = rig.done(opcode::IOCTL, node, &get_version);
    assert_eq!(reply.len(), 20);
    assert_eq!(reply[16..], generation[..4]);
    assert_ne!(reply[16..], [0; 4]);
}

#[test]
fn a_file_is_made_written_read_and_found_again() {
    let rig = Rig::begun();
    let node = rig.create(b"note");
    let reply = rig.done(opcode::WRITE, node, &write(3, b"text"));
    assert_eq!(reply[..4], 4u32.to_ne_bytes());
    assert_eq!(rig.done(opcode::READ, node, &read(0, 100)), b"\0\0\0text");
    assert_eq!(rig.done(opcode::READ, node, &read(5, 1)), b"x");
    let found = rig.done(opcode::LOOKUP, ROOT_NODE, b"note\0");
    assert_eq!(found[..8], node.to_ne_bytes());
    // The reply for a missing name says how long the kernel may cache that.
    let absent = rig.done(opcode::LOOKUP, ROOT_NODE, b"nothing\0");
    assert_eq!(absent[..8], [0; 8]);
    assert_ne!(absent[16..24], [0; 8]);
    assert_eq!(rig.error(opcode::UNLINK, ROOT_NODE, b"nothing\0"), ENOENT);
    assert_eq!(rig.error(opcode::FLUSH, node, &[0; 24]), ENOSYS);
}

#[test]
fn o_sync_writes_survive_a_crash() {
    let rig = Rig::begun();
    let node = rig.create(b"note");
    // The first write creates the log's chain and waits for a txg.
    let mut first = write(0, b"first");
    first[32..36].copy_from_slice(&0o4_010_000u32.to_ne_bytes());
    rig.done(opcode::WRITE, node, &first);
    let mut synced = write(5, b" and second");
    synced[32..36].copy_from_slice(&0o10_000u32.to_ne_bytes());
    rig.done(opcode::WRITE, node, &synced);
    // The content of the disk at this moment.
    let crashed = tempfile::tempdir().unwrap();
    let image = "disk.img";
    std::fs::copy(rig.folder.path().join(image), crashed.path().join(image)).unwrap();
    let search = Search::new([crashed.path()]);
    let (open, writing) = (OpenOptions::default(), WriteOptions::default());
    let pool = Pool::open(&search, "tank", &open, &writing).unwrap();
    let files = pool.file_system("tank").unwrap();
    let node = files.root().unwrap().lookup(b"note").unwrap();
    let mut there = [0; 32];
    let count = node.read(0, &mut there).unwrap();
    assert_eq!(&there[..count], b"first and second");
}

#[test]
fn an_unreadable_file_is_logged_once() {
    let rig = Rig::begun();
    let node = rig.create(b"letter");
    let noise: Vec<u8> = (0..100_000u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    rig.done(opcode::WRITE, node, &write(0, &noise));
    rig.pool.sync().unwrap();
    // Change one of these bytes on the disk, wherever they are.
    let spoilt = tempfile::tempdir().unwrap();
    let mut image = std::fs::read(rig.folder.path().join("disk.img")).unwrap();
    let at = image.windows(64).position(|found| found == &noise[..64]);
    image[at.unwrap()] ^= 1;
    std::fs::write(spoilt.path().join("disk.img"), image).unwrap();
    let search = Search::new([spoilt.path()]);
    let (open, writing) = (OpenOptions::default(), WriteOptions::default());
    let pool = Pool::open(&search, "tank", &open, &writing).unwrap();
    let session = Session::new(pool.served("tank").unwrap() as Arc<dyn Vfs>).unwrap();
    let again = Rig {
        session,
        pool,
        folder: spoilt,
    };
    again.done(opcode::INIT, 0, &init(7, 45));
    again.done(opcode::LOOKUP, ROOT_NODE, b"letter\0");
    assert_eq!(again.session.take_troubles(), []);
    for _ in 0..3 {
        assert_eq!(again.error(opcode::READ, node, &read(0, 4096)), EIO);
    }
    // Ordinary errors are not recorded.
    assert_eq!(again.error(opcode::UNLINK, ROOT_NODE, b"nothing\0"), ENOENT);
    let troubles = again.session.take_troubles();
    assert_eq!(troubles.len(), 1, "{troubles:?}");
    assert_eq!(troubles[0].file.0, node);
    assert!(!troubles[0].reason.is_empty());
    assert_eq!(again.session.take_troubles(), []);
}

#[test]
fn an_unlinked_file_lasts_until_its_last_forget() {
    let rig = Rig::begun();
    let node = rig.create(b"note");
    rig.done(opcode::LOOKUP, ROOT_NODE, b"note\0");
    rig.done(opcode::WRITE, node, &write(0, b"text"));
    rig.done(opcode::UNLINK, ROOT_NODE, b"note\0");
    assert_eq!(rig.session.known_files(), 2);
    assert!(rig.ask(opcode::FORGET, node, &1u64.to_ne_bytes()).is_none());
    assert_eq!(rig.done(opcode::READ, node, &read(0, 9)), b"text");
    let pair = [words(&[1, 0]), words(&[node as u32, 0, 1, 0])].concat();
    assert!(rig.ask(opcode::BATCH_FORGET, 0, &pair).is_none());
    assert_eq!(rig.session.known_files(), 1);
    assert_eq!(rig.error(opcode::READ, node, &read(0, 9)), ESTALE);
    // The root is never forgotten.
    assert!(
        rig.ask(opcode::FORGET, ROOT_NODE, &9u64.to_ne_bytes())
            .is_none()
    );
    rig.done(opcode::GETATTR, ROOT_NODE, &[0; 16]);
    rig.session.close();
    rig.pool.export().unwrap();
}

#[test]
fn a_listing_continues_and_returns_each_file_once() {
    let rig = Rig::begun();
    for number in 0..100 {
        rig.create(format!("file {number}").as_bytes());
    }
    let mut names = vec![];
    let mut cookie = 0u64;
    loop {
        let mut body = vec![0; 8];
        body.extend(cookie.to_ne_bytes());
        body.extend(words(&[512, 0, 0, 0, 0, 0]));
        let reply = rig.done(opcode::READDIR, ROOT_NODE, &body);
        assert!(reply.len() <= 512);
        if reply.is_empty() {
            break;
        }
        let mut rest = &reply[..];
        while !rest.is_empty() {
            cookie = u64::from_ne_bytes(*rest[8..].first_chunk().unwrap());
            let length = u32::from_ne_bytes(*rest[16..].first_chunk().unwrap()) as usize;
            names.push(String::from_utf8(rest[24..24 + length].to_vec()).unwrap());
            rest = &rest[(24 + length).next_multiple_of(8)..];
        }
    }
    assert_eq!(names.len(), 102);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 102);
}

#[test]
fn nonsense_is_answered_with_errors_and_the_pool_stays_whole() {
    let rig = Rig::begun();
    let known = rig.create(b"known");
    let mut rng = 0x1234_5678_9abc_def1u64;
    let mut roll = |sides: u64| {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        (rng >> 9) % sides
    };
    let mut buffer = vec![0; REPLY_BYTES_MAX];
    for _ in 0..4000 {
        let opcode = roll(58) as u32;
        // Skip requests that wait for txgs, to save time.
        if matches!(opcode, opcode::FSYNC | opcode::FSYNCDIR | opcode::INIT) {
            continue;
        }
        let node = [ROOT_NODE, known, roll(70), roll(u64::MAX)][roll(4) as usize];
        let length = roll(120) as usize;
        let mut body: Vec<u8> = (0..length).map(|_| roll(5) as u8).collect();
        if roll(3) == 0 {
            body.iter_mut().for_each(|byte| *byte = roll(256) as u8);
        }
        if roll(2) == 0 {
            body.extend(b"known\0other\0");
        }
        let mut message = message(opcode, node, &body);
        if roll(20) == 0 {
            message.truncate(roll(60) as usize);
        }
        if let Some(reply) = rig.session.answer(&message, &mut buffer) {
            assert!(reply.len() >= 16);
        }
    }
    assert_eq!(rig.error(opcode::LOOKUP, ROOT_NODE, b"no end"), EINVAL);
    rig.done(opcode::GETATTR, ROOT_NODE, &[0; 16]);
    rig.session.close();
    rig.pool.export().unwrap();
}

/// A kernel that holds nothing, and says at times that it is busy.
#[derive(Default)]
struct Kernel {
    is_busy: bool,
    asked: Mutex<Option<Range<u64>>>,
}

impl WriteBack for Kernel {
    fn write_back(&self, _: u64, bytes: Range<u64>) -> bool {
        *self.asked.lock().unwrap() = Some(bytes);
        !self.is_busy
    }
}

#[test]
fn holes_are_written_back_before_they_are_reported() {
    const RECORD: u64 = 128 << 10;
    let mut rig = Rig::begun();
    let node = rig.create(b"sparse");
    rig.done(opcode::WRITE, node, &write(RECORD, b"one"));
    rig.done(opcode::WRITE, node, &write(4 * RECORD, b"two"));
    let seek = |rig: &Rig, offset: u64, whence: u32| {
        let body = [&[0; 8], &offset.to_ne_bytes()[..], &words(&[whence, 0])].concat();
        let (error, body) = rig.ask(opcode::LSEEK, node, &body).unwrap();
        body.first_chunk()
            .map_or(Err(error), |at| Ok(u64::from_ne_bytes(*at)))
    };
    const DATA: u32 = 3;
    const HOLE: u32 = 4;
    const ENXIO: i32 = 6;
    let size = 4 * RECORD + 3;
    for is_busy in [false, true] {
        let kernel = Arc::new(Kernel {
            is_busy,
            ..Kernel::default()
        });
        rig.session.set_write_back(Arc::clone(&kernel) as _);
        let ask = |offset, whence| {
            kernel.asked.lock().unwrap().take();
            let found = seek(&rig, offset, whence);
            (found, kernel.asked.lock().unwrap().take())
        };
        let or = |found: u64, all_is_data: u64| Ok(if is_busy { all_is_data } else { found });
        assert_eq!(ask(0, DATA), (or(RECORD, 0), Some(0..RECORD)));
        assert_eq!(ask(RECORD, DATA), (Ok(RECORD), None));
        let hole = 2 * RECORD..4 * RECORD;
        assert_eq!(
            ask(RECORD, HOLE),
            (or(hole.start, size), Some(hole.clone()))
        );
        assert_eq!(ask(4 * RECORD, HOLE), (Ok(size), None));
        assert_eq!(ask(size, DATA), (Err(ENXIO), None));
        assert_eq!(ask(size, HOLE), (Err(ENXIO), None));
    }
    rig.session.close();
    rig.pool.export().unwrap();
}
