//! Writes labels and uberblocks: the part of a commit on each leaf.
//!
//! This module writes prepared bytes to devices. The sync thread decides which txg and which vdev tree to
//! write, and when. The order of a [`commit`] makes every crash harmless: first labels 0 and 2, which are
//! valid only once an uberblock of their txg exists; then the uberblock; then labels 1 and 3.
//!
//! Pages `docs/format/label.md` ("Writing") and `docs/format/uberblock.md` ("Writing").

mod clear;
mod error;
mod heartbeat;
pub(crate) mod moved;
mod slots;

pub use clear::{Cleared, clear_labels};
pub use error::LabelError;
pub(crate) use heartbeat::{heartbeat_target, write_heartbeat};

use crate::config::{PoolConfig, auxiliary_label_list};
use crate::features::counts::POOL_VERSION_FEATURES;
use crate::import::LeafState;
use millpond_block::Topology;
use millpond_checksum::LabelSealer;
use millpond_device::{Device, DeviceError, WriteRequest};
use millpond_env::sync::Arc;
use millpond_nvlist::{Encoding, NvList};
use millpond_ondisk::{
    Ashift, BOOT_ENV_BYTES, BOOT_ENV_OFFSET_BYTES, BlockPointer, BootEnvironment, Endian, Guid,
    LABEL_BYTES, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET_BYTES, LeafLayout, Txg,
    UBERBLOCK_RING_BYTES, UBERBLOCK_RING_OFFSET_BYTES, Uberblock, VDEV_DATA_START_BYTES, VdevId,
    unsealed_label_region,
};
use millpond_vdev::{LeafId, VdevConfig, VdevKind, VdevNode};
use slots::SealedSlots;

/// Which labels to write: those before the uberblock or those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelHalf {
    /// Labels 0 and 2.
    Even,
    /// Labels 1 and 3.
    Odd,
}

impl LabelHalf {
    fn indices(self) -> [usize; 2] {
        match self {
            Self::Even => [0, 2],
            Self::Odd => [1, 3],
        }
    }
}

/// The result of writing to one leaf.
#[derive(Debug, Clone)]
pub struct LeafWrite {
    /// The leaf.
    pub leaf: LeafId,
    /// Its top-level vdev.
    pub top: VdevId,
    /// The number of copies that were written and flushed.
    pub copies_written: usize,
    /// The first failure, if any copy failed.
    pub failure: Option<LabelError>,
}

/// The results of writing to several leaves, without absent leaves.
#[derive(Debug, Clone, Default)]
pub struct RoundReport {
    /// Each leaf, ordered by leaf number.
    pub leaves: Vec<LeafWrite>,
}

impl RoundReport {
    /// Whether at least one copy was written to a leaf of this top-level vdev.
    #[must_use]
    pub fn reached(&self, top: VdevId) -> bool {
        self.leaves
            .iter()
            .any(|leaf| leaf.top == top && leaf.copies_written > 0)
    }
    /// Leaves with at least one failed copy, with the first failure of each.
    pub fn failures(&self) -> impl Iterator<Item = (LeafId, &LabelError)> {
        self.leaves
            .iter()
            .filter_map(|leaf| Some((leaf.leaf, leaf.failure.as_ref()?)))
    }
}

/// Writes the labels of one half to every present leaf of `tops`, and flushes those leaves. The labels
/// carry the `txg` of the configuration.
///
/// All labels are encoded before the first write: if one does not fit, nothing is written.
///
/// # Errors
/// [`LabelError::TooLarge`] or [`LabelError::UnknownLeaf`]. The report contains device failures.
pub fn write_labels(
    topology: &Topology,
    config: &PoolConfig,
    tops: &[VdevId],
    half: LabelHalf,
    write_order: WriteOrder,
) -> Result<RoundReport, LabelError> {
    let mut jobs = Vec::new();
    for target in targets(topology, tops) {
        let list = config
            .label_list(target.guid)
            .ok_or(LabelError::UnknownLeaf(target.guid))?;
        jobs.push((target, packed(&list)?));
    }
    let works = jobs.into_iter().map(|(target, bytes)| {
        let work = move |device: &dyn Device| write_config(device, &bytes, half.indices());
        (target, Box::new(work) as Work)
    });
    Ok(in_order(topology, write_order, works))
}

