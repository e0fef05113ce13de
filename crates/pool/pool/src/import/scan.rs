//! Scans devices and reads their labels.

use crate::import::copies::choose;
use crate::import::label::{LabelFault, LeafLabel, LeafState, read_labels};
use crate::import::leaf_paths;
use crate::import::uberblocks::{RingUberblock, read_ring};
use crate::labels::moved::are_missing_at_end;
use millpond_block::NoAnswer;
use millpond_device::{Candidate, Device, DeviceError, OpenOptions, SearchOptions, discover};
use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread;
use millpond_nvlist::NvList;
use millpond_ondisk::{Guid, LABEL_COUNT, LEAF_BYTES_MIN, Txg, Uberblock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why each of the four labels is unusable.
pub type LabelFaults = [LabelFault; LABEL_COUNT];

/// A device with at least one label.
#[derive(Debug, Clone)]
pub struct FoundLeaf {
    /// The device and its names.
    pub candidate: Candidate,
    /// Its four labels, including any whose guid differs from the best label.
    pub labels: [Result<LeafLabel, LabelFault>; LABEL_COUNT],
    /// The label used for the device: a verified one first, then the newest, then the first.
    pub best: LeafLabel,
    pub(crate) ring: Vec<RingUberblock>,
    /// Whether another device with the same label is used instead.
    pub(crate) is_passed_over: bool,
    /// If several devices with this label have different contents, and nothing tells which one belongs to the pool: the paths
    /// of all of them.
    pub(crate) rivals: Vec<String>,
}

impl FoundLeaf {
    fn read(candidate: Candidate) -> Result<Self, Box<LabelFaults>> {
        let labels = read_labels(candidate.device.as_ref());
        let usable = labels.iter().filter_map(|label| label.as_ref().ok());
        // `max_by_key` returns the last of equal elements, so the order is reversed.
        let best = usable
            .rev()
            .max_by_key(|label| (label.is_verified, label.txg))
            .cloned();
        match best {
            Some(best) => {
                let ring = if best.state.has_pool() {
                    read_ring(candidate.device.as_ref(), &best)
                } else {
                    Vec::new()
                };
                Ok(Self {
                    candidate,
                    labels,
                    best,
                    ring,
                    is_passed_over: false,
                    rivals: Vec::new(),
                })
            }
            None => Err(Box::new(
                labels.map(|label| label.err().unwrap_or(LabelFault::Blank)),
            )),
        }
    }
    /// The leaf's guid.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.best.guid
    }
    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.candidate.device
    }
    /// The number of labels with the same guid as the best one.
    #[must_use]
    pub fn label_count(&self) -> usize {
        self.same_guid().count()
    }
    /// The label to use while the pool is at `txg_max`: the newest one that is not newer than the
    /// uberblock.
    ///
    /// A label newer than the uberblock belongs to an incomplete sync. If all are newer (after a rewind),
    /// the newest label is used, because all of them identify the device.
    #[must_use]
    pub fn label_at(&self, txg_max: Option<Txg>) -> &LeafLabel {
        self.same_guid()
            .filter(|label| txg_max.is_none_or(|max| label.txg <= max))
            .rev()
            .max_by_key(|label| (label.is_verified, label.txg))
            .unwrap_or(&self.best)
    }
    /// Whether the labels at the end of the device are missing: it may have grown.
    pub(crate) fn lacks_end_labels(&self) -> bool {
        are_missing_at_end(&self.labels, self.guid())
    }
    /// The verified labels from before the pool or the leaf got the guid that the newest label names.
    ///
    /// Labels 0 and 2 are written before the uberblock, and labels 1 and 3 after it. The pool gets another guid by
    /// `zpool reguid`; a leaf gets the guid of its mirror when the other sides are gone.
    fn former(&self) -> impl Iterator<Item = &LeafLabel> {
        let best = &self.best;
        self.labels.iter().flatten().filter(move |label| {
            let is_same_pool = label.pool_guid == best.pool_guid;
            let is_same_leaf = label.guid == best.guid;
            best.is_verified
                && label.is_verified
                && label.state.has_pool()
                && best.state.has_pool()
                && match (is_same_pool, is_same_leaf) {
                    (true, false) => label.top_guid == best.top_guid,
                    (false, true) => true,
                    _ => false,
                }
        })
    }
    /// The txg up to which all its rings go, but not beyond `txg_max`. Rings without uberblocks do not count, nor heartbeats,
    /// which are written to one label only.
    pub(crate) fn complete_at(&self, txg_max: Option<Txg>) -> Option<Txg> {
        let is_heartbeat =
            |uberblock: &Uberblock| (uberblock.mmp()).is_some_and(|mmp| mmp.sequence > Some(0));
        let end = |label: usize| {
            let ring = self.ring.iter().filter(|found| found.label == label);
            let committed = ring.filter(|found| !is_heartbeat(&found.uberblock));
            let txgs = committed.map(|found| found.uberblock.txg);
            txgs.filter(|txg| txg_max.is_none_or(|max| *txg <= max))
                .max()
        };
        (0..LABEL_COUNT).filter_map(end).min()
    }
    /// Which of several devices with one label is used: the one with the greatest value.
    pub(crate) fn preference(&self) -> impl Ord + use<> {
        let path = self.candidate.path.to_string_lossy();
        let is_whole = self.candidate.partition.is_none();
        (
            self.best.is_verified,
            self.newest_txg().max(self.best.txg),
            self.label_count(),
            is_whole && self.path() == path,
            is_whole,
        )
    }
    /// The txg of its newest uberblock, heartbeats included; 0 if it has none.
    pub(crate) fn newest_txg(&self) -> Txg {
        let txgs = self.ring.iter().map(|found| found.uberblock.txg);
        txgs.max().unwrap_or_default()
    }
    fn same_guid(&self) -> impl DoubleEndedIterator<Item = &LeafLabel> {
        self.labels
            .iter()
            .filter_map(|label| label.as_ref().ok())
            .filter(|label| label.guid == self.best.guid && label.pool_guid == self.best.pool_guid)
    }
    fn own_entry(&self) -> Option<&NvList> {
        own_entry(self.best.config.list("vdev_tree").ok()?, self.guid())
    }
    /// The path to report: the one in the label if the device was found under it, otherwise the path under
    /// which it was found.
    #[must_use]
    pub fn path(&self) -> String {
        let named = self
            .own_entry()
            .and_then(|vdev| vdev.raw_string("path").ok())
            .map(|path| path.to_string_lossy().into_owned());
        let is_met = |path: &String| {
            self.candidate.partition.is_none()
                && names(&self.candidate).any(|name| name == Path::new(path))
        };
        named
            .filter(is_met)
            .unwrap_or_else(|| self.candidate.name())
    }
}

