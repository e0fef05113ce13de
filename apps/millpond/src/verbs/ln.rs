//! `millpond ln`: creates hard and symbolic links.

use super::Global;
use super::address::Address;
use super::global::refused;
use super::parse;
use super::writing::{WritePools, parent, resolve};
use crate::session::{Ending, Failure, Session};
use clap::{ArgMatches, Args, Command};
use millpond_engine::{Caller, FileError, FileSystem};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

#[derive(Debug, Args)]
struct Options {
    /// Create a symbolic link: TARGET is stored as given
    #[arg(short = 's', long)]
    symbolic: bool,
    /// Replace an existing file of that name
    #[arg(short = 'f', long)]
    force: bool,
    /// Open a pool that another system used last and did not export
    #[arg(long)]
    force_import: bool,
    /// The existing file, POOL/DATASET:/PATH; with -s the target of the link
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The new name, POOL/DATASET:/PATH
    #[arg(value_name = "ADDRESS")]
    address: OsString,
}

/// Defines the command.
pub fn command() -> Command {
    Options::augment_args(Command::new("ln").about("Create hard and symbolic links in a dataset"))
}

/// Creates the link.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Options = parse(matches)?;
    if !options.symbolic {
        let of = |word| Address::parse(word).map(|address| address.dataset);
        let target = of(&options.target).map_err(Failure::Usage)?;
        if target != of(&options.address).map_err(Failure::Usage)? {
            return Err(refused("a file has all its names in one dataset"));
        }
    }
    let mut pools = WritePools::new(global, options.force_import);
    let (files, path) = pools.files(&options.address)?;
    let existing = match options.symbolic {
        true => None,
        false => Some(pools.files(&options.target)?.1),
    };
    let outcome = link(&files, &path, existing.as_deref(), &options);
    drop(files);
    pools.finish()?;
    match outcome {
        Ok(()) => Ok(0),
        Err(error) => {
            let shown = options.address.to_string_lossy();
            writeln!(session.err, "millpond: {shown}: {error}")?;
            Ok(1)
        }
    }
}

fn link(
    files: &FileSystem,
    path: &[u8],
    existing: Option<&[u8]>,
    options: &Options,
) -> Result<(), FileError> {
    let (directory, name) = parent(files, path)?;
    let make = || match existing {
        Some(existing) => {
            let node = resolve(files, existing, false)?;
            files.link(&node, &directory, name)
        }
        None => {
            let target = options.target.as_bytes();
            let made = files.make_symlink(&Caller::root(), &directory, name, target);
            made.map(|_| ())
        }
    };
    match make() {
        Err(FileError::Exists) if options.force => {
            files.unlink(&directory, name)?;
            make()
        }
        outcome => outcome,
    }
}
