//! `millpond ls`: lists directories and files like `ls`.

use super::Global;
use super::entry_text::{Names, kind_word, mode_text, to_json};
use super::global::refused;
use super::json::put_name;
use super::name_text::{escaped, shown};
use super::parse;
use super::pools::{FileTarget, Pools};
use crate::session::{Ending, Failure, Session};
use crate::text::number;
use clap::{ArgMatches, Args, Command};
use millpond_engine::{DirectoryEntry, FileKind, Node, Stat, Symlinks};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal};

// No doc comment: it would become the help of the command.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Show kind, mode, links, owner, group, size, time and target
    #[arg(short = 'l')]
    is_long: bool,
    /// Include names that begin with a dot
    #[arg(short = 'a')]
    is_all: bool,
    /// Include subdirectories
    #[arg(short = 'R')]
    is_recursive: bool,
    /// Show inode numbers, which are object numbers
    #[arg(short = 'i')]
    has_inode: bool,
    /// List directories themselves, not their contents
    #[arg(short = 'd')]
    is_directory_itself: bool,
    /// Do not sort: print entries as they are read, in constant memory
    #[arg(short = 'U')]
    is_unsorted: bool,
    /// Show numeric user and group ids
    #[arg(short = 'n', long)]
    numeric: bool,
    /// Human-readable sizes: 1.5K
    #[arg(short = 'H', long)]
    human: bool,
    /// Show times with nanoseconds and time zone
    #[arg(long)]
    full_time: bool,
    /// What to list: POOL/DATASET[@SNAP]:/PATH
    #[arg(required = true, value_name = "ADDRESS")]
    pub(super) addresses: Vec<OsString>,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("ls").about("List directories and files").after_help(
        "Directories of more than 4 million entries are printed unsorted, as with -U. Names are escaped on a terminal and raw elsewhere.",
    );
    Options::augment_args(command)
}

/// Lists the named files and directories.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    list(session, global, &parse(matches)?, &mut Pools::new(global))
}

