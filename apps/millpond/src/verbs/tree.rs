//! `millpond tree`: draws a directory and everything below it.

use super::Global;
use super::entry_text::to_json;
use super::name_text::{escaped, shown};
use super::pools::Pools;
use super::walk::{Walk, beginning};
use super::{parse, unless_refused};
use crate::session::{Ending, Session};
use crate::text::number;
use clap::{ArgMatches, Args, Command};
use millpond_engine::{FileKind, Symlinks};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, IsTerminal};

// No doc comment: it would become the help of the command.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Include names that begin with a dot
    #[arg(short = 'a')]
    is_all: bool,
    /// Show at most this many levels
    #[arg(short = 'L', value_name = "LEVELS")]
    levels: Option<u32>,
    /// Where to start: POOL/DATASET[@SNAP]:/PATH
    #[arg(required = true, value_name = "ADDRESS")]
    pub(super) addresses: Vec<OsString>,
}

/// Defines the command.
pub fn command() -> Command {
    Options::augment_args(Command::new("tree").about("Show a directory tree"))
}

/// Draws the trees.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    draw(session, global, &parse(matches)?, &mut Pools::new(global))
}

/// Draws trees of these pools.
pub(super) fn draw(
    session: &mut Session,
    global: &Global,
    options: &Options,
    pools: &mut Pools,
) -> Ending {
    let is_terminal = io::stdout().is_terminal();
    let mut status = 0;
    for word in &options.addresses {
        let target = pools.file(word, Symlinks::Keep);
        let Some(target) = unless_refused(session, target, &mut status)? else {
            continue;
        };
        let begin = beginning(word.as_encoded_bytes());
        let levels = options.levels.unwrap_or(u32::MAX);
        let mut walk = Walk::new(&target, &begin, levels);
        walk.is_hidden_skipped = !options.is_all;
        // For each level above: whether more entries follow.
        let mut open: Vec<bool> = vec![];
        let (mut directories, mut others) = (0u64, 0u64);
        for step in walk.by_ref() {
            let is_directory = matches!(&step.node, Ok(node) if node.kind() == FileKind::Directory);
            if step.depth > 0 {
                *(if is_directory {
                    &mut directories
                } else {
                    &mut others
                }) += 1;
            }
            if let Err(reason) = &step.node {
                status = 1;
                writeln!(session.err, "millpond: {}: {reason}", escaped(&step.path))?;
            }
            if global.is_json {
                if let Ok(node) = &step.node
                    && let Ok(stat) = node.stat()
                {
                    let map = to_json(&step.path, node, &stat);
                    writeln!(session.out, "{}", Value::Object(map))?;
                }
                continue;
            }
            let depth = step.depth as usize;
            open.truncate(depth.saturating_sub(1));
            for is_open in &open {
                write!(session.out, "{}", if *is_open { "│   " } else { "    " })?;
            }
            if depth == 0 {
                session.out.write_all(&shown(&step.path, is_terminal))?;
            } else {
                let branch = if step.is_last {
                    "└── "
                } else {
                    "├── "
                };
                write!(session.out, "{branch}")?;
                session.out.write_all(&shown(&step.name, is_terminal))?;
                open.push(!step.is_last);
            }
            if let Ok(node) = &step.node
                && let Ok(Some(to)) = node.link_target()
                && node.kind() == FileKind::Symlink
            {
                session.out.write_all(b" -> ")?;
                session.out.write_all(&shown(&to, is_terminal))?;
            }
            writeln!(session.out)?;
        }
        for (path, reason) in &walk.problems {
            status = 1;
            writeln!(session.err, "millpond: {}: {reason}", escaped(path))?;
        }
        if !global.is_json {
            let directories = number::of(directories, "directory", "directories");
            let files = number::of(others, "file", "files");
            writeln!(session.out, "\n{directories}, {files}")?;
        }
    }
    Ok(status)
}