/// Writes an uberblock to all four rings of every present leaf of `tops`, and flushes these leaves.
#[must_use]
pub fn write_uberblock(
    topology: &Topology,
    uberblock: &Uberblock,
    tops: &[VdevId],
    multihost: bool,
    write_order: WriteOrder,
) -> RoundReport {
    write_uberblock_at(
        uberblock.txg,
        topology,
        uberblock,
        tops,
        multihost,
        write_order,
    )
}

/// Like [`write_uberblock`], into the slot of another txg: the uberblock that says that a scratch copy is valid does not
/// replace the one of its txg.
#[must_use]
pub fn write_uberblock_at(
    slot: Txg,
    topology: &Topology,
    uberblock: &Uberblock,
    tops: &[VdevId],
    multihost: bool,
    write_order: WriteOrder,
) -> RoundReport {
    let mut slots = SealedSlots::default();
    let works: Vec<_> = (targets(topology, tops).into_iter())
        .map(|target| {
            let regions = slots.of_leaf(&target, uberblock, slot, multihost);
            let work = move |device: &dyn Device| match &regions {
                Ok(regions) => write_regions(device, regions),
                Err(error) => (0, Some(error.clone())),
            };
            (target, Box::new(work) as Work)
        })
        .collect();
    in_order(topology, write_order, works.into_iter())
}

/// Flushes every present leaf of `tops`, which makes earlier writes durable.
#[must_use]
pub fn flush(topology: &Topology, tops: &[VdevId], write_order: WriteOrder) -> RoundReport {
    let flush = |device: &dyn Device| {
        let outcome = device.flush();
        let copies = usize::from(outcome.is_ok());
        (copies, outcome.err().map(LabelError::from))
    };
    let works = targets(topology, tops).into_iter();
    let works = works.map(|target| (target, Box::new(flush) as Work));
    in_order(topology, write_order, works)
}

/// The uberblock that completes `txg`, after `previous`. A new pool has no previous uberblock and uses
/// `version`.
#[must_use]
pub fn next_uberblock(
    previous: Option<&Uberblock>,
    version: u64,
    txg: Txg,
    root: BlockPointer,
    guid_sum: u64,
    timestamp_s: u64,
) -> Uberblock {
    Uberblock {
        endian: Endian::Little,
        version,
        txg,
        guid_sum,
        timestamp_s,
        root,
        software_version: POOL_VERSION_FEATURES,
        mmp_magic: Uberblock::MMP_MAGIC,
        mmp_delay_ns: 0,
        mmp_config: 0,
        checkpoint_txg: Txg(0),
        raidz_reflow: previous.map(|block| block.raidz_reflow).unwrap_or_default(),
    }
}

/// The content of a commit.
pub struct Commit<'a> {
    /// The uberblock.
    pub uberblock: &'a Uberblock,
    /// The configuration if labels must be written; its `txg` equals the uberblock's.
    pub config: Option<&'a PoolConfig>,
    /// Top-level vdevs whose labels are outdated. Used only with `config`.
    pub dirty_tops: &'a [VdevId],
    /// Top-level vdevs to which this txg wrote blocks.
    pub written_tops: &'a [VdevId],
    /// Whether the last slot of the rings is reserved for heartbeats.
    pub multihost: bool,
    /// An arbitrary number. It selects where the search for vdevs to hold the uberblock starts if the
    /// configuration is clean.
    pub random: u64,
    /// The order in which leaves are written.
    pub write_order: WriteOrder,
}

/// Failures that did not prevent a commit.
#[derive(Debug, Clone, Default)]
pub struct CommitReport {
    /// Leaves with failures, and the error of each.
    pub failures: Vec<(LeafId, LabelError)>,
}

