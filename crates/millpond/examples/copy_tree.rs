//! Copies a directory out of a pool, with holes, permissions and times.
//!
//! ```sh
//! cargo run --example copy_tree -- /images tank/home@monday mail /tmp/mail
//! ```

use millpond::{File, FileSystem, FileType, Pool};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [images, dataset, from, to] = words.as_slice() else {
        return Err("usage: copy_tree DIRECTORY DATASET FROM TO".into());
    };
    let pool = dataset.split(['/', '@']).next().unwrap_or(dataset);
    let files = Pool::open(pool, [images])?.file_system(dataset)?;
    copy(&files, Path::new(from), Path::new(to))
}

/// Copies a directory to the host. Nothing that exists below `to` is replaced, and no symbolic link there is followed,
/// so that a forged pool cannot write elsewhere.
pub fn copy(files: &FileSystem, from: &Path, to: &Path) -> Outcome {
    fs::create_dir_all(to)?;
    for entry in files.walk(from)? {
        let entry = entry?;
        let source = entry.path();
        let target = to.join(source.strip_prefix(from)?);
        match entry.file_type()? {
            FileType::Directory => fs::create_dir(&target)?,
            FileType::File => copy_file(&files.open(&source)?, &target)?,
            FileType::Symlink => {
                std::os::unix::fs::symlink(files.read_link(&source)?, &target)?;
            }
            _ => println!("{}: skipped", source.display()),
        }
    }
    Ok(())
}

fn copy_file(source: &File, target: &Path) -> Outcome {
    let copy = fs::File::create_new(target)?;
    copy.set_len(source.len())?;
    let mut piece = vec![0; 1 << 20];
    let mut offset = 0;
    while let Some(start) = source.next_data(offset)? {
        let end = source.next_hole(start)?;
        offset = start;
        while offset < end {
            let wanted = piece.len().min((end - offset) as usize);
            let count = source.read_at(&mut piece[..wanted], offset)?;
            copy.write_all_at(&piece[..count], offset)?;
            offset += count as u64;
        }
    }
    let metadata = source.metadata()?;
    copy.set_permissions(fs::Permissions::from_mode(metadata.permissions()))?;
    Ok(copy.set_modified(metadata.modified())?)
}
