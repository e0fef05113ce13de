//! Dedup tables and clone tables: reference counts of blocks.
//!
//! Pages `docs/format/dedup-table.md` and `docs/format/block-cloning.md`.

mod clone_table;
mod histogram;
mod log;
mod table;

pub use clone_table::{
    CLONE_RANGE_BYTES, CloneCounters, CloneTablePhys, clone_entry_count, clone_entry_value,
};
pub use histogram::{DEDUP_STATISTICS_WORDS, DedupHistogram, DedupStatistics};
pub use log::{
    DEDUP_LOG_RECORD_BYTES, DedupLogFlags, DedupLogPhys, DedupLogRecord, DedupLogRecords,
};
pub use table::{
    DEDUP_FLAT_BODY_BYTES, DEDUP_KEY_BYTES, DEDUP_LEGACY_BODY_BYTES, DedupClass, DedupEntry,
    DedupKey, DedupSlot, DedupSlots, DedupTableFlags, DedupValue,
};

#[cfg(test)]
mod tests;
