//! Which datasets refer to a block of the error log.

use crate::datasets::{Dataset, members};
use millpond_block::BlockAddress;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, ObjectId, Txg};
use millpond_pool::{LoggedError, PoolView};
use std::collections::BTreeSet;

/// Where a block of the error log is, in a view.
#[derive(Debug, Default)]
pub struct References {
    /// The datasets, in the order in which they were found: the head under which it is logged comes before its
    /// snapshots.
    pub datasets: Vec<ObjectId>,
    /// The block and one of its addresses.
    pub block: Option<(BlockPointer, BlockAddress)>,
    /// Whether something could not be read on the way. There may be others then.
    pub is_partial: bool,
}

/// Finds the datasets that still refer to a block: from the head on, older snapshots as long as they may have the
/// block, and from each that has it the next snapshot and the clones.
///
/// An entry of the older format names one dataset. At most `looks_left` datasets are searched, and their number is
/// subtracted.
#[must_use]
pub fn references(view: &Arc<PoolView>, error: &LoggedError, looks_left: &mut usize) -> References {
    let mut found = References::default();
    if error.dataset == 0 {
        let root = view.uberblock().root;
        look(view, &mut found, error, ObjectId(0), root);
        return found;
    }
    let mut seen = BTreeSet::new();
    let mut waiting = vec![ObjectId(error.dataset)];
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        let Some(left) = looks_left.checked_sub(1) else {
            found.is_partial = true;
            break;
        };
        *looks_left = left;
        let dataset = match Dataset::open(view, id) {
            Ok(Some(dataset)) => dataset,
            Ok(None) => continue,
            Err(_) => {
                found.is_partial = true;
                continue;
            }
        };
        let phys = &dataset.phys;
        let is_here = look(view, &mut found, error, id, phys.block_pointer);
        let Some(birth) = error.birth else { break };
        if is_here && phys.is_snapshot() {
            waiting.extend(phys.next_snapshot);
            if let Some(table) = phys.next_clones {
                match members(view, table) {
                    Ok(clones) => waiting.extend(clones),
                    Err(_) => found.is_partial = true,
                }
            }
        }
        // Older snapshots lack what was born later.
        let previous = phys.previous_snapshot;
        waiting.extend(previous.filter(|_| phys.previous_snapshot_txg >= birth));
    }
    found
}

/// Looks for the block in one object set, and adds that to what was found.
fn look(
    view: &Arc<PoolView>,
    found: &mut References,
    error: &LoggedError,
    id: ObjectId,
    root: BlockPointer,
) -> bool {
    let address = error.address(id.0);
    match view.find_pointer(address, root) {
        Ok(Some(pointer)) if is_meant(&pointer, error.birth) => {
            found.datasets.push(id);
            found.block.get_or_insert((pointer, address));
            true
        }
        Ok(_) => false,
        Err(_) => {
            found.is_partial = true;
            false
        }
    }
}

fn is_meant(pointer: &BlockPointer, birth: Option<Txg>) -> bool {
    !pointer.is_hole()
        && !pointer.is_embedded()
        && birth.is_none_or(|birth| birth == pointer.physical_birth())
}
