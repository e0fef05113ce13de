//! Writing labels and uberblocks: what a commit is made of on each leaf.
//!
//! Everything here is device writes of ready bytes; which txg, which tree and when is decided by the
//! sync loop. The order of a commit ([`commit`]) makes any crash harmless: labels 0 and 2 first, which
//! count only once an uberblock of their txg exists; then the uberblock; then labels 1 and 3.
//!
//! Pages `docs/format/label.md` ("Writing") and `docs/format/uberblock.md` ("Writing").

use crate::import::LeafState;
use crate::live::config::{PoolConfig, auxiliary_label_list};
use crate::live::features::POOL_VERSION_FEATURES;
use millpond_block::Topology;
use millpond_device::{Device, DeviceError};
use millpond_env::sync::Arc;
use millpond_nvlist::{Encoding, NvList};
use millpond_ondisk::{
    Ashift, BOOT_ENV_BYTES, BOOT_ENV_OFFSET_BYTES, BlockPointer, BootEnvironment, Endian, Guid,
    LABEL_BYTES, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET_BYTES, LeafLayout, Txg,
    UBERBLOCK_RING_BYTES, UBERBLOCK_RING_OFFSET_BYTES, Uberblock, UberblockRing,
    VDEV_DATA_START_BYTES, VdevId, unsealed_label_region,
};
use millpond_vdev::{LeafId, VdevConfig, VdevKind, VdevNode};

/// Why labels could not be written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device is below 64 MiB.
    #[error("the device is too small for labels")]
    TooSmall,
    /// The configuration does not fit a label.
    #[error("the configuration takes more room than a label has")]
    TooLarge,
    /// The tree has no such leaf.
    #[error("no leaf with guid {0:?}")]
    UnknownLeaf(Guid),
}

/// Which labels: those written before the uberblock, or those after it.
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

/// What became of one leaf in a round of writes.
#[derive(Debug, Clone)]
pub struct LeafWrite {
    /// The leaf.
    pub leaf: LeafId,
    /// Its top-level vdev.
    pub top: VdevId,
    /// How many of the copies were written and flushed.
    pub copies_written: usize,
    /// The first failure, if any copy failed.
    pub failure: Option<LabelError>,
}

/// What became of a round of writes over several leaves. Absent leaves are not in it.
#[derive(Debug, Clone, Default)]
pub struct RoundReport {
    /// Each leaf, in the order of leaf numbers.
    pub leaves: Vec<LeafWrite>,
}

impl RoundReport {
    /// Whether some leaf of this top-level vdev took at least one copy.
    #[must_use]
    pub fn reached(&self, top: VdevId) -> bool {
        self.leaves
            .iter()
            .any(|leaf| leaf.top == top && leaf.copies_written > 0)
    }
    /// Leaves that failed at least one copy, with what failed first.
    pub fn failures(&self) -> impl Iterator<Item = (LeafId, &LabelError)> {
        self.leaves
            .iter()
            .filter_map(|leaf| Some((leaf.leaf, leaf.failure.as_ref()?)))
    }
}

/// Writes the labels of one half to every present leaf of `tops` and flushes those leaves. The
/// configuration's own `txg` stands in them.
///
/// Encoding happens before any write: if a label does not fit, nothing is written.
///
/// # Errors
/// [`LabelError::TooLarge`], [`LabelError::UnknownLeaf`]. Failures of devices are in the report.
pub fn write_labels(
    topology: &Topology,
    config: &PoolConfig,
    tops: &[VdevId],
    half: LabelHalf,
    turn: Turn,
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
    Ok(in_turn(topology, turn, works))
}

/// Writes an uberblock to all four rings of every present leaf of `tops`, and flushes.
#[must_use]
pub fn write_uberblock(
    topology: &Topology,
    uberblock: &Uberblock,
    tops: &[VdevId],
    multihost: bool,
    turn: Turn,
) -> RoundReport {
    let works = targets(topology, tops).into_iter().map(|target| {
        let ring = UberblockRing::new(target.ashift);
        let slot = ring.slot_of_txg(uberblock.txg, multihost);
        let uberblock = *uberblock;
        let work = move |device: &dyn Device| write_slot(device, &uberblock, ring, slot);
        (target, Box::new(work) as Work)
    });
    in_turn(topology, turn, works)
}

/// Flushes every present leaf of `tops`: what was written there is durable afterwards.
#[must_use]
pub fn flush(topology: &Topology, tops: &[VdevId], turn: Turn) -> RoundReport {
    let flush = |device: &dyn Device| {
        let outcome = device.flush();
        let copies = usize::from(outcome.is_ok());
        (copies, outcome.err().map(LabelError::from))
    };
    let works = targets(topology, tops).into_iter();
    let works = works.map(|target| (target, Box::new(flush) as Work));
    in_turn(topology, turn, works)
}

/// The uberblock that completes `txg`, after `previous` (`None` in a new pool, whose version is
/// `version`).
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

