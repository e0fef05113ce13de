//! Completions for bash, zsh and fish.
//!
//! Those of `millpond` are clap's, with the names of pools and datasets added. Those of `zpool` and `zfs` are written from the tables of their commands, and ask the
//! program for pools, datasets and snapshots.

mod bash;
mod fish;
mod zsh;

use crate::put;
use clap_complete::{Shell, generate};
use millpond_cli::command::Command;
use millpond_control::properties::DATASET_PROPERTIES;
use millpond_control::properties::table::POOL_PROPERTIES;
use std::io;
use std::path::Path;

/// What the operands of a command are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operands {
    /// Files, or nothing that is known.
    Files,
    /// Pools.
    Pools,
    /// Pools, then devices of the pool.
    PoolsAndDevices,
    /// Pools, then a device of the pool and new ones.
    PoolsAndBoth,
    /// Pools, then words for vdevs and new devices.
    PoolsAndVdevs,
    /// The name of a new pool, then words for vdevs and devices.
    Vdevs,
    /// Pools that can be imported.
    Importable,
    /// File systems and volumes.
    Heads,
    /// Snapshots.
    Snapshots,
}

/// Commands of `millpond` whose operand is a pool. `inspect` has sub-commands first.
const POOL_VERBS: [&str; 3] = ["verify", "check", "history"];
/// Commands of `millpond` whose operands are addresses in datasets, or begin with one.
const DATASET_VERBS: [&str; 14] = [
    "ls", "tree", "find", "stat", "cat", "cp", "mkdir", "rm", "mv", "ln", "touch", "chmod",
    "chown", "mount",
];

/// The commands that `millpond` has of these.
fn known<'a>(command: &clap::Command, verbs: &[&'a str]) -> Vec<&'a str> {
    let verbs = verbs.iter().copied();
    verbs
        .filter(|verb| command.find_subcommand(verb).is_some())
        .collect()
}

/// Words for groups of devices.
pub const VDEV_WORDS: &str =
    "mirror raidz raidz1 raidz2 raidz3 draid draid1 draid2 draid3 spare log cache special dedup";

/// A command of `zpool` or `zfs`.
pub struct Verb {
    /// Its name, then other names.
    pub names: Vec<&'static str>,
    /// Options with their dashes.
    pub options: Vec<String>,
    /// What its operands are.
    pub operands: Operands,
    /// What follows the name of a property that is the first operand, if one is: `=` or nothing.
    pub property: Option<&'static str>,
}

/// A program with commands.
pub struct Tool {
    /// `zpool` or `zfs`.
    pub name: &'static str,
    /// Its commands.
    pub verbs: Vec<Verb>,
    /// The properties that it knows.
    pub properties: Vec<&'static str>,
}

/// Writes the completions of all programs.
pub fn write(folder: &Path) -> io::Result<()> {
    let mut command = millpond_cli::verbs::command();
    let tools = [zpool(), zfs()];
    for (shell, below, name) in [
        (Shell::Bash, "bash", "millpond"),
        (Shell::Zsh, "zsh", "_millpond"),
        (Shell::Fish, "fish", "millpond.fish"),
    ] {
        let mut text = vec![];
        generate(shell, &mut command, "millpond", &mut text);
        let own = String::from_utf8(text).map_err(io::Error::other)?;
        let whole = match shell {
            Shell::Bash => own + &bash::millpond(&command, &tools),
            Shell::Zsh => zsh::millpond(&own, &command, &tools).ok_or_else(|| {
                io::Error::other("the script for zsh has another form than expected")
            })?,
            _ => own + &fish::millpond(&command, &tools),
        };
        put(&folder.join(below), name, whole.as_bytes())?;
    }
    for tool in tools {
        let name = tool.name;
        put(&folder.join("bash"), name, bash::script(&tool).as_bytes())?;
        put(
            &folder.join("zsh"),
            &format!("_{name}"),
            zsh::script(&tool).as_bytes(),
        )?;
        put(
            &folder.join("fish"),
            &format!("{name}.fish"),
            fish::script(&tool).as_bytes(),
        )?;
    }
    Ok(())
}

fn zpool() -> Tool {
    let operands = |name: &str| match name {
        "import" => Operands::Importable,
        "labelclear" | "version" => Operands::Files,
        "create" => Operands::Vdevs,
        "add" => Operands::PoolsAndVdevs,
        "attach" | "replace" => Operands::PoolsAndBoth,
        "offline" | "online" | "clear" | "detach" | "remove" | "initialize" | "trim" | "split" => {
            Operands::PoolsAndDevices
        }
        _ => Operands::Pools,
    };
    Tool {
        name: "zpool",
        verbs: verbs(millpond_cli::zpool::COMMANDS, &operands),
        properties: POOL_PROPERTIES.iter().map(|shape| shape.name).collect(),
    }
}

fn zfs() -> Tool {
    let operands = |name: &str| match name {
        "rollback" | "hold" | "holds" | "release" | "send" | "clone" | "bookmark" | "redact" => {
            Operands::Snapshots
        }
        "project" | "rewrite" | "version" => Operands::Files,
        _ => Operands::Heads,
    };
    Tool {
        name: "zfs",
        verbs: verbs(millpond_cli::zfs::COMMANDS, &operands),
        properties: DATASET_PROPERTIES
            .iter()
            .map(|one| one.shape.name)
            .collect(),
    }
}

fn verbs(commands: &[Command], operands: &dyn Fn(&str) -> Operands) -> Vec<Verb> {
    let verb = |command: &Command| {
        let names = std::iter::once(command.name).chain(command.aliases.iter().copied());
        Verb {
            names: names.collect(),
            options: options(command),
            operands: operands(command.name),
            property: match command.name {
                "set" => Some("="),
                "get" | "inherit" => Some(""),
                _ => None,
            },
        }
    };
    commands.iter().map(verb).collect()
}

fn options(command: &Command) -> Vec<String> {
    let Some(set) = command.options else {
        return vec![];
    };
    let letters = set.letters.chars().filter(|letter| *letter != ':');
    let short = letters.map(|letter| format!("-{letter}"));
    let long = set.longs.iter().map(|long| format!("--{}", long.name));
    let mut all: Vec<String> = short.chain(long).collect();
    all.sort();
    all.dedup();
    all
}
