//! The leaves of a pool in tests: which there are, and what their ZAPs say of work on their free space.

use millpond_engine::{LeafActivity, Pool};
use millpond_ondisk::Guid;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_zap::Zap;
use std::path::Path;

/// The guids of all leaves, in the order of the tree.
///
/// # Panics
/// Never.
#[must_use]
pub fn all(pool: &Pool) -> Vec<Guid> {
    let topology = pool.inner().store().topology();
    let leaves = topology.tree.leaves();
    leaves.map(|(_, node)| node.config.guid).collect()
}

/// The leaf on an image.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn on(pool: &Pool, image: &Path) -> Guid {
    let topology = pool.inner().store().topology();
    let mut leaves = topology.tree.leaves();
    let found = leaves.find(|(_, node)| node.config.path.as_deref() == image.to_str());
    found.expect("a leaf with this path").1.config.guid
}

/// The stored state and progress of an activity on a leaf.
///
/// # Panics
/// If the pool cannot be read, or has no such leaf.
#[must_use]
pub fn stored_activity(pool: &Pool, leaf: Guid, activity: LeafActivity) -> (u64, u64) {
    let (state, offset) = match activity {
        LeafActivity::Initialize => (vdev_key::INITIALIZE_STATE, vdev_key::INITIALIZE_OFFSET),
        LeafActivity::Trim => (vdev_key::TRIM_STATE, vdev_key::TRIM_OFFSET),
    };
    let number = |name| stored_number(pool, leaf, name).unwrap_or(0);
    (number(state), number(offset))
}

/// A number in a leaf's ZAP.
///
/// # Panics
/// If the pool cannot be read, or has no such leaf.
#[must_use]
pub fn stored_number(pool: &Pool, leaf: Guid, name: &str) -> Option<u64> {
    let view = pool.inner().committed().expect("a committed state");
    let topology = view.store().topology();
    let found = topology.tree.find_leaf(leaf).expect("the leaf");
    let node = topology.tree.leaf(found).expect("the leaf's node");
    let zap = node.config.zap_leaf.expect("a leaf with a ZAP");
    let zap = Zap::open(view.mos().object(zap).expect("the ZAP's object")).expect("a ZAP");
    zap.lookup_u64(name.as_bytes()).expect("a readable ZAP")
}