/// Why a commit failed. It is then unknown whether the txg is durable, so the caller must not continue.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A label does not fit, or a leaf is not in the tree. Nothing was written.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// No leaf of a vdev could make the data of this txg durable.
    #[error("vdev {0} did not flush")]
    Flush(VdevId),
    /// No leaf of a vdev stored its labels.
    #[error("vdev {0} took no label")]
    NoLabel(VdevId),
    /// No leaf stored the uberblock.
    #[error("no device took the uberblock")]
    NoUberblock,
}

/// The order in which leaves are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WriteOrder {
    /// Several in parallel.
    #[default]
    Together,
    /// One after the other, always in the same order.
    OneByOne,
}

/// Makes a txg durable: flush, labels 0 and 2, uberblock, labels 1 and 3, each followed by a flush of the
/// devices written. The caller may repeat the sequence after a failure.
///
/// # Errors
/// [`CommitError`]. Failures are only reported if another leaf of the same vdev succeeded. On log vdevs all
/// failures except failed flushes are only reported.
pub fn commit(topology: &Topology, what: &Commit<'_>) -> Result<CommitReport, CommitError> {
    let mut report = CommitReport::default();
    let mut note = |round: &RoundReport| {
        report
            .failures
            .extend(round.failures().map(|(leaf, error)| (leaf, error.clone())));
    };
    let round = flush(topology, what.written_tops, what.write_order);
    note(&round);
    // The writes of the blocks already checked redundancy within the vdev. Here only a vdev on which every
    // leaf failed stops the commit.
    for top in what.written_tops {
        if !round.reached(*top) {
            return Err(CommitError::Flush(*top));
        }
    }
    let labelled: Option<(&PoolConfig, Vec<VdevId>)> = what
        .config
        .map(|config| (config, labelled_tops(topology, what.dirty_tops)));
    if let Some((config, tops)) = &labelled {
        let round = write_labels(topology, config, tops, LabelHalf::Even, what.write_order)?;
        note(&round);
        demand_labels(topology, tops, &round)?;
    }
    let holders = if labelled.is_some() {
        all_tops(topology)
    } else {
        uberblock_holders(topology, what.random)
    };
    let round = write_uberblock(
        topology,
        what.uberblock,
        &holders,
        what.multihost,
        what.write_order,
    );
    note(&round);
    if !is_committed(topology, &holders, &round) {
        return Err(CommitError::NoUberblock);
    }
    if let Some((config, tops)) = &labelled {
        let round = write_labels(topology, config, tops, LabelHalf::Odd, what.write_order)?;
        note(&round);
        demand_labels(topology, tops, &round)?;
    }
    Ok(report)
}

/// Whether an uberblock was written to a top-level vdev on which the pool has blocks.
///
/// A vdev that is just being added does not count: the pool may be imported without it.
pub(crate) fn is_committed(topology: &Topology, tops: &[VdevId], round: &RoundReport) -> bool {
    let has_metaslabs = |top: VdevId| {
        let node = topology.tree.top(top);
        node.is_some_and(|node| node.config.metaslab_array.0 != 0)
    };
    tops.iter()
        .any(|top| has_metaslabs(*top) && round.reached(*top))
}

fn demand_labels(
    topology: &Topology,
    tops: &[VdevId],
    round: &RoundReport,
) -> Result<(), CommitError> {
    let is_log = |top: VdevId| {
        topology
            .tree
            .top(top)
            .is_some_and(|node| node.config.is_log)
    };
    match tops
        .iter()
        .find(|top| !round.reached(**top) && !is_log(**top))
    {
        Some(top) => Err(CommitError::NoLabel(*top)),
        None => Ok(()),
    }
}

/// The vdevs of `tops` that have leaves with labels.
fn labelled_tops(topology: &Topology, tops: &[VdevId]) -> Vec<VdevId> {
    let has_leaves = |top: &VdevId| topology.tree.top(*top).is_some_and(has_devices);
    tops.iter().copied().filter(has_leaves).collect()
}

