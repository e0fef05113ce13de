//! The leaves that a pool's blocks lie on, and what they have done so far.

use crate::leaf_status::{LeafMonitor, LeafStatus};
use crate::requests::{LeafRequests, NoAnswer, Pending};
use crate::unflushed::{FlushFailure, UnflushedWrites};
use crate::waits::{IoClass, IoClock, LeafWaits, WaitFigures, WatchedReads};
use millpond_device::{Device, DeviceError, DeviceRead, read_across_watched};
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_ondisk::{BlockPointer, Guid, Txg};
use millpond_vdev::{
    AuditFinding, Blame, BlameReason, IndirectTables, LeafFault, LeafId, LeafOutcome, LeafRead,
    LeafTable, VdevTree, Verdict,
};
use std::time::Duration;

/// What the reads of blocks that are asked for together take, in bytes, before the last of them.
const GROUP_BYTES: u64 = 1 << 20;

/// A pool's vdev tree with the devices of its leaves: what has to be known to read a block.
/// Immutable; a changed tree is a new value. A clone shares the counters.
#[derive(Debug, Clone)]
pub struct Topology {
    /// The tree.
    pub tree: VdevTree,
    /// The device of each leaf by its number; `None` where it is absent.
    pub devices: Vec<Option<Arc<dyn Device>>>,
    /// Which leaves can be asked, and what each has missed.
    pub health: LeafTable,
    /// Where removed vdevs went.
    pub indirect: IndirectTables,
    /// Whether gang headers may fill the smallest allocation of their vdev.
    pub has_large_gang_headers: bool,
    /// What each leaf has done, by its number.
    pub counters: Vec<Arc<LeafCounters>>,
    /// Tells how long the leaves take.
    pub clock: IoClock,
    /// Told when a leaf fails a request or changes its state.
    pub monitor: Arc<LeafMonitor>,
    /// How long a device may take for a request before the pool goes on without it, where it can; `None` for any time.
    pub deadline: Option<Duration>,
}

/// What a leaf did since the pool was opened, as `zpool status` counts it.
#[derive(Debug, Default)]
pub struct LeafCounters {
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    write_errors: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    repaired_bytes: AtomicU64,
    flushes: AtomicU64,
    waits: LeafWaits,
    unflushed: UnflushedWrites,
    status: LeafStatus,
    monitor: Arc<LeafMonitor>,
    /// One more than the newest txg that the leaf missed since the pool was opened; 0 if it missed none.
    missed_until: AtomicU64,
    requests: LeafRequests,
    device_bytes: AtomicU64,
}

/// A copy of a leaf's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeafFigures {
    /// Reads that the device failed.
    pub read_errors: u64,
    /// Reads that succeeded with wrong bytes.
    pub checksum_errors: u64,
    /// Reads issued.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes and flushes that the device failed.
    pub write_errors: u64,
    /// Writes issued; neighbours that went together count once.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Of these, bytes written over wrong ones.
    pub repaired_bytes: u64,
    /// Flushes issued.
    pub flushes: u64,
}

