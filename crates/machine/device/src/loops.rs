//! Loop devices: an image file behind a loop device is locked like one that is used directly.

use rustix::fs::{major, minor};
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file behind a loop device or a partition of one; `None` for other block devices, and if the file
/// cannot be opened any more.
pub(crate) fn backing_file(metadata: &Metadata) -> Option<File> {
    let device = metadata.rdev();
    let entry = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let whole = backing_path(Path::new(&entry));
    // The sysfs directory of a partition is inside that of its device.
    let whole = whole.or_else(|| backing_path(&fs::canonicalize(&entry).ok()?.join("..")));
    let file = File::open(whole?).ok()?;
    // The file may be on a mount that no path leads to, such as a volume's: the path is then another file's.
    let is_image = file.metadata().is_ok_and(|known| known.is_file());
    is_image.then_some(file)
}

fn backing_path(entry: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(entry.join("loop/backing_file")).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// Whether the system uses a loop device over this image file: mounted, or part of other storage. Without
/// permission to open the loop device, returns `false`.
pub(crate) fn is_used_through_loop(image: &Metadata) -> bool {
    let Ok(entries) = fs::read_dir("/sys/block") else {
        return false;
    };
    let loops = entries.flatten().filter(|entry| {
        let path = backing_path(&entry.path());
        let backing = path.and_then(|path| fs::metadata(path).ok());
        backing.is_some_and(|file| (file.dev(), file.ino()) == (image.dev(), image.ino()))
    });
    loops.into_iter().any(|entry| {
        let device = Path::new("/dev").join(entry.file_name());
        let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
        let opened = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(device);
        let errno = opened.err().and_then(|error| error.raw_os_error());
        errno == Some(rustix::io::Errno::BUSY.raw_os_error())
    })
}
