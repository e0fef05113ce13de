//! A command that needs a daemon while another daemon is still ending.

use rustix::fs::FlockOperation;
use std::fs::{self, File};
use std::process::{Command, Stdio};

#[test]
fn a_daemon_starts_after_the_old_one_releases_its_lock() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    fs::create_dir(&state).expect("the state directory");
    let zpool = folder.path().join("zpool");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_millpond"), &zpool).expect("a link");
    // The lock that a killed daemon keeps until the kernel has ended it.
    let lock = File::create(state.join("lock")).expect("a lock");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    let asked = Command::new(&zpool)
        .arg("list")
        .env("MILLPOND_DIR", &state)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("zpool list");
    let log = state.join("daemon.log");
    while !fs::read_to_string(&log).is_ok_and(|text| text.contains("another daemon")) {
        std::thread::yield_now();
    }
    drop(lock);
    let output = asked.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let process = fs::read_to_string(state.join("lock")).expect("the daemon's process");
    let ended = Command::new("kill").arg(process.trim()).status();
    assert!(ended.is_ok_and(|status| status.success()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said, "no pools available\n");
}
