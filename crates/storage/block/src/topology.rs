//! The leaves that hold a pool's blocks.

use crate::BlockAddress;
use crate::copy_locks::{CopyLocks, VdevRange, vdev_range};
use crate::io_stats::{IoClass, IoClock, IoStats};
use crate::io_watch::WatchedReads;
use crate::leaf_counters::{LeafCounters, LeafStats};
use crate::leaf_requests::Lane;
use crate::leaf_status::LeafMonitor;
use crate::request_errors::{RequestError, RequestErrorKind};
use crate::requests::{NoAnswer, Pending};
use crate::unflushed::FlushFailure;
use crate::write_lease::WriteLease;
use millpond_device::{BatchBytes, Device, DeviceError, DeviceRead, read_batch_watched};
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_ondisk::{BlockPointer, Guid, Txg, VdevId};
use millpond_vdev::{
    AllocationClass, AuditFinding, Blame, BlameReason, BlockRange, IndirectTables, LeafBytes,
    LeafFault, LeafId, LeafOutcome, LeafRead, LeafTable, VdevTree, Verdict, WritePlan,
    WritePlanError, block_pieces,
};
use std::ops::Range;
use std::time::Duration;

/// Once the reads of a group of blocks reach this size, in bytes, the group is submitted.
const GROUP_BYTES: u64 = 1 << 20;

/// A pool's vdev tree with the devices of its leaves: all that reading a block needs. Immutable; a changed
/// tree is a new value. A clone shares the counters.
#[derive(Debug, Clone)]
pub struct Topology {
    /// The tree.
    pub tree: VdevTree,
    /// The device of each leaf, by leaf id; `None` where it is absent.
    pub devices: Vec<Option<Arc<dyn Device>>>,
    /// Which leaves are readable, and what each has missed.
    pub health: LeafTable,
    /// The mappings of removed vdevs.
    pub indirect: IndirectTables,
    /// Whether gang headers may fill the smallest allocation of their vdev.
    pub has_large_gang_headers: bool,
    /// The counters of each leaf, by leaf id.
    pub counters: Vec<Arc<LeafCounters>>,
    /// The clock that measures requests.
    pub clock: IoClock,
    /// Notified when a leaf fails a request or changes its state.
    pub monitor: Arc<LeafMonitor>,
    /// How long a device may take for a request before the pool continues without it, where it can; `None`
    /// for no limit.
    pub deadline: Option<Duration>,
    /// Excludes writes from ranges that are being copied. Shared by all topologies of a pool.
    pub(crate) copy_locks: Arc<CopyLocks>,
    /// How much of the vdev that is being expanded has been moved, in bytes: at least as much as the tree says. Shared
    /// by all topologies of a pool.
    pub(crate) moved_bytes: Arc<AtomicU64>,
}

impl Topology {
    /// A topology whose counters are zero. `devices` is by leaf id.
    #[must_use]
    pub fn new(
        tree: VdevTree,
        devices: Vec<Option<Arc<dyn Device>>>,
        health: LeafTable,
        indirect: IndirectTables,
    ) -> Self {
        let monitor = Arc::new(LeafMonitor::default());
        let counters = (0..tree.leaf_count())
            .map(|_| Arc::new(LeafCounters::new(&monitor)))
            .collect();
        let topology = Self {
            tree,
            devices,
            health,
            indirect,
            has_large_gang_headers: false,
            counters,
            clock: IoClock::default(),
            monitor,
            deadline: None,
            copy_locks: Arc::default(),
            moved_bytes: Arc::default(),
        };
        topology.note_sizes();
        topology
    }

    /// Records the sizes of the present devices.
    pub fn note_sizes(&self) {
        for (device, counters) in self.devices.iter().zip(&self.counters) {
            if let Some(device) = device {
                counters.note_size(device.size_bytes());
            }
        }
    }

