//! `millpond cp`: copies files, trees and volumes out of a pool and into a pool ([`into`]).

mod attributes;
mod file;
pub mod into;
mod links;
pub(super) mod place;
pub(super) mod queue;
pub(super) mod report;
mod tree;

use super::Global;
use super::address::Address;
use super::content::Content;
use super::global::refused;
use super::pools::{FileTarget, Pools, Target, explained};
use crate::session::{Ending, Failure, Session};
use crate::verbs::parse;
use attributes::Wanted;
use clap::{ArgMatches, Args, Command};
use file::HostLinks;
use millpond_engine::{FileKind, Symlinks};
use millpond_env::sync::Arc;
use place::Directory;
use queue::Queue;
use report::Report;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tree::{Copy, Order, Rules};

// No doc comment: it would become the help of the command.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Copy directories and their contents
    #[arg(short = 'r', long, visible_short_alias = 'R')]
    recursive: bool,
    /// The same as -r: attributes are always preserved
    #[arg(short = 'a', long)]
    archive: bool,
    /// Do not overwrite existing files
    #[arg(short = 'n', long)]
    no_clobber: bool,
    /// Do not copy extended attributes and POSIX ACLs
    #[arg(long)]
    no_xattrs: bool,
    /// Do not set owners and groups
    #[arg(long, conflicts_with = "owner")]
    no_owner: bool,
    /// Set owners and groups (the default for root)
    #[arg(long)]
    owner: bool,
    /// Keep privileges: set-user and set-group bits, capabilities, other security attributes, and device nodes. Only for
    /// pools that you trust
    #[arg(long)]
    trusted: bool,
    /// Skip files with unreadable blocks; by default the copy has holes in their place
    #[arg(long)]
    skip_damaged: bool,
    /// Into a volume: do not write where the file has holes; by default zeros are written
    #[arg(long)]
    sparse: bool,
    /// Open a pool that another system used last and did not export
    #[arg(long)]
    force_import: bool,
    /// Show no progress
    #[arg(short = 'q', long)]
    quiet: bool,
    /// What to copy: POOL/DATASET[@SNAP]:/PATH, POOL/VOLUME[@SNAP] or, into a pool, files of the host; then the destination
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DESTINATION"])]
    pub(super) words: Vec<OsString>,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("cp")
        .about("Copy files, directory trees and volumes out of a pool, or into one")
        .override_usage("millpond cp [OPTIONS] SOURCE... DESTINATION")
        .after_help(NOTES);
    Options::augment_args(command)
}

/// Copies all sources.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let global = &global.reading_once();
    let options: Options = parse(matches)?;
    if into::is_wanted(global, &options.words) {
        return into::run(session, global, &options);
    }
    out(session, global, &options, &mut Pools::new(global))
}

/// Copies what is in these pools to the host.
pub(super) fn out(
    session: &mut Session,
    global: &Global,
    options: &Options,
    pools: &mut Pools,
) -> Ending {
    let Some((destination, sources)) = options.words.split_last() else {
        return Err(Failure::Usage("what is to be copied?".into()));
    };
    let is_recursive = options.recursive || options.archive;
    let is_root = rustix::process::geteuid().is_root();
    let rules = Rules {
        wanted: Wanted {
            has_owner: !options.no_owner && (options.owner || is_root),
            has_xattrs: !options.no_xattrs,
            is_trusted: options.trusted,
        },
        is_recursive,
        is_kept: options.no_clobber,
        is_whole_wanted: options.skip_damaged,
    };
    let place = Destination::of(Path::new(destination), sources.len())?;
    // Symbolic links named on the command line are followed, as in `cp`. With `-r` they are copied.
    let symlinks = if is_recursive {
        Symlinks::Keep
    } else {
        Symlinks::Follow
    };
    let mut orders = vec![];
    let mut volumes = vec![];
    let mut datasets: Vec<String> = vec![];
    let mut is_missing = false;
    for word in sources {
        match pools.target(word, symlinks) {
            Ok(Target::File(target)) => {
                let name = target.dataset.name().to_owned();
                let known = datasets.iter().position(|known| *known == name);
                let source = known.unwrap_or_else(|| {
                    datasets.push(name);
                    datasets.len() - 1
                });
                orders.push(order(word, target, source, &place)?);
            }
            Ok(Target::Volume(dataset)) => {
                let volume = dataset
                    .volume()
                    .map_err(|error| refused(explained(&error)))?;
                let path = dataset.name().as_bytes().to_vec();
                let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                let name = place.name.clone().unwrap_or_else(|| last.to_vec());
                volumes.push((Content::from(&volume), name, path));
            }
            Err(Failure::Refused(text)) => {
                writeln!(session.err, "{text}")?;
                is_missing = true;
            }
            Err(failure) => return Err(failure),
        }
    }
    if orders.is_empty() && volumes.is_empty() {
        return Ok(1);
    }
    raise_limit();
    let total = total_bytes(&orders, &volumes);
    let report = Arc::new(Report::new(global.progress(options.quiet), total));
    let fd = open(&place.folder, OPEN_FLAGS, Mode::empty()).map_err(|error| {
        let folder = place.folder.display();
        refused(format!("{folder}: {}", std::io::Error::from(error)))
    })?;
    let top = Directory::top(fd, &report);
    let links = Arc::new(HostLinks::default());
    let copy = || Copy {
        rules,
        top: Arc::clone(&top),
        report: Arc::clone(&report),
        links: Arc::clone(&links),
        queue: Queue::new(),
    };
    if !orders.is_empty() {
        copy().run(orders);
    }
    for (content, name, path) in volumes {
        copy().run_volume(content, name, path);
    }
    let is_whole = report.finish(session.out, session.err, global.is_json)?;
    Ok(u8::from(!is_whole || is_missing))
}

