//! Copies the bytes of a file or volume into a volume.

use super::super::report::Report;
use super::host::open_plain;
use super::is_address;
use crate::session::Failure;
use crate::verbs::content::Content;
use crate::verbs::global::refused;
use crate::verbs::pools::{Pools, Target, explained};
use millpond_engine::{FileKind, Symlinks, Volume};
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::path::Path;

/// The source of the bytes.
enum Bytes {
    Host(rustix::fd::OwnedFd, u64),
    Stored(Content),
}

/// Copies all bytes of the source to the start of the volume.
///
/// A hole of the source becomes a hole of the volume. With `is_sparse` the volume keeps its data there.
pub fn copy(
    pools: &mut Pools<'_>,
    word: &OsStr,
    volume: &Volume,
    report: &Report,
    is_sparse: bool,
) -> Result<(), Failure> {
    let bytes = open(pools, word)?;
    let size = bytes.size_bytes();
    if size > volume.size_bytes() {
        return Err(refused(format!(
            "'{}' has {size} bytes, the volume {}",
            word.to_string_lossy(),
            volume.size_bytes()
        )));
    }
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < size {
        let data = bytes.next_data(at).map_err(refused)?;
        let (start, end) = data.unwrap_or((size, size));
        if start > at && !is_sparse {
            let zeroed = volume.zero(at, start - at);
            zeroed.map_err(|error| refused(error.to_string()))?;
        }
        at = start;
        while at < end {
            let count = (CHUNK_BYTES as u64 - at % CHUNK_BYTES as u64).min(end - at) as usize;
            bytes.read(at, &mut buffer[..count]).map_err(refused)?;
            let written = volume.write(at, &buffer[..count]);
            written.map_err(|error| refused(error.to_string()))?;
            report.wrote(count as u64);
            at += count as u64;
        }
    }
    report.copied();
    Ok(())
}

fn open(pools: &mut Pools<'_>, word: &OsStr) -> Result<Bytes, Failure> {
    if is_address(word) {
        let content = match pools.target(word, Symlinks::Follow)? {
            Target::Volume(dataset) => {
                let volume = dataset.volume();
                Content::from(&volume.map_err(|error| refused(explained(&error)))?)
            }
            Target::File(file) if file.node.kind() == FileKind::Regular => {
                Content::from(&file.node)
            }
            Target::File(_) => {
                let word = word.to_string_lossy();
                return Err(refused(format!("'{word}' is no plain file")));
            }
        };
        return Ok(Bytes::Stored(content));
    }
    let shown = word.to_string_lossy();
    let to_error = |error: String| refused(format!("{shown}: {error}"));
    let fd = open_plain(Path::new(word)).map_err(to_error)?;
    let size = match seek(&fd, SeekFrom::End(0)) {
        Ok(size) if size > 0 => size,
        _ => fstat(&fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0)),
    };
    Ok(Bytes::Host(fd, size))
}

impl Bytes {
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Host(_, size) => *size,
            Self::Stored(content) => content.size_bytes,
        }
    }

    fn next_data(&self, at: u64) -> Result<Option<(u64, u64)>, String> {
        match self {
            Self::Host(fd, size) => match seek(fd, SeekFrom::Data(at)) {
                Ok(start) => {
                    let end = seek(fd, SeekFrom::Hole(start)).unwrap_or(*size);
                    Ok(Some((start, end.min(*size))))
                }
                Err(Errno::NXIO) => Ok(None),
                Err(_) => Ok(Some((at, *size))),
            },
            Self::Stored(content) => match content.next_piece(at) {
                Some(piece) => match piece.lost {
                    Some(reason) => Err(reason),
                    None => Ok(Some((
                        piece.offset_bytes,
                        piece.offset_bytes + piece.length_bytes,
                    ))),
                },
                None => Ok(None),
            },
        }
    }

    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), String> {
        match self {
            Self::Host(fd, _) => {
                let mut done = 0;
                while done < buffer.len() {
                    match rustix::io::pread(fd, &mut buffer[done..], at + done as u64) {
                        Ok(0) => return Err("it became shorter meanwhile".into()),
                        Ok(count) => done += count,
                        Err(Errno::INTR) => {}
                        Err(error) => return Err(std::io::Error::from(error).to_string()),
                    }
                }
                Ok(())
            }
            Self::Stored(content) => {
                let read = content.object.read(at, buffer);
                read.map_err(|error| error.to_string())
            }
        }
    }
}

const CHUNK_BYTES: usize = 1 << 20;
