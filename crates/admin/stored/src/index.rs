//! The index of stored streams. It has the metadata of their pool and where their blocks are, so they open again at once.
//!
//! Page `docs/format/send-stream.md`, "Index".

use crate::StoredError;
use crate::device::{DEVICE_BYTES, StreamDevice};
use crate::extents::{Extent, Extents, Source};
use crate::open::AppliedStream;
use millpond_device::Device;
use millpond_nvlist::{NvList, NvValue};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"mpstrmix";
const VERSION: u64 = 1;
/// Magic number, version, and the lengths of list, extents and kept bytes.
const HEADER_BYTES: usize = 40;
/// The longest list that is read, in bytes.
const LIST_BYTES_MAX: u64 = 64 << 20;
const EXTENT_BYTES: usize = 32;
const DIGEST_BYTES: usize = 32;
/// The number that stands for kept bytes in place of that of a stream file.
const KEPT: u64 = u64::MAX;
/// The bytes at both ends of a stream file that its fingerprint covers. The beginning has the snapshot's guid, the end the
/// checksum of everything.
const ENDS_BYTES: u64 = 4096;
const COPY_BYTES: usize = 1 << 20;

/// Why an index is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexProblem {
    /// It belongs to other streams, or they have changed since.
    #[error("the index is of other streams")]
    Stale,
    /// It was written by another version.
    #[error("the index is of another version")]
    Version,
    /// Its content is wrong.
    #[error("the index is damaged: {0}")]
    Damaged(String),
}

/// An opened index.
pub(crate) struct Indexed {
    pub(crate) device: StreamDevice,
    pub(crate) streams: Vec<AppliedStream>,
}

/// What tells a stream file from others: its length and a digest of its ends.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fingerprint {
    length: u64,
    digest: [u8; 32],
}

impl Fingerprint {
    fn of(file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut digest = Sha256::new();
        for start in [0, length.saturating_sub(ENDS_BYTES)] {
            let mut bytes = vec![];
            let mut input = file;
            input.seek(SeekFrom::Start(start))?;
            input.take(ENDS_BYTES).read_to_end(&mut bytes)?;
            digest.update(&bytes);
        }
        Ok(Self {
            length,
            digest: digest.finalize().into(),
        })
    }

    fn of_path(path: &Path) -> Result<Self, StoredError> {
        let fingerprint = File::open(path).and_then(|file| Self::of(&file));
        fingerprint.map_err(|error| failed(path, error))
    }
}

fn failed(path: &Path, error: io::Error) -> StoredError {
    StoredError::File {
        path: path.to_owned(),
        error,
    }
}

/// Writes the index under a temporary name, and gives it its own when it is whole. `streams` are in the order in which
/// they were applied, `files` in that of their numbers.
///
/// # Errors
/// [`StoredError::File`].
pub(crate) fn write(
    path: &Path,
    device: &StreamDevice,
    streams: &[AppliedStream],
    files: &[PathBuf],
) -> Result<(), StoredError> {
    let mut prints = vec![];
    for file in files {
        prints.push(Fingerprint::of_path(file)?);
    }
    let list = list_of(streams, files, &prints).encode_xdr();
    let list = list.map_err(|error| failed(path, io::Error::other(error.to_string())))?;
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|file| {
        write_to(file.as_file(), device, &list)?;
        file.as_file().sync_all()?;
        Ok(file)
    });
    let persisted = written.and_then(|file| Ok(file.persist(path)?));
    persisted.map(drop).map_err(|error| failed(path, error))
}

fn list_of(streams: &[AppliedStream], files: &[PathBuf], prints: &[Fingerprint]) -> NvList {
    let mut all = vec![];
    for stream in streams {
        let number = files.iter().position(|file| *file == stream.path);
        let number = number.unwrap_or_default();
        let print = prints.get(number);
        let snapshots = stream.snapshots.iter().map(|name| name.as_str().into());
        let mut one = NvList::new();
        one.insert("file", number as u64);
        one.insert("path", stream.path.to_string_lossy().into_owned());
        one.insert("length", print.map_or(0, |print| print.length));
        let digest = print.map_or(vec![], |print| print.digest.to_vec());
        one.insert("digest", NvValue::Uint8Array(digest));
        one.insert("dataset", stream.dataset.as_str());
        one.insert("snapshots", NvValue::StringArray(snapshots.collect()));
        all.push(one);
    }
    let mut list = NvList::new();
    list.insert("streams", NvValue::ListArray(all));
    list
}

