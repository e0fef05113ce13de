//! Claims the blocks of intent logs: those written, and the next one.

use super::disputes::Holder;
use super::finding::{Finding, FindingKind};
use super::trees::{BlockCheck, Tally};
use millpond_block::LogBlock;
use millpond_env::sync::Arc;
use millpond_ondisk::intent_log::{LogRecordBody, LogRecordFrames, WriteContent};
use millpond_ondisk::{BlockPointer, ObjectId, Txg};
use millpond_traverse::{LogVisit, Step};

type Visit<'a> = LogVisit<'a, Arc<Tally>>;

fn is_claimed(block: &Visit<'_>) -> bool {
    block.header.claim_txg != Txg(0)
}

impl BlockCheck<'_> {
    fn tell_log(&self, block: &Visit<'_>, detail: String) {
        let finding = Finding::new(FindingKind::IntentLog, detail);
        self.tell(finding.of(&block.tree.context.tree.name));
    }

    pub(super) fn claim_log_block(&self, block: &Visit<'_>) -> Step {
        let header = block.header;
        if self.claims.is_spent() {
            return Step::Stop;
        }
        if block.is_first && is_claimed(block) && header.claim_txg > self.synced {
            let detail = format!(
                "claimed in txg {}, which was never written",
                header.claim_txg
            );
            self.tell_log(block, detail);
        }
        // Blocks of txgs that were not synced are not allocated in the space maps yet.
        if !is_claimed(block) && block.pointer.allocation_birth() > self.synced {
            return Step::Skip;
        }
        // If a log ends before a record, the block after its last one was not claimed.
        if is_claimed(block) && block.sequence > header.claim_block_sequence {
            return Step::Skip;
        }
        let holder = || Holder {
            dataset: block.tree.context.tree.name.clone(),
            object: 0,
            words: format!("intent log block {}", block.sequence),
        };
        self.own(block.pointer, &holder);
        Step::Descend
    }

    pub(super) fn judge_log_content(&self, block: &Visit<'_>, content: Option<&LogBlock>) {
        let has_blocks = is_claimed(block) && block.header.claim_block_sequence > 0;
        if block.is_first && has_blocks && content.is_none() {
            let detail = "its first block was claimed and cannot be read";
            self.tell_log(block, detail.into());
        }
    }

    pub(super) fn claim_logged(&self, block: &Visit<'_>, content: &LogBlock, records: &[u8]) {
        if !is_claimed(block) {
            return;
        }
        for frame in LogRecordFrames::new(records, content.endian).flatten() {
            if frame.sequence > block.header.claim_record_sequence {
                break;
            }
            match frame.decode().map(|record| record.body) {
                // Blocks of earlier txgs belong to the files already.
                Ok(LogRecordBody::Write {
                    object,
                    content: WriteContent::Indirect(written),
                    ..
                }) if written.allocation_birth() >= block.header.claim_txg => {
                    let first = written.dvas().next();
                    let place = first.map(|dva| (dva.vdev.0, dva.offset_bytes));
                    let mut logged = block.tree.context.logged.lock();
                    let is_new = place.is_none_or(|place| logged.insert(place));
                    drop(logged);
                    if is_new {
                        self.own_logged(block, object, &written);
                    }
                }
                // The claim added a reference to each.
                Ok(LogRecordBody::CloneRange {
                    object, pointers, ..
                }) => {
                    for pointer in pointers.iter() {
                        self.own_logged(block, object, &pointer);
                    }
                }
                _ => {}
            }
        }
    }

    fn own_logged(&self, block: &Visit<'_>, object: ObjectId, pointer: &BlockPointer) {
        if pointer.is_hole() || pointer.is_embedded() {
            return;
        }
        let holder = || Holder {
            dataset: block.tree.context.tree.name.clone(),
            object: object.0,
            words: "data of an intent log's record".into(),
        };
        self.own(pointer, &holder);
    }
}
