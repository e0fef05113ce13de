//! Claims the blocks of intent logs.

use super::disputes::Holder;
use super::finding::{Finding, FindingKind};
use super::walk::{Tree, Walk};
use crate::walk::LOG_BLOCKS_MAX;
use millpond_intent::log_block_address;
use millpond_object::BlockAddress;
use millpond_ondisk::intent_log::{
    IntentLogBlock, IntentLogBlockForm, IntentLogVerifier, LogRecordBody, LogRecordFrames,
    WriteContent,
};
use millpond_ondisk::{IntentLogHeader, ObjectSetPhys, Txg};

impl Walk<'_> {
    /// Claims the blocks of a head's log: those written, and the next one.
    pub(super) fn log(&self, tree: &Tree) {
        if tree.root.is_hole() {
            return;
        }
        let address = BlockAddress::object_set(tree.dataset);
        // The walk reports that the object set cannot be read.
        let Ok(block) = self.store.read(&tree.root, address, None) else {
            return;
        };
        let Ok(phys) = ObjectSetPhys::decode(&block.bytes, block.endian) else {
            return;
        };
        let header = IntentLogHeader::from_words(&phys.intent_log_header);
        let is_claimed = header.claim_txg != Txg(0);
        let tell = |detail: String| {
            let finding = Finding::new(FindingKind::IntentLog, detail);
            self.findings.add(finding.of(&tree.name));
        };
        if is_claimed && header.claim_txg > self.synced && self.watch.is_none() {
            tell(format!(
                "claimed in txg {}, which was never written",
                header.claim_txg
            ));
        }
        let mut pointer = header.log;
        let mut is_first = true;
        let mut chain = None;
        for _ in 0..LOG_BLOCKS_MAX {
            if pointer.is_hole() {
                return;
            }
            let verifier = IntentLogVerifier::of(&pointer);
            let sequence = verifier.sequence;
            // Blocks of txgs that were not synced are not allocated in the space maps yet.
            if !is_claimed && pointer.allocation_birth() > self.synced {
                return;
            }
            let holder = || Holder {
                dataset: tree.name.clone(),
                object: 0,
                words: format!("intent log block {sequence}"),
            };
            // If a log ends before a record, the block after its last one was not claimed.
            if is_claimed && sequence > header.claim_block_sequence {
                return;
            }
            self.own(&pointer, &holder);
            let identity = (verifier.guid, verifier.object_set);
            if *chain.get_or_insert(identity) != identity {
                return;
            }
            let address = log_block_address(tree.dataset, sequence);
            let Ok(block) = self.store.read_log_block(&pointer, address, None) else {
                if is_first && is_claimed && header.claim_block_sequence > 0 && self.watch.is_none()
                {
                    tell("its first block was claimed and cannot be read".into());
                }
                return;
            };
            is_first = false;
            let Some(form) = IntentLogBlockForm::of(&pointer) else {
                return;
            };
            let parsed = match IntentLogBlock::parse(&block.bytes, form) {
                Ok(parsed) if parsed.continues(&pointer) => parsed,
                _ => return,
            };
            if is_claimed {
                for frame in LogRecordFrames::new(parsed.records, block.endian).flatten() {
                    if frame.sequence > header.claim_record_sequence {
                        break;
                    }
                    // Blocks of earlier txgs belong to the files already.
                    if let Ok(record) = frame.decode()
                        && let LogRecordBody::Write {
                            object,
                            content: WriteContent::Indirect(written),
                            ..
                        } = record.body
                        && !written.is_hole()
                        && written.allocation_birth() >= header.claim_txg
                    {
                        let holder = || Holder {
                            dataset: tree.name.clone(),
                            object: object.0,
                            words: "data of an intent log's record".into(),
                        };
                        self.own(&written, &holder);
                    }
                }
            }
            pointer = parsed.header.next;
        }
    }
}
