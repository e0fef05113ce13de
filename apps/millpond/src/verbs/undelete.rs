//! `millpond undelete`: brings back a file from the newest snapshot or older state that has it whole.

use super::address::Address;
use super::content::Content;
use super::global::refused;
use super::pools::{FileTarget, Pools};
use super::walk::Walk;
use super::{Global, cp, parse};
use crate::session::{Ending, Failure, Session};
use crate::text::date;
use clap::{ArgMatches, Args, Command};
use millpond_engine::{FileKind, PoolCandidate, Symlinks, Txg, View, past_states};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

#[derive(Debug, Args)]
struct Options {
    /// Only say where it is
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Copy to this file or directory of the host, and not back into the pool
    #[arg(short = 'o', long, value_name = "DESTINATION")]
    to: Option<PathBuf>,
    /// Open a pool that another system used last and did not export
    #[arg(long)]
    force_import: bool,
    /// What to bring back, POOL/DATASET:/PATH: a file, or a directory with everything in it
    #[arg(value_name = "ADDRESS")]
    address: OsString,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("undelete")
        .about("Bring back a file from the newest snapshot or older state that has it whole")
        .after_help(NOTES);
    Options::augment_args(command)
}

/// Finds the file and copies it.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let global = &global.reading_once();
    let options: Options = parse(matches)?;
    let address = Address::parse(&options.address).map_err(Failure::Usage)?;
    let path = match &address.path {
        Some(path) if !address.dataset.contains('@') && address.last_name().is_some() => path,
        _ => return Err(Failure::Usage("name a file: POOL/DATASET:/PATH".into())),
    };
    if global.is_past() {
        return Err(Failure::Usage(
            "undelete searches all states: leave out -T".into(),
        ));
    }
    let (found, damaged) = search(global, &address, path)?;
    let Some(found) = found else {
        let shown = options.address.to_string_lossy();
        return Err(refused(match damaged {
            Some((version, reason)) => format!(
                "'{shown}' is whole in no state or snapshot\nthe newest one that has it is {}: {reason}\n\
                 copy what is left of it: millpond {} cp -r '{}' DESTINATION",
                version.shown(session),
                version.option(),
                version.word(&address, path).to_string_lossy(),
            ),
            None => format!("'{shown}' is in no state or snapshot that can still be read"),
        }));
    };
    let word = found.word(&address, path);
    if found == Version::NEWEST {
        let shown = options.address.to_string_lossy();
        return Err(refused(format!(
            "'{shown}' is still there and whole\nan older version of it is in a snapshot, or with -T: see millpond history"
        )));
    }
    writeln!(
        session.out,
        "{}: whole in {}",
        options.address.to_string_lossy(),
        found.shown(session)
    )?;
    if options.dry_run {
        return Ok(0);
    }
    let past = match found.txg {
        Some(txg) => global.at(txg),
        None => global.clone(),
    };
    if let Some(to) = &options.to {
        return copy(session, &past, &options, &word, to.as_os_str());
    }
    if found.txg.is_none() {
        return copy(session, global, &options, &word, &options.address);
    }
    // Writing to the pool may overwrite the state, so everything is read first.
    let folder = Scratch::new()?;
    let kept = folder.0.join("kept");
    let status = copy(session, &past, &options, &word, kept.as_os_str())?;
    match status {
        0 => copy(
            session,
            global,
            &options,
            kept.as_os_str(),
            &options.address,
        ),
        status => Ok(status),
    }
}

/// The newest version that has the file whole, and the newest one that has it otherwise, with the reason.
type Found = (Option<Version>, Option<(Version, String)>);

/// Searches all versions. Nothing stays open, because an open pool could not be opened for writing.
fn search(global: &Global, address: &Address, path: &[u8]) -> Result<Found, Failure> {
    let pool = global.find(address.pool())?;
    let mut search = Search {
        global,
        pool: &pool,
        address,
        path,
        searched: BTreeSet::new(),
        damaged: None,
    };
    let found = search.find()?;
    Ok((found, search.damaged))
}