/// Every top-level vdev that has devices.
#[must_use]
pub fn all_tops(topology: &Topology) -> Vec<VdevId> {
    let tops = topology.tree.tops();
    tops.filter(|(_, node)| has_devices(node))
        .map(|(id, _)| id)
        .collect()
}

fn has_devices(top: &VdevNode) -> bool {
    !matches!(
        top.kind,
        VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect
    )
}

/// The top-level vdevs that hold the uberblock if the configuration is clean: up to three.
fn uberblock_holders(topology: &Topology, random: u64) -> Vec<VdevId> {
    const HOLDERS: usize = 3;
    let suited: Vec<VdevId> = topology
        .tree
        .tops()
        .filter(|(_, node)| {
            has_devices(node) && !node.config.is_log && node.config.metaslab_array.0 != 0
        })
        .map(|(id, _)| id)
        .collect();
    let start = usize::try_from(random % (suited.len().max(1) as u64)).unwrap_or(0);
    suited
        .iter()
        .cycle()
        .skip(start)
        .take(suited.len().min(HOLDERS))
        .copied()
        .collect()
}

/// Writes the initial content of a new device: four labels of txg 0, empty boot environment blocks, and
/// rings without a valid slot. Then flushes.
///
/// This destroys old uberblocks. It leaves the first 8 KiB of each label unchanged.
///
/// `current` is the pool's uberblock. A copy with txg 0 is written at the head of the ring, where no reader
/// accepts it as an uberblock. A new pool has none.
///
/// # Errors
/// [`LabelError`] of the first failure. A device that fails any of these writes must not be used.
pub fn write_initial_labels(
    device: &dyn Device,
    config: &NvList,
    current: Option<&Uberblock>,
) -> Result<(), LabelError> {
    let bytes = packed(config)?;
    let layout = LeafLayout::new(device.size_bytes()).ok_or(LabelError::TooSmall)?;
    let boot = BootEnvironment::Empty
        .encode()
        .ok_or(LabelError::TooLarge)?;
    let ring = match current {
        Some(uberblock) => Uberblock {
            txg: Txg(0),
            ..*uberblock
        }
        .encode(),
        None => Vec::new(),
    };
    let ring = unsealed_label_region(&ring, UBERBLOCK_RING_BYTES).ok_or(LabelError::TooLarge)?;
    for label in layout.label_offsets_bytes() {
        for (offset, region, length) in [
            (LABEL_CONFIG_OFFSET_BYTES, &bytes, LABEL_CONFIG_BYTES),
            (BOOT_ENV_OFFSET_BYTES, &boot, BOOT_ENV_BYTES),
            (UBERBLOCK_RING_OFFSET_BYTES, &ring, UBERBLOCK_RING_BYTES),
        ] {
            debug_assert_eq!(region.len(), length);
            let at = label.saturating_add(offset);
            device.write(at, &sealer(region)?.sealed(at))?;
        }
    }
    device.flush()?;
    Ok(())
}

/// Writes the labels of a hot spare or cache device outside any vdev, like [`write_initial_labels`].
///
/// # Errors
/// As for [`write_initial_labels`].
pub fn write_auxiliary_labels(
    device: &dyn Device,
    vdev: &VdevConfig,
    state: LeafState,
    version: u64,
    current: Option<&Uberblock>,
) -> Result<(), LabelError> {
    write_initial_labels(device, &auxiliary_label_list(vdev, state, version), current)
}

/// Encodes the content of the configuration region, before its checksum is added.
fn packed(list: &NvList) -> Result<Vec<u8>, LabelError> {
    let bytes = list.encode_xdr().map_err(|_| LabelError::TooLarge)?;
    unsealed_label_region(&bytes, LABEL_CONFIG_BYTES).ok_or(LabelError::TooLarge)
}

/// A region that gets a checksum for each offset it is written to.
fn sealer(region: &[u8]) -> Result<LabelSealer, LabelError> {
    LabelSealer::new(region.to_vec()).map_err(|_| LabelError::TooLarge)
}

