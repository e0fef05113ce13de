//! The device of a scratch pool.

use crate::extents::{Extent, Extents, Source};
use crate::kept::KeptBytes;
use crate::payloads::PayloadTable;
use millpond_device::{Device, DeviceError};
use millpond_env::rank;
use millpond_env::sync::{Arc, OnceLock, RwLock};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The size of every such device. It is sparse: only what is written takes space.
pub(crate) const DEVICE_BYTES: u64 = 1 << 46;
/// Zeros in pieces of this size are not kept.
const PIECE_BYTES: usize = 4096;
/// Bytes of a stream file are compared in pieces of this size.
const COMPARED_BYTES: usize = 32 << 10;

/// Where the bytes of a device are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes that are read from the stream files.
    pub shared_bytes: u64,
    /// Bytes in memory or in a temporary file.
    pub kept_bytes: u64,
    /// Ranges of the device that are not zeros.
    pub extents: usize,
}

/// A large sparse device. What a stream file has already is not stored again, but read from there.
///
/// Its lock is not held while files are read or written. A pool never writes a range while it reads it.
pub(crate) struct StreamDevice {
    state: RwLock<State, rank::Leaf>,
    payloads: PayloadTable,
    /// The file with kept bytes that are not in memory, and where they begin in it.
    kept_file: OnceLock<(File, u64)>,
    /// Where that file is made.
    folder: PathBuf,
    is_writable: bool,
}

struct State {
    extents: Extents,
    kept: KeptBytes,
    files: Vec<Arc<File>>,
}

impl StreamDevice {
    /// An empty device. Up to `memory_max` bytes stay in memory, more go to a temporary file in `folder`.
    pub(crate) fn new(memory_max: u64, folder: PathBuf) -> Self {
        Self {
            state: RwLock::new(State {
                extents: Extents::default(),
                kept: KeptBytes::new(memory_max),
                files: vec![],
            }),
            payloads: PayloadTable::default(),
            kept_file: OnceLock::new(),
            folder,
            is_writable: true,
        }
    }

    /// A device for reading, whose kept bytes are `length` bytes of a file from an offset on.
    pub(crate) fn opened(extents: Extents, file: File, offset: u64, length: u64) -> Self {
        Self {
            state: RwLock::new(State {
                extents,
                kept: KeptBytes::in_file(length),
                files: vec![],
            }),
            kept_file: OnceLock::from((file, offset)),
            is_writable: false,
            ..Self::new(0, PathBuf::new())
        }
    }