/// Finds the leaf's own entry in the vdev tree of its label.
fn own_entry(tree: &NvList, guid: Guid) -> Option<&NvList> {
    let children = tree.list_array("children").unwrap_or(&[]);
    if tree.u64("guid") == Ok(guid.0) && children.is_empty() {
        return Some(tree);
    }
    // Lists nest at most 20 levels deep, which bounds the recursion.
    children.iter().find_map(|child| own_entry(child, guid))
}

/// The results of a scan. Cheap to clone: the leaves are shared.
#[derive(Debug, Clone, Default)]
pub struct Found {
    leaves: Arc<Vec<FoundLeaf>>,
    /// Every name of every device that was opened, with or without a label.
    met: Arc<BTreeSet<PathBuf>>,
    /// Devices without a label, with the fault of each of the four labels.
    pub unlabelled: Vec<(PathBuf, Box<LabelFaults>)>,
    /// Paths that could not be opened.
    pub failures: Vec<(PathBuf, DeviceError)>,
}

impl Found {
    /// Every device with a label, in scan order.
    #[must_use]
    pub fn leaves(&self) -> &[FoundLeaf] {
        &self.leaves
    }
    /// The devices with a label of this pool that are used for it, in scan order: one for each leaf.
    pub(crate) fn members(&self, pool: Guid) -> impl Iterator<Item = &FoundLeaf> {
        let is_member =
            move |leaf: &&FoundLeaf| leaf.best.pool_guid == pool && !leaf.is_passed_over;
        self.leaves.iter().filter(is_member)
    }
    /// Finds the device for the leaf `guid` of pool `pool`.
    ///
    /// Several devices may carry its label (two paths to one disk, a copy of an image). If their contents differ, the one that
    /// belongs to the other devices of the pool is used. Otherwise the preference order is: the newer
    /// uberblock or label, so that a copy of before does not take the place of the device; more labels; a name equal to the
    /// path in the label; a whole device over a partition read through its disk; then the first. Labels of spares and cache devices name no pool and match
    /// every pool.
    #[must_use]
    pub fn leaf(&self, pool: Guid, guid: Guid) -> Option<&FoundLeaf> {
        self.best_of(|leaf| leaf.guid() == guid && is_of(leaf, pool))
    }
    /// Finds the device of a leaf that took over the position and guid of its mirror, and whose label is
    /// not updated yet.
    #[must_use]
    pub fn leaf_by_top_guid(&self, pool: Guid, top_guid: Guid) -> Option<&FoundLeaf> {
        self.best_of(|leaf| leaf.best.top_guid == top_guid && leaf.best.pool_guid == pool)
    }
    /// Whether a device was opened under this name, with or without a valid label.
    #[must_use]
    pub fn is_met(&self, path: &Path) -> bool {
        self.met.contains(path)
    }
    /// Whether the leaf `guid` of pool `pool` now belongs to a pool that was split from it.
    #[must_use]
    pub fn went_with_split(&self, pool: Guid, guid: Guid) -> bool {
        self.leaves.iter().any(|leaf| {
            let orig_guid = leaf.own_entry().map(|vdev| vdev.u64("orig_guid"));
            leaf.best.config.u64("split_guid") == Ok(pool.0) && orig_guid == Some(Ok(guid.0))
        })
    }
    /// Whether more than one device carries the label of this leaf.
    #[must_use]
    pub fn is_duplicated(&self, pool: Guid, guid: Guid) -> bool {
        self.leaves
            .iter()
            .filter(|leaf| leaf.guid() == guid && is_of(leaf, pool))
            .nth(1)
            .is_some()
    }
    /// Treats devices whose labels all have wrong checksums as devices without a label.
    ///
    /// Their contents may belong to the pool. But a pool that is written by what such labels say could be damaged further.
    fn drop_unverified(&mut self) {
        let leaves = Arc::make_mut(&mut self.leaves);
        for leaf in leaves.extract_if(.., |leaf| !leaf.best.is_verified) {
            let faults = (leaf.labels).map(|label| label.err().unwrap_or(LabelFault::BadChecksum));
            (self.unlabelled).push((leaf.candidate.path, Box::new(faults)));
        }
        choose(leaves);
    }
    fn best_of(&self, is_wanted: impl Fn(&FoundLeaf) -> bool) -> Option<&FoundLeaf> {
        self.leaves
            .iter()
            .rev()
            .filter(|leaf| !leaf.is_passed_over && is_wanted(leaf))
            .max_by_key(|leaf| leaf.preference())
    }
}

