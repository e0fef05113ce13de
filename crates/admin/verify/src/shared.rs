//! Blocks that several files share, by deduplication or cloning.
//!
//! A shared block is verified once. If it is lost, a second traversal finds all that refer to it. It reads only the
//! pointers.

use crate::losses::LOST_BLOCKS_MAX;
use crate::{Problem, ProblemKind};
use millpond_block::{BlockAddress, BlockStore};
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_ondisk::{BlockPointer, VdevId};
use millpond_traverse::{Fault, Step, Traversal, Tree, Visit, Visitor};
use std::collections::{HashMap, HashSet};

/// A block, by the vdev and offset of its first copy.
pub(crate) type SharedKey = Option<(VdevId, u64)>;

/// The shared blocks that are lost, and where each was found.
#[derive(Debug, Default)]
pub(crate) struct LostShared {
    blocks: HashMap<SharedKey, HashSet<BlockAddress>>,
}

impl LostShared {
    /// Adds a block. Those beyond [`LOST_BLOCKS_MAX`] are not searched for.
    pub(crate) fn add(&mut self, pointer: &BlockPointer, address: BlockAddress) {
        let key = pointer.first_address();
        if self.blocks.len() < LOST_BLOCKS_MAX || self.blocks.contains_key(&key) {
            self.blocks.entry(key).or_default().insert(address);
        }
    }

    /// Calls `on_problem` for every other block that refers to the same data, from several threads.
    pub(crate) fn report_others(
        &self,
        store: &Arc<BlockStore>,
        roots: Vec<Tree<()>>,
        on_problem: &(dyn Fn(&Problem) + Sync),
    ) {
        if self.blocks.is_empty() {
            return;
        }
        let search = Search {
            lost: self,
            on_problem,
        };
        // What cannot be read was reported already.
        let _ = Traversal::new(store, &search)
            .metadata_bytes_max(store.topology().capacity_bytes())
            .run_parallel(roots, vec![], thread::parallelism() * 2);
    }
}

struct Search<'a> {
    lost: &'a LostShared,
    on_problem: &'a (dyn Fn(&Problem) + Sync),
}

impl Visitor for Search<'_> {
    type Tree = ();
    type Object = ();
    const KEEPS_BLOCKS: bool = false;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let (pointer, address) = (block.pointer, block.address());
        // The block that was cloned was verified by itself.
        if !pointer.is_shared() {
            return Step::Descend;
        }
        let found = self.lost.blocks.get(&pointer.first_address());
        if found.is_some_and(|known| !known.contains(&address)) {
            (self.on_problem)(&Problem {
                address,
                birth: Some(pointer.physical_birth()),
                kind: ProblemKind::Lost(vec!["shares a block that is lost".to_owned()]),
            });
        }
        Step::Descend
    }

    fn fault(&self, _: &Visit<'_, Self>, _: Fault) -> Step {
        Step::Skip
    }
}