/// The bytes to copy, if it is known: those of files and volumes, and about those of whole file systems.
fn total_bytes(orders: &[Order], volumes: &[(Content, Vec<u8>, Vec<u8>)]) -> Option<u64> {
    let of_order = |order: &Order| {
        let node = &order.target.node;
        match node.kind() {
            FileKind::Directory if node.id() == order.target.files.root().ok()?.id() => {
                Some(order.target.dataset.inner().phys().uncompressed_bytes)
            }
            FileKind::Directory => None,
            _ => Some(node.size_bytes()),
        }
    };
    let files = orders.iter().map(of_order);
    let volumes = volumes.iter().map(|(content, ..)| Some(content.size_bytes));
    files
        .chain(volumes)
        .try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?)))
}

/// The destination: an existing directory, and the name of the copy if the command line gives one.
struct Destination {
    folder: PathBuf,
    name: Option<Vec<u8>>,
    /// Whether the destination existed as a directory.
    is_directory: bool,
}

impl Destination {
    fn of(destination: &Path, sources: usize) -> Result<Self, Failure> {
        let shown = destination.display();
        let found = std::fs::metadata(destination);
        match found {
            Ok(found) if found.is_dir() => {
                return Ok(Self {
                    folder: destination.to_owned(),
                    name: None,
                    is_directory: true,
                });
            }
            Ok(found) if !found.is_file() => {
                return Err(refused(format!(
                    "'{shown}' is no plain file: write to it with millpond cat"
                )));
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(format!("{shown}: {error}"))),
        }
        if sources > 1 {
            return Err(Failure::Usage(format!(
                "'{shown}' is no directory, and several things are to be copied"
            )));
        }
        let Some(name) = destination.file_name() else {
            return Err(refused(format!("'{shown}': no such directory")));
        };
        let parent = destination
            .parent()
            .filter(|parent| *parent != Path::new(""));
        Ok(Self {
            folder: parent.unwrap_or(Path::new(".")).to_owned(),
            name: Some(name.as_bytes().to_vec()),
            is_directory: false,
        })
    }
}

fn order(
    word: &OsStr,
    target: FileTarget,
    source: usize,
    place: &Destination,
) -> Result<Order, Failure> {
    let address = Address::parse(word).map_err(Failure::Usage)?;
    let is_directory = target.node.kind() == FileKind::Directory;
    let name = match (&place.name, address.last_name()) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(name)) => Some(name.to_vec()),
        // The root of a file system: its content goes into the destination.
        (None, None) if is_directory && place.is_directory => None,
        (None, None) => return Err(refused("this has no name to copy it by")),
    };
    let mut path = target.dataset.name().as_bytes().to_vec();
    path.push(b':');
    if target.path.first() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(&target.path);
    Ok(Order {
        target,
        source,
        path,
        name,
    })
}

/// Raises the limit of open files, because a deep tree holds one descriptor per level.
pub(super) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

const OPEN_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

const NOTES: &str = "\
Modes, times, extended attributes, ACLs, hard links between copied files, symbolic links, pipes,
sockets and holes are restored; owners only by root or with --owner. A pool may be untrusted: set-user
and set-group bits, capabilities and device nodes are skipped and reported, for root too, unless
--trusted is given. An existing directory keeps its mode, owner and times.
If DESTINATION is POOL/DATASET:/PATH or POOL/VOLUME, the copy goes into the pool. Sources are then files of
the host, or addresses with a colon: for a source without one in another pool, write POOL/VOLUME: with the colon. Owners are kept; with --no-owner
everything belongs to the calling user.
If DESTINATION is a directory, copies are placed in it under their own names (the contents of a
dataset's root directly); otherwise the copy gets that name.
Read errors do not stop the copy. They are listed at the end, and the status is then 1.";