fn is_of(leaf: &FoundLeaf, pool: Guid) -> bool {
    !leaf.best.state.has_pool() || leaf.best.pool_guid == pool
}

/// Options of a [`scan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanOptions {
    /// How to open devices.
    pub open: OpenOptions,
    /// Search partition tables too.
    pub partitions: bool,
    /// Also try the paths in labels, for leaves that the search did not find.
    pub follow_label_paths: bool,
}

impl Default for ScanOptions {
    /// Open for reading and search everywhere.
    fn default() -> Self {
        Self {
            open: OpenOptions::default(),
            partitions: true,
            follow_label_paths: true,
        }
    }
}

/// Searches files, devices and directories for labels. If it opens devices for writing, labels need valid checksums.
#[must_use]
pub fn scan(search: &[PathBuf], options: ScanOptions) -> Found {
    let search_options = SearchOptions {
        size_min_bytes: LEAF_BYTES_MIN,
        open: options.open,
        partitions: options.partitions,
    };
    let discovery = discover(search, search_options);
    let mut found = scan_devices(discovery.candidates);
    found.failures = discovery.failures;
    if options.follow_label_paths {
        follow_label_paths(&mut found, search_options);
    }
    if options.open.write {
        found.drop_unverified();
    }
    found
}

/// Reads the labels of devices found elsewhere.
#[must_use]
pub fn scan_devices(candidates: Vec<Candidate>) -> Found {
    let mut leaves = Vec::new();
    let mut unlabelled = Vec::new();
    let met = candidates.iter().flat_map(names).cloned().collect();
    for (path, read) in read_all(candidates) {
        match read {
            Ok(leaf) => leaves.push(leaf),
            Err(faults) => unlabelled.push((path, faults)),
        }
    }
    take_back_guids(&mut leaves);
    choose(&mut leaves);
    Found {
        leaves: Arc::new(leaves),
        met: Arc::new(met),
        unlabelled,
        failures: Vec::new(),
    }
}

