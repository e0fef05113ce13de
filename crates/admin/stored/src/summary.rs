//! What is in a stream or package, by its records alone.

use millpond_stream::{Begin, HEADER_BYTES, Record, StreamKind, StreamReader};
use std::io::Read;

/// The most streams of an input that are listed.
const STREAMS_MAX: usize = 1 << 17;

/// One stream of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSummary {
    /// Its beginning.
    pub begin: Begin,
    /// Its records, the beginning and the end included.
    pub records: u64,
    /// Its length in bytes, as far as it was read.
    pub bytes: u64,
    /// Whether its end was read and all its checksums are right.
    pub is_whole: bool,
}

/// An input: a stream, or a package of several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InputSummary {
    /// The beginning of the package, if it is one.
    pub package: Option<Begin>,
    /// Its streams in order.
    pub streams: Vec<StreamSummary>,
    /// The bytes of all whole records.
    pub bytes: u64,
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// Reads an input to its end, or up to damage. All checksums are verified.
pub fn summarize(input: impl Read) -> InputSummary {
    let mut reader = StreamReader::new(input);
    let mut summary = InputSummary::default();
    loop {
        let taken = match reader.take() {
            Ok(Some(taken)) => taken,
            Ok(None) => return summary,
            Err(error) => {
                summary.damage = Some(error.to_string());
                return summary;
            }
        };
        let bytes = (HEADER_BYTES as u64).saturating_add(taken.payload.len() as u64);
        summary.bytes = summary.bytes.saturating_add(bytes);
        match taken.record {
            Record::Begin(begin) if begin.kind == StreamKind::Package => {
                summary.package = Some(*begin);
            }
            Record::Begin(_) if summary.streams.len() >= STREAMS_MAX => {
                summary.damage = Some(format!("it has more than {STREAMS_MAX} streams"));
                return summary;
            }
            Record::Begin(begin) => summary.streams.push(StreamSummary {
                begin: *begin,
                records: 1,
                bytes,
                is_whole: false,
            }),
            record => {
                let open = summary.streams.last_mut().filter(|stream| !stream.is_whole);
                if let Some(stream) = open {
                    stream.records = stream.records.saturating_add(1);
                    stream.bytes = stream.bytes.saturating_add(bytes);
                    stream.is_whole = matches!(record, Record::End(_));
                }
            }
        }
    }
}
