//! Stored streams that are opened for a command: the words that name them become addresses in their pool.

use super::IndexOption;
use super::words::Word;
use crate::progress::{Done, Progress};
use crate::session::{Failure, Session};
use crate::verbs::Global;
use crate::verbs::global::refused;
use crate::verbs::name_text::escaped;
use crate::verbs::pools::Pools;
use millpond_engine::OpenOptions;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_stored::{AppliedStream, IndexUse, StoredError, StoredOptions, StoredStreams};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Opened streams, and what the words say of them.
pub(super) struct Opened {
    pub(super) streams: StoredStreams,
    /// What the words name, as addresses in the pool.
    pub(super) addresses: Vec<OsString>,
    /// 1 if a stream is damaged.
    pub(super) status: u8,
}

impl Opened {
    /// Opens the streams that the words name.
    ///
    /// # Errors
    /// If a word names no stream, a stream cannot be opened, or what is named is not in it.
    pub(super) fn open(
        session: &mut Session,
        global: &Global,
        words: &[OsString],
        index: &IndexOption,
    ) -> Result<Self, Failure> {
        let words: Result<Vec<Word>, String> = words.iter().map(|word| Word::parse(word)).collect();
        let words = words.map_err(refused)?;
        let paths = paths_of(&words);
        let index = index.path(&paths);
        let streams = open(global, &paths, index.clone()).map_err(refused)?;
        say_index(session, &streams, index.as_deref())?;
        let status = warn(session, &streams)?;
        global.load_keys(&streams.view, streams.view.name())?;
        let addresses = addresses(&streams, &words)?;
        Ok(Self {
            streams,
            addresses,
            status,
        })
    }

    /// The pools for commands: only that of the streams.
    pub(super) fn pools<'g>(&self, global: &'g Global) -> Pools<'g> {
        let mut pools = Pools::new(global);
        pools.add(self.streams.view.name(), self.streams.view.clone());
        pools
    }

    /// The snapshots that the words name.
    ///
    /// # Errors
    /// If they name paths in them.
    pub(super) fn snapshots(&self) -> Result<Vec<String>, Failure> {
        let names = self.addresses.iter().map(|address| {
            let name = address
                .to_str()
                .filter(|name| !name.contains(":/") && !name.ends_with(':'));
            name.map(str::to_owned)
        });
        let names: Option<Vec<String>> = names.collect();
        names.ok_or_else(|| Failure::Usage("whole snapshots are meant, without paths".into()))
    }

    /// The status of a command that ended with this one.
    pub(super) fn status(&self, status: u8) -> u8 {
        status.max(self.status)
    }
}

/// The streams that words name, each once.
pub(super) fn paths_of(words: &[Word]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = vec![];
    for word in words {
        if !paths.contains(&word.stream) {
            paths.push(word.stream.clone());
        }
    }
    paths
}

/// Opens streams behind a progress bar.
pub(super) fn open(
    global: &Global,
    paths: &[PathBuf],
    index: Option<PathBuf>,
) -> Result<StoredStreams, StoredError> {
    reading(global, paths, |read_bytes| {
        let options = StoredOptions {
            // Older states are those of pools on devices.
            open: OpenOptions {
                cache_bytes: global.open.cache_bytes,
                ..OpenOptions::default()
            },
            read_bytes: Arc::clone(read_bytes),
            index,
            ..StoredOptions::default()
        };
        StoredStreams::open(paths, &options)
    })
}

/// Runs what reads these files, and shows the progress. It counts the bytes that it has read.
pub(super) fn reading<T>(
    global: &Global,
    paths: &[PathBuf],
    read: impl FnOnce(&Arc<AtomicU64>) -> T,
) -> T {
    let lengths = paths
        .iter()
        .map(|path| std::fs::metadata(path).map_or(0, |file| file.len()));
    let total = lengths.fold(0, u64::saturating_add);
    let read_bytes: Arc<AtomicU64> = Arc::default();
    let counted = Arc::clone(&read_bytes);
    let _shown = Progress::start(global.progress(false), move || Done {
        bytes: counted.load(Ordering::Relaxed),
        total_bytes: Some(total),
        verb: "read",
        counts: vec![],
    });
    read(&read_bytes)
}

/// Says why an index was written anew, or not at all.
fn say_index(
    session: &mut Session,
    streams: &StoredStreams,
    index: Option<&Path>,
) -> Result<(), Failure> {
    let path = index.unwrap_or(Path::new("")).display();
    let text = match &streams.index {
        Some(IndexUse::Written(Some(problem))) => format!("{problem}: it was made anew"),
        Some(IndexUse::NotWritten) => "no index is written of damaged streams".to_owned(),
        _ => return Ok(()),
    };
    writeln!(session.err, "millpond: {path}: {text}")?;
    Ok(())
}

/// Says where streams are damaged. Returns the status.
fn warn(session: &mut Session, streams: &StoredStreams) -> Result<u8, Failure> {
    let mut status = 0;
    session.out.flush()?;
    for stream in &streams.streams {
        let Some(damage) = &stream.damage else {
            continue;
        };
        status = 1;
        let missing = match (&damage.cut, damage.missing_from) {
            (None, _) => "the streams after it are missing".to_owned(),
            (Some(cut), 0) => format!("nothing of '{cut}' can be shown"),
            (Some(cut), from) => format!(
                "of '{cut}' all files and directories with an inode number of {from} or more are missing"
            ),
        };
        let path = stream.path.display();
        writeln!(
            session.err,
            "millpond: warning: {path}: the stream is damaged: {}: {missing}",
            damage.reason
        )?;
    }
    Ok(status)
}

/// What words name in the pool; if all name only files, the newest snapshot.
fn addresses(streams: &StoredStreams, words: &[Word]) -> Result<Vec<OsString>, Failure> {
    let named: Vec<&Word> = words.iter().filter(|word| !word.is_whole()).collect();
    if !named.is_empty() {
        let addresses = named.into_iter().map(|word| address(streams, word));
        return addresses.collect();
    }
    let newest = streams.streams.iter().rev().find_map(AppliedStream::newest);
    match newest {
        Some(newest) => Ok(vec![newest.into()]),
        None => Err(refused("the streams have no snapshot that can be shown")),
    }
}

fn address(streams: &StoredStreams, word: &Word) -> Result<OsString, Failure> {
    let path = word.stream.display();
    let mut applied = streams.streams.iter();
    let Some(stream) = applied.find(|stream| stream.path == word.stream) else {
        return Err(refused(format!("{path}: it was not opened")));
    };
    let dataset = match &word.child {
        Some(child) => format!("{}/{child}", stream.dataset),
        None => stream.dataset.clone(),
    };
    let is_of = |name: &&String| name.split('@').next() == Some(&dataset);
    let name = match (&word.snapshot, &word.child) {
        (Some(snapshot), _) => format!("{dataset}@{snapshot}"),
        (None, None) => stream.newest().unwrap_or_default().to_owned(),
        (None, Some(_)) => {
            let newest = stream.snapshots.iter().rev().find(is_of);
            newest.cloned().unwrap_or_default()
        }
    };
    if name.is_empty() {
        let dataset = escaped(dataset.as_bytes());
        return Err(refused(format!(
            "{path}: it has no snapshot of '{dataset}'"
        )));
    }
    let mut address = OsString::from(name);
    address.push(word.path.as_deref().unwrap_or_default());
    Ok(address)
}
