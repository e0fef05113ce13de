//! Determines which records of a log are not in the tree yet.

use millpond_ondisk::intent_log::LogRecordFrame;
use millpond_ondisk::{IntentLogHeader, Txg};

/// Separates pending records from records that are already applied. Page `docs/format/intent-log.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    first_txg: Txg,
    replayed_sequence: u64,
}

impl Pending {
    /// For a log with this header in a pool whose last synced txg is `synced`.
    #[must_use]
    pub fn new(header: &IntentLogHeader, synced: Txg) -> Self {
        let first_txg = if header.claim_txg == Txg(0) {
            Txg(synced.0.saturating_add(1))
        } else {
            header.claim_txg
        };
        Self {
            first_txg,
            replayed_sequence: header.replay_sequence,
        }
    }
    /// Whether replay would apply this record: its txg never synced, and it was not replayed before.
    #[must_use]
    pub fn contains(&self, record: &LogRecordFrame<'_>) -> bool {
        record.txg >= self.first_txg && record.sequence > self.replayed_sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::Endian;

    fn record(txg: u64, sequence: u64) -> LogRecordFrame<'static> {
        LogRecordFrame {
            number: 1,
            txg: Txg(txg),
            sequence,
            bytes: &[],
            endian: Endian::Little,
        }
    }

    #[test]
    fn records_of_unsynced_txgs_are_pending_in_an_unclaimed_log() {
        let pending = Pending::new(&IntentLogHeader::default(), Txg(30));
        assert!(!pending.contains(&record(30, 9)) && pending.contains(&record(31, 9)));
    }

    #[test]
    fn a_claimed_log_starts_at_its_claim_and_replay_sequence() {
        let header = IntentLogHeader {
            claim_txg: Txg(20),
            replay_sequence: 5,
            ..IntentLogHeader::default()
        };
        let pending = Pending::new(&header, Txg(30));
        assert!(pending.contains(&record(20, 6)));
        assert!(!pending.contains(&record(19, 6)) && !pending.contains(&record(20, 5)));
    }
}
