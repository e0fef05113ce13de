//! Changes of a pool in which an older copy takes the place of a disk without redundancy.

use std::path::Path;
use std::process::{Command, Output};

fn run(folder: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command.arg("-d").arg(folder).args(line.split_whitespace());
    command.env_remove("MILLPOND_SEARCH").output().unwrap()
}

fn done(folder: &Path, line: &str) {
    let output = run(folder, line);
    assert!(output.status.success(), "{line}: {output:?}");
}

fn refused(folder: &Path, line: &str) {
    let output = run(folder, line);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{line}: {output:?}");
    assert!(error.contains("b ended at txg "), "{line}: {error}");
}

#[test]
fn an_older_copy_is_not_written_to_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let away = tempfile::tempdir().unwrap();
    let path = |name: &str| at.join(name);
    for name in ["a", "b"] {
        let image = std::fs::File::create(path(name)).unwrap();
        image.set_len(100 << 20).unwrap();
    }
    let [a, b] = ["a", "b"].map(|name| path(name).display().to_string());
    done(at, &format!("zpool create -m none tank {a} {b}"));
    let copy = away.path().join("b");
    std::fs::copy(path("b"), &copy).unwrap();
    for number in 0..3 {
        done(at, &format!("zfs snapshot tank@{number}"));
    }
    std::fs::copy(&copy, path("b")).unwrap();
    refused(at, "zfs snapshot tank@later");
    refused(at, "mkdir tank:/folder");
    // Nothing was written, and reading is possible.
    done(at, "zfs list -t snapshot tank@2");
    refused(at, "mkdir tank:/folder");
    done(at, "mkdir --force-import tank:/folder");
}