    /// An upper bound of the bytes that all blocks of the pool take on their devices, removed vdevs
    /// included.
    ///
    /// It is twice the size of the devices, plus 64 MiB. If the pointers of a pool claim more, many of them
    /// lead to one block, and a traversal may stop. An absent device counts as the largest present one.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        let sizes = self
            .devices
            .iter()
            .flatten()
            .map(|device| device.size_bytes());
        let largest = sizes.max().unwrap_or(0);
        let leaves = self.devices.len() as u64;
        let tops = self.tree.tops().map(|(_, top)| top.config.asize_bytes);
        let claimed = tops.fold(0, u64::saturating_add);
        claimed
            .min(largest.saturating_mul(leaves))
            .saturating_mul(2)
            .saturating_add(64 << 20)
    }

    /// This topology after a change of the tree of `old`: what the requests of a pool share stays.
    #[must_use]
    pub fn succeeding(mut self, old: &Self) -> Self {
        self.has_large_gang_headers = old.has_large_gang_headers;
        self.clock = old.clock.clone();
        self.monitor = Arc::clone(&old.monitor);
        self.deadline = old.deadline;
        self.copy_locks = Arc::clone(&old.copy_locks);
        self.moved_bytes = Arc::clone(&old.moved_bytes);
        self
    }

    /// Counters for a leaf that is added.
    #[must_use]
    pub fn new_counters(&self) -> Arc<LeafCounters> {
        Arc::new(LeafCounters::new(&self.monitor))
    }

    /// Statistics of a leaf; zeros for an unknown leaf id.
    #[must_use]
    pub fn leaf_stats(&self, leaf: LeafId) -> LeafStats {
        self.counters
            .get(leaf.0 as usize)
            .map(|counters| counters.stats())
            .unwrap_or_default()
    }

    /// How long requests of a leaf took and how many wait; empty for an unknown leaf id.
    #[must_use]
    pub fn io_stats(&self, leaf: LeafId) -> IoStats {
        self.counters
            .get(leaf.0 as usize)
            .map(|counters| counters.io_stats())
            .unwrap_or_default()
    }

    /// Whether a leaf takes writes: its device is there and in use. A distributed spare has no device, and always does.
    #[must_use]
    pub fn is_in_use(&self, leaf: LeafId) -> bool {
        let node = self.tree.leaf(leaf);
        let is_spare = node.is_some_and(|node| !node.is_device());
        let device = self.devices.get(leaf.0 as usize);
        (is_spare || device.is_some_and(Option::is_some)) && self.condition(leaf).is_usable()
    }

    /// Plans the write of a block, to both places of rows that an expansion is moving.
    pub(crate) fn write_plan(
        &self,
        range: BlockRange,
        block: &[u8],
    ) -> Result<WritePlan, WritePlanError> {
        let moved_bytes = self.moved_bytes.load(Ordering::SeqCst);
        WritePlan::during_reflow(&self.tree, self, range, block, moved_bytes)
    }

    /// Until when requests are made. All topologies of a pool share it.
    #[must_use]
    pub fn lease(&self) -> &WriteLease {
        &self.monitor.lease
    }

    /// The ids of all leaves.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = LeafId> {
        (0..u32::try_from(self.devices.len()).unwrap_or(u32::MAX)).map(LeafId)
    }

    /// The device and counters of a leaf; `None` if it is absent or out of use, and for all leaves when the lease has
    /// ended.
    pub(crate) fn writable_leaf(
        &self,
        leaf: LeafId,
    ) -> Option<(&Arc<dyn Device>, &Arc<LeafCounters>)> {
        let index = leaf.0 as usize;
        let device = self.devices.get(index)?.as_ref()?;
        let counters = self.counters.get(index)?;
        let may_use = counters.status().is_usable() && !self.lease().has_ended();
        may_use.then_some((device, counters))
    }

    /// Whether every vdev that takes blocks would bear the loss of any one more leaf that is written now.
    pub(crate) fn is_redundant(&self) -> bool {
        let is_lost = |leaf: LeafId| self.writable_leaf(leaf).is_none();
        let mut tops = self.tree.tops();
        tops.all(|(vdev, node)| {
            let takes_blocks = node.class != AllocationClass::Log && node.is_concrete();
            !takes_blocks || self.tree.survives_one_more(vdev, &is_lost)
        })
    }

    /// Makes the writes of a leaf durable.
    pub(crate) fn flush_leaf(&self, leaf: LeafId) -> Result<(), FlushFailure> {
        match self.writable_leaf(leaf) {
            Some((device, counters)) => {
                let flush = || counters.unflushed().flush(device, counters);
                counters.waits().progress().during(&self.clock, flush)
            }
            None => {
                let counters = self.counters.get(leaf.0 as usize);
                counters.map_or(Ok(()), |counters| Err(counters.unflushed().fail_flush()))
            }
        }
    }

    /// Treats the unflushed writes of a leaf as lost: the next flush rewrites them.
    pub(crate) fn distrust(&self, leaf: LeafId) {
        if let Some(counters) = self.counters.get(leaf.0 as usize) {
            counters.unflushed().distrust();
        }
    }

    /// Ranges of a leaf's device as ranges of its vdev, for [`CopyLocks`].
    pub(crate) fn vdev_ranges_of(
        &self,
        leaf: LeafId,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> Vec<VdevRange> {
        let Some(top) = self.tree.leaf(leaf).and_then(|node| node.top) else {
            return vec![];
        };
        ranges.map(|range| vdev_range(top, &range)).collect()
    }

    /// Where the leaves of a top-level vdev have a range of it, for [`CopyLocks`]. Where that is another place on each
    /// (RAID-Z), nothing is copied.
    pub(crate) fn leaf_ranges_of(&self, top: VdevId, range: &Range<u64>) -> Vec<VdevRange> {
        let node = self.tree.top(top);
        let Some((draid, ashift)) = node.and_then(|node| Some((node.draid()?, node.ashift))) else {
            return vec![(top, range.clone())];
        };
        let ranges = draid.leaf_ranges(range, ashift);
        // Of a range that no block can have, nothing is known.
        let ranges = ranges.unwrap_or_else(|| std::iter::once(0..u64::MAX).collect());
        ranges.into_iter().map(|range| (top, range)).collect()
    }

    /// The leaf's guid; 0 for an unknown leaf id.
    #[must_use]
    pub fn leaf_guid(&self, leaf: LeafId) -> Guid {
        self.tree
            .leaf(leaf)
            .map_or(Guid(0), |node| node.config.guid)
    }

    /// How many bytes of reads to submit together for several blocks; 0 if reading one after the other is
    /// better.
    pub(crate) fn group_bytes(&self) -> u64 {
        let has_depth = (self.devices.iter().flatten()).any(|device| device.reads_at_once());
        if has_depth { GROUP_BYTES } else { 0 }
    }

    /// Performs the reads of plans, in parallel as far as the devices allow it. Outcomes are in the order
    /// of the reads.
    pub(crate) fn read_leaves(&self, reads: &[LeafRead], class: IoClass) -> Vec<LeafOutcome> {
        if (reads.iter()).any(|read| self.reads_with_deadline(read.leaf)) {
            return self.read_by_leaf(reads, class);
        }
        let asked: Vec<Result<(DeviceRead<'_>, &LeafCounters), LeafFault>> =
            reads.iter().map(|read| self.device_read(read)).collect();
        let possible: Vec<DeviceRead<'_>> = asked.iter().flatten().map(|(read, _)| *read).collect();
        let watched =
            (asked.iter().flatten()).map(|(read, counters)| (*counters, read.length_bytes as u64));
        let watch = WatchedReads::new(&self.clock, class, watched);
        // In the order of leaves, so that no two threads wait for each other.
        let mut leaves: Vec<LeafId> = reads.iter().map(|read| read.leaf).collect();
        leaves.sort_unstable();
        leaves.dedup();
        let counters = leaves.into_iter();
        let counters = counters.filter_map(|leaf| self.counters.get(leaf.0 as usize));
        let operations: Vec<_> = counters
            .map(|counters| counters.queue().enter(class))
            .collect();
        let mut outcomes = read_batch_watched(&possible, &watch).into_iter();
        drop(operations);
        drop(watch);
        let outcomes = asked.into_iter().map(|asked| {
            asked?;
            let outcome = outcomes.next().ok_or(LeafFault::Io)?;
            outcome.map(leaf_bytes).map_err(|error| fault(&error))
        });
        outcomes.collect()
    }

    /// Performs one read of a plan, into `buffer` if it is large enough.
    pub(crate) fn read_leaf(
        &self,
        read: &LeafRead,
        class: IoClass,
        buffer: Vec<u8>,
    ) -> LeafOutcome {
        if self.reads_with_deadline(read.leaf) {
            return self.start_read(read, class, buffer)?.wait(self)?;
        }
        let (asked, counters) = self.device_read(read)?;
        perform(&self.clock, asked, counters, class, buffer)
    }

    /// Like [`Topology::read_leaves`], with each leaf's reads in its own threads. If the device takes several reads at
    /// once, a thread makes up to 1 MiB of them together.
    fn read_by_leaf(&self, reads: &[LeafRead], class: IoClass) -> Vec<LeafOutcome> {
        let begun: Vec<(Vec<usize>, Pending<Vec<LeafOutcome>>)> = (self.groups_by_leaf(reads))
            .into_iter()
            .filter_map(|(leaf, group)| {
                let own = group.iter().filter_map(|index| reads.get(*index)).copied();
                let pending = self.start_reads(leaf, own.collect(), class)?;
                Some((group, pending))
            })
            .collect();
        let mut all = vec![Err(LeafFault::Absent); reads.len()];
        for (group, pending) in begun {
            let outcomes = pending.wait(self).unwrap_or_default();
            for (index, outcome) in group.into_iter().zip(outcomes) {
                if let Some(place) = all.get_mut(index) {
                    *place = outcome;
                }
            }
        }
        all
    }

    /// The indices of the reads that each thread of a leaf makes.
    fn groups_by_leaf(&self, reads: &[LeafRead]) -> Vec<(LeafId, Vec<usize>)> {
        let mut groups: Vec<(LeafId, Vec<usize>, u64)> = vec![];
        for (index, read) in reads.iter().enumerate() {
            let leaf = self.writable_leaf(read.leaf);
            let may_join = leaf.is_some_and(|(device, _)| device.reads_at_once());
            let open = groups.iter_mut().rev().find(|group| group.0 == read.leaf);
            match open.filter(|group| may_join && group.2 < GROUP_BYTES) {
                Some((_, indices, bytes)) => {
                    indices.push(index);
                    *bytes = bytes.saturating_add(read.length_bytes);
                }
                None => groups.push((read.leaf, vec![index], read.length_bytes)),
            }
        }
        let groups = groups.into_iter();
        groups.map(|(leaf, indices, _)| (leaf, indices)).collect()
    }

    /// Starts reads of one leaf, which its thread makes together. `None` if it is absent.
    pub(crate) fn start_reads(
        &self,
        leaf: LeafId,
        reads: Vec<LeafRead>,
        class: IoClass,
    ) -> Option<Pending<Vec<LeafOutcome>>> {
        let faults: Vec<Option<LeafFault>> = reads
            .iter()
            .map(|read| self.device_read(read).err())
            .collect();
        let (device, counters) = self.writable_leaf(leaf)?;
        let (device, counters) = (Arc::clone(device), Arc::clone(counters));
        let clock = self.clock.clone();
        let bytes = reads.iter().map(|read| read.length_bytes).sum();
        Some(self.start_in(Lane::of(class), leaf, bytes, move || {
            let possible = reads
                .iter()
                .zip(&faults)
                .filter(|(_, fault)| fault.is_none());
            let possible: Vec<DeviceRead<'_>> = possible
                .map(|(read, _)| DeviceRead {
                    device: device.as_ref(),
                    offset_bytes: read.offset_bytes,
                    // `device_read` has checked the length.
                    length_bytes: usize::try_from(read.length_bytes).unwrap_or(0),
                })
                .collect();
            let watched = possible.iter();
            let watched = watched.map(|read| (&*counters, read.length_bytes as u64));
            let watch = WatchedReads::new(&clock, class, watched);
            let mut outcomes = counters.queue().read(class, &possible, &watch).into_iter();
            let each = faults.iter().map(|fault| match fault {
                Some(fault) => Err(*fault),
                None => {
                    let outcome = outcomes.next().ok_or(LeafFault::Io)?;
                    outcome.map(leaf_bytes).map_err(|error| self::fault(&error))
                }
            });
            each.collect()
        }))
    }

    fn start_read(
        &self,
        read: &LeafRead,
        class: IoClass,
        buffer: Vec<u8>,
    ) -> Result<Pending<LeafOutcome>, LeafFault> {
        self.device_read(read)?;
        let (device, counters) = self.writable_leaf(read.leaf).ok_or(LeafFault::Absent)?;
        let (device, counters) = (Arc::clone(device), Arc::clone(counters));
        let (clock, read) = (self.clock.clone(), *read);
        let length_bytes = usize::try_from(read.length_bytes).map_err(|_| LeafFault::Length)?;
        Ok(self.start(read.leaf, read.length_bytes, move || {
            let asked = DeviceRead {
                device: device.as_ref(),
                offset_bytes: read.offset_bytes,
                length_bytes,
            };
            perform(&clock, asked, &counters, class, buffer)
        }))
    }

    /// The device read for a read of a plan, counted as issued.
    fn device_read(&self, read: &LeafRead) -> Result<(DeviceRead<'_>, &LeafCounters), LeafFault> {
        let (device, counters) = self.writable_leaf(read.leaf).ok_or(LeafFault::Absent)?;
        if read
            .offset_bytes
            .checked_add(read.length_bytes)
            .is_none_or(|end| end > device.size_bytes())
        {
            return Err(LeafFault::OutOfRange);
        }
        // A plan's reads are never longer than a block with its padding: less than 32 MiB.
        let length_bytes = usize::try_from(read.length_bytes).map_err(|_| LeafFault::Length)?;
        counters.count_read(read.length_bytes);
        let read = DeviceRead {
            device: device.as_ref(),
            offset_bytes: read.offset_bytes,
            length_bytes,
        };
        Ok((read, counters))
    }

    /// Counts an error that the plan of a block found on a leaf. Wrong bytes in the space of a distributed spare are
    /// counted to the spare: its rebuild put them there, and the device returned what it was given.
    pub(crate) fn count(&self, blame: &Blame, address: Option<BlockAddress>) {
        let kind = match blame.reason {
            BlameReason::Checksum => RequestErrorKind::Checksum,
            BlameReason::Io(LeafFault::Absent) | BlameReason::Stale => return,
            BlameReason::Io(_) => RequestErrorKind::Read,
        };
        let range = (blame.offset_bytes, blame.length_bytes);
        let counted = counted(kind, blame.leaf, blame.spare);
        self.count_error(counted, kind, range, address);
    }

    /// Counts the error that the audit of a block found on a leaf, as [`Topology::count`] does.
    pub(crate) fn count_finding(&self, finding: &AuditFinding, address: BlockAddress) {
        let kind = match finding.verdict {
            Verdict::Wrong => RequestErrorKind::Checksum,
            Verdict::Fault(fault) if fault != LeafFault::Absent => RequestErrorKind::Read,
            _ => return,
        };
        let range = (finding.offset_bytes, finding.length_bytes);
        let counted = counted(kind, finding.leaf, finding.spare);
        self.count_error(counted, kind, range, Some(address));
    }

    /// Counts a read that failed, of no block in particular.
    pub(crate) fn count_failed_read(&self, read: &LeafRead) {
        let range = (read.offset_bytes, read.length_bytes);
        self.count_error(read.leaf, RequestErrorKind::Read, range, None);
    }

    fn count_error(
        &self,
        leaf: LeafId,
        kind: RequestErrorKind,
        (offset_bytes, length_bytes): (u64, u64),
        address: Option<BlockAddress>,
    ) {
        if let Some(counters) = self.counters.get(leaf.0 as usize) {
            counters.count_error(RequestError {
                kind,
                offset_bytes,
                length_bytes,
                address,
            });
        }
    }

    /// Checks that each address of a pointer names an existing vdev.
    pub(crate) fn accepts(&self, pointer: &BlockPointer) -> Result<(), &'static str> {
        for dva in pointer.dvas() {
            if dva.vdev.0 as usize >= self.tree.top_count() {
                return Err("address names a vdev that does not exist");
            }
        }
        Ok(())
    }

    /// Whether a leaf may lack its part of a block, by the txgs that it missed. The pieces of a gang block may be on any vdev.
    ///
    /// The data of a removed vdev was written again by the removal, in a later txg than the block's.
    #[must_use]
    pub fn may_lack(&self, pointer: &BlockPointer, leaf: LeafId) -> bool {
        let missed = self.health.missed(leaf);
        let top = self.tree.leaf(leaf).and_then(|node| node.top);
        let is_missed = |txg: Txg| missed.iter().any(|range| range.contains(&txg.0));
        if missed.is_empty() {
            return false;
        }
        pointer.dvas().any(|dva| {
            if dva.is_gang {
                // Where the pieces were copied to, and when, is not known without the header.
                return is_missed(pointer.physical_birth()) || !self.indirect.is_empty();
            }
            if top == Some(dva.vdev) {
                return is_missed(pointer.physical_birth());
            }
            if self.indirect.get(dva.vdev).is_none() {
                return false;
            }
            let range = BlockRange {
                vdev: dva.vdev,
                offset_bytes: dva.offset_bytes,
                size_bytes: pointer.psize_bytes(),
                birth: pointer.physical_birth(),
            };
            let pieces = block_pieces(&self.tree, &self.indirect, range).unwrap_or_default();
            let mut pieces = pieces.into_iter().map(|piece| piece.range);
            pieces.any(|piece| top == Some(piece.vdev) && is_missed(piece.birth))
        })
    }

    /// The leaf's display name: its path, else its guid.
    #[must_use]
    pub fn leaf_name(&self, leaf: LeafId) -> String {
        match self.tree.leaf(leaf) {
            Some(node) => node
                .config
                .path
                .clone()
                .unwrap_or_else(|| format!("guid {}", node.config.guid)),
            None => format!("leaf {}", leaf.0),
        }
    }
}

