//! Receives one stream.

use crate::apply::Applier;
use crate::decode::{Change, ChangeKind, Decoder};
use crate::error::ReceiveError;
use millpond_dataset::{Receiving, ResumePoint};
use millpond_env::sync::{Sender, bounded};
use millpond_env::thread;
use millpond_stream::{Begin, HEADER_BYTES, RecordSource, StreamFeatures};

/// A batch is passed on when its blocks have this many bytes,
const BATCH_BYTES: u64 = 4 << 20;
/// or it has this many records.
const BATCH_RECORDS: usize = 512;
/// Batches between the two threads.
const BATCHES_MAX: usize = 2;

/// From where a stream is received.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReceiveFrom {
    /// Where its first record is, in bytes from the start of the input.
    pub at: u64,
    /// How far earlier streams went that this one resumes.
    pub point: ResumePoint,
    /// Whether the stream is full, and the dataset has the contents of a snapshot.
    pub is_over_origin: bool,
}

/// Applies the records of a stream up to its end. `begin` was taken from `stream`. Returns the length of the stream
/// without the header of its beginning, in bytes.
///
/// The caller completes the receive, or gives it up if there is an error.
///
/// # Errors
/// [`ReceiveError`].
pub fn receive<S: RecordSource + Send>(
    stream: &mut S,
    begin: &Begin,
    receiving: &Receiving,
    from: ReceiveFrom,
) -> Result<u64, ReceiveError> {
    let pool = receiving.head().pool()?;
    let features = pool.features();
    let decoder = Decoder {
        to_guid: begin.to_guid,
        flags: begin.flags,
        has_lz4: features.is_active("org.illumos:lz4_compress"),
        has_zstd: features.count("org.freebsd:zstd_compress").is_some(),
        is_raw: receiving.is_raw(),
        is_redacted: begin.features.contains(StreamFeatures::REDACTED),
    };
    let mut applier = Applier::new(begin, receiving, from, features);
    if thread::is_alone() {
        loop {
            let change = next(stream, &decoder)?;
            if applier.apply(change)? {
                return Ok(applier.length());
            }
        }
    }
    let (sender, receiver) = bounded::<Vec<Change>>(BATCHES_MAX);
    thread::scope(|scope| {
        let reading = scope.spawn(move || read_all(stream, &decoder, &sender));
        let mut applied = Ok(false);
        while let (Ok(false), Ok(batch)) = (&applied, receiver.recv()) {
            for change in batch {
                applied = applier.apply(change);
                if !matches!(applied, Ok(false)) {
                    break;
                }
            }
        }
        // The other thread ends at its next batch.
        drop(receiver);
        let read = reading.join();
        let read: Result<(), ReceiveError> =
            read.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        applied?;
        read?;
        Ok(applier.length())
    })
}

fn next<S: RecordSource>(stream: &mut S, decoder: &Decoder) -> Result<Change, ReceiveError> {
    match stream.take()? {
        Some(taken) => decoder.decode(taken),
        None => Err(ReceiveError::Invalid {
            at: 0,
            reason: "the stream has no end".to_owned(),
        }),
    }
}

/// Reads and decodes up to the end of the stream, or until nothing more is wanted.
fn read_all<S: RecordSource>(
    stream: &mut S,
    decoder: &Decoder,
    sender: &Sender<Vec<Change>>,
) -> Result<(), ReceiveError> {
    let mut batch = vec![];
    let mut bytes = 0u64;
    loop {
        let change = match next(stream, decoder) {
            Ok(change) => change,
            Err(error) => {
                // What came before is applied: it may be resumed.
                let _ = sender.send(batch);
                return Err(error);
            }
        };
        let is_end = matches!(change.kind, ChangeKind::End);
        bytes = bytes.saturating_add(change.bytes());
        batch.push(change);
        if is_end || bytes >= BATCH_BYTES || batch.len() >= BATCH_RECORDS {
            bytes = 0;
            let is_wanted = sender.send(std::mem::take(&mut batch)).is_ok();
            if is_end || !is_wanted {
                return Ok(());
            }
        }
    }
}

/// The bytes of a stream up to `end`, without the header of its beginning.
pub(crate) fn received_bytes(from: &ReceiveFrom, end: u64) -> u64 {
    end.saturating_sub(from.at)
        .saturating_sub(HEADER_BYTES as u64)
}
