//! Name/value lists.

use millpond_nvlist::NvList;
use millpond_ondisk::Guid;
use millpond_vdev::{Reflow, VdevConfig, VdevTree, VdevType};

pub fn nvlist(data: &[u8]) {
    let Ok((list, length)) = NvList::decode_prefix(data) else {
        return;
    };
    assert!(length <= data.len());
    let _ = format!("{list:?}");
    // A decoded list can be encoded, and decodes to the same list again.
    if let Ok(bytes) = list.encode_xdr() {
        let again = NvList::decode(&bytes).expect("our own bytes");
        assert_eq!(format!("{again:?}"), format!("{list:?}"));
    }
}

/// A vdev tree as in labels and in the pool configuration.
pub fn vdev_tree(data: &[u8]) {
    let Ok(list) = NvList::decode(data) else {
        return;
    };
    let tree = match list.get("vdev_tree") {
        Some(millpond_nvlist::NvValue::List(inner)) => inner,
        _ => &list,
    };
    let Ok(config) = VdevConfig::from_nvlist(tree) else {
        return;
    };
    // A label has one top-level vdev.
    let root = match config.kind {
        VdevType::Root => config,
        _ => VdevConfig::root(Guid(1), vec![VdevConfig { id: None, ..config }]),
    };
    if let Ok(tree) = VdevTree::new(root, Reflow::default()) {
        crate::vdev::plans_over(&tree);
        let _ = (tree.guid_sum(), tree.leaf_count(), tree.top_count());
        assert!(tree.nodes().len() <= millpond_vdev::NODES_MAX);
    }
}
