//! Streams that are changed on their way: record by record, with bounded memory.

mod decompress;
mod recompress;
mod redup;
#[cfg(test)]
mod tests;

pub use decompress::{Decompress, DecompressOutcome, DecompressTarget};
pub use millpond_compress::ZstdLevel;
pub use millpond_ondisk::CompressionKind;
pub use recompress::Recompress;
pub use redup::Redup;

use crate::{Begin, Record, RecordSource, StreamError, StreamKind, StreamWriter};
use millpond_compress::DecompressError;
use millpond_ondisk::Endian;
use std::io;

/// Why a stream cannot be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The stream cannot be read, or is damaged.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The changed stream cannot be written.
    #[error("the stream cannot be written: {0}")]
    Output(io::Error),
    /// Only streams in the byte order of most machines can be changed.
    #[error("the stream is big-endian: receive it, and send it again")]
    BigEndian,
    /// The blocks are encrypted.
    #[error("the stream is raw: encrypted blocks cannot be compressed or decompressed")]
    Raw,
    /// A block is not what its record says.
    #[error("the block at {offset} of object {object}: {error}")]
    Block {
        /// The object.
        object: u64,
        /// Its offset in bytes.
        offset: u64,
        /// What is wrong.
        error: DecompressError,
    },
    /// A record says what no writer would.
    #[error("the record of the block at {offset} of object {object}: {reason}")]
    Record {
        /// The object.
        object: u64,
        /// Its offset in bytes.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A record refers to one that the stream does not have before it.
    #[error(
        "the block at {offset} of object {object} refers to a block that is not in the stream before it"
    )]
    MissingBlock {
        /// The object.
        object: u64,
        /// Its offset in bytes.
        offset: u64,
    },
}

/// What happens to each record.
pub trait RecordFilter {
    /// Changes the first record of a stream or package.
    ///
    /// # Errors
    /// [`FilterError`].
    fn begin(&mut self, begin: &mut Begin) -> Result<(), FilterError>;
    /// Changes a record, which begins at byte `at` of the input.
    ///
    /// # Errors
    /// [`FilterError`].
    fn change(
        &mut self,
        record: Record,
        payload: Vec<u8>,
        at: u64,
    ) -> Result<(Record, Vec<u8>), FilterError>;
}

/// Copies a stream or package with all checksums made anew.
///
/// # Errors
/// [`FilterError`]. The output then ends with the last record that could be changed.
pub fn filter_stream<W: io::Write>(
    source: &mut impl RecordSource,
    output: &mut StreamWriter<W>,
    filter: &mut dyn RecordFilter,
) -> Result<(), FilterError> {
    // The header of a package, and the package itself, end in another way than a stream.
    let mut within = None;
    while let Some(taken) = source.take()? {
        if taken.endian == Endian::Big {
            return Err(FilterError::BigEndian);
        }
        let written = match taken.record {
            Record::Begin(mut begin) => {
                within = Some(begin.kind);
                filter.begin(&mut begin)?;
                output.begin(*begin, &taken.payload)
            }
            Record::End(end) => match within.take() {
                Some(StreamKind::Stream) => output.end(end.to_guid),
                Some(StreamKind::Package) | None => output.end_package(),
            },
            record => {
                let (record, payload) = filter.change(record, taken.payload, taken.at)?;
                output.record(&record, &payload)
            }
        };
        written.map_err(FilterError::Output)?;
    }
    output.flush().map_err(FilterError::Output)
}

impl<W: io::Write> StreamWriter<W> {
    /// Like [`filter_stream`], to the end of the input.
    ///
    /// # Errors
    /// As [`filter_stream`].
    pub fn filtered(
        mut self,
        source: &mut impl RecordSource,
        filter: &mut dyn RecordFilter,
    ) -> Result<W, FilterError> {
        filter_stream(source, &mut self, filter)?;
        let mut output = self.output();
        output.flush().map_err(FilterError::Output)?;
        Ok(output)
    }
}

fn refused(write: &crate::Write, reason: &'static str) -> FilterError {
    FilterError::Record {
        object: write.object,
        offset: write.offset,
        reason,
    }
}

/// The content of a block whose payload is compressed. The caller has checked that no block is larger than 16 MiB.
fn content(
    write: &crate::Write,
    kind: CompressionKind,
    payload: &[u8],
) -> Result<Vec<u8>, FilterError> {
    let mut content = vec![0; usize::try_from(write.logical_bytes).unwrap_or(0)];
    let done = millpond_compress::decompress(kind, payload, &mut content);
    done.map_err(|error| FilterError::Block {
        object: write.object,
        offset: write.offset,
        error,
    })?;
    Ok(content)
}