/// Reverts guid changes that were interrupted before the uberblock was written: labels with the new guid
/// are ignored.
fn take_back_guids(leaves: &mut [FoundLeaf]) {
    // The newest uberblock of each pool with labels of both guids.
    let mut newest: BTreeMap<Guid, Txg> = BTreeMap::new();
    for leaf in leaves.iter() {
        for label in leaf.former() {
            newest.entry(label.pool_guid).or_default();
            newest.entry(leaf.best.pool_guid).or_default();
        }
    }
    if newest.is_empty() {
        return;
    }
    for leaf in leaves.iter() {
        if let Some(txg) = newest.get_mut(&leaf.best.pool_guid) {
            *txg = leaf.newest_txg().max(*txg);
        }
    }
    for leaf in leaves {
        let newest = newest.get(&leaf.best.pool_guid).copied();
        let is_cut_off = newest.is_some_and(|newest| leaf.best.txg > newest);
        let former = leaf.former().max_by_key(|label| label.txg).cloned();
        if is_cut_off && let Some(former) = former {
            leaf.best = former;
        }
    }
}

/// All names of a device.
fn names(candidate: &Candidate) -> impl Iterator<Item = &PathBuf> {
    std::iter::once(&candidate.path).chain(&candidate.aliases)
}

/// The outcome of reading one device, with its path.
type ReadOutcome = (PathBuf, Result<FoundLeaf, Box<LabelFaults>>);

/// Reads all devices in parallel, since reading mostly waits for disks.
///
/// A device that does not answer counts as unreadable, so that the pool can be opened without it.
fn read_all(candidates: Vec<Candidate>) -> Vec<ReadOutcome> {
    let read = |candidate: Candidate| (candidate.path.clone(), FoundLeaf::read(candidate));
    if thread::is_alone() {
        return candidates.into_iter().map(read).collect();
    }
    let scan = Arc::new(Scan::new(candidates));
    let mut outcomes = vec![];
    loop {
        let readers = scan.begin();
        scan.wait();
        outcomes.extend(scan.take_outcomes());
        if readers == 0 || scan.is_over() {
            break;
        }
    }
    // A panic in a reader thread is a bug here; propagate it.
    assert!(!scan.has_panicked(), "reading labels panicked");
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Devices whose labels a few threads read. A device is skipped if no device answers for [`SILENCE`].
struct Scan {
    state: Mutex<ScanState, rank::Leaf>,
    changed: Condvar,
}

#[derive(Default)]
struct ScanState {
    waiting: VecDeque<(usize, Candidate)>,
    /// The devices that are being read.
    under_way: BTreeMap<usize, PathBuf>,
    done: Vec<(usize, ReadOutcome)>,
    has_panicked: bool,
}

/// Guard: a device is being read while this value lives.
struct Reading<'a>(&'a Scan, usize);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.has_panicked |= thread::is_panicking();
        state.under_way.remove(&self.1);
        self.0.changed.notify_all();
    }
}

