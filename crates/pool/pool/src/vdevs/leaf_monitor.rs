//! Health monitor of leaves: probes leaves that fail requests, and takes them out of use if they do not
//! answer or fail too often.
//!
//! The block layer wakes the monitor thread when a leaf fails a request. The failing request does not wait
//! for the monitor; its caller continues immediately. Pools in caller-driven sync mode have no monitor
//! thread and must call [`Pool::check_leaves`] themselves.
//!
//! Page `docs/format/vdev-tree.md`, "States".

use crate::PoolError;
use crate::pool::Pool;
use crate::properties::{PropertyValue, vdev_property_zap};
use millpond_block::{
    BlockAddress, LeafCondition, LeafReason, LeafState, LeafStats, RequestError, Topology,
};
use millpond_device::{Device, DeviceError, WriteRequest};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{BOOT_ENV_BYTES, BOOT_ENV_OFFSET_BYTES, Guid, LeafLayout};
use millpond_vdev::{LeafId, VdevConfig, VdevNode, VdevTree};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long the thread sleeps when it is not woken.
const IDLE: Duration = Duration::from_secs(3600);
/// The most events kept for [`Pool::take_leaf_events`]; the oldest ones are dropped.
const EVENTS_MAX: usize = 512;
/// The most events of blocks that a scan loses in one slice. OpenZFS makes as many in a second.
const LOST_AT_ONCE_MAX: usize = 20;
/// System error numbers for a missing device: ENXIO (no such device or address) and ENODEV (no such
/// device).
const GONE: [i32; 2] = [6, 19];
/// Number of intervals in a time window. Within an interval errors are only counted.
const PARTS: u64 = 64;

/// A threshold: `errors` errors in `seconds` seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Threshold {
    /// 0 for never.
    pub(crate) errors: u64,
    pub(crate) seconds: u64,
}

/// The error thresholds at which a leaf is taken out of use or marked degraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// Properties `io_n` and `io_t`.
    pub(crate) io: Threshold,
    /// `checksum_n`, `checksum_t`.
    pub(crate) checksum: Threshold,
    /// `slow_io_n`, `slow_io_t`.
    pub(crate) slow: Threshold,
}

impl Default for Thresholds {
    fn default() -> Self {
        let (errors, seconds) = (10, 600);
        let usual = Threshold { errors, seconds };
        Self {
            io: usual,
            checksum: usual,
            slow: Threshold {
                errors: 0,
                seconds: 30,
            },
        }
    }
}

/// The vdev properties that change thresholds.
const THRESHOLDS: [&str; 6] = [
    "io_n",
    "io_t",
    "checksum_n",
    "checksum_t",
    "slow_io_n",
    "slow_io_t",
];

impl Thresholds {
    /// Applies a property. The largest number means that it is not set.
    fn set(&mut self, name: &str, number: u64) {
        let place = match name {
            "io_n" => &mut self.io.errors,
            "io_t" => &mut self.io.seconds,
            "checksum_n" => &mut self.checksum.errors,
            "checksum_t" => &mut self.checksum.seconds,
            "slow_io_n" => &mut self.slow.errors,
            _ => &mut self.slow.seconds,
        };
        if number != u64::MAX {
            *place = number;
        }
    }
}

/// The errors of the recent time window, with the precision of an interval.
#[derive(Debug, Clone, Default)]
struct ErrorRate {
    /// The start of each interval, and the number of errors in it.
    parts: VecDeque<(u64, u64)>,
}

impl ErrorRate {
    /// Adds errors; returns whether the threshold is reached.
    fn add(&mut self, now_ns: u64, errors: u64, threshold: Threshold) -> bool {
        let window = threshold.seconds.saturating_mul(1_000_000_000);
        while (self.parts.front()).is_some_and(|(at, _)| now_ns.saturating_sub(*at) > window) {
            self.parts.pop_front();
        }
        match self.parts.back_mut() {
            Some((at, count)) if now_ns.saturating_sub(*at) < window / PARTS => {
                *count = count.saturating_add(errors);
            }
            _ => self.parts.push_back((now_ns, errors)),
        }
        let sum = self.parts.iter().map(|(_, count)| *count);
        threshold.errors > 0 && sum.fold(0, u64::saturating_add) >= threshold.errors
    }
}

/// The failures of leaves that the pool tracks.
#[derive(Debug, Default)]
pub(crate) struct LeafWatch {
    leaves: BTreeMap<Guid, Watched>,
    /// The values of [`THRESHOLDS`] set on vdevs.
    settings: BTreeMap<Guid, BTreeMap<&'static str, u64>>,
    events: VecDeque<LeafEvent>,
    data_events: VecDeque<DataEvent>,
}

