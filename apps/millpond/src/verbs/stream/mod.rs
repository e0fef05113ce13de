//! `millpond stream`: what is in send streams, without receiving them.

mod diff;
mod dump;
mod info;
mod mount;
mod opened;
mod rewrite;
mod verify;
mod words;

use super::global::refused;
use super::{Global, cat, cp, ls, parse, tree};
use crate::session::{Ending, Failure, Session};
use crate::zfs::token_text;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use millpond_control::ResumeToken;
use opened::Opened;
use std::fs::File;
use std::io::{BufReader, Read, stdin};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
enum Action {
    /// Say what streams are: snapshots, guids, sizes, features, and whether they are whole
    Info {
        /// Streams; - is standard input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Verify all checksums of streams, and that they can be received one after the other
    Verify {
        /// Streams; - is standard input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Show what a stream changes: the files that differ between its snapshot and the one before
    #[command(after_help = STREAMS)]
    Diff(diff::Options),
    /// Mount a snapshot in streams through FUSE until interrupted (Ctrl-C)
    #[command(after_help = STREAMS)]
    Mount(mount::Options),
    /// List the headers of a stream or package, and count its records (as zstream dump does)
    Dump(Dump),
    /// Compress the blocks of the stream on standard input in another way (as zstream recompress does)
    Recompress(rewrite::RecompressOptions),
    /// Decompress blocks of the stream on standard input whose records are wrong about them (as zstream decompress does)
    Decompress(rewrite::DecompressOptions),
    /// Make a stream that can be received from one of 'zfs send -D' (as zstream redup does)
    Redup(rewrite::RedupOptions),
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
    /// Show every record with its payload and checksum
    #[arg(short = 'd', long)]
    payloads: bool,
    /// Do not verify checksums: show damaged records like others
    #[arg(short = 'C', long)]
    no_checksums: bool,
    /// The stream (default: standard input)
    file: Option<PathBuf>,
}

// No doc comment: it would become the help of commands with this option.
#[derive(Debug, Args)]
struct IndexOption {
    /// Write an index to FILE (without a name: the last stream's with .mpindex). If it is there, open it instead of
    /// reading the streams
    #[arg(long = "index", value_name = "FILE", num_args = 0..=1, require_equals = true)]
    file: Option<Option<PathBuf>>,
}

impl IndexOption {
    fn path(&self, streams: &[PathBuf]) -> Option<PathBuf> {
        self.file.clone()?.or_else(|| {
            let mut name = streams.last()?.clone().into_os_string();
            name.push(".mpindex");
            Some(name.into())
        })
    }
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("stream")
        .about("Show what is in send streams, and read files out of them without receiving them")
        .subcommand_required(true)
        .arg_required_else_help(true);
    let readers = READERS.iter().map(Reader::command);
    Action::augment_subcommands(command).subcommands(readers)
}

/// A command of pools that reads what is in streams.
struct Reader {
    command: fn() -> Command,
    /// The argument that takes addresses in a pool, here streams.
    argument: &'static str,
    run: fn(&mut Session, &Global, &ArgMatches) -> Ending,
}

const READERS: &[Reader] = &[
    Reader {
        command: ls::command,
        argument: "addresses",
        run: run_ls,
    },
    Reader {
        command: tree::command,
        argument: "addresses",
        run: run_tree,
    },
    Reader {
        command: cat::command,
        argument: "addresses",
        run: run_cat,
    },
    Reader {
        command: cp::command,
        argument: "words",
        run: run_cp,
    },
];

impl Reader {
    fn command(&self) -> Command {
        let command = IndexOption::augment_args((self.command)()).after_help(STREAMS);
        match self.argument {
            "words" => command
                .about("Copy files, directory trees and volumes out of a stream")
                .override_usage("millpond stream cp [OPTIONS] STREAM... DESTINATION")
                .mut_arg("force_import", |arg| arg.hide(true))
                .mut_arg("sparse", |arg| arg.hide(true))
                .mut_arg("words", |arg| {
                    arg.value_names(["STREAM", "DESTINATION"])
                        .help("What to copy, then a file or directory of the host")
                }),
            name => command.mut_arg(name, |arg| {
                arg.value_name("STREAM")
                    .help("Streams, and what in them: FILE[/CHILD][@SNAPSHOT][:/PATH]")
            }),
        }
    }
}

fn run_ls(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let mut options: ls::Options = parse(matches)?;
    let opened = Opened::open(session, global, &options.addresses, &parse(matches)?)?;
    options.addresses.clone_from(&opened.addresses);
    let status = ls::list(session, global, &options, &mut opened.pools(global))?;
    Ok(opened.status(status))
}

fn run_tree(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let mut options: tree::Options = parse(matches)?;
    let opened = Opened::open(session, global, &options.addresses, &parse(matches)?)?;
    options.addresses.clone_from(&opened.addresses);
    let status = tree::draw(session, global, &options, &mut opened.pools(global))?;
    Ok(opened.status(status))
}

fn run_cat(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let global = &global.reading_once();
    let mut options: cat::Options = parse(matches)?;
    let opened = Opened::open(session, global, &options.addresses, &parse(matches)?)?;
    options.addresses.clone_from(&opened.addresses);
    let status = cat::write(session, global, &options, &mut opened.pools(global))?;
    Ok(opened.status(status))
}

fn run_cp(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let global = &global.reading_once();
    let mut options: cp::Options = parse(matches)?;
    let Some(destination) = options.words.pop() else {
        return Err(Failure::Usage("what is to be copied?".into()));
    };
    let opened = Opened::open(session, global, &options.words, &parse(matches)?)?;
    options.words.clone_from(&opened.addresses);
    options.words.push(destination);
    let status = cp::out(session, global, &options, &mut opened.pools(global))?;
    Ok(opened.status(status))
}

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    if let Some((name, matches)) = matches.subcommand() {
        let mut readers = READERS.iter();
        let reader = readers.find(|reader| (reader.command)().get_name() == name);
        if let Some(reader) = reader {
            return (reader.run)(session, global, matches);
        }
    }
    match Action::from_arg_matches(matches).map_err(|error| Failure::Usage(error.to_string()))? {
        Action::Info { files } => info::run(session, global, &files),
        Action::Verify { files } => verify::run(session, global, &files),
        Action::Diff(options) => diff::run(session, global, &options),
        Action::Mount(options) => mount::run(session, global, &options),
        Action::Dump(options) => {
            let input: Box<dyn Read> = match &options.file {
                None => Box::new(stdin()),
                Some(path) => {
                    let file = File::open(path);
                    Box::new(file.map_err(|error| refused(format!("{}: {error}", path.display())))?)
                }
            };
            let dumped = dump::Dumped {
                records: options.verbose,
                payloads: options.payloads,
                unverified: options.no_checksums,
            };
            dump::run(session, BufReader::with_capacity(1 << 20, input), dumped)
        }
        Action::Recompress(options) => rewrite::recompress(session, &options),
        Action::Decompress(options) => rewrite::decompress(session, &options),
        Action::Redup(options) => rewrite::redup(session, &options),
        Action::Token { token } => {
            let token = ResumeToken::parse(&token);
            let token =
                token.map_err(|reason| refused(format!("the token is corrupt: {reason}")))?;
            session.out.write_all(token_text(&token).as_bytes())?;
            Ok(0)
        }
    }
}

const STREAMS: &str = "\
FILE is a stored stream or package; - is standard input. Streams that build on each other are named
together, in any order: a full one and its increments. Without a path, the newest snapshot is meant.
/CHILD is a dataset below the one that a package is about.
A damaged stream is shown up to the damage, and the status is then 1.";
