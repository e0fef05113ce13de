//! `millpond mv`: renames files of a dataset.

use super::Global;
use super::address::Address;
use super::global::refused;
use super::parse;
use super::writing::{WritePools, parent, resolve};
use crate::session::{Ending, Failure, Session};
use clap::{ArgMatches, Args, Command};
use millpond_engine::{Caller, DirEntryRef, FileError, FileKind, FileSystem, RenameMode};
use std::ffi::{OsStr, OsString};

#[derive(Debug, Args)]
struct Options {
    /// Do not overwrite existing files
    #[arg(short = 'n', long)]
    no_clobber: bool,
    /// Open a pool that another system used last and did not export
    #[arg(long)]
    force_import: bool,
    /// What to move: POOL/DATASET:/PATH; then the destination, in the same dataset
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DESTINATION"])]
    words: Vec<OsString>,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("mv")
        .about("Rename files and directories in a dataset")
        .override_usage("millpond mv [OPTIONS] SOURCE... DESTINATION");
    Options::augment_args(command)
}

fn dataset(word: &OsStr) -> Result<String, Failure> {
    let address = Address::parse(word).map_err(Failure::Usage)?;
    Ok(address.dataset)
}

/// Renames all named files.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Options = parse(matches)?;
    let Some((destination, sources)) = options.words.split_last() else {
        return Err(Failure::Usage("what is to be moved?".into()));
    };
    let wanted = dataset(destination)?;
    for word in sources {
        if dataset(word)? != wanted {
            return Err(refused(
                "files are moved within one dataset only; copy with cp -a, then rm -r",
            ));
        }
    }
    let mut pools = WritePools::new(global, options.force_import);
    let (files, to) = pools.files(destination)?;
    let into = match resolve(&files, &to, true) {
        Ok(node) if node.kind() == FileKind::Directory => Some(node),
        _ if sources.len() > 1 => {
            let shown = destination.to_string_lossy();
            let text = format!("'{shown}' is no directory, and several things are to be moved");
            return Err(refused(text));
        }
        _ => None,
    };
    let mut status = 0;
    for word in sources {
        let (_, from) = pools.files(word)?;
        let mode = match options.no_clobber {
            true => RenameMode::NoReplace,
            false => RenameMode::Replace,
        };
        let outcome = (|| {
            let (old, old_name) = parent(&files, &from)?;
            let (new, new_name) = match &into {
                Some(directory) => (directory.clone(), old_name),
                None => parent(&files, &to)?,
            };
            rename(
                &files,
                DirEntryRef {
                    directory: &old,
                    name: old_name,
                },
                DirEntryRef {
                    directory: &new,
                    name: new_name,
                },
                mode,
            )
        })();
        if let Err(error) = outcome {
            writeln!(session.err, "millpond: {}: {error}", word.to_string_lossy())?;
            status = 1;
        }
    }
    drop((into, files));
    pools.finish()?;
    Ok(status)
}

fn rename(
    files: &FileSystem,
    from: DirEntryRef<'_>,
    to: DirEntryRef<'_>,
    mode: RenameMode,
) -> Result<(), FileError> {
    match files.rename(&Caller::root(), from, to, mode) {
        // With `-n`, an existing target is left alone and is not an error.
        Err(FileError::Exists) if mode == RenameMode::NoReplace => Ok(()),
        outcome => outcome,
    }
}