/// Calls `millpond cp`.
fn copy(
    session: &mut Session,
    global: &Global,
    options: &Options,
    from: &OsStr,
    to: &OsStr,
) -> Ending {
    let mut words: Vec<OsString> = vec!["cp".into(), "-r".into()];
    // What comes back to its own pool keeps everything.
    words.extend(options.to.is_none().then(|| "--trusted".into()));
    words.extend(options.force_import.then(|| "--force-import".into()));
    words.extend(["--".into(), from.to_owned(), to.to_owned()]);
    let matches = cp::command().try_get_matches_from(words);
    let matches = matches.map_err(|error| Failure::Usage(error.to_string()))?;
    cp::run(session, global, &matches)
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let name = format!("millpond-undelete-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| refused(format!("{}: {error}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where a version of the file may still be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    /// The txg of an older state; `None` for the newest one.
    txg: Option<Txg>,
    /// When that state was committed, in seconds since 1970.
    time_s: u64,
    /// The snapshot in that state; `None` for the file system itself.
    snapshot: Option<String>,
}

impl Version {
    const NEWEST: Self = Self {
        txg: None,
        time_s: 0,
        snapshot: None,
    };

    fn dataset(&self, address: &Address) -> String {
        match &self.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", address.dataset),
            None => address.dataset.clone(),
        }
    }
    /// The address of the file.
    fn word(&self, address: &Address, path: &[u8]) -> OsString {
        let mut word = self.dataset(address).into_bytes();
        word.push(b':');
        word.extend_from_slice(path);
        OsString::from_vec(word)
    }
    /// The option that opens the state.
    fn option(&self) -> String {
        self.txg
            .map_or_else(String::new, |txg| format!("-T {}", txg.0))
    }
    fn shown(&self, session: &Session) -> String {
        let state = self.txg.map(|txg| {
            let time = date::ctime(self.time_s, &session.environment.zone);
            format!("txg {} ({time})", txg.0)
        });
        match (&self.snapshot, state) {
            (Some(snapshot), Some(state)) => format!("snapshot {snapshot} of {state}"),
            (Some(snapshot), None) => format!("snapshot {snapshot}"),
            (None, Some(state)) => state,
            (None, None) => "the newest state".to_owned(),
        }
    }
}

struct Search<'a> {
    global: &'a Global,
    pool: &'a PoolCandidate,
    address: &'a Address,
    path: &'a [u8],
    /// The guids of the snapshots searched so far.
    searched: BTreeSet<u64>,
    /// The newest version that has the file, but not whole, and why.
    damaged: Option<(Version, String)>,
}

