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

/// A subcommand.
struct Part {
    name: &'static str,
    about: &'static str,
    /// Its arguments.
    arguments: fn() -> Vec<Arg>,
    run: fn(&mut Session, &Global, &ArgMatches) -> Ending,
}

const PARTS: [Part; 9] = [
    Part {
        name: "labels",
        about: "Show the four labels of every device found",
        arguments: Vec::new,
        run: labels::run,
    },
    Part {
        name: "uberblocks",
        about: "List the uberblocks of every pool found, newest first",
        arguments: uberblocks::arguments,
        run: uberblocks::run,
    },
    Part {
        name: "config",
        about: "Show the configuration stored in the pool",
        arguments: of_pool,
        run: config::run,
    },
    Part {
        name: "datasets",
        about: "List the MOS, datasets and snapshots",
        arguments: of_pool,
        run: datasets::run,
    },
    Part {
        name: "object",
        about: "List the objects of a dataset, or show objects with their block trees",
        arguments: objects::arguments,
        run: objects::run,
    },
    Part {
        name: "blocks",
        about: "Count all blocks by type, reading all pointers of the pool",
        arguments: blocks::arguments,
        run: blocks::run,
    },
    Part {
        name: "spacemaps",
        about: "List the metaslabs of every top-level vdev with their space maps",
        arguments: of_pool,
        run: spacemaps::run,
    },
    Part {
        name: "log",
        about: "Show intent logs: of one dataset, or of all in a pool",
        arguments: log::arguments,
        run: log::run,
    },
    Part {
        name: "history",
        about: "Show every record of the pool's history, oldest first",
        arguments: of_pool,
        run: history::run,
    },
];

/// Defines the command and its subcommands.
pub fn command() -> Command {
    Command::new("inspect")
        .about("Show the internals of a pool: labels, objects, blocks, space maps, logs")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(PARTS.iter().map(|part| {
            Command::new(part.name)
                .about(part.about)
                .args((part.arguments)())
        }))
}

/// Runs one subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let chosen = matches.subcommand().and_then(|(name, options)| {
        let part = PARTS.iter().find(|part| part.name == name)?;
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

fn of_pool() -> Vec<Arg> {
    vec![pool_argument()]
}

/// Opens the pool that [`pool_argument`] names.
fn open_pool(global: &Global, matches: &ArgMatches) -> Result<View, Failure> {
    global.open_pool(&global.named(matches, "pool")?)
}
