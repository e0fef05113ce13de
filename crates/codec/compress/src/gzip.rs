//! gzip-N: one zlib stream, not a gzip file.

use crate::DecompressError;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

pub(crate) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    let corrupt = |reason| DecompressError::corrupt("gzip", reason);
    let mut inflater = Decompress::new(true);
    let status = inflater
        .decompress(source, destination, FlushDecompress::Finish)
        .map_err(|_| corrupt("invalid stream"))?;
    if status != Status::StreamEnd {
        return Err(corrupt("stream does not end within the block"));
    }
    if u64::try_from(destination.len()) != Ok(inflater.total_out()) {
        return Err(corrupt("decodes to less than the logical size"));
    }
    Ok(())
}

pub(crate) fn compress(level: u8, source: &[u8], destination: &mut [u8]) -> Option<usize> {
    let mut deflater = Compress::new(Compression::new(u32::from(level.clamp(1, 9))), true);
    let status = deflater
        .compress(source, destination, FlushCompress::Finish)
        .ok()?;
    if status != Status::StreamEnd {
        return None;
    }
    usize::try_from(deflater.total_out()).ok()
}