/// Lists files and directories in these pools.
pub(super) fn list(
    session: &mut Session,
    global: &Global,
    options: &Options,
    pools: &mut Pools,
) -> Ending {
    let names = Names::new(session.environment, options.numeric);
    let mut list = List {
        session,
        options,
        names,
        is_json: global.is_json,
        is_terminal: io::stdout().is_terminal(),
        status: 0,
        has_printed: false,
    };
    for word in &options.addresses {
        let symlinks = if options.is_long || options.is_directory_itself {
            Symlinks::Keep
        } else {
            Symlinks::Follow
        };
        match pools.file(word, symlinks) {
            Ok(target) => list.target(&target, word.as_encoded_bytes())?,
            Err(Failure::Refused(text)) => {
                writeln!(list.session.err, "{text}")?;
                list.status = 1;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(list.status)
}

struct List<'a, 'b> {
    session: &'a mut Session<'b>,
    options: &'a Options,
    names: Names,
    is_json: bool,
    is_terminal: bool,
    status: u8,
    has_printed: bool,
}

impl List<'_, '_> {
    fn target(&mut self, target: &FileTarget, word: &[u8]) -> Result<(), Failure> {
        if target.node.kind() != FileKind::Directory || self.options.is_directory_itself {
            return self.line(word, word, Some(&target.node), None);
        }
        let mut base = word.to_vec();
        if !word.windows(2).any(|pair| pair == b":/") {
            if base.last() != Some(&b':') {
                base.push(b':');
            }
            base.push(b'/');
        }
        let has_title = self.options.is_recursive || self.options.addresses.len() > 1;
        let mut seen = HashSet::new();
        let mut stack = vec![(base, target.node.clone())];
        while let Some((path, node)) = stack.pop() {
            if !seen.insert(node.id()) {
                self.problem(&path, "the directory has a second name")?;
                continue;
            }
            if has_title && !self.is_json {
                let lead = if self.has_printed { "\n" } else { "" };
                self.session.out.write_all(lead.as_bytes())?;
                self.session
                    .out
                    .write_all(&shown(&path, self.is_terminal))?;
                self.session.out.write_all(b":\n")?;
            }
            self.has_printed = true;
            let mut below = vec![];
            self.directory(target, &path, &node, &mut below)?;
            stack.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Lists one directory and returns its subdirectories if they are to be listed.
    fn directory(
        &mut self,
        target: &FileTarget,
        path: &[u8],
        node: &Node,
        below: &mut Vec<(Vec<u8>, Node)>,
    ) -> Result<(), Failure> {
        let entries = match node.entries() {
            Ok(entries) => entries,
            Err(error) => return self.problem(path, &error.to_string()),
        };
        let mut sorted: Vec<DirectoryEntry> = vec![];
        let mut is_sorted = !self.options.is_unsorted;
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.problem(path, &error.to_string())?;
                    continue;
                }
            };
            if entry.name.starts_with(b".") && !self.options.is_all {
                continue;
            }
            if !is_sorted {
                self.entry(target, path, &entry, below)?;
                continue;
            }
            sorted.push(entry);
            if sorted.len() >= SORTED_MAX {
                let text = "more entries than can be sorted: the rest comes as stored";
                writeln!(self.session.err, "millpond: {}: {text}", escaped(path))?;
                is_sorted = false;
                for entry in std::mem::take(&mut sorted) {
                    self.entry(target, path, &entry, below)?;
                }
            }
        }
        sorted.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for entry in &sorted {
            self.entry(target, path, entry, below)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        target: &FileTarget,
        parent: &[u8],
        entry: &DirectoryEntry,
        below: &mut Vec<(Vec<u8>, Node)>,
    ) -> Result<(), Failure> {
        let path = joined(parent, &entry.name);
        let is_node_wanted = self.options.is_long
            || self.is_json
            || (self.options.is_recursive && entry.kind.is_none_or(|k| k == FileKind::Directory));
        let node = if is_node_wanted {
            match target.files.node(entry.id) {
                Ok(node) => Some(node),
                Err(error) => {
                    self.problem(&path, &error.to_string())?;
                    None
                }
            }
        } else {
            None
        };
        self.line(&entry.name, &path, node.as_ref(), Some(entry))?;
        if self.options.is_recursive
            && let Some(node) = node.filter(|node| node.kind() == FileKind::Directory)
        {
            below.push((path, node));
        }
        Ok(())
    }

    /// Prints one file.
    ///
    /// If `node` is missing (not needed, or unreadable), prints only what the directory entry holds.
    fn line(
        &mut self,
        name: &[u8],
        path: &[u8],
        node: Option<&Node>,
        entry: Option<&DirectoryEntry>,
    ) -> Result<(), Failure> {
        let stat = match node.map(Node::stat) {
            Some(Ok(stat)) => Some(stat),
            Some(Err(error)) => {
                self.problem(path, &error.to_string())?;
                None
            }
            None => None,
        };
        let id = node.map(Node::id).or(entry.map(|entry| entry.id));
        if self.is_json {
            let map = match (node, &stat) {
                (Some(node), Some(stat)) => to_json(path, node, stat),
                _ => {
                    let mut map = Map::new();
                    put_name(&mut map, "path", path);
                    if let Some(kind) = entry.and_then(|entry| entry.kind) {
                        map.insert("type".into(), kind_word(kind).into());
                    }
                    if let Some(id) = id {
                        map.insert("ino".into(), id.0.into());
                    }
                    map.insert("is_readable".into(), false.into());
                    map
                }
            };
            writeln!(self.session.out, "{}", Value::Object(map))?;
            return Ok(());
        }
        if self.options.has_inode
            && let Some(id) = id
        {
            write!(self.session.out, "{:>8} ", id.0)?;
        }
        if self.options.is_long {
            match &stat {
                Some(stat) => self.columns(stat)?,
                None => write!(self.session.out, "?????????? ? ? ? ? ? ")?,
            }
        }
        self.session.out.write_all(&shown(name, self.is_terminal))?;
        if self.options.is_long
            && let Some(node) = node.filter(|node| node.kind() == FileKind::Symlink)
        {
            match node.link_target() {
                Ok(target) => {
                    self.session.out.write_all(b" -> ")?;
                    let target = target.unwrap_or_default();
                    let target = shown(&target, self.is_terminal);
                    self.session.out.write_all(&target)?;
                }
                Err(error) => self.problem(path, &error.to_string())?,
            }
        }
        self.session.out.write_all(b"\n")?;
        Ok(())
    }

    fn columns(&mut self, stat: &Stat) -> io::Result<()> {
        let size = match stat.device {
            Some((major, minor)) => format!("{major}, {minor}"),
            None if self.options.human => number::count(stat.size_bytes),
            None => stat.size_bytes.to_string(),
        };
        let time = if self.options.full_time {
            self.names.full_time(stat.mtime)
        } else {
            self.names.short_time(stat.mtime)
        };
        write!(
            self.session.out,
            "{} {:>3} {:<8} {:<8} {size:>10} {time} ",
            mode_text(stat.kind, stat.permissions),
            stat.links,
            self.names.user(stat.uid),
            self.names.group(stat.gid),
        )
    }

    fn problem(&mut self, path: &[u8], reason: &str) -> Result<(), Failure> {
        self.status = 1;
        if let Failure::Refused(text) = refused(format!("{}: {reason}", escaped(path))) {
            writeln!(self.session.err, "{text}")?;
        }
        Ok(())
    }
}

/// Joins a path and a name.
pub fn joined(parent: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = parent.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

const SORTED_MAX: usize = 4_000_000;
