//! A directory with the program under its names, and shell commands that find it there.
#![allow(dead_code, reason = "no test uses all of it")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Puts links to the program, one for each of its names, into a directory.
pub fn link_programs(folder: &Path) {
    for name in ["zpool", "zfs", "millpond", "mount.zfs"] {
        symlink(env!("CARGO_BIN_EXE_millpond"), folder.join(name)).expect("a link");
    }
}

/// Runs shell commands with a daemon of its own, whose mounts are real.
pub struct Shell {
    pub folder: tempfile::TempDir,
    /// Seconds after which a request for a device counts as hanging.
    pub deadline: Option<u32>,
}

impl Shell {
    /// Returns `None`, with a message, if nothing can be mounted.
    pub fn new() -> Option<Self> {
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
        if !is_root || !Path::new("/dev/fuse").exists() {
            println!("needs root and /dev/fuse; passed over");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        link_programs(folder.path());
        // Another user accesses it too.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("permissions");
        Some(Self {
            folder,
            deadline: None,
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates an empty image.
    pub fn image(&self, name: &str, mib: u64) {
        let image = std::fs::File::create(self.path(name)).expect("an image");
        image.set_len(mib << 20).expect("its size");
    }

    /// Runs a line, in which `HERE` stands for the directory.
    pub fn run(&self, line: &str) -> Output {
        let line = line.replace("HERE", &self.folder.path().to_string_lossy());
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command
            .args(["-c", &line])
            .env("MILLPOND_DIR", self.path("state"))
            .env("PATH", format!("{}:{path}", self.folder.path().display()));
        if let Some(seconds) = self.deadline {
            command.env("MILLPOND_DEADLINE", seconds.to_string());
        }
        command.output().expect("bash")
    }

    /// Runs a line that must succeed and returns its output.
    pub fn done(&self, line: &str) -> String {
        let output = self.run(line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {text}{error}");
        text
    }
}
