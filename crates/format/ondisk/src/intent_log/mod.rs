//! The intent log: synchronous operations since the last committed transaction group.
//!
//! The header in the object set block points to a chain of log blocks. Each block contains records and the
//! pointer to the next block. Page `docs/format/intent-log.md`.

mod block;
mod header;
mod record;

pub use block::{
    INTENT_LOG_BLOCK_HEADER_BYTES, IntentLogBlock, IntentLogBlockForm, IntentLogBlockHeader,
    IntentLogVerifier,
};
pub use header::{INTENT_LOG_HEADER_BYTES, IntentLogFlags, IntentLogHeader};
pub use record::{
    CreateKind, CreateRecord, CreatedObject, LOG_RECORD_HEADER_BYTES, LOG_WRITE_BYTES, LogAcl,
    LogAttributes, LogRecord, LogRecordBody, LogRecordFrame, LogRecordFrames, LogStamp,
    LoggedPointers, RenameKind, SetAttributesRecord, SizedObject, WriteContent,
};
