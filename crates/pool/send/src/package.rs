//! What is around several streams.

use crate::SendError;
use millpond_nvlist::NvList;
use millpond_stream::{BEGIN_PAYLOAD_BYTES_MAX, Begin, StreamFeatures, StreamKind, StreamWriter};
use std::io::{self, Write};

/// Begins a package. `name` is the full name of its last snapshot. `list` tells its datasets, `None` if that is not
/// needed. Returns the bytes written.
///
/// # Errors
/// [`SendError::Output`], also if the list is too large for a package.
pub fn begin_package(
    name: &str,
    list: Option<&NvList>,
    has_holds: bool,
    output: impl Write,
) -> Result<u64, SendError> {
    let mut stream = StreamWriter::new(output);
    let begin = Begin {
        kind: StreamKind::Package,
        features: match has_holds {
            true => StreamFeatures::HOLDS,
            false => StreamFeatures::empty(),
        },
        to_name: name.as_bytes().to_vec(),
        ..Begin::default()
    };
    let payload = match list {
        Some(list) => list.encode_xdr().map_err(io::Error::other)?,
        None => vec![],
    };
    if payload.len() as u64 > BEGIN_PAYLOAD_BYTES_MAX {
        return Err(io::Error::other("its list is longer than a reader takes").into());
    }
    stream.begin(begin, &payload)?;
    stream.end_package()?;
    Ok(stream.written_bytes())
}

/// Ends a package. Returns the bytes written.
///
/// # Errors
/// Those of the output.
pub fn end_package(output: impl Write) -> io::Result<u64> {
    let mut stream = StreamWriter::new(output);
    stream.end_package()?;
    stream.flush()?;
    Ok(stream.written_bytes())
}
