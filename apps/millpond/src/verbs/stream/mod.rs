//! `millpond stream`: what is in a send stream, without receiving it.

mod dump;

use super::Global;
use super::global::refused;
use crate::session::{Ending, Failure, Session};
use crate::zfs::token_text;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use millpond_control::ResumeToken;
use std::fs::File;
use std::io::{BufReader, Read, stdin};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
enum Action {
    /// List the headers of a stream or package, and count its records (as zstream dump does)
    Dump(Dump),
    /// Show what a resume token says (as zstream token does)
    Token {
        /// The token: the property receive_resume_token
        token: String,
    },
}

#[derive(Debug, Args)]
struct Dump {
    /// Show every record
    #[arg(short = 'v', long)]
    verbose: bool,
    /// The stream (default: standard input)
    file: Option<PathBuf>,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("stream")
        .about("Show what is in a send stream")
        .subcommand_required(true)
        .arg_required_else_help(true);
    Action::augment_subcommands(command)
}

/// Runs the subcommand.
pub fn run(session: &mut Session, _: &Global, matches: &ArgMatches) -> Ending {
    match Action::from_arg_matches(matches).map_err(|error| Failure::Usage(error.to_string()))? {
        Action::Dump(options) => {
            let input: Box<dyn Read> = match &options.file {
                None => Box::new(stdin()),
                Some(path) => {
                    let file = File::open(path);
                    Box::new(file.map_err(|error| refused(format!("{}: {error}", path.display())))?)
                }
            };
            dump::run(
                session,
                BufReader::with_capacity(1 << 20, input),
                options.verbose,
            )
        }
        Action::Token { token } => {
            let token = ResumeToken::parse(&token);
            let token =
                token.map_err(|reason| refused(format!("the token is corrupt: {reason}")))?;
            session.out.write_all(token_text(&token).as_bytes())?;
            Ok(0)
        }
    }
}
