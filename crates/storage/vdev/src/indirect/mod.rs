//! Removed data vdevs, and where their data was moved. Page `docs/format/indirect-vdev.md`.

mod mapping;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use millpond_ondisk::{Txg, VdevId};

pub use mapping::IndirectMapping;

/// One segment of a range of a removed vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its start on the removed vdev, in bytes.
    pub source_bytes: u64,
    /// The vdev that holds it now (possibly removed too).
    pub vdev: VdevId,
    /// Its start there, in bytes.
    pub offset_bytes: u64,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// The txg in which it was copied, if known: the birth to use for dirty time logs there.
    pub birth: Option<Txg>,
}

/// The mappings of removed vdevs. They lie in objects of the pool itself, which only higher layers can
/// read.
pub trait IndirectMap {
    /// The segments of `size_bytes` at `offset_bytes` of the removed vdev `vdev`, in order and without
    /// gaps; `None` if the mapping is unknown or does not cover the range.
    fn resolve(&self, vdev: VdevId, offset_bytes: u64, size_bytes: u64) -> Option<Vec<Segment>>;
}

/// No vdev was removed, or no mapping is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoIndirect;

impl IndirectMap for NoIndirect {
    fn resolve(&self, _vdev: VdevId, _offset: u64, _size: u64) -> Option<Vec<Segment>> {
        None
    }
}

/// The loaded mappings of a pool's removed vdevs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndirectTables {
    tables: std::collections::BTreeMap<u32, Arc<IndirectMapping>>,
}

impl IndirectTables {
    /// Adds (or replaces) the mapping of one vdev.
    pub fn insert(&mut self, vdev: VdevId, mapping: IndirectMapping) {
        self.tables.insert(vdev.0, Arc::new(mapping));
    }

    /// The mapping of one vdev.
    #[must_use]
    pub fn get(&self, vdev: VdevId) -> Option<&IndirectMapping> {
        self.tables.get(&vdev.0).map(|mapping| &**mapping)
    }

    /// Whether no vdev was removed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

impl IndirectMap for IndirectTables {
    fn resolve(&self, vdev: VdevId, offset_bytes: u64, size_bytes: u64) -> Option<Vec<Segment>> {
        self.get(vdev)?.resolve(offset_bytes, size_bytes)
    }
}