fn perform(
    clock: &IoClock,
    asked: DeviceRead<'_>,
    counters: &LeafCounters,
    class: IoClass,
    buffer: Vec<u8>,
) -> LeafOutcome {
    let watched = std::iter::once((counters, asked.length_bytes as u64));
    let watch = WatchedReads::new(clock, class, watched);
    let operation = counters.queue().enter(class);
    let outcome = asked.perform_watched(buffer, &watch);
    drop(operation);
    outcome.map(LeafBytes::from).map_err(|error| fault(&error))
}

/// The memory of direct I/O is not copied.
fn leaf_bytes(bytes: BatchBytes) -> LeafBytes {
    match bytes {
        BatchBytes::Plain(bytes) => bytes.into(),
        BatchBytes::Direct(memory) => LeafBytes::of(memory),
    }
}

/// A device that does not answer counts as absent.
impl From<NoAnswer> for LeafFault {
    fn from(_: NoAnswer) -> Self {
        Self::Absent
    }
}

fn fault(error: &DeviceError) -> LeafFault {
    match error {
        DeviceError::OutOfRange { .. } => LeafFault::OutOfRange,
        _ => LeafFault::Io,
    }
}

/// The leaf that an error is counted to.
fn counted(kind: RequestErrorKind, leaf: LeafId, spare: Option<LeafId>) -> LeafId {
    match kind {
        RequestErrorKind::Checksum => spare.unwrap_or(leaf),
        RequestErrorKind::Read | RequestErrorKind::Write => leaf,
    }
}