#[derive(Debug, Clone, Default)]
struct Watched {
    seen: Seen,
    io: ErrorRate,
    checksum: ErrorRate,
    slow: ErrorRate,
    condition: LeafCondition,
    /// How often the failures were cleared.
    clears: u64,
}

/// Counter values at the last check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    io: u64,
    checksum: u64,
    slow: u64,
}

impl Seen {
    fn of(topology: &Topology, leaf: LeafId) -> Self {
        let stats = topology.leaf_stats(leaf);
        Self {
            io: stats.read_errors.saturating_add(stats.write_errors),
            checksum: stats.checksum_errors,
            slow: topology.io_stats(leaf).slow,
        }
    }

    /// The increase since `before`; counters that were cleared count from 0.
    fn since(self, before: Self) -> Self {
        let more = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Self {
            io: more(self.io, before.io),
            checksum: more(self.checksum, before.checksum),
            slow: more(self.slow, before.slow),
        }
    }
}

/// An event of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafEvent {
    /// The kind of event.
    pub kind: LeafEventKind,
    /// The leaf.
    pub leaf: Guid,
    /// Its part of the configuration, without its children.
    pub config: VdevConfig,
    /// The vdev above it, likewise; that of the pool for a single disk.
    pub parent: VdevConfig,
    /// Its condition at that time.
    pub condition: LeafCondition,
    /// What was counted of it at that time.
    pub stats: LeafStats,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
}

/// The kinds of leaf events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafEventKind {
    /// It made an error. The second number is how many errors there were in the same moment of which no more is known: their
    /// events are left out.
    Error(RequestError, u64),
    /// It did not answer a probe.
    ProbeFailure,
    /// Its condition changed.
    StateChange,
}

/// A block was found of which no good copy is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataEvent {
    /// The block.
    pub address: BlockAddress,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
}

impl LeafWatch {
    /// Loads the thresholds from vdev properties and the current conditions of leaves. `read` returns the
    /// properties of a vdev.
    pub(crate) fn load(
        topology: &Topology,
        read: &mut dyn FnMut(Guid) -> Result<Vec<(String, PropertyValue)>, PoolError>,
    ) -> Result<Self, PoolError> {
        let tree = &topology.tree;
        let mut watch = Self::default();
        for (leaf, node) in tree.leaves() {
            let condition = topology.condition(leaf);
            let watched = watch.leaves.entry(node.config.guid).or_default();
            watched.condition = condition;
        }
        for node in tree.nodes().iter().filter(|node| node.top.is_some()) {
            let guid = node.config.guid;
            if vdev_property_zap(tree, guid).is_none() {
                continue;
            }
            for (name, value) in read(guid)? {
                if let PropertyValue::Number(number) = value {
                    watch.set(guid, &name, number);
                }
            }
        }
        Ok(watch)
    }

    /// Applies a changed property of a vdev.
    pub(crate) fn set(&mut self, vdev: Guid, name: &str, number: u64) {
        if let Some(name) = THRESHOLDS.iter().find(|known| **known == name) {
            self.settings.entry(vdev).or_default().insert(*name, number);
        }
    }

    /// The thresholds of a leaf: its own settings take precedence over those of its top-level vdev.
    fn of(&self, tree: &VdevTree, leaf: &VdevNode) -> Thresholds {
        let mut thresholds = Thresholds::default();
        let top = leaf.top.and_then(|top| tree.top(top));
        for vdev in top.into_iter().chain([leaf]) {
            for (name, number) in self.settings.get(&vdev.config.guid).into_iter().flatten() {
                thresholds.set(name, *number);
            }
        }
        thresholds
    }

    /// Clears the failures of a leaf whose counters are reset.
    pub(crate) fn forget(&mut self, leaf: Guid) {
        if let Some(watched) = self.leaves.get_mut(&leaf) {
            *watched = Watched {
                condition: watched.condition,
                clears: watched.clears.saturating_add(1),
                ..Watched::default()
            };
        }
    }

    /// Follows a leaf that got another guid.
    pub(crate) fn rename(&mut self, before: Guid, after: Guid) {
        if let Some(watched) = self.leaves.remove(&before) {
            self.leaves.insert(after, watched);
        }
        if let Some(settings) = self.settings.remove(&before) {
            self.settings.insert(after, settings);
        }
    }

