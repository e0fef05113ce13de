//! `millpond inspect`: shows the on-disk structures of a pool.
//!
//! Each subcommand prints item by item as it walks the pool. `docs/cli-inspect.md` specifies the output.

mod blocks;
mod config;
mod datasets;
mod history;
mod items;
mod labels;
mod log;
mod objects;
mod pointer;
mod spacemaps;
mod uberblocks;

use super::Global;
use crate::session::{Ending, Failure, Session};
use clap::{Arg, ArgMatches, Command};
use millpond_engine::View;

/// A subcommand: its definition and its function.
struct Part {
    command: fn() -> Command,
    run: fn(&mut Session, &Global, &ArgMatches) -> Ending,
}

const PARTS: [Part; 9] = [
    Part {
        command: labels::command,
        run: labels::run,
    },
    Part {
        command: uberblocks::command,
        run: uberblocks::run,
    },
    Part {
        command: config::command,
        run: config::run,
    },
    Part {
        command: datasets::command,
        run: datasets::run,
    },
    Part {
        command: objects::command,
        run: objects::run,
    },
    Part {
        command: blocks::command,
        run: blocks::run,
    },
    Part {
        command: spacemaps::command,
        run: spacemaps::run,
    },
    Part {
        command: log::command,
        run: log::run,
    },
    Part {
        command: history::command,
        run: history::run,
    },
];

/// Defines the command and its subcommands.
pub fn command() -> Command {
    Command::new("inspect")
        .about("Show the internals of a pool: labels, objects, blocks, space maps, logs")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(PARTS.iter().map(|part| (part.command)()))
}

/// Runs one subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let chosen = matches.subcommand().and_then(|(name, options)| {
        let part = PARTS
            .iter()
            .find(|part| (part.command)().get_name() == name)?;
        Some((part, options))
    });
    match chosen {
        Some((part, options)) => (part.run)(session, global, options),
        None => Err(Failure::Usage("inspect: which part?".into())),
    }
}

/// Defines the argument with the pool's name. Without it, the only pool found is used.
fn pool_argument() -> Arg {
    Arg::new("pool")
        .value_name("POOL")
        .help("Name or guid of the pool (default: the only one found)")
}

/// Opens the pool that [`pool_argument`] names.
fn open_pool(global: &Global, matches: &ArgMatches) -> Result<View, Failure> {
    let name = match matches.get_one::<String>("pool") {
        Some(name) => name.clone(),
        None => global.only_pool()?,
    };
    global.open_pool(&name)
}
