//! The programs `zpool`, `zfs` and `millpond`.
//!
//! Commands read their arguments, ask a [`millpond::control::Control`] and print. They hold no
//! state, know no device and decide nothing about pools; how their output looks is written down in
//! `docs/cli.md`. Status 0 is success, 1 a failure that was told on standard error, 2 a call that
//! makes no sense.
#![forbid(unsafe_code)]

pub mod command;
mod family;
pub mod getopt;
mod manual;
mod program;
mod prompt;
pub mod session;
pub mod text;
mod usage;
pub mod verbs;
mod version;
pub mod zfs;
pub mod zpool;

use session::{Ending, Failure, Session};
use std::io;

/// Turns a command's end into a status, after saying what there is to say. `usage` prints a line
/// and how to call the command.
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

/// Runs the program and returns its status. The first argument is the name it was called by:
/// under `zpool` and `zfs` it is those programs, otherwise the first word says which.
pub fn start(arguments: Vec<std::ffi::OsString>) -> std::process::ExitCode {
    program::run(&arguments)
}