/// Regions of a device with their checksums, by offset in bytes.
type SealedRegions = Vec<(u64, Arc<Vec<u8>>)>;

/// Writes regions together and flushes. Counts the copies written. If the flush fails, none of them counts.
fn write_regions(
    device: &dyn Device,
    regions: &[(u64, Arc<Vec<u8>>)],
) -> (usize, Option<LabelError>) {
    let requests = regions.iter();
    let mut requests: Vec<WriteRequest<'_>> = requests
        .map(|(at, bytes)| WriteRequest::new(*at, bytes))
        .collect();
    device.write_many(&mut requests);
    let written = requests.iter().filter(|request| request.outcome.is_ok());
    let written = written.count();
    let mut failures = requests
        .into_iter()
        .filter_map(|request| request.outcome.err());
    let failure = failures.next().map(LabelError::from);
    match device.flush() {
        Ok(()) => (written, failure),
        Err(error) => (0, failure.or(Some(error.into()))),
    }
}

fn write_config(
    device: &dyn Device,
    bytes: &[u8],
    indices: [usize; 2],
) -> (usize, Option<LabelError>) {
    let Some(layout) = LeafLayout::new(device.size_bytes()) else {
        return (0, Some(LabelError::TooSmall));
    };
    let sealer = match sealer(bytes) {
        Ok(sealer) => sealer,
        Err(error) => return (0, Some(error)),
    };
    let places = layout.label_offsets_bytes();
    let regions = indices.into_iter().map(|index| {
        let at = places[index].saturating_add(LABEL_CONFIG_OFFSET_BYTES);
        (at, Arc::new(sealer.sealed(at)))
    });
    write_regions(device, &regions.collect::<SealedRegions>())
}

/// A present leaf.
struct Target {
    leaf: LeafId,
    guid: Guid,
    top: VdevId,
    ashift: Ashift,
    device: Arc<dyn Device>,
}

impl Target {
    fn report(&self, (copies_written, failure): (usize, Option<LabelError>)) -> LeafWrite {
        LeafWrite {
            leaf: self.leaf,
            top: self.top,
            copies_written,
            failure,
        }
    }
}

/// The present leaves of some top-level vdevs, ordered by leaf number. Distributed spares have no labels
/// and are skipped.
fn targets(topology: &Topology, tops: &[VdevId]) -> Vec<Target> {
    topology
        .tree
        .leaves()
        .filter(|(_, node)| node.is_device())
        .filter_map(|(leaf, node)| {
            Some(Target {
                leaf,
                guid: node.config.guid,
                top: node.top.filter(|top| tops.contains(top))?,
                ashift: node.ashift,
                device: topology.leaf_device(leaf)?,
            })
        })
        .collect()
}

/// A write to a leaf's device. Returns the number of copies written and the first failure.
type Work = Box<dyn FnOnce(&dyn Device) -> (usize, Option<LabelError>) + Send>;

/// Runs the write of each leaf. A device that does not answer counts as not written.
fn in_order(
    topology: &Topology,
    write_order: WriteOrder,
    works: impl Iterator<Item = (Target, Work)>,
) -> RoundReport {
    let mut targets = vec![];
    let requests = works.map(|(target, work)| {
        let (leaf, device) = (target.leaf, Arc::clone(&target.device));
        targets.push(target);
        let request: Box<dyn FnOnce() -> _ + Send> = Box::new(move || work(device.as_ref()));
        (leaf, request)
    });
    let outcomes = topology.on_leaves(write_order == WriteOrder::Together, requests.collect());
    let reports = targets.iter().zip(outcomes).map(|(target, outcome)| {
        let no_answer = |error| (0, Some(DeviceError::from(error).into()));
        target.report(outcome.unwrap_or_else(no_answer))
    });
    RoundReport {
        leaves: reports.collect(),
    }
}

#[cfg(test)]
mod tests;
