//! What is around several streams.

use millpond_stream::{Begin, StreamKind, StreamWriter};
use std::io::{self, Write};

/// Begins a package without properties and holds, whose header then names no features. `name` is the full name of its
/// last snapshot. Returns the bytes written.
///
/// # Errors
/// Those of the output.
pub fn begin_package(name: &str, output: impl Write) -> io::Result<u64> {
    let mut stream = StreamWriter::new(output);
    let begin = Begin {
        kind: StreamKind::Package,
        to_name: name.as_bytes().to_vec(),
        ..Begin::default()
    };
    stream.begin(begin, &[])?;
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
