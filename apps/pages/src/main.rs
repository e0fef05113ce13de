//! Writes manual pages and shell completions from the definitions of the commands: `millpond-pages FOLDER`.
//!
//! `make pages` runs it; packages and `make install` take what it wrote. It is not installed itself.
#![forbid(unsafe_code)]

mod completion;
mod manual;

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder] = arguments.as_slice() else {
        eprintln!("usage: millpond-pages FOLDER");
        return ExitCode::from(2);
    };
    match write(Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millpond-pages: {folder}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes `man1`, `man8` and one folder for each shell.
fn write(folder: &Path) -> io::Result<()> {
    manual::write(folder)?;
    completion::write(folder)
}

fn put(folder: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(name), text)
}
