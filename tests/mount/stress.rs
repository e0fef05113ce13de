//! Threads create, fill, rename and remove files in one tree.
//!
//! Only results that each thread can know are compared. The pool is judged afterwards.

use crate::rig::{Rig, is_full, seed};
use millpond_sim::Seed;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Whether an error can result from other threads that remove names.
fn is_expected(error: &std::io::Error) -> bool {
    const ELOOP: i32 = 40;
    error.raw_os_error() == Some(ELOOP)
        || matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::AlreadyExists
                | ErrorKind::DirectoryNotEmpty
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::InvalidInput
                | ErrorKind::PermissionDenied
        )
}

fn name(rng: &mut Seed, root: &Path) -> PathBuf {
    let mut path = root.to_owned();
    for _ in 0..rng.below(3) {
        path.push(format!("d{}", rng.below(3)));
    }
    path.push(format!("f{}", rng.below(12)));
    path
}

fn step(rng: &mut Seed, root: &Path) -> std::io::Result<()> {
    let one = name(rng, root);
    let other = name(rng, root);
    match rng.below(16) {
        0..=2 => {
            let count = rng.below(40_000) as usize;
            fs::write(&one, rng.bytes(count))
        }
        3..=4 => fs::read(&one).map(|_| ()),
        5 => {
            let directory = format!("d{}", rng.below(3));
            fs::create_dir(one.with_file_name(directory))
        }
        6 => fs::remove_dir(one.with_file_name(format!("d{}", rng.below(3)))),
        7..=8 => fs::remove_file(&one),
        9..=10 => fs::rename(&one, &other),
        11 => fs::hard_link(&one, &other),
        12 => symlink("f1", &one),
        13 => fs::set_permissions(&one, fs::Permissions::from_mode(0o600)),
        14 => {
            let file = fs::OpenOptions::new().write(true).open(&one)?;
            // The name is removed while the file is open.
            let _ = fs::remove_file(&one);
            file.set_len(rng.below(100_000))?;
            if rng.below(8) == 0 {
                file.sync_all()
            } else {
                Ok(())
            }
        }
        _ => {
            for entry in fs::read_dir(root)? {
                let _ = entry?.metadata();
            }
            Ok(())
        }
    }
}

#[test]
fn threads_in_one_tree_leave_a_sound_pool() {
    let seed = seed();
    let Some(rig) = Rig::new(&[]) else {
        return;
    };
    let root = rig.path("");
    let (threads, steps) = if is_full() { (8, 5000) } else { (4, 250) };
    std::thread::scope(|scope| {
        for number in 0..threads {
            let root = root.clone();
            scope.spawn(move || {
                let mut rng = Seed::new(seed.wrapping_add(number));
                let own = root.join(format!("own{number}"));
                for round in 0..steps {
                    if let Err(error) = step(&mut rng, &root) {
                        assert!(is_expected(&error), "seed {seed}: {error:?}");
                    }
                    if round % 50 == 0 {
                        let text = format!("{round}");
                        fs::write(&own, &text).unwrap();
                        assert_eq!(fs::read_to_string(&own).unwrap(), text);
                    }
                }
            });
        }
    });
    let remaining = fs::read_dir(&root).unwrap().count();
    assert!(remaining >= threads as usize);
    rig.finish();
}
