//! `millpond mkdir`: creates directories in a dataset.

use super::Global;
use super::parse;
use super::writing::{WritePools, parent, resolve};
use crate::session::{Ending, Session};
use clap::{ArgMatches, Args, Command};
use millpond_engine::{Caller, FileError, FileKind, FileSystem, NewMode};
use std::ffi::OsString;

#[derive(Debug, Args)]
struct Options {
    /// Create missing parent directories; existing ones are no error
    #[arg(short = 'p', long)]
    parents: bool,
    /// Permissions in octal digits
    #[arg(short = 'm', long, default_value = "755", value_parser = super::octal)]
    mode: u32,
    /// Open a pool that another system used last and did not export
    #[arg(long)]
    force_import: bool,
    /// Directories, POOL/DATASET:/PATH
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<OsString>,
}

/// Defines the command.
pub fn command() -> Command {
    Options::augment_args(Command::new("mkdir").about("Create directories in a dataset"))
}

/// Creates the directories.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Options = parse(matches)?;
    let mut pools = WritePools::new(global, options.force_import);
    let mut status = 0;
    for word in &options.addresses {
        let (files, path) = pools.files(word)?;
        if let Err(error) = make(&files, &path, &options) {
            writeln!(session.err, "millpond: {}: {error}", word.to_string_lossy())?;
            status = 1;
        }
    }
    pools.finish()?;
    Ok(status)
}

fn make(files: &FileSystem, path: &[u8], options: &Options) -> Result<(), FileError> {
    let caller = Caller::root();
    let last = NewMode::exactly(options.mode);
    if !options.parents {
        let (directory, name) = parent(files, path)?;
        files.make_directory(&caller, &directory, name, last)?;
        return Ok(());
    }
    let names: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
        .collect();
    let mut at = vec![b'/'];
    for (index, name) in names.iter().enumerate() {
        let directory = resolve(files, &at, true)?;
        let mode = match index + 1 == names.len() {
            true => last,
            false => NewMode::exactly(0o755),
        };
        at.extend_from_slice(name);
        match files.make_directory(&caller, &directory, name, mode) {
            Ok(_) => {}
            Err(FileError::Exists) | Err(FileError::Invalid { .. }) => {
                if resolve(files, &at, true)?.kind() != FileKind::Directory {
                    return Err(FileError::NotADirectory);
                }
            }
            Err(error) => return Err(error),
        }
        at.push(b'/');
    }
    Ok(())
}