    /// Adds a stream file. Returns its number.
    pub(crate) fn add_file(&self, file: File) -> u32 {
        let files = &mut self.state.write().files;
        files.push(Arc::new(file));
        u32::try_from(files.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The payloads that are looked up in writes.
    pub(crate) fn payloads(&self) -> &PayloadTable {
        &self.payloads
    }

    /// Where its bytes are.
    pub(crate) fn usage(&self) -> Usage {
        let state = self.state.read();
        let shared = state
            .extents
            .iter()
            .filter_map(|extent| match extent.source {
                Source::Stream { .. } => Some(extent.length),
                Source::Kept { .. } => None,
            });
        Usage {
            shared_bytes: shared.fold(0, u64::saturating_add),
            kept_bytes: state.kept.used_bytes(),
            extents: state.extents.count(),
        }
    }

    /// What it consists of.
    pub(crate) fn extents(&self) -> Extents {
        self.state.read().extents.clone()
    }

    fn kept_file(&self) -> io::Result<&(File, u64)> {
        if let Some(there) = self.kept_file.get() {
            return Ok(there);
        }
        let made = tempfile::tempfile_in(&self.folder)?;
        Ok(self.kept_file.get_or_init(|| (made, 0)))
    }

    /// Says where the space is that is used up.
    fn explained(&self, error: io::Error) -> io::Error {
        if error.kind() != io::ErrorKind::StorageFull {
            return error;
        }
        let folder = self.folder.display();
        io::Error::other(format!(
            "no space left in {folder} for temporary files: name a directory with more space in TMPDIR"
        ))
    }

    fn read_all(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.fill(0);
        let end = offset.saturating_add(buffer.len() as u64);
        let mut in_streams = vec![];
        let mut in_file = vec![];
        let state = self.state.read();
        for extent in state.extents.within(offset..end) {
            let range = extent.place_in(offset);
            match extent.source {
                Source::Stream { file, offset } => {
                    let file = state.files.get(file as usize);
                    let file = file.ok_or(io::ErrorKind::NotFound)?;
                    in_streams.push((Arc::clone(file), offset, range));
                }
                Source::Kept { offset } => {
                    let part = buffer.get_mut(range.clone()).unwrap_or_default();
                    let loaded = state.kept.load(offset, part);
                    let rest = range.start.saturating_add(loaded)..range.end;
                    let offset = offset.saturating_add(loaded as u64);
                    if !rest.is_empty() {
                        in_file.push((state.kept.offset_in_file(offset), rest));
                    }
                }
            }
        }
        drop(state);
        for (file, offset, range) in in_streams {
            file.read_exact_at(buffer.get_mut(range).unwrap_or_default(), offset)?;
        }
        for (offset, range) in in_file {
            let (file, base) = self.kept_file()?;
            let part = buffer.get_mut(range).unwrap_or_default();
            file.read_exact_at(part, base.saturating_add(offset))?;
        }
        Ok(())
    }

    fn write_all(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.find(bytes) {
            Some(source) => {
                let mut state = self.state.write();
                state.place(offset, bytes.len() as u64, source);
                Ok(())
            }
            None => self.keep(offset, bytes),
        }
    }

    /// The place of these bytes in a stream file.
    fn find(&self, bytes: &[u8]) -> Option<Source> {
        let place = self.payloads.find(bytes)?;
        let file = Arc::clone(self.state.read().files.get(place.file as usize)?);
        // Equal hashes are not enough.
        let mut found = vec![0; bytes.len().min(COMPARED_BYTES)];
        let mut at = place.offset;
        for part in bytes.chunks(COMPARED_BYTES) {
            let found = found.get_mut(..part.len())?;
            file.read_exact_at(found, at).ok()?;
            if found != part {
                return None;
            }
            at = at.saturating_add(part.len() as u64);
        }
        Some(Source::Stream {
            file: place.file,
            offset: place.offset,
        })
    }

    /// Keeps bytes, but for the zeros among them.
    fn keep(&self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = start;
        let mut rest = bytes;
        while !rest.is_empty() {
            let is_zeros = is_zero_piece(rest);
            let mut length = 0usize;
            while let Some(next) = rest.get(length..).filter(|next| !next.is_empty())
                && is_zero_piece(next) == is_zeros
            {
                length = length.saturating_add(next.len().min(PIECE_BYTES));
            }
            let (now, later) = rest.split_at(length);
            match is_zeros {
                true => self.state.write().clear(at, length as u64),
                false => self.keep_run(at, now)?,
            }
            at = at.saturating_add(length as u64);
            rest = later;
        }
        Ok(())
    }

    fn keep_run(&self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u64;
        let mut state = self.state.write();
        // Labels and uberblocks are written again and again.
        let there = state.kept_at(start, length);
        let offset = there.unwrap_or_else(|| state.kept.allocate(length));
        let stored = state.kept.store(offset, bytes);
        let in_file = state
            .kept
            .offset_in_file(offset.saturating_add(stored as u64));
        drop(state);
        if let Some(rest) = bytes.get(stored..).filter(|rest| !rest.is_empty()) {
            let written = self
                .kept_file()
                .and_then(|(file, base)| file.write_all_at(rest, base.saturating_add(in_file)));
            written.map_err(|error| self.explained(error))?;
        }
        if there.is_none() {
            let mut state = self.state.write();
            state.place(start, length, Source::Kept { offset });
        }
        Ok(())
    }
}

impl State {
    /// Makes a range zeros.
    fn clear(&mut self, start: u64, length: u64) {
        let range = start..start.saturating_add(length);
        for gone in self.extents.remove(&range) {
            if let Source::Kept { offset } = gone.source {
                self.kept.free(offset, gone.length);
            }
        }
    }

    fn place(&mut self, start: u64, length: u64, source: Source) {
        self.clear(start, length);
        self.extents.insert(Extent {
            start,
            length,
            source,
        });
    }

    /// The offset of the kept bytes that are a whole range.
    fn kept_at(&self, start: u64, length: u64) -> Option<u64> {
        let range = start..start.saturating_add(length);
        let there = self.extents.within(range).next()?;
        match there.source {
            Source::Kept { offset } if there.length == length => Some(offset),
            _ => None,
        }
    }
}

fn is_zero_piece(bytes: &[u8]) -> bool {
    let piece = bytes.get(..PIECE_BYTES).unwrap_or(bytes);
    piece.iter().all(|byte| *byte == 0)
}

fn failed(
    action: &'static str,
    offset_bytes: u64,
    length_bytes: u64,
    error: &io::Error,
) -> DeviceError {
    DeviceError::Io {
        action,
        offset_bytes,
        length_bytes,
        errno: error.raw_os_error().unwrap_or(0),
        message: error.to_string(),
    }
}

impl std::fmt::Debug for StreamDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamDevice").finish_non_exhaustive()
    }
}

impl Device for StreamDevice {
    fn size_bytes(&self) -> u64 {
        DEVICE_BYTES
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let length = buffer.len() as u64;
        DeviceError::check_range(offset_bytes, length, DEVICE_BYTES)?;
        let read = self.read_all(offset_bytes, buffer);
        read.map_err(|error| failed("read", offset_bytes, length, &error))
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if !self.is_writable {
            return Err(DeviceError::ReadOnly);
        }
        let length = bytes.len() as u64;
        DeviceError::check_range(offset_bytes, length, DEVICE_BYTES)?;
        let written = self.write_all(offset_bytes, bytes);
        written.map_err(|error| failed("write", offset_bytes, length, &error))
    }
    /// Nothing survives the process but an index, which is written at the end.
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Discarded bytes read as zeros.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        if !self.is_writable {
            return Err(DeviceError::ReadOnly);
        }
        DeviceError::check_range(offset_bytes, length_bytes, DEVICE_BYTES)?;
        self.state.write().clear(offset_bytes, length_bytes);
        Ok(())
    }
}
