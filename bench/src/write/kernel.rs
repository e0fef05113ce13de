//! File systems of the kernel on loop devices over image files.

use super::engine::images;
use super::work::{Contender, Subject};
use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Kernel {
    which: Contender,
    folder: PathBuf,
    loops: Vec<String>,
    mount: PathBuf,
    options: String,
    open: Option<File>,
}

/// Checks whether this machine supports the contender.
pub fn check(which: Contender) -> Result<()> {
    let program = program(which);
    Command::new(program)
        .arg("-V")
        .output()
        .with_context(|| format!("{program} cannot be run"))?;
    run("losetup", &["-f"]).context("no loop device")?;
    Ok(())
}

fn program(which: Contender) -> &'static str {
    match which {
        Contender::Btrfs => "mkfs.btrfs",
        _ => "mkfs.xfs",
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {error}", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Kernel {
    pub fn make(which: Contender, scratch: &Path, compressed: bool) -> Result<Self> {
        let folder = scratch.join("kernel");
        let count = if which == Contender::Btrfs { 2 } else { 1 };
        let images = images(&folder, count)?;
        let mount = folder.join("mnt");
        std::fs::create_dir_all(&mount)?;
        let mut kernel = Self {
            which,
            folder,
            loops: vec![],
            mount,
            options: if compressed {
                "compress=lzo"
            } else {
                "defaults"
            }
            .to_owned(),
            open: None,
        };
        // From here on a failure removes what was set up.
        for image in &images {
            let image = image.to_str().context("folder's name")?;
            kernel.loops.push(run("losetup", &["-f", "--show", image])?);
        }
        let devices: Vec<&str> = kernel.loops.iter().map(String::as_str).collect();
        let mut arguments = match which {
            Contender::Btrfs => vec!["-q", "-f", "-d", "raid1", "-m", "raid1"],
            _ => vec!["-q", "-f"],
        };
        arguments.extend(devices);
        run(program(which), &arguments)?;
        kernel.mount()?;
        Ok(kernel)
    }

    fn mount(&self) -> Result<()> {
        let kind = if self.which == Contender::Btrfs {
            "btrfs"
        } else {
            "xfs"
        };
        let device = self.loops.first().context("no device")?;
        let mount = self.mount.to_str().context("folder's name")?;
        run("mount", &["-t", kind, "-o", &self.options, device, mount])?;
        Ok(())
    }
    fn unmount(&mut self) -> Result<()> {
        self.open = None;
        run("umount", &[self.mount.to_str().context("folder's name")?])?;
        Ok(())
    }
    fn file(&self) -> Result<&File> {
        self.open.as_ref().context("no file is open")
    }
    fn path(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.unmount();
        for device in &self.loops {
            let _ = run("losetup", &["-d", device]);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Subject for Kernel {
    fn open(&mut self, name: &str, _: bool) -> Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        self.open = Some(options.open(self.path(name))?);
        Ok(())
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.file()?.write_all_at(bytes, offset)?)
    }
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(self.file()?.read_exact_at(bytes, offset)?)
    }
    fn create(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(self.path(name))?;
        Ok(file.write_all_at(content, 0)?)
    }
    fn stat(&mut self, name: &str) -> Result<u64> {
        Ok(std::fs::metadata(self.path(name))?.len())
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        Ok(std::fs::rename(self.path(from), self.path(to))?)
    }
    fn unlink(&mut self, name: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.path(name))?)
    }
    fn snapshot(&mut self, name: &str) -> Result<bool> {
        if self.which != Contender::Btrfs {
            return Ok(false);
        }
        let (from, to) = (self.mount.clone(), self.path(name));
        let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
        run("btrfs", &["subvolume", "snapshot", "-r", &from, &to])?;
        self.sync()?;
        Ok(true)
    }
    fn sync(&mut self) -> Result<()> {
        run(
            "sync",
            &["-f", self.mount.to_str().context("folder's name")?],
        )?;
        Ok(())
    }
    fn reopen(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }
    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
