//! The programs `zpool`, `zfs` and `millpond`.
//!
//! Commands parse their arguments, query a [`millpond_control::Control`] and print the result. They hold
//! no state, open no devices and make no decisions about pools. `docs/cli.md` specifies their output. Exit
//! status 0 is success, 1 a failure reported on standard error, 2 a usage error.
#![forbid(unsafe_code)]

pub mod command;
mod family;
pub mod getopt;
mod manual;
mod no_daemon;
mod program;
mod progress;
mod prompt;
mod search_paths;
pub mod session;
pub mod text;
mod usage;
pub mod verbs;
mod version;
mod warned;
pub mod zfs;
pub mod zpool;

use session::{Ending, Failure, Session};
use std::io;

/// Prints the error of a finished command, if any, and returns its exit status.
///
/// `usage` prints a line and the usage text of the command.
fn finish(
    session: &mut Session,
    ending: Ending,
    usage: impl FnOnce(&mut Session, &str) -> io::Result<()>,
) -> io::Result<u8> {
    match ending {
        Ok(status) | Err(Failure::Status(status)) => Ok(status),
        Err(Failure::Usage(message)) => usage(session, &message).map(|()| 2),
        Err(Failure::Complaint(text)) => session.err.write_all(text.as_bytes()).map(|()| 2),
        Err(Failure::Refused(message)) => writeln!(session.err, "{message}").map(|()| 1),
        Err(Failure::Output(error)) => Err(error),
    }
}

/// Runs the program and returns its exit status.
///
/// The first argument is the name the program was called by. Under the names `zpool` and `zfs` it runs
/// these programs; otherwise the first word selects the program.
pub fn start(arguments: Vec<std::ffi::OsString>) -> std::process::ExitCode {
    program::run(&arguments)
}
