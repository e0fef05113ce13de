//! Memory-mapped files, and mounts that end while programs have changed some.
#![allow(unsafe_code)]

use crate::rig::Rig;
use millpond_fuse::{FuseError, FuseServer, Mount, MountOptions, MountTarget};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A shared mapping of the first bytes of a file.
///
/// The file must not become shorter than the mapping while it exists. These tests use one thread per file.
pub struct Mapping {
    start: *mut c_void,
    length: usize,
}

impl Mapping {
    pub fn new(file: &File, length: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: the kernel chooses an unused address range, and only drop unmaps it.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
        let start = start.unwrap();
        Self { start, length }
    }
    pub fn read(&self, at: usize, count: usize) -> Vec<u8> {
        assert!(at + count <= self.length);
        let mut bytes = vec![0; count];
        // SAFETY: the range is inside the mapping, which is valid; the vector is separate and has the same
        // length.
        unsafe {
            let from = self.start.cast::<u8>().add(at);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), count);
        }
        bytes
    }
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: the range is inside the mapping, which is valid and writable; no other code accesses it.
        unsafe {
            let to = self.start.cast::<u8>().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
    pub fn sync(&self) {
        self.try_sync().unwrap();
    }
    pub fn try_sync(&self) -> Result<(), rustix::io::Errno> {
        // SAFETY: the range is exactly the mapping.
        unsafe { rustix::mm::msync(self.start, self.length, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping, and no references to it exist.
        let _ = unsafe { rustix::mm::munmap(self.start, self.length) };
    }
}

/// The file that the other process maps. A program must not map files that it serves itself.
const FILE: &str = "MILLPOND_CHANGED_FILE";
const BYTES: usize = 64 << 10;
const CHANGED: &[u8] = b"changed in memory";
const CHANGED_AT: usize = 3 * 4096 + 5;

/// Another process that has changed a mapped file and keeps it open. It ends when its input does.
struct Changer(Child);

impl Changer {
    fn begin(rig: &Rig) -> Self {
        fs::write(rig.path("file"), [1; BYTES]).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "mapped::the_process_that_changes"])
            .args(["--ignored", "--nocapture"])
            .env(FILE, rig.path("file"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut changer = Self(child.unwrap());
        let output = BufReader::new(changer.0.stdout.as_mut().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        assert!(lines.any(|line| line.ends_with("it is changed")));
        changer
    }
    fn end(mut self) {
        drop(self.0.stdin.take());
        let mut rest = String::new();
        let mut output = self.0.stdout.take().unwrap();
        output.read_to_string(&mut rest).unwrap();
        assert!(self.0.wait().unwrap().success(), "{rest}");
    }
}

#[test]
#[ignore = "runs in the other process"]
fn the_process_that_changes() {
    let Some(path) = std::env::var_os(FILE).map(PathBuf::from) else {
        return;
    };
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut mapping = Mapping::new(&file, BYTES);
    mapping.write(CHANGED_AT, CHANGED);
    println!("it is changed");
    std::io::stdin().read_to_end(&mut vec![]).unwrap();
}

/// What the files of a rig have, through another mount.
fn has_change(rig: &Rig) -> bool {
    let server = FuseServer::start(2).unwrap();
    let point = tempfile::tempdir().unwrap();
    let target = MountTarget {
        files: Arc::clone(rig.files()) as _,
        source: rig.dataset.clone(),
        mountpoint: point.path().to_owned(),
        root: None,
    };
    let mount: Mount = server.mount(target, &MountOptions::default()).unwrap();
    let bytes = fs::read(point.path().join("file")).unwrap();
    crate::rig::unmount(&mount);
    assert_eq!(bytes.len(), BYTES);
    bytes[CHANGED_AT..].starts_with(CHANGED)
}

#[test]
fn what_programs_changed_in_memory_is_kept_when_they_are_cut_off() {
    let Some(rig) = Rig::new(&[]) else { return };
    let changer = Changer::begin(&rig);
    let busy = rig.mount.unmount(false).unwrap_err();
    assert!(matches!(busy, FuseError::Busy(_)), "{busy}");
    rig.mount.unmount(true).unwrap();
    assert!(!rig.mount.is_alive());
    assert!(has_change(&rig));
    changer.end();
    rig.finish();
}

/// The daemon must be able to end although a pool waits for its devices.
#[test]
fn an_unmount_gives_up_on_files_that_take_no_changes() {
    let Some(mut rig) = Rig::new(&[]) else { return };
    let changer = Changer::begin(&rig);
    // Requests wait until the files are back.
    let suspended = rig.mount.suspend().unwrap().unwrap();
    let late = rig.mount.write_back(Duration::from_millis(50));
    let is_late = matches!(&late, Err(FuseError::WriteBack { error, .. }) if *error == rustix::io::Errno::TIMEDOUT);
    assert!(is_late, "{late:?}");
    rig.resume(suspended, false);
    rig.mount.write_back(Duration::from_secs(600)).unwrap();
    rig.mount.cut_off().unwrap();
    assert!(has_change(&rig));
    changer.end();
    rig.finish();
}