/// Kept bytes are written without gaps, in the order of the device.
fn write_to(file: &File, device: &StreamDevice, list: &[u8]) -> io::Result<()> {
    let extents = device.extents();
    let is_kept = |extent: &Extent| matches!(extent.source, Source::Kept { .. });
    let kept = extents.iter().filter(is_kept).map(|extent| extent.length);
    let kept_bytes = kept.fold(0, u64::saturating_add);
    let mut output = Hashed {
        output: BufWriter::with_capacity(COPY_BYTES, file),
        digest: Sha256::new(),
    };
    output.put(&MAGIC)?;
    for number in [
        VERSION,
        list.len() as u64,
        extents.count() as u64,
        kept_bytes,
    ] {
        output.put(&number.to_le_bytes())?;
    }
    output.put(list)?;
    let mut kept_before = 0u64;
    for extent in extents.iter() {
        let (source, offset) = match extent.source {
            Source::Stream { file, offset } => (u64::from(file), offset),
            Source::Kept { .. } => (KEPT, kept_before),
        };
        if is_kept(&extent) {
            kept_before = kept_before.saturating_add(extent.length);
        }
        for number in [extent.start, extent.length, source, offset] {
            output.put(&number.to_le_bytes())?;
        }
    }
    let Hashed { mut output, digest } = output;
    output.write_all(&digest.finalize())?;
    let mut bytes = vec![];
    for extent in extents.iter().filter(is_kept) {
        let mut at = extent.start;
        let mut left = extent.length;
        while left > 0 {
            let now = left.min(COPY_BYTES as u64);
            bytes.resize(usize::try_from(now).unwrap_or(COPY_BYTES), 0);
            device.read(at, &mut bytes).map_err(io::Error::other)?;
            output.write_all(&bytes)?;
            at = at.saturating_add(now);
            left = left.saturating_sub(now);
        }
    }
    output.flush()
}

/// A file whose written bytes are hashed.
struct Hashed<W> {
    output: W,
    digest: Sha256,
}

impl<W: Write> Hashed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.output.write_all(bytes)
    }
}

/// Opens the index of these streams; `None` if there is no such file.
///
/// # Errors
/// [`StoredError::NoIndex`] if the file is something else, and must not be replaced. The inner error says why an index
/// is not used.
pub(crate) fn read(
    path: &Path,
    streams: &[PathBuf],
) -> Result<Option<Result<Indexed, IndexProblem>>, StoredError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, error)),
    };
    let mut magic = [0; MAGIC.len()];
    if file.read_exact_at(&mut magic, 0).is_err() || magic != MAGIC {
        return Err(StoredError::NoIndex {
            path: path.to_owned(),
        });
    }
    let mut given = vec![];
    for stream in streams {
        given.push((stream.clone(), Fingerprint::of_path(stream)?));
    }
    let decoded = match decode(&file) {
        Ok(decoded) => decoded,
        Err(problem) => return Ok(Some(Err(problem))),
    };
    Ok(Some(decoded.open(file, given)))
}

/// An index whose digest is right.
struct Decoded {
    list: NvList,
    extents: Vec<[u64; 4]>,
    kept_at: u64,
    kept_bytes: u64,
}

fn damaged(reason: impl Into<String>) -> IndexProblem {
    IndexProblem::Damaged(reason.into())
}