    fn note(&mut self, event: LeafEvent) {
        let device = event.config.path.as_deref();
        tracing::debug!(device, kind = ?event.kind, state = ?event.condition.state, "device event");
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

/// A leaf that failed requests.
struct Suspect {
    leaf: LeafId,
    guid: Guid,
    new: Seen,
    has_failed_often: bool,
    is_wrong_often: bool,
    clears: u64,
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    Answers,
    Fails,
    Gone,
}

impl Pool {
    /// Starts the monitor thread.
    pub(crate) fn start_leaf_monitor(self: &Arc<Self>) -> Result<(), PoolError> {
        let weak = Arc::downgrade(self);
        let monitor = Arc::clone(&self.store.topology().monitor);
        let started = self.threads.spawn("millpond-leaves", move || {
            while monitor.wait(IDLE) {
                let Some(pool) = weak.upgrade() else { return };
                if monitor.take_news() {
                    pool.check_leaves();
                }
            }
        });
        started.map_err(|error| PoolError::Suspended {
            reason: format!("the thread that looks after devices could not be started: {error}"),
        })
    }

    /// Checks leaves that failed requests since the last call.
    ///
    /// Each such leaf is probed. A leaf that does not answer or failed too often is taken out of use; if data
    /// would have no replica without it, it is only marked degraded. A leaf that returned wrong data or was
    /// slow too often is marked degraded. The next txg stores the states.
    ///
    /// Pools with a monitor thread do this automatically.
    pub fn check_leaves(&self) {
        let topology = self.store.topology();
        for suspect in self.suspects(&topology) {
            self.judge_suspect(&topology, &suspect);
        }
        self.note_state_changes(&topology);
        self.note_damage();
        self.ask_to_record_states();
    }

    /// Takes the events of lost data since the last call, oldest first, at most 512.
    #[must_use]
    pub fn take_data_events(&self) -> Vec<DataEvent> {
        self.leaf_watch.lock().data_events.drain(..).collect()
    }

    fn note_damage(&self) {
        self.note_lost(self.store.take_damage_events().into_iter());
    }

    /// Makes events of lost blocks: of the first ones, if they are many.
    pub(crate) fn note_lost(&self, lost: impl Iterator<Item = BlockAddress>) {
        let time_ns = self.env.clock.wall_ns();
        let lost = lost.take(LOST_AT_ONCE_MAX);
        let events = lost.map(|address| DataEvent { address, time_ns });
        let mut watch = self.leaf_watch.lock();
        watch.data_events.extend(events);
        let surplus = watch.data_events.len().saturating_sub(EVENTS_MAX);
        watch.data_events.drain(..surplus);
    }

    /// Takes the leaf events since the last call, oldest first, at most 512.
    #[must_use]
    pub fn take_leaf_events(&self) -> Vec<LeafEvent> {
        self.leaf_watch.lock().events.drain(..).collect()
    }

    fn suspects(&self, topology: &Topology) -> Vec<Suspect> {
        let now_ns = self.env.clock.monotonic_ns();
        let mut watch = self.leaf_watch.lock();
        let mut suspects = vec![];
        for (leaf, node) in topology.tree.leaves() {
            // A distributed spare is no device: nothing would be gained if another spare took its place.
            let is_device = node.is_device();
            let guid = node.config.guid;
            let thresholds = watch.of(&topology.tree, node);
            let watched = watch.leaves.entry(guid).or_default();
            let now = Seen::of(topology, leaf);
            let new = now.since(watched.seen);
            watched.seen = now;
            if new == Seen::default() || !topology.condition(leaf).is_usable() {
                continue;
            }
            let mut is_often = |rate: fn(&mut Watched) -> &mut ErrorRate, errors, threshold| {
                errors > 0 && rate(watched).add(now_ns, errors, threshold) && is_device
            };
            let has_failed_often = is_often(|all| &mut all.io, new.io, thresholds.io);
            let is_wrong = is_often(|all| &mut all.checksum, new.checksum, thresholds.checksum);
            let is_slow = is_often(|all| &mut all.slow, new.slow, thresholds.slow);
            suspects.push(Suspect {
                leaf,
                guid,
                new,
                has_failed_often,
                is_wrong_often: is_wrong || is_slow,
                clears: watched.clears,
            });
        }
        suspects
    }

    fn judge_suspect(&self, topology: &Topology, suspect: &Suspect) {
        let Suspect { leaf, new, .. } = *suspect;
        self.note_errors(topology, suspect);
        let device = topology.devices.get(leaf.0 as usize);
        let probed = match device {
            Some(Some(device)) if new.io > 0 => {
                let device = Arc::clone(device);
                let probed = topology.try_leaf(leaf, move || probe(device.as_ref()));
                probed.unwrap_or(Probe::Fails)
            }
            _ => Probe::Answers,
        };
        if probed != Probe::Answers {
            mark::hit("probe-failed");
            self.note_leaf_event(topology, leaf, LeafEventKind::ProbeFailure);
        }
        let watch = self.leaf_watch.lock();
        let watched = watch.leaves.get(&suspect.guid);
        if watched.is_none_or(|watched| watched.clears != suspect.clears) {
            // The errors were cleared in the meantime.
            return;
        }
        match probed {
            Probe::Answers if new.io > 0 && suspect.has_failed_often => {
                topology.fault_leaf(leaf, LeafReason::ErrorsExceeded);
            }
            Probe::Answers => {}
            Probe::Fails => {
                topology.fault_leaf(leaf, LeafReason::IoFailures);
            }
            Probe::Gone => {
                let removed = LeafCondition::new(LeafState::Removed, LeafReason::None);
                if topology.change_condition(leaf, removed).is_err() {
                    topology.fault_leaf(leaf, LeafReason::IoFailures);
                }
            }
        }
        if suspect.is_wrong_often && topology.condition(leaf).state == LeafState::Online {
            let degraded = LeafCondition::new(LeafState::Degraded, LeafReason::ErrorsExceeded);
            // Marking a leaf degraded does not take it out of use, so it cannot fail.
            let _ = topology.change_condition(leaf, degraded);
        }
    }

    /// Makes an event of each error that the leaf remembers. The last one says how many others there were.
    fn note_errors(&self, topology: &Topology, suspect: &Suspect) {
        let counters = topology.counters.get(suspect.leaf.0 as usize);
        let errors = counters.map_or(vec![], |counters| counters.take_errors());
        let all = suspect.new.io.saturating_add(suspect.new.checksum);
        let others = all.saturating_sub(errors.len() as u64);
        let last = errors.len().saturating_sub(1);
        for (number, error) in errors.into_iter().enumerate() {
            let others = if number == last { others } else { 0 };
            let kind = LeafEventKind::Error(error, others);
            self.note_leaf_event(topology, suspect.leaf, kind);
        }
    }

    fn note_leaf_event(&self, topology: &Topology, leaf: LeafId, kind: LeafEventKind) {
        let time_ns = self.env.clock.wall_ns();
        if let Some(event) = leaf_event(topology, leaf, kind, time_ns) {
            self.leaf_watch.lock().note(event);
        }
    }

    fn note_state_changes(&self, topology: &Topology) {
        let time_ns = self.env.clock.wall_ns();
        let mut has_changes = false;
        let mut watch = self.leaf_watch.lock();
        let leaves = topology.tree.leaves();
        for (leaf, node) in leaves.filter(|(_, node)| node.is_device()) {
            let condition = topology.condition(leaf);
            let watched = watch.leaves.entry(node.config.guid).or_default();
            if std::mem::replace(&mut watched.condition, condition) != condition {
                has_changes = true;
                let event = leaf_event(topology, leaf, LeafEventKind::StateChange, time_ns);
                event.into_iter().for_each(|event| watch.note(event));
            }
        }
        drop(watch);
        if has_changes {
            self.state.write().assembly = None;
        }
    }
}

/// An event of a leaf as it is now.
fn leaf_event(
    topology: &Topology,
    leaf: LeafId,
    kind: LeafEventKind,
    time_ns: u64,
) -> Option<LeafEvent> {
    let node = topology.tree.leaf(leaf)?;
    let parent = node.parent.and_then(|parent| topology.tree.node(parent))?;
    Some(LeafEvent {
        kind,
        leaf: node.config.guid,
        config: node.config.clone(),
        parent: parent.config.clone(),
        condition: topology.condition(leaf),
        stats: topology.leaf_stats(leaf),
        time_ns,
    })
}

/// Reads the boot environment blocks of labels 1 to 3 and writes them back unchanged and durably.
///
/// At least one read and one write must succeed. Neither counts towards the leaf's error counters.
fn probe(device: &dyn Device) -> Probe {
    let Some(layout) = LeafLayout::new(device.size_bytes()) else {
        return Probe::Fails;
    };
    let (mut has_read, mut has_written, mut is_gone) = (false, false, false);
    let mut bytes = vec![0; BOOT_ENV_BYTES];
    for label in layout.label_offsets_bytes().into_iter().skip(1) {
        let at = label.saturating_add(BOOT_ENV_OFFSET_BYTES);
        let outcome = device.read(at, &mut bytes).and_then(|()| {
            has_read = true;
            let mut request = [WriteRequest::new(at, &bytes)];
            device.write_durable(&mut request);
            let [request] = request;
            request.outcome
        });
        match outcome {
            Ok(()) => has_written = true,
            Err(DeviceError::Io { errno, .. }) => is_gone |= GONE.contains(&errno),
            Err(_) => {}
        }
    }
    match (has_read && has_written, is_gone) {
        (true, _) => Probe::Answers,
        (false, true) => Probe::Gone,
        (false, false) => Probe::Fails,
    }
}

#[cfg(test)]
mod tests;
