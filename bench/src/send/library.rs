//! What the library does: streams, and plain reading and writing of the same files.

use crate::print_figure;
use anyhow::{Context, Result};
use millpond_bench::SeededRng;
use millpond_engine::{
    Caller, FileKind, FileSystem, NewMode, Node, OpenOptions, Pool, ReceiveRequest, Search,
    SendFlags, SendRequest, Unwatched, WriteAt, WriteOptions,
};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// As of the daemons (`bench/servers`).
const CACHE_BYTES: u64 = 256 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// Sends a snapshot.
pub fn send(
    folder: &Path,
    snapshot: &str,
    from: Option<&str>,
    form: &str,
    output: &Path,
) -> Result<()> {
    let pool = open(folder, snapshot)?;
    let flags = match form {
        "plain" => SendFlags::default(),
        "c" => SendFlags {
            compressed: true,
            ..SendFlags::default()
        },
        "w" => SendFlags {
            large_blocks: true,
            embedded: true,
            compressed: true,
            raw: true,
        },
        _ => anyhow::bail!("{form} is no form of a stream"),
    };
    let request = SendRequest {
        name: snapshot.to_owned(),
        from: from.map(str::to_owned),
        flags,
        ..SendRequest::default()
    };
    let output = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(output)?;
    let (begun, before) = (Instant::now(), read_bytes(&pool));
    let bytes = pool.send(&request, BufWriter::with_capacity(PIECE_BYTES, output))?;
    print_figure(begun, bytes, Some(read_bytes(&pool) - before));
    Ok(pool.export()?)
}

/// Receives a stream into a new dataset, to stable storage.
pub fn receive(folder: &Path, dataset: &str, stream: &Path) -> Result<()> {
    let pool = open(folder, dataset)?;
    let input = File::open(stream)?;
    let bytes = input.metadata()?.len();
    let request = ReceiveRequest {
        name: dataset.to_owned(),
        ..ReceiveRequest::default()
    };
    let (begun, before) = (Instant::now(), read_bytes(&pool));
    let input = BufReader::with_capacity(PIECE_BYTES, input);
    let outcome = pool.receive(&request, input, &mut Unwatched);
    outcome.into_names()?;
    print_figure(begun, bytes, Some(read_bytes(&pool) - before));
    Ok(pool.export()?)
}

/// Reads all files of a dataset, in the order in which they were made.
pub fn read(folder: &Path, dataset: &str) -> Result<()> {
    let pool = open(folder, dataset)?;
    let (begun, before) = (Instant::now(), read_bytes(&pool));
    let files = pool.file_system(dataset)?;
    let mut found = vec![];
    let mut folders = vec![files.root()?];
    while let Some(folder) = folders.pop() {
        for entry in folder.entries()? {
            let entry = entry?;
            match entry.kind {
                Some(FileKind::Directory) => folders.push(folder.lookup(&entry.name)?),
                _ => found.push(entry.id),
            }
        }
    }
    found.sort_unstable();
    let mut buffer = vec![0; PIECE_BYTES];
    let mut bytes = 0;
    for id in found {
        let node = files.node(id)?;
        let mut at = 0;
        while at < node.size_bytes() {
            at += node.read(at, &mut buffer)? as u64;
        }
        bytes += at;
    }
    print_figure(begun, bytes, Some(read_bytes(&pool) - before));
    drop((files, folders));
    Ok(pool.export()?)
}

/// Writes files of the names and sizes of those in a tree into a new dataset, to stable storage.
pub fn write(folder: &Path, dataset: &str, tree: &Path) -> Result<()> {
    let pool = open(folder, dataset)?;
    let mut plan = vec![];
    list(tree, &mut plan)?;
    let piece = SeededRng(29).bytes(PIECE_BYTES, false);
    let (begun, before) = (Instant::now(), read_bytes(&pool));
    pool.datasets().create_filesystem(dataset, &[])?;
    let files = pool.file_system(dataset)?;
    let mut bytes = 0;
    let mut place: Option<(PathBuf, Node)> = None;
    for (path, length) in &plan {
        let inside = path.strip_prefix(tree)?;
        let parent = inside.parent().context("a folder")?;
        if place.as_ref().is_none_or(|(at, _)| at != parent) {
            place = Some((parent.to_owned(), make_folders(&files, parent)?));
        }
        let (_, node) = place.as_ref().context("a folder")?;
        let name = inside.file_name().context("a name")?;
        let node = create(&files, node, name.as_encoded_bytes())?;
        write_file(&files, &node, *length, &piece)?;
        bytes += length;
    }
    drop((files, place));
    pool.sync()?;
    print_figure(begun, bytes, Some(read_bytes(&pool) - before));
    Ok(pool.export()?)
}