/// What is committed.
pub struct Commit<'a> {
    /// The uberblock.
    pub uberblock: &'a Uberblock,
    /// The configuration, if labels are to be written; its `txg` is the uberblock's.
    pub config: Option<&'a PoolConfig>,
    /// Top-level vdevs whose labels are out of date. Counts only with `config`.
    pub dirty_tops: &'a [VdevId],
    /// Top-level vdevs that blocks of this txg were written to.
    pub written_tops: &'a [VdevId],
    /// Whether the last slot of the rings belongs to heartbeats.
    pub multihost: bool,
    /// Any number; decides where the search for vdevs to hold the uberblock begins when no
    /// configuration is dirty.
    pub dice: u64,
    /// How leaves are written to.
    pub turn: Turn,
}

/// What a commit met that did not keep it from succeeding.
#[derive(Debug, Clone, Default)]
pub struct CommitReport {
    /// Leaves with failures: number, and what failed.
    pub failures: Vec<(LeafId, LabelError)>,
}

/// Why a commit failed. Whether the txg is durable is then unknown: the caller must not go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A label does not fit, or a leaf has no place in the tree. Nothing was written.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// Data of this txg could not be made durable on any leaf of a vdev.
    #[error("vdev {0} did not flush")]
    Flush(VdevId),
    /// No leaf of a vdev took its labels.
    #[error("vdev {0} took no label")]
    NoLabel(VdevId),
    /// No leaf took the uberblock.
    #[error("no device took the uberblock")]
    NoUberblock,
}

/// How leaves are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Turn {
    /// Several at once.
    #[default]
    Together,
    /// One after the other, always in the same order.
    OneByOne,
}

/// Makes a txg durable: flush, labels 0 and 2, uberblock, labels 1 and 3, with a flush of the
/// devices concerned after each. The sequence may be repeated after a failure.
///
/// # Errors
/// [`CommitError`]. Below vdevs of which some leaf succeeded, failures are only reported; so are all
/// failures on log vdevs but those of flushing.
pub fn commit(topology: &Topology, what: &Commit<'_>) -> Result<CommitReport, CommitError> {
    let mut report = CommitReport::default();
    let mut note = |round: &RoundReport| {
        report
            .failures
            .extend(round.failures().map(|(leaf, error)| (leaf, error.clone())));
    };
    let round = flush(topology, what.written_tops, what.turn);
    note(&round);
    // Redundancy within the vdev was judged when the blocks were written; here only a vdev that
    // lost everything stops the commit.
    for top in what.written_tops {
        if !round.reached(*top) {
            return Err(CommitError::Flush(*top));
        }
    }
    let labelled: Option<(&PoolConfig, Vec<VdevId>)> = what
        .config
        .map(|config| (config, labelled_tops(topology, what.dirty_tops)));
    if let Some((config, tops)) = &labelled {
        let round = write_labels(topology, config, tops, LabelHalf::Even, what.turn)?;
        note(&round);
        demand_labels(topology, tops, &round)?;
    }
    let holders = if labelled.is_some() {
        all_tops(topology)
    } else {
        uberblock_holders(topology, what.dice)
    };
    let round = write_uberblock(
        topology,
        what.uberblock,
        &holders,
        what.multihost,
        what.turn,
    );
    note(&round);
    if !is_committed(topology, &holders, &round) {
        return Err(CommitError::NoUberblock);
    }
    if let Some((config, tops)) = &labelled {
        let round = write_labels(topology, config, tops, LabelHalf::Odd, what.turn)?;
        note(&round);
        demand_labels(topology, tops, &round)?;
    }
    Ok(report)
}

/// Whether a round of uberblocks reached a top-level vdev that the pool has blocks on. One that is only being added does not
/// count: the pool may be imported without it.
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

/// Those of `tops` that have leaves to label.
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

/// Top-level vdevs that hold an uberblock when no configuration is dirty: up to three.
fn uberblock_holders(topology: &Topology, dice: u64) -> Vec<VdevId> {
    const HOLDERS: usize = 3;
    let suited: Vec<VdevId> = topology
        .tree
        .tops()
        .filter(|(_, node)| {
            has_devices(node) && !node.config.is_log && node.config.metaslab_array.0 != 0
        })
        .map(|(id, _)| id)
        .collect();
    let start = usize::try_from(dice % (suited.len().max(1) as u64)).unwrap_or(0);
    suited
        .iter()
        .cycle()
        .skip(start)
        .take(suited.len().min(HOLDERS))
        .copied()
        .collect()
}

/// Writes what a device gets before its pool knows it: four labels of txg 0, empty boot environment
/// blocks, rings without a valid slot (old uberblocks are thereby destroyed), and flushes. The first
/// 8 KiB of each label are left alone.
///
/// `current` is the pool's uberblock, of which a copy with txg 0 heads the ring, where no reader
/// takes it for one; a new pool has none.
///
/// # Errors
/// [`LabelError`] of the first failure: a device that does not take everything must not be used.
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
            write_region(device, label.saturating_add(offset), region)?;
        }
    }
    device.flush()?;
    Ok(())
}

/// Writes the labels of a hot spare or cache device that serves no vdev, as
/// [`write_initial_labels`].
///
/// # Errors
/// As there.
pub fn write_auxiliary_labels(
    device: &dyn Device,
    vdev: &VdevConfig,
    state: LeafState,
    current: Option<&Uberblock>,
) -> Result<(), LabelError> {
    write_initial_labels(device, &auxiliary_label_list(vdev, state), current)
}

