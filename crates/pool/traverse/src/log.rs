//! Traverses the blocks of intent logs.

use crate::Tree;
use crate::visitor::{LogVisit, Step, Visitor};
use millpond_block::{BlockAddress, BlockStore};
use millpond_ondisk::IntentLogHeader;
use millpond_ondisk::intent_log::{IntentLogBlock, IntentLogBlockForm, IntentLogVerifier};
use std::ops::ControlFlow;

/// Upper bound of the length of an intent log, in blocks. Writers keep at most a few thousand.
const LOG_BLOCKS_MAX: u64 = 1 << 24;

/// Visits the blocks of a log, from the first. The chain ends at the first block that does not verify.
pub(crate) fn log<V: Visitor + ?Sized>(
    store: &BlockStore,
    visitor: &V,
    tree: &Tree<V::Tree>,
    header: &IntentLogHeader,
) -> ControlFlow<()> {
    let mut pointer = header.log;
    for number in 0..LOG_BLOCKS_MAX {
        if pointer.is_hole() {
            break;
        }
        let sequence = IntentLogVerifier::of(&pointer).sequence;
        let block = LogVisit {
            tree,
            header,
            pointer: &pointer,
            address: BlockAddress::log_block(tree.dataset, sequence),
            sequence,
            is_first: number == 0,
        };
        match visitor.log_block(&block) {
            Step::Descend => {}
            Step::Skip => break,
            Step::Stop => return ControlFlow::Break(()),
        }
        let content = store.read_log_block(&pointer, block.address, None).ok();
        visitor.log_content(&block, content.as_ref());
        let (Some(content), Some(form)) = (&content, IntentLogBlockForm::of(&pointer)) else {
            break;
        };
        let next = match IntentLogBlock::parse(&content.bytes, form) {
            Ok(parsed) if parsed.continues(&pointer) => {
                visitor.log_records(&block, content, parsed.records);
                parsed.header.next
            }
            _ => break,
        };
        pointer = next;
    }
    ControlFlow::Continue(())
}
