//! Copies ranges from complete sides of a mirror to sides that lack data, without looking at blocks (a sequential
//! resilver).
//!
//! A copy keeps other writes off its range ([`crate::copy_locks`]). It reads from a leaf that is in use and lacks nothing,
//! and from the next one if that fails. Checksums are not verified.
//!
//! What was copied is durable after [`CopyPass::finish`]. Contents are not kept until then: a leaf that may have lost some
//! is reported, and lacks everything.

use crate::BlockStore;
use crate::copy_locks;
use crate::io_stats::IoClass;
use crate::io_watch::time_write;
use crate::requests::Overdue;
use crate::topology::Topology;
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{Guid, VDEV_DATA_START_BYTES, VdevId};
use millpond_vdev::{LeafFault, LeafId, LeafRead, VdevKind};
use std::collections::BTreeSet;
use std::ops::Range;

/// The most bytes of one read, so that other requests find little ahead of them.
const READ_BYTES: u64 = 128 << 10;

/// Copies to some leaves of one top-level vdev, up to a flush.
#[derive(Debug)]
pub struct CopyPass<'a> {
    store: &'a BlockStore,
    top: VdevId,
    targets: Vec<Side>,
    /// The leaves to copy from. Nothing that was written to them before the pass is in doubt.
    sources: Vec<Side>,
    /// Those that were copied from.
    used: Mutex<BTreeSet<Guid>, rank::Leaf>,
    _pass: copy_locks::CopyPass,
}

#[derive(Debug)]
struct Side {
    guid: Guid,
    device: Arc<dyn Device>,
    /// Failed write-backs before the first copy.
    errors: u64,
}

impl Side {
    /// Makes what the leaf holds durable. Returns whether it has the same device as before, and that lost nothing.
    fn is_durable(&self, topology: &Topology) -> bool {
        let flush = || {
            let leaf = topology.tree.find_leaf(self.guid)?;
            // Another device does not know what this one was given.
            let (device, _) = topology.writable_leaf(leaf)?;
            if !Arc::ptr_eq(device, &self.device) {
                return None;
            }
            let (device, errors) = (Arc::clone(device), self.errors);
            let flush = move || device.flush().is_ok() && device.write_back_errors() == errors;
            topology.request(leaf, 0, flush).ok()
        };
        flush() == Some(true)
    }
}

/// What became of one range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copied {
    /// It was read. These leaves did not take it.
    Read {
        /// The guids of the leaves.
        failed: Vec<Guid>,
    },
    /// No leaf that lacks nothing could read it.
    Unreadable,
    /// No leaf is in use that lacks nothing.
    NoSource,
    /// A device, or another write of the range, takes too long. The range may be tried again.
    NoAnswer,
}

impl BlockStore {
    /// Begins copies to these leaves of a vdev. `None` if one of them is not in use.
    #[must_use]
    pub fn begin_copies(&self, top: VdevId, targets: &[Guid]) -> Option<CopyPass<'_>> {
        let topology = self.topology();
        let of = |guid: &Guid| {
            let leaf = topology.tree.find_leaf(*guid)?;
            let (device, _) = topology.writable_leaf(leaf)?;
            Some(Side {
                guid: *guid,
                device: Arc::clone(device),
                errors: device.write_back_errors(),
            })
        };
        let sources = topology.copy_sources(top, targets).into_iter();
        let sources = sources
            .filter_map(|leaf| topology.flushed_source(leaf))
            .collect();
        let targets: Option<Vec<Side>> = targets.iter().map(of).collect();
        Some(CopyPass {
            store: self,
            top,
            targets: targets?,
            sources,
            used: Mutex::default(),
            _pass: topology.copy_locks.pass(),
        })
    }
}

impl Topology {
    /// Whether some other leaf of a vdev is in use and lacks nothing, so that it can be copied from.
    #[must_use]
    pub fn has_copy_source(&self, top: VdevId, targets: &[Guid]) -> bool {
        !self.copy_sources(top, targets).is_empty()
    }

    /// A leaf to copy from, after a flush. `None` if that fails: what it returns for its newest writes is in doubt.
    fn flushed_source(&self, leaf: LeafId) -> Option<Side> {
        let (device, counters) = self.writable_leaf(leaf)?;
        let bytes = counters.unflushed().retained_bytes();
        let (side, of) = (Arc::clone(device), Arc::clone(counters));
        let errors = self.request(leaf, bytes, move || {
            of.unflushed().flush(&side, &of).ok()?;
            Some(side.write_back_errors())
        });
        Some(Side {
            guid: self.leaf_guid(leaf),
            device: Arc::clone(device),
            errors: errors.ok()??,
        })
    }

    /// The leaves of a vdev to copy from. One that is being replaced comes last: it may be failing.
    fn copy_sources(&self, top: VdevId, targets: &[Guid]) -> Vec<LeafId> {
        let is_replaced = |leaf: LeafId| {
            let nodes = self.tree.nodes().iter();
            let mut groups = nodes
                .filter(|node| matches!(node.kind, VdevKind::Replacing | VdevKind::Spare))
                .filter_map(|node| self.tree.node(*node.children.first()?)?.leaf);
            groups.any(|first| first == leaf)
        };
        let leaves = self.tree.leaves().filter(|(leaf, node)| {
            let counters = self.counters.get(leaf.0 as usize);
            node.top == Some(top)
                && !targets.contains(&node.config.guid)
                && self.writable_leaf(*leaf).is_some()
                && self.health.missed(*leaf).is_empty()
                && counters.is_some_and(|counters| counters.newest_missed().is_none())
        });
        let mut leaves: Vec<LeafId> = leaves.map(|(leaf, _)| leaf).collect();
        leaves.sort_by_key(|leaf| is_replaced(*leaf));
        leaves
    }