/// What [`clear_labels`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleared {
    /// Labels that were there and are gone.
    pub labels: usize,
    /// Whether the header of a cache device's content was cleared too.
    pub cache_header: bool,
}

/// Clears every label of a device that decodes as one, whatever it says: configuration and ring
/// become zeros, what lies before them stays. Of a cache device the header of its content goes too.
/// Flushes.
///
/// Whether the device may be cleared is the caller's to know (`find_use`).
///
/// # Errors
/// [`LabelError::TooSmall`], or the device's.
pub fn clear_labels(device: &dyn Device) -> Result<Cleared, LabelError> {
    let layout = LeafLayout::new(device.size_bytes()).ok_or(LabelError::TooSmall)?;
    let mut cleared = Cleared::default();
    let zeros = vec![0u8; (LABEL_BYTES - LABEL_CONFIG_OFFSET_BYTES) as usize];
    for label in layout.label_offsets_bytes() {
        let at = label.saturating_add(LABEL_CONFIG_OFFSET_BYTES);
        let region = device.read_vec(at, LABEL_CONFIG_BYTES)?;
        let Some(state) = any_label_state(&region) else {
            continue;
        };
        device.write(at, &zeros)?;
        cleared.labels += 1;
        if state == LeafState::Cache && !cleared.cache_header {
            let header = vec![0u8; LABEL_BYTES as usize];
            device.write(VDEV_DATA_START_BYTES, &header)?;
            cleared.cache_header = true;
        }
    }
    device.flush()?;
    Ok(cleared)
}

/// The state that a configuration region tells, if it is one at all: also those of devices that never
/// joined a pool.
fn any_label_state(region: &[u8]) -> Option<LeafState> {
    if Encoding::decode(region).ok()? != Encoding::Xdr {
        return None;
    }
    let list = NvList::decode(region).ok()?;
    if list.u64("guid").unwrap_or(0) == 0 {
        return None;
    }
    LeafState::from_number(list.u64("state").ok()?)
}

/// The configuration region's content, ready to be sealed.
fn packed(list: &NvList) -> Result<Vec<u8>, LabelError> {
    let bytes = list.encode_xdr().map_err(|_| LabelError::TooLarge)?;
    unsealed_label_region(&bytes, LABEL_CONFIG_BYTES).ok_or(LabelError::TooLarge)
}

/// Seals a region for its place and writes it.
fn write_region(device: &dyn Device, at: u64, region: &[u8]) -> Result<(), LabelError> {
    let mut sealed = region.to_vec();
    millpond_checksum::seal_label(&mut sealed, at).map_err(|_| LabelError::TooLarge)?;
    Ok(device.write(at, &sealed)?)
}

/// Counts the copies written; a device that does not flush took none for certain.
fn tally(
    device: &dyn Device,
    outcomes: impl Iterator<Item = Result<(), LabelError>>,
) -> (usize, Option<LabelError>) {
    let (mut written, mut failure) = (0, None);
    for outcome in outcomes {
        match outcome {
            Ok(()) => written += 1,
            Err(error) => failure = failure.or(Some(error)),
        }
    }
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
    let places = layout.label_offsets_bytes();
    tally(
        device,
        indices.into_iter().map(|index| {
            let at = places[index].saturating_add(LABEL_CONFIG_OFFSET_BYTES);
            write_region(device, at, bytes)
        }),
    )
}

fn write_slot(
    device: &dyn Device,
    uberblock: &Uberblock,
    ring: UberblockRing,
    slot: u64,
) -> (usize, Option<LabelError>) {
    let Some(layout) = LeafLayout::new(device.size_bytes()) else {
        return (0, Some(LabelError::TooSmall));
    };
    let (Some(bytes), Some(offset)) = (uberblock.encode_slot(ring), ring.slot_offset_bytes(slot))
    else {
        return (0, Some(LabelError::TooLarge));
    };
    tally(
        device,
        layout
            .label_offsets_bytes()
            .into_iter()
            .map(|label| write_region(device, label.saturating_add(offset), &bytes)),
    )
}

/// One present leaf.
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

/// The present leaves of some top-level vdevs, in the order of leaf numbers. Distributed spares have
/// no labels.
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

/// What is done to a leaf's device: how many copies it took, and the first failure.
type Work = Box<dyn FnOnce(&dyn Device) -> (usize, Option<LabelError>) + Send>;

/// Does each leaf's work. A device that does not answer took nothing.
fn in_turn(
    topology: &Topology,
    turn: Turn,
    works: impl Iterator<Item = (Target, Work)>,
) -> RoundReport {
    let mut targets = vec![];
    let requests = works.map(|(target, work)| {
        let (leaf, device) = (target.leaf, Arc::clone(&target.device));
        targets.push(target);
        let request: Box<dyn FnOnce() -> _ + Send> = Box::new(move || work(device.as_ref()));
        (leaf, request)
    });
    let outcomes = topology.on_leaves(turn == Turn::Together, requests.collect());
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