impl LeafCounters {
    /// Those of a leaf that has done nothing yet, whose errors are told to `monitor`.
    #[must_use]
    pub fn new(monitor: &Arc<LeafMonitor>) -> Self {
        Self {
            monitor: Arc::clone(monitor),
            ..Self::default()
        }
    }
    /// Whether the leaf is in use.
    #[must_use]
    pub fn status(&self) -> &LeafStatus {
        &self.status
    }
    pub(crate) fn requests(&self) -> &LeafRequests {
        &self.requests
    }
    /// The newest txg that the leaf missed since the pool was opened. Known here before any topology knows it.
    pub(crate) fn newest_missed(&self) -> Option<Txg> {
        let until = self.missed_until.load(Ordering::SeqCst);
        until.checked_sub(1).map(Txg)
    }
    pub(crate) fn note_missed(&self, txg: Txg) {
        self.missed_until
            .fetch_max(txg.0.saturating_add(1), Ordering::SeqCst);
    }
    /// The size of the leaf's device, or of the one it had last; 0 if it had none.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes.load(Ordering::Relaxed)
    }
    /// Adds errors to a counter.
    fn add_errors(&self, counter: &AtomicU64, errors: u64) {
        if errors > 0 {
            counter.fetch_add(errors, Ordering::Relaxed);
            self.monitor.raise();
        }
    }
    /// A copy of the present figures.
    #[must_use]
    pub fn figures(&self) -> LeafFigures {
        LeafFigures {
            read_errors: self.read_errors.load(Ordering::Relaxed),
            checksum_errors: self.checksum_errors.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            write_errors: self.write_errors.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            write_bytes: self.write_bytes.load(Ordering::Relaxed),
            repaired_bytes: self.repaired_bytes.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
        }
    }
    /// How long requests took, how large they were, and what waits just now.
    #[must_use]
    pub fn wait_figures(&self) -> WaitFigures {
        self.waits.figures()
    }
    pub(crate) fn waits(&self) -> &LeafWaits {
        &self.waits
    }
    /// What the leaf was given and no flush covers.
    pub(crate) fn unflushed(&self) -> &UnflushedWrites {
        &self.unflushed
    }
    /// Forgets the errors and what was slow; what was done stays counted.
    pub fn clear_errors(&self) {
        self.waits.clear_slow();
        for errors in [&self.read_errors, &self.write_errors, &self.checksum_errors] {
            errors.store(0, Ordering::Relaxed);
        }
    }
    pub(crate) fn count_writes(&self, writes: u64, bytes: u64, errors: u64) {
        self.writes.fetch_add(writes, Ordering::Relaxed);
        self.write_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.add_errors(&self.write_errors, errors);
    }
    pub(crate) fn count_repair(&self, bytes: u64) {
        self.repaired_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(crate) fn count_flush(&self, is_good: bool) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.add_errors(&self.write_errors, u64::from(!is_good));
    }
}

