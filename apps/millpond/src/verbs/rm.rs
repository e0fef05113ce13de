//! `millpond rm`: removes files and trees of a dataset.

use super::Global;
use super::ls::joined;
use super::name_text::escaped;
use super::parse;
use super::writing::{WritePools, parent};
use crate::session::{Ending, Session};
use clap::{ArgMatches, Args, Command};
use millpond_engine::{FileError, FileKind, FileSystem, Node};
use std::ffi::OsString;

#[derive(Debug, Args)]
struct Options {
    /// Remove directories and their contents
    #[arg(short = 'r', long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore files that do not exist
    #[arg(short = 'f', long)]
    force: bool,
    /// Take pools that another system used last and did not export
    #[arg(long)]
    force_import: bool,
    /// What to remove, POOL/DATASET:/PATH
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<OsString>,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("rm")
        .about("Remove files and directory trees from a dataset")
        .after_help(
            "The root directory of a dataset cannot be removed; use zfs destroy for the dataset.",
        );
    Options::augment_args(command)
}

/// Removes all named files.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Options = parse(matches)?;
    let mut pools = WritePools::new(global, options.force_import);
    let mut status = 0;
    for word in &options.addresses {
        let (files, path) = pools.files(word)?;
        let mut problems = vec![];
        match remove(&files, &path, options.recursive, &mut problems) {
            Err(FileError::NotFound) if options.force => {}
            Err(error) => problems.push((path, error)),
            Ok(()) => {}
        }
        for (path, error) in problems {
            let shown = word.to_string_lossy();
            writeln!(
                session.err,
                "millpond: {shown}: {}: {error}",
                escaped(&path)
            )?;
            status = 1;
        }
    }
    pools.finish()?;
    Ok(status)
}

/// A directory on the path from the top to the current one.
struct Level {
    directory: Node,
    /// Its parent directory.
    parent: Node,
    name: Vec<u8>,
    path: Vec<u8>,
    /// Where listing continues. Entries that could not be removed are before it.
    cookie: u64,
    has_problems: bool,
}

fn remove(
    files: &FileSystem,
    path: &[u8],
    is_recursive: bool,
    problems: &mut Vec<(Vec<u8>, FileError)>,
) -> Result<(), FileError> {
    let (directory, name) = parent(files, path)?;
    let node = directory.lookup(name)?;
    if node.kind() != FileKind::Directory {
        drop(node);
        return files.unlink(&directory, name);
    }
    if !is_recursive {
        return Err(FileError::IsADirectory);
    }
    // Iterative, with one batch of names per level: deep trees do not overflow the stack and large
    // directories do not fill memory.
    let mut levels = vec![Level {
        directory: node,
        parent: directory,
        name: name.to_vec(),
        path: path.to_vec(),
        cookie: 0,
        has_problems: false,
    }];
    while let Some(level) = levels.last_mut() {
        let listed = level.directory.list(level.cookie, BATCH)?;
        let is_end = listed.is_empty();
        let mut deeper = None;
        for listed in listed {
            let entry = listed.entry;
            if entry.name == b"." || entry.name == b".." {
                level.cookie = listed.cookie;
                continue;
            }
            match files.unlink(&level.directory, &entry.name) {
                Ok(()) | Err(FileError::NotFound) => {}
                Err(FileError::IsADirectory) => {
                    let node = level.directory.lookup(&entry.name)?;
                    level.cookie = listed.cookie;
                    deeper = Some((node, entry.name));
                    break;
                }
                Err(error @ FileError::Transaction(_)) => return Err(error),
                Err(error) => {
                    level.has_problems = true;
                    problems.push((joined(&level.path, &entry.name), error));
                }
            }
            level.cookie = listed.cookie;
        }
        if let Some((directory, name)) = deeper {
            let next = Level {
                directory,
                parent: level.directory.clone(),
                path: joined(&level.path, &name),
                name,
                cookie: 0,
                has_problems: false,
            };
            levels.push(next);
            continue;
        }
        if !is_end {
            continue;
        }
        let Some(Level {
            directory,
            parent,
            name,
            path,
            has_problems,
            ..
        }) = levels.pop()
        else {
            break;
        };
        drop(directory);
        let removed = match has_problems {
            true => Err(FileError::NotEmpty),
            false => files.remove_directory(&parent, &name),
        };
        if let Err(error) = removed {
            if !has_problems {
                problems.push((path, error));
            }
            if let Some(above) = levels.last_mut() {
                above.has_problems = true;
            }
        }
    }
    Ok(())
}

/// Number of names per listing request.
const BATCH: usize = 1024;
