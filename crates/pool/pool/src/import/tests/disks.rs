//! Labels, trees and devices written by tests.

use crate::labels::next_uberblock;
use millpond_checksum::seal_label;
use millpond_device::{Candidate, Device, MemoryDevice};
use millpond_env::sync::Arc;
use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::{
    Ashift, BlockPointer, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET_BYTES, LeafLayout, Txg,
    Uberblock, UberblockRing, unsealed_label_region,
};
use std::path::PathBuf;

pub(super) const POOL: u64 = 100;
pub(super) const SIZE_BYTES: usize = 64 << 20;

pub(super) fn list(pairs: impl IntoIterator<Item = (&'static str, NvValue)>) -> NvList {
    let mut list = NvList::new();
    for (name, value) in pairs {
        list.insert(name, value);
    }
    list
}

pub(super) fn leaf(guid: u64) -> NvList {
    list([
        ("type", "disk".into()),
        ("id", 0u64.into()),
        ("guid", guid.into()),
        ("path", format!("/dev/d{guid}").into()),
    ])
}

pub(super) fn with(mut list: NvList, name: &'static str, value: impl Into<NvValue>) -> NvList {
    list.insert(name, value);
    list
}

/// A vdev of `kind` with the given leaves.
pub(super) fn over(kind: &'static str, guid: u64, leaves: Vec<NvList>) -> NvList {
    let numbered = (0u64..)
        .zip(leaves)
        .map(|(id, leaf)| with(leaf, "id", id))
        .collect::<Vec<_>>();
    list([
        ("type", kind.into()),
        ("id", 0u64.into()),
        ("guid", guid.into()),
        ("ashift", 12u64.into()),
        ("children", numbered.into()),
    ])
}

pub(super) fn mirror() -> NvList {
    over("mirror", 10, vec![leaf(11), leaf(12)])
}

/// The label of leaf `guid` below the top-level vdev `top`.
pub(super) fn label(guid: u64, top: &NvList, txg: u64) -> NvList {
    list([
        ("version", 5000u64.into()),
        ("name", "tank".into()),
        ("state", 0u64.into()),
        ("txg", txg.into()),
        ("pool_guid", POOL.into()),
        ("hostid", 7u64.into()),
        ("hostname", "here".into()),
        ("top_guid", top.u64("guid").unwrap_or(0).into()),
        ("guid", guid.into()),
        ("vdev_children", 1u64.into()),
        ("vdev_tree", top.clone().into()),
        ("features_for_read", NvList::new().into()),
    ])
}

pub(super) fn uberblock(txg: u64) -> Uberblock {
    let root = BlockPointer::default();
    Uberblock {
        mmp_magic: 0,
        ..next_uberblock(None, 5000, Txg(txg), root, 0, txg)
    }
}

/// An empty device to which tests write labels.
pub(super) struct Disk(pub(super) MemoryDevice);

impl Disk {
    pub(super) fn new() -> Self {
        Self(MemoryDevice::new(vec![0; SIZE_BYTES]))
    }
    pub(super) fn offset(label: usize) -> u64 {
        LeafLayout::new(SIZE_BYTES as u64)
            .unwrap()
            .label_offset_bytes(label)
            .unwrap()
    }
    pub(super) fn config(self, labels: &[usize], config: &NvList) -> Self {
        for index in labels {
            let at = Self::offset(*index) + LABEL_CONFIG_OFFSET_BYTES;
            let mut region =
                unsealed_label_region(&config.encode_xdr().unwrap(), LABEL_CONFIG_BYTES).unwrap();
            seal_label(&mut region, at).unwrap();
            self.0.write(at, &region).unwrap();
        }
        self
    }
    pub(super) fn uberblocks(self, labels: &[usize], txgs: &[u64]) -> Self {
        let ring = UberblockRing::new(Ashift(12));
        for index in labels {
            for txg in txgs {
                let slot = ring
                    .slot_offset_bytes(ring.slot_of_txg(Txg(*txg), false))
                    .unwrap();
                let at = Self::offset(*index) + slot;
                let mut region = uberblock(*txg).encode_slot(ring).unwrap();
                seal_label(&mut region, at).unwrap();
                self.0.write(at, &region).unwrap();
            }
        }
        self
    }
    pub(super) fn named(self, path: &str) -> Candidate {
        Candidate {
            path: PathBuf::from(path),
            aliases: Vec::new(),
            partition: None,
            device: Arc::new(self.0),
            is_live: false,
        }
    }
}

/// A healthy member of the pool: all labels at txg 10, uberblocks 9 and 10.
pub(super) fn member(guid: u64, top: &NvList) -> Disk {
    Disk::new()
        .config(&[0, 1, 2, 3], &label(guid, top, 10))
        .uberblocks(&[0, 1, 2, 3], &[9, 10])
}