/// Makes a dataset with files of 64 MiB and with small ones, and the snapshot `all` of it.
pub fn large(folder: &Path, dataset: &str, bytes: u64) -> Result<()> {
    const LARGE_BYTES: u64 = 64 << 20;
    const SMALL_FILES: u64 = 10_000;
    let pool = open(folder, dataset)?;
    pool.datasets().create_filesystem(dataset, &[])?;
    let files = pool.file_system(dataset)?;
    let root = files.root()?;
    let mut rng = SeededRng(31);
    for number in 0..SMALL_FILES {
        let piece = rng.bytes(8192, false);
        let node = create(&files, &root, format!("s{number}").as_bytes())?;
        write_file(&files, &node, piece.len() as u64, &piece)?;
    }
    for number in 0..bytes / LARGE_BYTES {
        let node = create(&files, &root, format!("l{number}").as_bytes())?;
        for part in 0..LARGE_BYTES / PIECE_BYTES as u64 {
            let piece = rng.bytes(PIECE_BYTES, false);
            let at = WriteAt::Offset(part * PIECE_BYTES as u64);
            files.write(&Caller::root(), &node, at, &piece)?;
        }
    }
    drop((files, root));
    let name = format!("{dataset}@all");
    pool.datasets().snapshot(&[&name], &[])?;
    Ok(pool.export()?)
}

/// Makes the snapshots with these numbers (`s1`, `s2` and so on) of an existing dataset, before each of which a file is
/// written anew.
pub fn snapshots(folder: &Path, dataset: &str, numbers: RangeInclusive<u64>) -> Result<()> {
    const FILES: u64 = 100;
    let pool = open(folder, dataset)?;
    let files = pool.file_system(dataset)?;
    let root = files.root()?;
    let begun = Instant::now();
    for number in numbers {
        let content = format!("{number}\n");
        let node = create(&files, &root, format!("file{}", number % FILES).as_bytes())?;
        write_file(&files, &node, content.len() as u64, content.as_bytes())?;
        let name = format!("{dataset}@s{number}");
        pool.datasets().snapshot(&[&name], &[])?;
    }
    print_figure(begun, 0, None);
    drop((files, root));
    Ok(pool.export()?)
}

fn open(folder: &Path, name: &str) -> Result<Pool> {
    let options = OpenOptions {
        cache_bytes: Some(CACHE_BYTES),
        ..OpenOptions::default()
    };
    let pool = name.split(['/', '@']).next().context("a name")?;
    let (search, writing) = (Search::new([folder]), WriteOptions::default());
    Ok(Pool::open(&search, pool, &options, &writing)?)
}

/// Bytes read from all devices so far.
fn read_bytes(pool: &Pool) -> u64 {
    let counters = pool.inner().store().topology().counters.clone();
    counters.iter().map(|leaf| leaf.stats().read_bytes).sum()
}

fn list(folder: &Path, plan: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        match entry.file_type()?.is_dir() {
            true => list(&entry.path(), plan)?,
            false => plan.push((entry.path(), entry.metadata()?.len())),
        }
    }
    Ok(())
}

fn make_folders(files: &Arc<FileSystem>, path: &Path) -> Result<Node> {
    let mut at = files.root()?;
    for part in path {
        let name = part.as_encoded_bytes();
        at = match at.find(name)? {
            Some(_) => at.lookup(name)?,
            None => files.make_directory(&Caller::root(), &at, name, NewMode::exactly(0o755))?,
        };
    }
    Ok(at)
}

fn create(files: &Arc<FileSystem>, folder: &Node, name: &[u8]) -> Result<Node> {
    let mode = NewMode::exactly(0o644);
    Ok(files.create(&Caller::root(), folder, name, mode, false)?.0)
}

fn write_file(files: &Arc<FileSystem>, node: &Node, length: u64, piece: &[u8]) -> Result<()> {
    let mut at = 0;
    while at < length {
        let count = usize::try_from((length - at).min(piece.len() as u64))?;
        let bytes = piece.get(..count).context("a piece")?;
        files.write(&Caller::root(), node, WriteAt::Offset(at), bytes)?;
        at += count as u64;
    }
    Ok(())
}
