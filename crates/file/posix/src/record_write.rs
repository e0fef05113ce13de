//! Log records of writes to files and volumes: with the bytes, or with a pointer to a block.
//!
//! Page `docs/format/intent-log.md`, "Blocks of their own".

use crate::transaction_source::ChangeLog;
use millpond_env::sync::Arc;
use millpond_object::{LoggedBlock, Object};
use millpond_ondisk::intent_log::{LogRecord, LogRecordBody, WriteContent};
use millpond_ondisk::{BlockId, BlockPointer};
use millpond_txg::Transaction;

/// The most bytes of one write that are copied into the log. A commit of a larger write waits for its txg,
/// which writes the bytes only once.
const WRITE_BYTES_MAX: usize = 512 << 10;
/// The most bytes of data in one record.
const RECORD_DATA_BYTES_MAX: usize = 96 << 10;

/// A part of a write: its length in bytes, and the block that it covers exactly, if any.
struct Part {
    length: usize,
    block: Option<LoggedBlock>,
}

/// Logs `bytes` that were written to an object at `offset` in `tx`.
///
/// No other thread may have changed them since. Call this only if the log keeps records.
pub fn record_write(
    log: &dyn ChangeLog,
    tx: &Transaction,
    object: &Arc<Object>,
    offset: u64,
    bytes: &[u8],
) {
    let parts = parts(log, tx, object, offset, bytes.len());
    let copied: usize = parts
        .iter()
        .filter(|part| part.block.is_none())
        .map(|part| part.length)
        .sum();
    if copied > WRITE_BYTES_MAX {
        return log.append_unlogged(tx, Some(object.id()));
    }
    let (mut at, mut rest) = (offset, bytes);
    for part in parts {
        let (mut now, later) = rest.split_at(part.length.min(rest.len()));
        rest = later;
        if let Some(block) = part.block {
            let placeholder = BlockPointer::default();
            let content = WriteContent::Indirect(placeholder);
            match encoded(tx, object, at, now.len(), content) {
                Some(record) => log.append_block(tx, object.id(), record, block),
                None => log.append_unlogged(tx, None),
            }
            at += now.len() as u64;
            continue;
        }
        while !now.is_empty() {
            let (piece, more) = now.split_at(now.len().min(RECORD_DATA_BYTES_MAX));
            let content = WriteContent::Immediate(piece);
            match encoded(tx, object, at, piece.len(), content) {
                Some(record) => log.append(tx, Some(object.id()), record),
                None => log.append_unlogged(tx, None),
            }
            at += piece.len() as u64;
            now = more;
        }
    }
}

fn encoded(
    tx: &Transaction,
    object: &Object,
    offset: u64,
    length: usize,
    content: WriteContent<'_>,
) -> Option<Vec<u8>> {
    let body = LogRecordBody::Write {
        object: object.id(),
        offset,
        length: length as u64,
        content,
    };
    LogRecord::new(tx.txg(), body).encode().ok()
}

/// Splits a write into whole blocks that are written separately, and the ranges between them.
fn parts(
    log: &dyn ChangeLog,
    tx: &Transaction,
    object: &Arc<Object>,
    offset: u64,
    length: usize,
) -> Vec<Part> {
    let block_bytes = object.block_bytes();
    let end = offset.saturating_add(length as u64);
    let is_separate = log
        .separate_from(length as u64)
        .is_some_and(|least| block_bytes >= least);
    let mut parts: Vec<Part> = vec![];
    let mut at = offset;
    while at < end {
        let block_end = (at - at % block_bytes).saturating_add(block_bytes);
        let to = if is_separate { block_end.min(end) } else { end };
        let is_whole = is_separate && to - at == block_bytes;
        let block = is_whole
            .then(|| object.logged_block(tx.txg(), BlockId(at / block_bytes)))
            .flatten();
        let length = usize::try_from(to - at).unwrap_or(usize::MAX);
        match parts.last_mut() {
            Some(last) if last.block.is_none() && block.is_none() => last.length += length,
            _ => parts.push(Part { length, block }),
        }
        at = to;
    }
    parts
}
