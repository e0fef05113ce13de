//! Test support: leaves in memory, and a writer that lays out blocks sector by sector according to the
//! format's description, without the maps that the planner uses.

mod geometry;
mod writer;

use std::collections::{BTreeSet, HashMap};

use millpond_ondisk::{Guid, Txg, VdevId};

pub(crate) use geometry::{FIRST_SECTORS, Shape, any_shape};

use crate::*;

/// The content of unwritten sectors, which cannot be mistaken for zeros.
const UNDEFINED: [u8; 512] = [0xa5; 512];

/// A device that may return errors or wrong bytes.
#[derive(Clone, Default)]
pub(crate) struct Device {
    sectors: HashMap<u64, [u8; 512]>,
    pub(crate) fault: Option<LeafFault>,
    /// Bytes whose reads fail.
    pub(crate) bad_bytes: Vec<core::ops::Range<u64>>,
}

impl Device {
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        assert!(offset.is_multiple_of(512) && data.len().is_multiple_of(512));
        for (at, chunk) in data.chunks_exact(512).enumerate() {
            self.sectors
                .insert(offset / 512 + at as u64, chunk.try_into().unwrap());
        }
    }

    pub(crate) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, LeafFault> {
        assert!(offset.is_multiple_of(512) && length.is_multiple_of(512) && length > 0);
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self
            .bad_bytes
            .iter()
            .any(|bad| bad.start < offset + length && offset < bad.end)
        {
            return Err(LeafFault::Io);
        }
        let sectors = offset / 512..(offset + length) / 512;
        Ok(sectors
            .flat_map(|at| *self.sectors.get(&at).unwrap_or(&UNDEFINED))
            .collect())
    }

    /// Changes every byte of every written sector, each sector differently.
    pub(crate) fn rot(&mut self, seed: u8) {
        for (at, sector) in &mut self.sectors {
            let mut state = (*at << 8 | u64::from(seed)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for byte in sector.iter_mut() {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Never 0, so that every byte changes.
                *byte ^= (state % 255) as u8 + 1;
            }
        }
    }

    /// The offsets that were written, in pieces of `piece` bytes.
    pub(crate) fn written_at(&self, piece: u64) -> BTreeSet<u64> {
        self.sectors
            .keys()
            .map(|sector| sector * 512 / piece * piece)
            .collect()
    }

    pub(crate) fn written(&self) -> bool {
        !self.sectors.is_empty()
    }
}

/// A pool with one block.
pub(crate) struct Twin {
    pub(crate) tree: VdevTree,
    pub(crate) devices: Vec<Device>,
    pub(crate) health: LeafTable,
    pub(crate) indirect: IndirectTables,
    pub(crate) range: BlockRange,
    pub(crate) data: Vec<u8>,
    /// Leaves that were read.
    pub(crate) asked: BTreeSet<LeafId>,
    /// How many reads were made, in how many steps.
    pub(crate) reads: usize,
    pub(crate) rounds: usize,
}

impl Twin {
    /// A pool with one top-level vdev, with nothing written yet.
    pub(crate) fn over(top: VdevConfig, reflow: Reflow) -> Self {
        Self::over_all(vec![top], reflow)
    }

    pub(crate) fn over_all(tops: Vec<VdevConfig>, reflow: Reflow) -> Self {
        let tree = VdevTree::new(VdevConfig::root(Guid(1), tops), reflow).unwrap();
        let count = tree.leaf_count();
        Self {
            tree,
            devices: vec![Device::default(); count],
            health: LeafTable::all_good(count),
            indirect: IndirectTables::default(),
            range: BlockRange {
                vdev: VdevId(0),
                offset_bytes: 0,
                size_bytes: 512,
                birth: Txg(100),
            },
            data: Vec::new(),
            asked: BTreeSet::new(),
            reads: 0,
            rounds: 0,
        }
    }

    fn serve(&mut self, reads: &[LeafRead]) -> Vec<LeafOutcome> {
        assert!(!reads.is_empty());
        self.rounds += 1;
        self.reads += reads.len();
        reads
            .iter()
            .map(|read| {
                self.asked.insert(read.leaf);
                assert!(self.tree.leaf(read.leaf).unwrap().is_device());
                let device = &self.devices[read.leaf.0 as usize];
                let bytes = device.read(read.offset_bytes, read.length_bytes);
                bytes.map(LeafBytes::from)
            })
            .collect()
    }

    /// Reads the block.
    pub(crate) fn read(&mut self) -> Result<Resolved, Failure> {
        let data = self.data.clone();
        self.read_with(&mut |bytes| bytes == data)
    }

    /// Reads the block with another checksum than the perfect one.
    pub(crate) fn read_with(
        &mut self,
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Resolved, Failure> {
        let mut plan = ReadPlan::new(&self.tree, &self.health, &self.indirect, self.range).unwrap();
        let mut outcomes = Vec::new();
        loop {
            match plan.advance(outcomes, verify) {
                Step::Read(reads) => outcomes = self.serve(&reads),
                Step::Done(resolved) => return Ok(resolved),
                Step::Failed(failure) => return Err(failure),
            }
        }
    }

    /// Audits the block.
    pub(crate) fn audit(&mut self) -> AuditReport {
        let data = self.data.clone();
        self.audit_with(&mut |bytes| bytes == data)
    }

    /// Audits the block with another checksum than the perfect one.
    pub(crate) fn audit_with(&mut self, verify: &mut dyn FnMut(&[u8]) -> bool) -> AuditReport {
        let mut plan =
            AuditPlan::new(&self.tree, &self.health, &self.indirect, self.range).unwrap();
        let mut outcomes = Vec::new();
        loop {
            match plan.advance(outcomes, verify) {
                AuditStep::Read(reads) => outcomes = self.serve(&reads),
                AuditStep::Done(report) => return report,
            }
        }
    }

    pub(crate) fn device(&mut self, leaf: u32) -> &mut Device {
        &mut self.devices[leaf as usize]
    }

    /// Makes a leaf absent.
    pub(crate) fn remove(&mut self, leaf: u32) {
        self.health.entry(LeafId(leaf)).unwrap().is_readable = false;
    }

    /// Records that a leaf missed the block's txg.
    pub(crate) fn make_stale(&mut self, leaf: u32) {
        self.health
            .entry(LeafId(leaf))
            .unwrap()
            .missed
            .push(90..110);
    }

    /// The leaves that are blamed.
    pub(crate) fn named(resolved: &Resolved) -> BTreeSet<LeafId> {
        resolved.liars.iter().map(|blame| blame.leaf).collect()
    }

    /// Writes the repairs, as a writable pool would.
    pub(crate) fn repair(&mut self, resolved: &Resolved) {
        for repair in &resolved.repairs {
            let device = &mut self.devices[repair.leaf.0 as usize];
            device.fault = None;
            device.bad_bytes.clear();
            device.write(repair.offset_bytes, &repair.data);
        }
    }
}

/// A leaf with the given guid.
pub(crate) fn leaf(guid: u64) -> VdevConfig {
    VdevConfig::new(VdevType::File, Guid(guid))
}

/// A vdev with children.
pub(crate) fn over(kind: VdevType, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
    VdevConfig {
        children,
        ..VdevConfig::new(kind, Guid(guid))
    }
}
