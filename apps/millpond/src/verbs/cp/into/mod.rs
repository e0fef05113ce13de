//! Copies into a pool: from the host, from other pools and from other datasets of the same pool.

pub mod host;
pub mod source;
mod stored;
pub mod target;
pub mod tree;
mod volume;

use super::super::address::Address;
use super::super::global::refused;
use super::super::pools::{FileTarget, Pools, Target as Found};
use super::super::writing::{Opened, WritePools, split_last};
use super::report::Report;
use super::{Options, raise_limit};
use crate::session::{Ending, Failure, Session};
use crate::verbs::Global;
use host::HostFile;
use millpond_engine::{FileError, FileKind, FileSystem, Node, Symlinks};
use millpond_env::sync::Arc;
use source::Source;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use stored::PoolFile;
use target::{Preserved, Target};
use tree::{Fill, Order};

/// Whether a word is an address in a pool instead of a host path.
///
/// An address marks the end of the dataset name and does not begin like a path.
pub fn is_address(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    let is_path = bytes.starts_with(b"/") || bytes.starts_with(b".");
    !is_path && (bytes.ends_with(b":") || bytes.windows(2).any(|pair| pair == b":/"))
}

/// Whether the last word is a place in a pool: an address, or a name without a colon that is nothing on the host while all
/// sources are.
pub(super) fn is_wanted(global: &Global, words: &[OsString]) -> bool {
    let Some((destination, sources)) = words.split_last() else {
        return false;
    };
    if is_address(destination) {
        return true;
    }
    let is_there = |word: &OsStr| Path::new(word).symlink_metadata().is_ok();
    let is_of_host = |word: &OsString| !is_address(word) && is_there(word);
    let Ok(address) = Address::parse(destination) else {
        return false;
    };
    if is_there(destination) || sources.is_empty() || !sources.iter().all(is_of_host) {
        return false;
    }
    // What is on the host is copied to nowhere but a pool. But a source may have the name of a pool, too.
    let above = Path::new(destination).parent();
    let is_in_folder = above.is_none_or(|above| above == Path::new("") || above.is_dir());
    !is_in_folder || global.find(address.pool()).is_ok()
}

/// Copies into the pool that the last word names.
pub(super) fn run(session: &mut Session, global: &Global, options: &Options) -> Ending {
    let Some((destination, sources)) = options.words.split_last() else {
        return Err(Failure::Usage("what is to be copied?".into()));
    };
    let is_recursive = options.recursive || options.archive;
    let mut writing = WritePools::new(global, options.force_import);
    let ending = match writing.open(destination)? {
        Opened::Volume(volume) => {
            let [source] = sources else {
                let text = "a volume takes the bytes of one file".to_owned();
                return Err(Failure::Usage(text));
            };
            let mut pools = Pools::new(global);
            let report = Report::new(global.progress(options.quiet), size_of(sources));
            volume::copy(&mut pools, source, &volume, &report, options.sparse)?;
            let is_whole = report.finish(session.out, session.err, global.is_json)?;
            Ok(u8::from(!is_whole))
        }
        Opened::Files {
            files,
            dataset,
            path,
        } => {
            let place = Destination::of(&files, &dataset, &path, sources.len())?;
            let mut found = Sources {
                pools: Pools::new(global),
                datasets: BTreeMap::new(),
            };
            let (mut orders, mut is_missing) = (vec![], false);
            for word in sources {
                match found.order(&mut writing, word, is_recursive, &place) {
                    Ok(order) => orders.push(order),
                    Err(Failure::Refused(text)) => {
                        writeln!(session.err, "{text}")?;
                        is_missing = true;
                    }
                    Err(failure) => return Err(failure),
                }
            }
            raise_limit();
            let own = found.datasets.get(&dataset);
            let target = Target {
                own: own.map(|source| (*source, place.node.id().0)),
                files,
                preserved: Preserved {
                    owner: options.no_owner.then(|| {
                        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
                        (uid.as_raw(), gid.as_raw())
                    }),
                    has_xattrs: !options.no_xattrs,
                    is_atime_mtime: false,
                    is_kept: options.no_clobber,
                },
            };
            let style = global.progress(options.quiet);
            let report = Arc::new(Report::new(style, size_of(sources)));
            let fill = Fill::new(Arc::new(target), Arc::clone(&report), is_recursive, None);
            fill.run(&place.node, orders);
            drop((fill, place));
            let is_whole = report.finish(session.out, session.err, global.is_json)?;
            Ok(u8::from(!is_whole || is_missing))
        }
    };
    writing.finish()?;
    ending
}

/// The size of sources that are files of the host.
fn size_of(sources: &[OsString]) -> Option<u64> {
    let sizes = sources.iter().map(|word| {
        let metadata = Path::new(word).metadata().ok()?;
        (metadata.is_file() && !is_address(word)).then_some(metadata.len())
    });
    sizes
        .into_iter()
        .try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?)))
}