fn decode(file: &File) -> Result<Decoded, IndexProblem> {
    let unreadable = |error: io::Error| damaged(error.to_string());
    let length = file.metadata().map_err(unreadable)?.len();
    let mut input = file;
    input.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    let mut input = BufReader::with_capacity(COPY_BYTES, input);
    let mut digest = Sha256::new();
    let mut take = |buffer: &mut [u8]| {
        input.read_exact(buffer).map_err(unreadable)?;
        digest.update(&*buffer);
        Ok(())
    };
    let mut header = [0; HEADER_BYTES];
    take(&mut header)?;
    let [version, list_bytes, count, kept_bytes] = numbers(header.get(8..).unwrap_or_default());
    if version != VERSION {
        return Err(IndexProblem::Version);
    }
    let table_bytes = count.checked_mul(EXTENT_BYTES as u64);
    let kept_at = table_bytes.and_then(|table| {
        let before = (HEADER_BYTES as u64).checked_add(list_bytes)?;
        before.checked_add(table)?.checked_add(DIGEST_BYTES as u64)
    });
    let end = kept_at.and_then(|at| at.checked_add(kept_bytes));
    if list_bytes > LIST_BYTES_MAX || end != Some(length) {
        return Err(damaged("its length is wrong"));
    }
    let mut list = vec![0; usize::try_from(list_bytes).unwrap_or(0)];
    take(&mut list)?;
    // The table is within the file, so its length is bounded.
    let mut extents = vec![];
    let mut entry = [0; EXTENT_BYTES];
    for _ in 0..count {
        take(&mut entry)?;
        extents.push(numbers(&entry));
    }
    let mut stored = [0; DIGEST_BYTES];
    input.read_exact(&mut stored).map_err(unreadable)?;
    if stored != <[u8; 32]>::from(digest.finalize()) {
        return Err(damaged("its digest is wrong"));
    }
    Ok(Decoded {
        list: NvList::decode(&list).map_err(|error| damaged(error.to_string()))?,
        extents,
        kept_at: kept_at.unwrap_or_default(),
        kept_bytes,
    })
}

fn numbers(bytes: &[u8]) -> [u64; 4] {
    let mut numbers = [0; 4];
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    numbers
}

impl Decoded {
    /// Opens the device, if the index is of exactly the given streams.
    fn open(
        self,
        file: File,
        mut given: Vec<(PathBuf, Fingerprint)>,
    ) -> Result<Indexed, IndexProblem> {
        let wrong = |error: millpond_nvlist::LookupError| damaged(error.to_string());
        let mut streams = vec![];
        let mut files: Vec<(u64, PathBuf, u64)> = vec![];
        for one in self.list.list_array("streams").map_err(wrong)? {
            let print = Fingerprint {
                length: one.u64("length").map_err(wrong)?,
                digest: one
                    .u8_array("digest")
                    .map_err(wrong)?
                    .try_into()
                    .unwrap_or_default(),
            };
            let at = given.iter().position(|(_, found)| *found == print);
            let (path, _) = given.remove(at.ok_or(IndexProblem::Stale)?);
            let number = one.u64("file").map_err(wrong)?;
            files.push((number, path.clone(), print.length));
            let snapshots = one.string_array("snapshots").map_err(wrong)?;
            let snapshots = snapshots
                .iter()
                .map(|name| name.to_string_lossy().into_owned());
            streams.push(AppliedStream {
                path,
                dataset: one.string("dataset").map_err(wrong)?.to_owned(),
                snapshots: snapshots.collect(),
                damage: None,
            });
        }
        if !given.is_empty() {
            return Err(IndexProblem::Stale);
        }
        files.sort();
        let lengths: Vec<u64> = files.iter().map(|(_, _, length)| *length).collect();
        let extents = checked(&self.extents, &lengths, self.kept_bytes)?;
        let device = StreamDevice::opened(extents, file, self.kept_at, self.kept_bytes);
        for (number, path, _) in files {
            let file = File::open(&path).map_err(|error| damaged(error.to_string()))?;
            if u64::from(device.add_file(file)) != number {
                return Err(damaged("its streams are not numbered in order"));
            }
        }
        Ok(Indexed { device, streams })
    }
}

/// The extents, if they ascend and lie within the device and their sources.
fn checked(table: &[[u64; 4]], lengths: &[u64], kept_bytes: u64) -> Result<Extents, IndexProblem> {
    let mut extents = Extents::default();
    let mut last = 0;
    for [start, length, source, offset] in table.iter().copied() {
        let end = start.checked_add(length).filter(|end| *end <= DEVICE_BYTES);
        let source_end = offset.checked_add(length);
        let file = usize::try_from(source).ok();
        let limit = match source {
            KEPT => Some(kept_bytes),
            _ => file.and_then(|file| lengths.get(file)).copied(),
        };
        let is_within = matches!((source_end, limit), (Some(end), Some(limit)) if end <= limit);
        let Some(end) = end.filter(|_| is_within && length > 0 && start >= last) else {
            return Err(damaged("a range is out of place"));
        };
        last = end;
        extents.insert(Extent {
            start,
            length,
            source: match source {
                KEPT => Source::Kept { offset },
                number => Source::Stream {
                    file: u32::try_from(number).unwrap_or(u32::MAX),
                    offset,
                },
            },
        });
    }
    Ok(extents)
}