impl Scan {
    fn new(candidates: Vec<Candidate>) -> Self {
        Self {
            state: Mutex::new(ScanState {
                waiting: candidates.into_iter().enumerate().collect(),
                ..ScanState::default()
            }),
            changed: Condvar::new(),
        }
    }

    /// Starts reader threads for the queued devices and returns their number.
    fn begin(self: &Arc<Self>) -> usize {
        let count = self.state.lock().waiting.len().min(READERS_MAX);
        let started = (0..count).filter(|_| {
            let scan = Arc::clone(self);
            thread::spawn("label-scan", move || scan.read()).is_ok()
        });
        let started = started.count();
        if started == 0 {
            self.read();
        }
        started
    }

    /// Reads queued devices one after the other.
    fn read(&self) {
        loop {
            let (number, candidate) = {
                let mut state = self.state.lock();
                let Some((number, candidate)) = state.waiting.pop_front() else {
                    return;
                };
                state.under_way.insert(number, candidate.path.clone());
                (number, candidate)
            };
            let reading = Reading(self, number);
            let outcome = (candidate.path.clone(), FoundLeaf::read(candidate));
            let mut state = self.state.lock();
            // A skipped device already has an outcome.
            if state.under_way.contains_key(&number) {
                state.done.push((number, outcome));
            }
            drop(state);
            drop(reading);
        }
    }

    /// Waits until all devices are read, or no device has answered for too long. Then it gives up the
    /// pending reads.
    fn wait(&self) {
        let mut state = self.state.lock();
        while !state.under_way.is_empty() || !state.waiting.is_empty() {
            if state.has_panicked {
                return;
            }
            let done = state.done.len();
            let is_silent = self.changed.wait_for(&mut state, SILENCE).timed_out();
            if is_silent && state.done.len() == done {
                for (number, path) in std::mem::take(&mut state.under_way) {
                    let faults = std::array::from_fn(|_| LabelFault::Unreadable(NoAnswer.into()));
                    state.done.push((number, (path, Err(Box::new(faults)))));
                }
                return;
            }
        }
    }

    fn take_outcomes(&self) -> Vec<(usize, ReadOutcome)> {
        std::mem::take(&mut self.state.lock().done)
    }
    fn is_over(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }
    fn has_panicked(&self) -> bool {
        self.state.lock().has_panicked
    }
}

/// How long a silent device is waited for.
const SILENCE: Duration = Duration::from_secs(10);
/// The most devices read in parallel.
const READERS_MAX: usize = 8;

/// Adds leaves at paths that labels name outside the search, if they exist.
fn follow_label_paths(found: &mut Found, options: SearchOptions) {
    let mut wanted: BTreeSet<(PathBuf, Guid, Guid)> = BTreeSet::new();
    for leaf in found
        .leaves
        .iter()
        .filter(|leaf| leaf.best.state.has_pool())
    {
        let pool = leaf.best.pool_guid;
        for (guid, path) in leaf_paths(&leaf.best.config) {
            if path.is_absolute() && !found.is_met(&path) && wanted.len() < PATHS_MAX {
                wanted.insert((path, pool, guid));
            }
        }
    }
    wanted.retain(|(_, pool, guid)| found.leaf(*pool, *guid).is_none());
    let mut more = Vec::new();
    for (path, pool, guid) in wanted {
        // A missing path is not a failure, because the label may be outdated.
        let candidates = discover(&[path], options).candidates;
        Arc::make_mut(&mut found.met).extend(candidates.iter().flat_map(names).cloned());
        let leaves = candidates
            .into_iter()
            .filter_map(|candidate| FoundLeaf::read(candidate).ok());
        more.extend(leaves.filter(|leaf| leaf.guid() == guid && is_of(leaf, pool)));
    }
    let leaves = Arc::make_mut(&mut found.leaves);
    leaves.extend(more);
    take_back_guids(leaves);
    choose(leaves);
}

/// Labels are untrusted input. This bounds the number of paths they can make the scan open.
const PATHS_MAX: usize = 4096;

impl LeafState {
    /// Whether the pool may be in use: it is neither exported nor destroyed.
    #[must_use]
    pub fn is_active(self) -> bool {
        self == Self::Active
    }
}