/// The destination: an existing directory, and the name of the copy if the command line gives one.
struct Destination {
    node: Node,
    name: Option<Vec<u8>>,
}

impl Destination {
    fn of(files: &FileSystem, dataset: &str, path: &[u8], sources: usize) -> Result<Self, Failure> {
        let shown = |error: &dyn std::fmt::Display| {
            let path = super::super::name_text::escaped(path);
            refused(format!("{dataset}:{path}: {error}"))
        };
        match super::super::writing::resolve(files, path, true) {
            Ok(node) if node.kind() == FileKind::Directory => {
                return Ok(Self { node, name: None });
            }
            Ok(_) | Err(FileError::NotFound) => {}
            Err(error) => return Err(shown(&error)),
        }
        if sources > 1 {
            let text = "no directory, and several things are to be copied";
            return Err(shown(&text));
        }
        let (above, name) = split_last(path).ok_or_else(|| shown(&FileError::NotFound))?;
        let node = super::super::writing::resolve(files, above, true);
        let node = node.map_err(|error| shown(&error))?;
        let name = Some(name.to_vec());
        Ok(Self { node, name })
    }
}

/// Opens the sources that the words name.
struct Sources<'g> {
    pools: Pools<'g>,
    /// A number for each dataset of a source. Low numbers are devices of the host.
    datasets: BTreeMap<String, u64>,
}

/// A source.
struct Named {
    source: Arc<dyn Source>,
    /// Its own name, if it has one.
    name: Option<Vec<u8>>,
    /// Its name in messages.
    shown: Vec<u8>,
}

impl Sources<'_> {
    fn number(&mut self, dataset: &str) -> u64 {
        let next = u64::MAX - self.datasets.len() as u64;
        *self.datasets.entry(dataset.to_owned()).or_insert(next)
    }

    fn order(
        &mut self,
        writing: &mut WritePools<'_>,
        word: &OsStr,
        is_recursive: bool,
        place: &Destination,
    ) -> Result<Order, Failure> {
        let named = if is_address(word) {
            self.in_pool(writing, word, is_recursive)?
        } else {
            let path = Path::new(word);
            let shown = path.display();
            let file = HostFile::at(path, !is_recursive);
            let file = file.map_err(|error| refused(format!("{shown}: {error}")))?;
            // `tree/.` has no name of its own; it stands for the content of `tree`.
            let name = match word.as_bytes().ends_with(b"/.") {
                true => None,
                false => path.file_name().map(|name| name.as_bytes().to_vec()),
            };
            Named {
                source: Arc::new(file),
                name,
                shown: word.as_bytes().to_vec(),
            }
        };
        let is_directory = named.source.facts().kind == FileKind::Directory;
        let name = match (&place.name, named.name) {
            (Some(name), _) => Some(name.clone()),
            (None, Some(name)) => Some(name),
            // A directory without a name of its own: its content goes into the destination.
            (None, None) if is_directory => None,
            (None, None) => return Err(refused("this has no name to copy it by")),
        };
        Ok(Order {
            source: named.source,
            path: named.shown,
            name,
        })
    }

    fn in_pool(
        &mut self,
        writing: &mut WritePools<'_>,
        word: &OsStr,
        is_recursive: bool,
    ) -> Result<Named, Failure> {
        let address = Address::parse(word).map_err(Failure::Usage)?;
        let name = address.last_name().map(<[u8]>::to_vec);
        let shown = super::super::walk::beginning(word.as_bytes());
        let is_snapshot = address.dataset.contains('@');
        if writing.has(address.pool()) && !is_snapshot {
            let Opened::Files {
                files,
                dataset,
                path,
            } = writing.open(word)?
            else {
                return Err(refused("a volume is copied into a file with: millpond cp"));
            };
            let node = super::super::writing::resolve(&files, &path, !is_recursive);
            let node = node.map_err(|error| {
                refused(format!("{}: {error}", String::from_utf8_lossy(&shown)))
            })?;
            let source = self.number(&dataset);
            let file = PoolFile::new(source, node).map_err(refused)?;
            return Ok(Named {
                source: Arc::new(file),
                name,
                shown,
            });
        }
        // A snapshot of the destination pool is read as of the last commit. Its blocks are not freed by the
        // copy.
        if let Some(pool) = writing.committed(address.pool())? {
            self.pools.add(address.pool(), pool);
        }
        let symlinks = match is_recursive {
            true => Symlinks::Keep,
            false => Symlinks::Follow,
        };
        let Found::File(FileTarget { dataset, node, .. }) = self.pools.target(word, symlinks)?
        else {
            return Err(refused(
                "a volume is copied into a volume, or into a file of the host",
            ));
        };
        let source = self.number(dataset.name());
        let file = PoolFile::new(source, node).map_err(refused)?;
        Ok(Named {
            source: Arc::new(file),
            name,
            shown,
        })
    }
}
