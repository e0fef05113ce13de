//! Copying out of an untrusted pool: nothing in it grants rights on this host.

use crate::golden::text;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, lsetxattr, makedev, mknodat};
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A capability set as written by `setcap cap_setuid=ep`.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
const CAPABILITY_NAME: &str = "security.capability";

struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    /// A pool with a tree that contains everything that grants rights.
    ///
    /// Returns `None`, with a message, if it cannot be created.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("needs root; passed over");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let stage = Self { folder };
        let tree = stage.path("tree");
        std::fs::create_dir_all(tree.join("folder")).unwrap();
        std::fs::create_dir(stage.path("images")).unwrap();
        for name in ["set-user", "capable", "folder/plain"] {
            std::fs::write(tree.join(name), name).unwrap();
        }
        let mode = |name: &str, mode: u32| {
            std::fs::set_permissions(tree.join(name), PermissionsExt::from_mode(mode)).unwrap();
        };
        mode("set-user", 0o6755);
        mode("folder", 0o2777);
        let none = XattrFlags::empty();
        lsetxattr(tree.join("capable"), CAPABILITY_NAME, &CAPABILITY, none).unwrap();
        let user = lsetxattr(tree.join("capable"), "user.note", b"kept", none);
        user.unwrap();
        let mode = Mode::from_raw_mode(0o666);
        let device = makedev(1, 8);
        mknodat(
            CWD,
            tree.join("device"),
            FileType::CharacterDevice,
            mode,
            device,
        )
        .unwrap();
        std::os::unix::fs::chown(tree.join("folder"), Some(1234), Some(1235)).unwrap();
        let image = stage.path("images/a");
        let made = stage.run(&[
            "mkimage",
            "-n",
            "tank",
            tree.to_str().unwrap(),
            image.to_str().unwrap(),
        ]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        Some(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run<W: AsRef<OsStr>>(&self, words: &[W]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.arg("-d").arg(self.path("images")).args(words);
        command.env_remove("MILLPOND_SEARCH");
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Copies everything and returns the standard error.
    fn copy(&self, options: &[&str], to: &Path) -> String {
        let mut words = vec!["cp", "-r", "-q"];
        words.extend(options);
        words.extend(["tank:/", to.to_str().unwrap()]);
        let output = self.run(&words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    }
}

fn mode(path: PathBuf) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn has_capability(path: PathBuf) -> bool {
    let mut value = vec![0; 64];
    lgetxattr(path, CAPABILITY_NAME, value.as_mut_slice()).is_ok()
}

#[test]
fn a_copy_lends_no_rights_unless_that_is_asked_for() {
    let Some(stage) = Stage::new() else { return };
    let to = stage.path("plain");
    let message = stage.copy(&[], &to);
    assert_eq!(mode(to.join("set-user")), 0o755);
    assert!(!has_capability(to.join("capable")));
    let mut value = vec![0; 16];
    let length = lgetxattr(to.join("capable"), "user.note", value.as_mut_slice()).unwrap();
    assert_eq!(&value[..length], b"kept");
    assert!(!to.join("device").exists());
    // The owner is preserved, and the directory passes on its own group.
    assert_eq!(to.join("folder").metadata().unwrap().uid(), 1234);
    assert_eq!(mode(to.join("folder")), 0o2777);
    for left_out in ["set-user", "capabilities", "device nodes"] {
        assert!(message.contains(left_out), "{left_out}: {message}");
    }
    assert!(message.contains("--trusted"), "{message}");

    let to = stage.path("trusted");
    assert_eq!(stage.copy(&["--trusted"], &to), "");
    assert_eq!(mode(to.join("set-user")), 0o6755);
    assert!(has_capability(to.join("capable")));
    let device = to.join("device").metadata().unwrap();
    assert_eq!(device.rdev(), makedev(1, 8));

    // Without its owner, a file would grant the rights of the user who copied it.
    let to = stage.path("not-owned");
    stage.copy(&["--trusted", "--no-owner"], &to);
    assert_eq!(mode(to.join("set-user")), 0o755);
    assert!(!has_capability(to.join("capable")));
    assert_eq!(to.join("folder").metadata().unwrap().uid(), 0);
}

#[test]
fn a_directory_that_is_there_keeps_its_mode_and_owner() {
    let Some(stage) = Stage::new() else { return };
    let to = stage.path("to");
    std::fs::create_dir_all(to.join("folder")).unwrap();
    for path in [to.clone(), to.join("folder")] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
    }
    for options in [&[][..], &["--trusted"]] {
        stage.copy(options, &to);
        for path in [to.clone(), to.join("folder")] {
            let found = path.metadata().unwrap();
            assert_eq!(
                (found.mode() & 0o7777, found.uid(), found.gid()),
                (0o700, 0, 0)
            );
        }
    }
    assert!(to.join("folder/plain").exists());
}
