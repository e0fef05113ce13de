//! `millpond find`: finds files by name, kind, size, time and owner.

mod expression;
mod pattern;

use super::Global;
use super::entry_text::to_json;
use super::name_text::{escaped, shown};
use super::pools::Pools;
use super::walk::{Walk, beginning};
use crate::session::{Ending, Failure, Session};
use crate::verbs::unless_refused;
use clap::{Arg, ArgMatches, Command, value_parser};
use expression::{Expression, parse};
use millpond_engine::Symlinks;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, IsTerminal};

/// Defines the command.
pub fn command() -> Command {
    Command::new("find")
        .about("Find files by name, kind, size, time and owner")
        .override_usage("millpond find ADDRESS... [TEST]...")
        .arg(
            Arg::new("words")
                .value_name("WORD")
                .help("Addresses to search, then tests")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
        .after_help(TESTS)
}

/// Prints the files that match.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let words: Vec<OsString> = matches
        .get_many::<OsString>("words")
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let first_test = words.iter().position(is_test);
    let (addresses, tests) = words.split_at(first_test.unwrap_or(words.len()));
    if addresses.is_empty() {
        return Err(Failure::Usage("find: where to begin?".into()));
    }
    let mut pools = Pools::new(global);
    let expression = parse(tests, &mut pools, session.environment)?;
    let is_json = global.is_json || expression.is_json;
    let is_terminal = io::stdout().is_terminal();
    let mut status = 0;
    for word in addresses {
        let target = pools.file(word, Symlinks::Keep);
        let Some(target) = unless_refused(session, target, &mut status)? else {
            continue;
        };
        let begin = beginning(word.as_encoded_bytes());
        let mut walk = Walk::new(&target, &begin, expression.depth_max);
        while let Some(step) = walk.next() {
            for (path, reason) in walk.problems.drain(..) {
                status = 1;
                writeln!(session.err, "millpond: {}: {reason}", escaped(&path))?;
            }
            if step.depth < expression.depth_min {
                continue;
            }
            let found = step.node.clone().and_then(|node| match node.stat() {
                Ok(stat) => Ok((node, stat)),
                Err(error) => Err(error.to_string()),
            });
            let (node, stat) = match found {
                Ok(found) => found,
                Err(reason) => {
                    status = 1;
                    writeln!(session.err, "millpond: {}: {reason}", escaped(&step.path))?;
                    continue;
                }
            };
            let name = if step.depth == 0 {
                last_name(&step.path)
            } else {
                &step.name
            };
            if !expression.holds(name, &step.path, &stat) {
                continue;
            }
            if is_json {
                let map = to_json(&step.path, &node, &stat);
                writeln!(session.out, "{}", Value::Object(map))?;
            } else if expression.ends_with_nul {
                session.out.write_all(&step.path)?;
                session.out.write_all(b"\0")?;
            } else {
                session.out.write_all(&shown(&step.path, is_terminal))?;
                session.out.write_all(b"\n")?;
            }
        }
        for (path, reason) in walk.problems.drain(..) {
            status = 1;
            writeln!(session.err, "millpond: {}: {reason}", escaped(&path))?;
        }
    }
    Ok(status)
}

fn is_test(word: &OsString) -> bool {
    let bytes = word.as_encoded_bytes();
    bytes.starts_with(b"-") || bytes == b"!"
}

fn last_name(path: &[u8]) -> &[u8] {
    let mut names = path.rsplit(|byte| *byte == b'/');
    names.find(|name| !name.is_empty()).unwrap_or_default()
}

impl Expression {
    fn holds(&self, name: &[u8], path: &[u8], stat: &millpond_engine::Stat) -> bool {
        self.tests
            .iter()
            .all(|(is_wanted, test)| test.holds(name, path, stat) == *is_wanted)
    }
}

const TESTS: &str = "\
Tests; a file must pass all of them. ! or -not before a test negates it:
  -name GLOB, -iname GLOB    the name; * ? [a-z] and \\x
  -path GLOB                 the whole address, * also matches /
  -type f|d|l|p|s|b|c        file, directory, link, pipe, socket, block or character device
  -size [+-]N[c|k|M|G|T]     size rounded up to units (without a letter: 512 bytes)
  -mtime [+-]N               changed N days ago; +N more, -N fewer
  -newer ADDRESS             changed after that file
  -user NAME|UID, -uid [+-]N, -group NAME|GID, -gid [+-]N
  -inum [+-]N, -links [+-]N, -empty
  -maxdepth N, -mindepth N   levels below each address
  -print, -print0, --json    how paths are printed";
