//! Checks a single block: birth, position, fill count and totals.

use super::block_features::BlockFeatures;
use super::disputes::Holder;
use super::finding::{Finding, FindingKind};
use super::trees::BlockCheck;
use millpond_block::Block;
use millpond_ondisk::{BlockId, BlockPointer, Dnode, Level, SPILL_BLOCK_ID};
use millpond_traverse::Object;

impl BlockCheck<'_> {
    pub(super) fn died(&self, owner: &Object<Self>, pointer: &BlockPointer) {
        if self.watch.is_some() {
            return;
        }
        let tree = &owner.tree.context.tree;
        let (sums, birth) = (self.ratios.sums(pointer), pointer.allocation_birth());
        let mut counted = owner.state.lock();
        counted.dead += sums;
        if birth > tree.origin_txg {
            counted.dead_own += sums;
        }
        if birth > tree.unique_after {
            counted.dead_unique += sums;
        }
    }

    /// Counts a block and claims its space. Returns whether to descend into it.
    pub(super) fn was_born(
        &self,
        owner: &Object<Self>,
        pointer: &BlockPointer,
        level: Level,
        id: BlockId,
    ) -> bool {
        let tree = &owner.tree.context.tree;
        let (object, birth) = (owner.id.0, pointer.allocation_birth());
        let is_spill = id == SPILL_BLOCK_ID;
        let place = || {
            if is_spill {
                "spill block".to_owned()
            } else {
                format!("level {level} block {id}")
            }
        };
        if birth <= tree.born_after {
            let words = format!(
                "{}: born in txg {birth}, and the dataset before, of txg {}, does not have it",
                place(),
                tree.born_after
            );
            self.bad(&owner.tree.context, object, words);
        }
        if birth > self.synced || pointer.birth() > self.synced {
            let words = format!("{}: born in txg {birth}, which was never written", place());
            self.bad(&owner.tree.context, object, words);
        }
        if pointer.level() != level {
            let words = format!("{}: its pointer says level {}", place(), pointer.level());
            self.bad(&owner.tree.context, object, words);
            owner.state.lock().is_partial = true;
            return false;
        }
        if let Some(dnode) = &owner.new
            && !is_spill
        {
            let expected = if level.0 > 0 {
                dnode.indirect_block_bytes()
            } else {
                dnode.data_block_bytes()
            };
            if pointer.lsize_bytes() != expected {
                let words = format!(
                    "{}: {} bytes, and the dnode says {expected}",
                    place(),
                    pointer.lsize_bytes()
                );
                self.bad(&owner.tree.context, object, words);
            }
        }
        if level.0 == 0 && !owner.holds_dnodes() && object != 0 {
            let fill = fill_of(pointer);
            if fill != 1 {
                let detail = format!("{}: its pointer counts {fill} blocks, not 1", place());
                let finding = Finding::new(FindingKind::FillCount, detail);
                self.tell(finding.of(&tree.name).object(object));
            }
        }
        if let Err(error) = pointer.validate() {
            self.bad(&owner.tree.context, object, format!("{}: {error}", place()));
            owner.state.lock().is_partial = true;
            return false;
        }
        {
            let mut counted = owner.state.lock();
            counted.born += self.ratios.sums(pointer);
            counted.features.insert(BlockFeatures::of(pointer));
        }
        let holder = || Holder {
            dataset: tree.name.clone(),
            object,
            words: place(),
        };
        self.own(pointer, &holder);
        true
    }

    /// Checks the fill count of a pointer against its block.
    pub(super) fn judge_fill(
        &self,
        owner: &Object<Self>,
        pointer: &BlockPointer,
        block: &Block,
        level: u8,
    ) {
        let counted = if level == 0 {
            let used = Dnode::in_block(&block.bytes).filter(|(_, bytes)| bytes.first() != Some(&0));
            used.count() as u64
        } else {
            let pointers = block.bytes.chunks_exact(128);
            let mut fill = 0u64;
            let above = pointer.allocation_birth();
            for child in pointers.filter_map(|bytes| BlockPointer::decode(bytes, block.endian).ok())
            {
                fill = fill.wrapping_add(fill_of(&child));
                if !child.is_hole() && child.allocation_birth() > above {
                    let words = format!(
                        "level {level}: a block of txg {} below one of txg {above}",
                        child.allocation_birth()
                    );
                    self.bad(&owner.tree.context, owner.id.0, words);
                }
            }
            fill
        };
        if counted != pointer.fill() {
            let detail = format!(
                "level {level}: a pointer counts {} blocks or objects, there are {counted}",
                pointer.fill()
            );
            let finding = Finding::new(FindingKind::FillCount, detail);
            self.tell(finding.of(&owner.tree.context.tree.name).object(owner.id.0));
        }
    }
}

/// What a pointer adds to the fill count of its parent.
pub(super) fn fill_of(pointer: &BlockPointer) -> u64 {
    if pointer.is_hole() { 0 } else { pointer.fill() }
}