impl Search<'_> {
    /// The newest version that has the file whole. Older states come between the snapshots, by their txgs.
    fn find(&mut self) -> Result<Option<Version>, Failure> {
        let states = past_states(self.pool).map_err(refused)?;
        // Snapshots of states seen so far that are older than those states, newest first.
        let mut snapshots: Vec<(Txg, Version)> = vec![];
        for (number, state) in states.iter().enumerate() {
            let version = Version {
                txg: (number > 0).then_some(state.txg),
                time_s: if number > 0 { state.time_s } else { 0 },
                snapshot: None,
            };
            let is_newer = |(txg, _): &(Txg, Version)| *txg >= state.txg;
            while snapshots.first().is_some_and(is_newer) {
                let (_, snapshot) = snapshots.remove(0);
                if self.has(&snapshot, None)? {
                    return Ok(Some(snapshot));
                }
            }
            let Ok(view) = View::open_candidate(self.pool, &self.global.at(state.txg).open) else {
                continue;
            };
            if self.has(&version, Some(&view))? {
                return Ok(Some(version));
            }
            self.add_snapshots(&view, &version, &mut snapshots);
        }
        for (_, snapshot) in snapshots {
            if self.has(&snapshot, None)? {
                return Ok(Some(snapshot));
            }
        }
        Ok(None)
    }

    /// The file system's name; the address may have the guid of the pool.
    fn dataset_in(&self, view: &View) -> String {
        let called = self.address.pool();
        format!("{}{}", view.name(), &self.address.dataset[called.len()..])
    }

    fn add_snapshots(&mut self, view: &View, state: &Version, to: &mut Vec<(Txg, Version)>) {
        let found = view
            .dataset(&self.dataset_in(view))
            .and_then(|dataset| dataset.snapshots());
        for snapshot in found.into_iter().flatten() {
            let inner = snapshot.inner();
            if let Some(name) = inner.snapshot_name()
                && self.searched.insert(inner.guid().0)
            {
                let version = Version {
                    snapshot: Some(name.to_owned()),
                    ..state.clone()
                };
                to.push((inner.phys().creation_txg, version));
            }
        }
        to.sort_by_key(|(txg, _)| std::cmp::Reverse(*txg));
    }

    /// Whether a version has the file whole. `view` is that of the state, if it is open.
    fn has(&mut self, version: &Version, view: Option<&View>) -> Result<bool, Failure> {
        let global = match version.txg {
            Some(txg) => self.global.at(txg),
            None => self.global.clone(),
        };
        let opened;
        let view = match view {
            Some(view) => view,
            None => match View::open_candidate(self.pool, &global.open) {
                Ok(view) => {
                    opened = view;
                    &opened
                }
                Err(_) => return Ok(false),
            },
        };
        global.load_keys(view, self.address.pool())?;
        let name = self.dataset_in(view);
        let locked = view.dataset(&name).and_then(|dataset| dataset.is_locked());
        if matches!(locked, Ok(true)) {
            return Err(refused(format!(
                "'{name}' is locked\ngive its key with --key DATASET=file:///PATH"
            )));
        }
        let mut pools = Pools::new(&global);
        pools.add(self.address.pool(), view.clone());
        let word = version.word(self.address, self.path);
        let Ok(target) = pools.file(&word, Symlinks::Keep) else {
            return Ok(false);
        };
        match unreadable(&target) {
            None => Ok(true),
            Some(reason) => {
                self.damaged.get_or_insert((version.clone(), reason));
                Ok(false)
            }
        }
    }
}

/// Reads a file, or a directory with everything below it. Returns why that failed.
fn unreadable(target: &FileTarget) -> Option<String> {
    let mut walk = Walk::new(target, target.path.as_slice(), u32::MAX);
    for step in walk.by_ref() {
        let shown = || String::from_utf8_lossy(&step.path).into_owned();
        let node = match &step.node {
            Ok(node) => node,
            Err(reason) => return Some(format!("{}: {reason}", shown())),
        };
        let read = match node.kind() {
            FileKind::Regular => read_all(&Content::from(node)),
            FileKind::Symlink => match node.link_target() {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
            _ => Ok(()),
        };
        if let Err(reason) = read {
            return Some(format!("{}: {reason}", shown()));
        }
    }
    let (path, reason) = walk.problems.first()?;
    Some(format!("{}: {reason}", String::from_utf8_lossy(path)))
}

fn read_all(content: &Content) -> Result<(), String> {
    let mut bytes = vec![];
    let (mut at, mut piece) = (0, content.next_piece(0));
    while let Some(now) = piece {
        if let Some(reason) = now.lost {
            return Err(reason);
        }
        at = at.max(now.offset_bytes);
        let end = now.offset_bytes.saturating_add(now.length_bytes);
        while at < end {
            let count = (end - at).min(READ_BYTES);
            bytes.resize(usize::try_from(count).unwrap_or(0), 0);
            let read = content.object.read(at, &mut bytes);
            read.map_err(|error| error.to_string())?;
            at += count;
        }
        piece = content.next_piece(end);
    }
    Ok(())
}

/// Bytes per read.
const READ_BYTES: u64 = 1 << 20;

const NOTES: &str = "\
Searched are the snapshots of the file system and the older states that the labels still name, newest
first; millpond history lists those states. Their freed blocks may have been used again, so undelete
soon, and write to the pool as little as possible before that. Everything is read and verified before
it is copied. A file comes back under its path, with its attributes; from an older state it is first
copied to the directory for temporary files (TMPDIR). If the pool is imported, give a destination
with --to, for example below its mount point.";
