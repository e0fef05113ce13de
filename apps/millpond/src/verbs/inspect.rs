//! `millpond inspect`: what a pool looks like below its files.

use super::Global;
use crate::session::{Ending, Failure, Session};
use clap::{ArgMatches, Command};

/// The verb and its parts.
pub fn command() -> Command {
    Command::new("inspect")
        .about("Show a pool's structures")
        .subcommand_required(true)
}

/// Runs one part.
pub fn run(_: &mut Session, _: &Global, _: &ArgMatches) -> Ending {
    Err(Failure::Usage("which part?".into()))
}
