//! `millpond touch`, `chmod` and `chown`: change attributes of files in a dataset.

use super::Global;
use super::parse;
use super::writing::{WritePools, parent, resolve};
use crate::session::{Ending, Session};
use clap::{ArgMatches, Args, Command};
use millpond_engine::{
    Caller, FileError, FileKind, FileSystem, NewMode, Node, SetAttributes, SetTime, Timestamp,
};
use std::ffi::OsString;

#[derive(Debug, Args)]
struct Common {
    /// Open a pool that another system used last and did not export
    #[arg(long)]
    force_import: bool,
    /// Files, POOL/DATASET:/PATH
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Touch {
    /// This time instead of now: seconds since 1970, with an optional fraction
    #[arg(short = 'd', long, value_name = "SECONDS", value_parser = moment, allow_hyphen_values = true)]
    date: Option<Timestamp>,
    /// Do not create missing files
    #[arg(short = 'c', long)]
    no_create: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Chmod {
    /// Include the contents of directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Permissions in octal digits
    #[arg(value_name = "MODE", value_parser = super::octal)]
    mode: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Chown {
    /// Include the contents of directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Numeric user and group: UID, UID:GID or :GID
    #[arg(value_name = "UID:GID", value_parser = owner)]
    owner: (Option<u32>, Option<u32>),
    #[command(flatten)]
    common: Common,
}

/// Defines `touch`.
pub fn touch_command() -> Command {
    Touch::augment_args(Command::new("touch").about("Set times of files, or create empty files"))
}
/// Defines `chmod`.
pub fn chmod_command() -> Command {
    Chmod::augment_args(Command::new("chmod").about("Set permissions of files"))
}
/// Defines `chown`.
pub fn chown_command() -> Command {
    Chown::augment_args(Command::new("chown").about("Set owners of files"))
}

fn owner(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let number = |part: &str| match part {
        "" => Ok(None),
        part => part
            .parse()
            .map(Some)
            .map_err(|_| "owners are numbers".to_owned()),
    };
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    Ok((number(user)?, number(group)?))
}

fn moment(text: &str) -> Result<Timestamp, String> {
    let to_error = || "a time is seconds since 1970, like 1700000000.5".to_owned();
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds = seconds.parse().map_err(|_| to_error())?;
    if fraction.len() > 9 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(to_error());
    }
    let nanoseconds = format!("{fraction:0<9}").parse().map_err(|_| to_error())?;
    Ok(Timestamp {
        seconds,
        nanoseconds,
    })
}

/// Runs `touch`.
pub fn touch(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Touch = parse(matches)?;
    let time = options.date.map_or(SetTime::Now, SetTime::To);
    let set = SetAttributes {
        atime: Some(time),
        mtime: Some(time),
        ..SetAttributes::default()
    };
    each(session, global, &options.common, |files, path| {
        let node = match resolve(files, path, true) {
            Err(FileError::NotFound) if options.no_create => return Ok(()),
            Err(FileError::NotFound) => {
                let (directory, name) = parent(files, path)?;
                let mode = NewMode::exactly(0o644);
                files
                    .create(&Caller::root(), &directory, name, mode, false)?
                    .0
            }
            found => found?,
        };
        files.set_attributes(&Caller::root(), &node, &set)
    })
}

/// Runs `chmod`.
pub fn chmod(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Chmod = parse(matches)?;
    let set = SetAttributes {
        permissions: Some(options.mode),
        ..SetAttributes::default()
    };
    each(session, global, &options.common, |files, path| {
        below(resolve(files, path, true)?, options.recursive, &|node| {
            match node.kind() {
                // The permissions of a symbolic link have no effect.
                FileKind::Symlink => Ok(()),
                _ => files.set_attributes(&Caller::root(), node, &set),
            }
        })
    })
}

/// Runs `chown`.
pub fn chown(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Chown = parse(matches)?;
    let set = SetAttributes {
        uid: options.owner.0,
        gid: options.owner.1,
        ..SetAttributes::default()
    };
    each(session, global, &options.common, |files, path| {
        let node = resolve(files, path, !options.recursive)?;
        below(node, options.recursive, &|node| {
            files.set_attributes(&Caller::root(), node, &set)
        })
    })
}

fn each(
    session: &mut Session,
    global: &Global,
    common: &Common,
    change: impl Fn(&FileSystem, &[u8]) -> Result<(), FileError>,
) -> Ending {
    let mut pools = WritePools::new(global, common.force_import);
    let mut status = 0;
    for word in &common.addresses {
        let (files, path) = pools.files(word)?;
        if let Err(error) = change(&files, &path) {
            writeln!(session.err, "millpond: {}: {error}", word.to_string_lossy())?;
            status = 1;
        }
    }
    pools.finish()?;
    Ok(status)
}

/// Visits a file and, with `is_recursive`, everything below it.
///
/// Memory use is one directory cookie per level.
fn below(
    node: Node,
    is_recursive: bool,
    change: &dyn Fn(&Node) -> Result<(), FileError>,
) -> Result<(), FileError> {
    change(&node)?;
    if !is_recursive || node.kind() != FileKind::Directory {
        return Ok(());
    }
    let mut levels = vec![(node, 0)];
    while let Some((directory, cookie)) = levels.last_mut() {
        let listed = directory.list(*cookie, 1)?;
        let Some(listed) = listed.into_iter().next() else {
            levels.pop();
            continue;
        };
        *cookie = listed.cookie;
        if listed.entry.name == b"." || listed.entry.name == b".." {
            continue;
        }
        let node = directory.lookup(&listed.entry.name)?;
        change(&node)?;
        if node.kind() == FileKind::Directory {
            levels.push((node, 0));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_times_are_numbers() {
        assert_eq!(owner("5"), Ok((Some(5), None)));
        assert_eq!(owner("5:6"), Ok((Some(5), Some(6))));
        assert_eq!(owner(":6"), Ok((None, Some(6))));
        assert!(owner("root").is_err());
        let time = moment("-3.25").unwrap();
        assert_eq!((time.seconds, time.nanoseconds), (-3, 250_000_000));
        assert!(moment("1.1234567890").is_err());
        assert!(moment("now").is_err());
    }
}