    /// Reads a range of a leaf in pieces that give way to others. `None` if the device does not answer.
    fn read_copy(&self, leaf: LeafId, range: &Range<u64>) -> Option<Result<Vec<u8>, LeafFault>> {
        let mut reads = vec![];
        let mut at = range.start;
        while at < range.end {
            let length_bytes = (range.end - at).min(READ_BYTES);
            reads.push(LeafRead {
                leaf,
                offset_bytes: VDEV_DATA_START_BYTES.saturating_add(at),
                length_bytes,
            });
            at = at.saturating_add(length_bytes);
        }
        let outcomes = match self.has_deadline(leaf) {
            false => self.read_leaves(&reads, IoClass::Rebuild),
            // The leaf is not taken out of use for this: a copy can be made later.
            true if self.abandoned_requests(leaf) > 0 => return None,
            true => (self.start_reads(leaf, reads, IoClass::Rebuild)?)
                .wait_or_abandon(self)
                .ok()?,
        };
        let mut bytes = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
        for outcome in outcomes {
            match outcome {
                Ok(piece) => bytes.extend_from_slice(&piece),
                Err(LeafFault::Absent) => return None,
                Err(fault) => {
                    if let Some(counters) = self.counters.get(leaf.0 as usize) {
                        counters.count_read_error();
                    }
                    return Some(Err(fault));
                }
            }
        }
        Some(Ok(bytes))
    }
}

impl CopyPass<'_> {
    /// Copies a range of the vdev's space, given in bytes from its start; at most some MiB.
    #[must_use]
    pub fn copy(&self, range: &Range<u64>) -> Copied {
        let limit = Overdue::of(&self.store.topology());
        let locks = Arc::clone(&self.store.topology().copy_locks);
        let Some(_place) = locks.copy((self.top, range.clone()), &limit) else {
            return Copied::NoAnswer;
        };
        // Only now: what leaves missed of writes that have ended is noted in it.
        let topology = self.store.topology();
        match self.read(&topology, range) {
            Ok(bytes) => {
                let failed = self.write(&topology, range.start, &bytes.into());
                Copied::Read { failed }
            }
            Err(copied) => copied,
        }
    }

    fn read(&self, topology: &Topology, range: &Range<u64>) -> Result<Vec<u8>, Copied> {
        let targets: Vec<Guid> = self.targets.iter().map(|target| target.guid).collect();
        let sources = topology.copy_sources(self.top, &targets);
        let mut failure = Copied::NoSource;
        for leaf in sources {
            let guid = topology.leaf_guid(leaf);
            if !self.sources.iter().any(|source| source.guid == guid) {
                failure = Copied::NoAnswer;
                continue;
            }
            match topology.read_copy(leaf, range) {
                Some(Ok(bytes)) => {
                    self.used.lock().insert(guid);
                    return Ok(bytes);
                }
                // The one that does not answer may do so later.
                None => failure = Copied::NoAnswer,
                Some(Err(_)) if failure == Copied::NoAnswer => {}
                Some(Err(_)) => {
                    mark::hit("copy-read-failed");
                    failure = Copied::Unreadable;
                }
            }
        }
        Err(failure)
    }

    /// Writes to all targets. Returns those that did not take it.
    fn write(&self, topology: &Topology, start: u64, bytes: &Arc<[u8]>) -> Vec<Guid> {
        let offset = VDEV_DATA_START_BYTES.saturating_add(start);
        let length = bytes.len() as u64;
        let begin = |target: &Side| {
            let leaf = topology.tree.find_leaf(target.guid)?;
            let (device, counters) = topology.writable_leaf(leaf)?;
            let (device, counters) = (Arc::clone(device), Arc::clone(counters));
            let (clock, bytes) = (topology.clock.clone(), Arc::clone(bytes));
            let in_thread = topology.has_deadline(leaf);
            let started = topology.start_or_make(in_thread, leaf, length, move || {
                let write = || {
                    let _operation = counters.queue().enter(IoClass::Rebuild);
                    device.write(offset, &bytes)
                };
                let outcome = time_write(&clock, &counters, IoClass::Rebuild, length, write);
                counters.count_writes(1, length, u64::from(outcome.is_err()));
                if outcome.is_ok() {
                    counters.count_repair(length);
                }
                outcome.is_ok()
            });
            Some((target.guid, started))
        };
        let begun: Vec<_> = (self.targets.iter())
            .map(|target| (target.guid, begin(target)))
            .collect();
        let outcomes = begun.into_iter().filter_map(|(guid, started)| {
            let is_written =
                started.is_some_and(|(_, started)| started.wait(topology).is_ok_and(|is_ok| is_ok));
            (!is_written).then_some(guid)
        });
        outcomes.collect()
    }

    /// Makes what was copied durable. Returns the leaves that may have lost some of it: all of them if a leaf lost writes
    /// while it was copied from.
    #[must_use]
    pub fn finish(self) -> Vec<Guid> {
        let topology = self.store.topology();
        let used = self.used.into_inner();
        let mut sources = (self.sources.iter()).filter(|source| used.contains(&source.guid));
        let is_right = sources.all(|source| source.is_durable(&topology));
        if !is_right {
            mark::hit("copy-source-lost-writes");
        }
        let lost = self.targets.iter();
        let lost = lost.filter(|target| !is_right || !target.is_durable(&topology));
        lost.map(|target| target.guid).collect()
    }
}
