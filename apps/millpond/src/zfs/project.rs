//! `zfs project`: reads and sets project ids of files in mounted file systems through the kernel.

use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_service::FileProject;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The action for each file.
enum Action {
    List,
    /// With `bare`, prints only the paths of files that differ, each followed by a NUL.
    Check {
        expected: Option<u32>,
        bare: bool,
    },
    Clear {
        keeps_project: bool,
    },
    Set {
        project: Option<u32>,
        hands_down: bool,
    },
}

/// Lists, checks, clears or sets project ids.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let action = action(parsed)?;
    let mut status = 0;
    for operand in &parsed.operands {
        let path = Path::new(operand);
        let own = match open(path).and_then(|file| FileProject::of(&file)) {
            Ok(own) => own,
            Err(error) => {
                tell(session, path, error)?;
                status = 1;
                continue;
            }
        };
        // Without an explicit value, the tree is compared with, or set to, the value of its top.
        let wanted = match &action {
            Action::Check { expected, .. } => expected.unwrap_or(own.project()),
            Action::Set { project, .. } => project.unwrap_or(own.project()),
            _ => 0,
        };
        for path in covered(path, parsed, &action) {
            if let Err(error) = act(session, &path, &action, wanted)? {
                tell(session, &path, error)?;
                status = 1;
            }
        }
    }
    Ok(status)
}

fn action(parsed: &Parsed) -> Result<Action, Failure> {
    let wrong = |text: &str| Err(Failure::Usage(text.to_owned()));
    let project = match parsed.value("p") {
        None => None,
        Some(text) => match text.parse::<u32>() {
            Ok(number) if number != u32::MAX => Some(number),
            _ => return wrong(&format!("invalid project ID '{text}'")),
        },
    };
    let has = |option: &str| parsed.has(option);
    if has("C") {
        return match has("c") || has("0") || has("d") || has("s") || project.is_some() {
            true => wrong("invalid option combination"),
            false => Ok(Action::Clear {
                keeps_project: has("k"),
            }),
        };
    }
    if has("k") {
        return wrong("invalid option combination");
    }
    if has("c") {
        return match has("s") {
            true => wrong("invalid option combination"),
            false => Ok(Action::Check {
                expected: project,
                bare: has("0"),
            }),
        };
    }
    if has("0") {
        return wrong("invalid option combination");
    }
    if project.is_some() || has("s") {
        return match has("d") {
            true => wrong("invalid option combination"),
            false => Ok(Action::Set {
                project,
                hands_down: has("s"),
            }),
        };
    }
    Ok(Action::List)
}

/// The path itself and the files below it that the options select.
///
/// Listing and checking cover one level without `-d`; changes descend only with `-r`. Symbolic links are
/// not followed. Links, devices, pipes and sockets have no project.
fn covered(path: &Path, parsed: &Parsed, action: &Action) -> Vec<PathBuf> {
    let only_looks = matches!(action, Action::List | Action::Check { .. });
    let is_deep = parsed.has("r");
    let goes_down = is_deep || (only_looks && !parsed.has("d"));
    let mut all = vec![];
    let mut stack = vec![(path.to_owned(), goes_down)];
    while let Some((path, goes_down)) = stack.pop() {
        if goes_down && path.is_dir() && !path.is_symlink() {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let plain = entries.filter(|entry| {
                let kind = entry.file_type();
                kind.is_ok_and(|kind| kind.is_dir() || kind.is_file())
            });
            let mut below: Vec<PathBuf> = plain.map(|entry| entry.path()).collect();
            below.sort_unstable_by(|a, b| b.cmp(a));
            stack.extend(below.into_iter().map(|path| (path, is_deep)));
        }
        all.push(path);
    }
    all
}

/// Applies the action to one file.
fn act(
    session: &mut Session,
    path: &Path,
    action: &Action,
    wanted: u32,
) -> Result<Result<(), Errno>, Failure> {
    let opened = open(path).and_then(|file| Ok((FileProject::of(&file)?, file)));
    let (own, file) = match opened {
        Ok(both) => both,
        Err(error) => return Ok(Err(error)),
    };
    let shown = path.display();
    match action {
        Action::List => {
            let flag = if own.is_inherited() { 'P' } else { '-' };
            writeln!(session.out, "{:5} {flag} {shown}", own.project())?;
        }
        Action::Check { bare, .. } => {
            let is_other = own.project() != wanted;
            if *bare && (is_other || !own.is_inherited()) {
                write!(session.out, "{shown}\0")?;
            } else if is_other {
                let number = own.project();
                writeln!(session.out, "{shown}: project ID is {number}, not {wanted}")?;
            } else if !own.is_inherited() {
                writeln!(session.out, "{shown}: project inherit flag is not set")?;
            }
        }
        Action::Clear { keeps_project } => {
            let project = if *keeps_project { own.project() } else { 0 };
            let new = own.with_inheritance(false).with_project(project);
            return Ok(set(own, new, &file));
        }
        Action::Set { hands_down, .. } => {
            let is_inherited = *hands_down || own.is_inherited();
            let new = own.with_project(wanted).with_inheritance(is_inherited);
            return Ok(set(own, new, &file));
        }
    }
    Ok(Ok(()))
}

fn set(old: FileProject, new: FileProject, file: &OwnedFd) -> Result<(), Errno> {
    match old == new {
        true => Ok(()),
        false => new.set_on(file),
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    // Opening a pipe or a device could block or have side effects.
    let kind = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn tell(session: &mut Session, path: &Path, error: Errno) -> Result<(), Failure> {
    let why = match error {
        Errno::NOTTY | Errno::OPNOTSUPP => "there are no projects".to_owned(),
        other => std::io::Error::from(other).to_string(),
    };
    writeln!(session.err, "{}: {why}", path.display())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(options: &[(&str, Option<&str>)]) -> Parsed {
        let owned = options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        Parsed {
            options: owned.collect(),
            ..Parsed::default()
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for wrong in [
            vec![("C", None), ("c", None)],
            vec![("C", None), ("p", Some("7"))],
            vec![("k", None)],
            vec![("0", None)],
            vec![("s", None), ("d", None)],
            vec![("p", Some("x"))],
        ] {
            assert!(action(&asked(&wrong)).is_err(), "{wrong:?}");
        }
        let set = action(&asked(&[("p", Some("7")), ("s", None), ("r", None)]));
        assert!(matches!(
            set,
            Ok(Action::Set {
                project: Some(7),
                hands_down: true
            })
        ));
    }

    #[test]
    fn listing_descends_one_level_and_changes_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("f"), "").unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("link")).unwrap();
        let set = Action::Set {
            project: Some(1),
            hands_down: false,
        };
        let count = |options: &[(&str, Option<&str>)], action: &Action| {
            covered(folder.path(), &asked(options), action).len()
        };
        assert_eq!(count(&[], &Action::List), 3);
        assert_eq!(count(&[("d", None)], &Action::List), 1);
        assert_eq!(count(&[("r", None)], &Action::List), 4);
        assert_eq!(count(&[], &set), 1);
        assert_eq!(count(&[("r", None)], &set), 4);
    }
}