impl Topology {
    /// A topology whose leaves have done nothing yet. `devices` is by leaf number.
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
        };
        topology.note_sizes();
        topology
    }

    /// Remembers the sizes of the devices that are there.
    pub fn note_sizes(&self) {
        for (device, counters) in self.devices.iter().zip(&self.counters) {
            if let Some(device) = device {
                let size = device.size_bytes();
                counters.device_bytes.store(size, Ordering::Relaxed);
            }
        }
    }

    /// More bytes than all blocks of the pool can take on their devices, removed vdevs included: twice
    /// what the devices hold, and a little. Walks over a pool whose pointers claim more are not worth
    /// ending: many pointers lead to one block. An absent device counts as the largest present one.
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

    /// Counters for a leaf that joins.
    #[must_use]
    pub fn new_counters(&self) -> Arc<LeafCounters> {
        Arc::new(LeafCounters::new(&self.monitor))
    }

    /// What a leaf has done; zeros for a number that no leaf has.
    #[must_use]
    pub fn figures(&self, leaf: LeafId) -> LeafFigures {
        self.counters
            .get(leaf.0 as usize)
            .map(|counters| counters.figures())
            .unwrap_or_default()
    }

    /// How long a leaf took and what waits for it; nothing for a number that no leaf has.
    #[must_use]
    pub fn wait_figures(&self, leaf: LeafId) -> WaitFigures {
        self.counters
            .get(leaf.0 as usize)
            .map(|counters| counters.wait_figures())
            .unwrap_or_default()
    }

    /// The numbers of all leaves.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = LeafId> {
        (0..u32::try_from(self.devices.len()).unwrap_or(u32::MAX)).map(LeafId)
    }

    /// The device and counters of a leaf; `None` if it is absent or out of use.
    pub(crate) fn writable_leaf(
        &self,
        leaf: LeafId,
    ) -> Option<(&Arc<dyn Device>, &Arc<LeafCounters>)> {
        let index = leaf.0 as usize;
        let device = self.devices.get(index)?.as_ref()?;
        let counters = self.counters.get(index)?;
        counters.status.is_usable().then_some((device, counters))
    }

    /// Makes durable what was written to a leaf.
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

    /// What a leaf was given and no flush covers counts as lost: the next flush writes it again.
    pub(crate) fn distrust(&self, leaf: LeafId) {
        if let Some(counters) = self.counters.get(leaf.0 as usize) {
            counters.unflushed().distrust();
        }
    }

    /// The leaf's guid; 0 for a number that no leaf has.
    pub(crate) fn leaf_guid(&self, leaf: LeafId) -> Guid {
        self.tree
            .leaf(leaf)
            .map_or(Guid(0), |node| node.config.guid)
    }

    /// How many bytes of reads of several blocks are to be asked for together; 0 if one after the other is better.
    pub(crate) fn group_bytes(&self) -> u64 {
        let has_depth = (self.devices.iter().flatten()).any(|device| device.reads_at_once());
        if has_depth { GROUP_BYTES } else { 0 }
    }

    /// Performs reads of plans, at once as far as the devices allow it. Outcomes come in the order of the reads.
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
        let mut outcomes = read_across_watched(&possible, &watch).into_iter();
        drop(watch);
        let outcomes = asked.into_iter().map(|asked| {
            asked?;
            let outcome = outcomes.next().ok_or(LeafFault::Io)?;
            outcome.map_err(|error| fault(&error))
        });
        outcomes.collect()
    }

    /// Performs one read of a plan, in the memory of `room` if that is large enough.
    pub(crate) fn read_leaf(&self, read: &LeafRead, class: IoClass, room: Vec<u8>) -> LeafOutcome {
        if self.reads_with_deadline(read.leaf) {
            return self.start_read(read, class, room)?.wait(self)?;
        }
        let (asked, counters) = self.device_read(read)?;
        perform(&self.clock, asked, counters, class, room)
    }

    /// As [`Topology::read_leaves`], each leaf's reads by its own threads.
    fn read_by_leaf(&self, reads: &[LeafRead], class: IoClass) -> Vec<LeafOutcome> {
        let begun: Vec<Result<Pending<LeafOutcome>, LeafFault>> = (reads.iter())
            .map(|read| self.start_read(read, class, Vec::new()))
            .collect();
        let outcomes = begun.into_iter().map(|pending| pending?.wait(self)?);
        outcomes.collect()
    }

    fn start_read(
        &self,
        read: &LeafRead,
        class: IoClass,
        room: Vec<u8>,
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
            perform(&clock, asked, &counters, class, room)
        }))
    }

    /// What a read asks of which device, counted as issued.
    fn device_read(&self, read: &LeafRead) -> Result<(DeviceRead<'_>, &LeafCounters), LeafFault> {
        let (device, counters) = self.writable_leaf(read.leaf).ok_or(LeafFault::Absent)?;
        if read
            .offset_bytes
            .checked_add(read.length_bytes)
            .is_none_or(|end| end > device.size_bytes())
        {
            return Err(LeafFault::OutOfRange);
        }
        // A plan's reads are never longer than a block with its padding: below 32 MiB.
        let length_bytes = usize::try_from(read.length_bytes).map_err(|_| LeafFault::Length)?;
        counters.reads.fetch_add(1, Ordering::Relaxed);
        counters
            .read_bytes
            .fetch_add(read.length_bytes, Ordering::Relaxed);
        let read = DeviceRead {
            device: device.as_ref(),
            offset_bytes: read.offset_bytes,
            length_bytes,
        };
        Ok((read, counters))
    }

    /// Counts what a plan found out about leaves.
    pub(crate) fn count(&self, blames: &[Blame]) {
        for blame in blames {
            let Some(counters) = self.counters.get(blame.leaf.0 as usize) else {
                continue;
            };
            match blame.reason {
                BlameReason::Checksum => {
                    counters.add_errors(&counters.checksum_errors, 1);
                }
                BlameReason::Io(LeafFault::Absent) | BlameReason::Stale => {}
                BlameReason::Io(_) => {
                    counters.add_errors(&counters.read_errors, 1);
                }
            }
        }
    }

    /// Counts what an audit found out about a leaf.
    pub(crate) fn count_finding(&self, finding: &AuditFinding) {
        let Some(counters) = self.counters.get(finding.leaf.0 as usize) else {
            return;
        };
        match finding.verdict {
            Verdict::Wrong => {
                counters.add_errors(&counters.checksum_errors, 1);
            }
            Verdict::Fault(fault) if fault != LeafFault::Absent => {
                counters.add_errors(&counters.read_errors, 1);
            }
            _ => {}
        }
    }

    /// Whether each address of a pointer lies on a vdev that can hold it.
    pub(crate) fn accepts(&self, pointer: &BlockPointer) -> Result<(), &'static str> {
        for dva in pointer.dvas() {
            if dva.vdev.0 as usize >= self.tree.top_count() {
                return Err("address names a vdev that does not exist");
            }
        }
        Ok(())
    }

    /// The leaf's name for people: its path, or what stands for it.
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
    room: Vec<u8>,
) -> LeafOutcome {
    let watched = std::iter::once((counters, asked.length_bytes as u64));
    let watch = WatchedReads::new(clock, class, watched);
    let outcome = asked.perform_watched(room, &watch);
    outcome.map_err(|error| fault(&error))
}

/// What does not answer is as good as gone.
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
