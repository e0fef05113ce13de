//! The health monitor: logs changes of pools and devices since the last check.

use crate::log::{Level, Line};
use crate::mounts::FileTrouble;
use millpond_control::MountInfo;
use millpond_engine::{LeafCondition, LeafReason, LeafState};
use millpond_service::{ImportedPool, ImportedPools, Open};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of damaged files logged per pool.
const FILES_MAX: usize = 20;

/// The state of every pool at the last check.
#[derive(Debug, Default)]
pub struct HealthMonitor {
    pools: BTreeMap<u64, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    suspension: Option<String>,
    leaves: BTreeMap<u64, Leaf>,
    files: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Leaf {
    condition: LeafCondition,
    is_absent: bool,
    is_deleted: bool,
    /// Failed reads, failed writes, checksum errors, slow operations.
    counts: [u64; 4],
}

impl HealthMonitor {
    /// Describes changes since the last check. Does no I/O and does not wait for devices.
    pub fn look(&mut self, pools: &ImportedPools) -> Vec<Line> {
        let mut lines = vec![];
        let mut before = std::mem::take(&mut self.pools);
        for (name, pool) in pools.all() {
            let Some(guid) = pool.live().map(|live| live.inner().guid().0) else {
                continue;
            };
            let mut seen = before.remove(&guid).unwrap_or_default();
            seen.look(&name, &pool, &mut |line| lines.push(line));
            self.pools.insert(guid, seen);
        }
        lines
    }
}

/// The log line for a file that a program could not read or write, with its path if it can be found. Reads
/// devices.
pub fn of_file(pools: &ImportedPools, mount: &MountInfo, trouble: &FileTrouble) -> Line {
    let pool = mount.dataset.split('/').next().unwrap_or_default();
    let line = Line::new(Level::Error, format!("EIO: {}", trouble.reason));
    let line = line.pool(pool).dataset(&mount.dataset);
    let Some(object) = trouble.object else {
        return line;
    };
    let path = pools.get(pool).and_then(|imported_pool| {
        let read = match imported_pool.opened() {
            Open::Live(live) => live.committed().ok()?,
            Open::ReadOnly(read, _) => read.clone(),
        };
        let files = read.dataset(&mount.dataset).ok()?.file_system().ok()?;
        files.path_of(object).ok()?
    });
    match path {
        Some(path) => {
            let path = String::from_utf8_lossy(&path);
            let top = mount.mountpoint.trim_end_matches('/');
            line.file(format!("{top}/{path}").trim_end_matches('/'))
        }
        None => line.file(&format!("<{:#x}>", object.0)),
    }
}

impl Seen {
    fn look(&mut self, name: &str, pool: &ImportedPool, say: &mut dyn FnMut(Line)) {
        let Some(live) = pool.live() else { return };
        let engine = live.inner();
        let topology = engine.store().topology();
        for (leaf, node) in topology.tree.leaves().filter(|(_, node)| node.is_device()) {
            let leaf_name = topology.leaf_name(leaf);
            let (stats, waits) = (topology.leaf_stats(leaf), topology.io_stats(leaf));
            let device = topology.devices.get(leaf.0 as usize);
            let device = device.and_then(Option::as_ref);
            let condition = topology.condition(leaf);
            let now = Leaf {
                condition,
                is_absent: device.is_none() && condition.state == LeafState::Unavailable,
                is_deleted: device.is_some_and(|device| device.is_deleted()),
                counts: [
                    stats.read_errors,
                    stats.write_errors,
                    stats.checksum_errors,
                    waits.slow,
                ],
            };
            let old = self.leaves.insert(node.config.guid.0, now);
            let mut say = |level, text: String| {
                say(Line::new(level, text).pool(name).device(&leaf_name));
            };
            let old = old.unwrap_or_default();
            match (old.is_absent, now.is_absent) {
                (false, true) => say(Level::Error, "is not there".into()),
                (true, false) => say(Level::Notice, "is there again".into()),
                _ => {}
            }
            if now.is_deleted && !old.is_deleted {
                let text = "its file was deleted: its content is gone when the pool is closed";
                say(Level::Error, text.into());
            }
            if old.condition.state != now.condition.state
                && let Some((level, text)) = state_words(now.condition)
            {
                say(level, text.to_owned());
            }
            if let Some(text) = more(old.counts, now.counts) {
                say(Level::Warning, text);
            }
        }
        self.look_at_pool(name, engine.suspension().map(|state| state.reason), say);
        for file in pool.known_data_errors(FILES_MAX) {
            if self.files.len() < FILES_MAX && self.files.insert(file.clone()) {
                let line = Line::new(Level::Error, "has bytes that are lost");
                say(line.pool(name).file(&file));
            }
        }
    }

    fn look_at_pool(&mut self, name: &str, now: Option<String>, say: &mut dyn FnMut(Line)) {
        let line = match (&self.suspension, &now) {
            (old, Some(reason)) if old.as_ref() != Some(reason) => {
                Line::new(Level::Error, format!("suspended: {reason}"))
            }
            (Some(_), None) => Line::new(Level::Notice, "resumed"),
            _ => return,
        };
        say(line.pool(name));
        self.suspension = now;
    }
}

/// Severity and description of a device's new state; `None` for a missing device, which is reported
/// separately.
fn state_words(condition: LeafCondition) -> Option<(Level, &'static str)> {
    let faulted = match condition.reason {
        LeafReason::Hung => "is out of use: it does not answer",
        LeafReason::External => "is out of use: faulted by an administrator",
        LeafReason::IoFailures => "is out of use: it failed requests and a probe",
        _ => "is out of use: too many errors",
    };
    Some(match condition.state {
        LeafState::Online => (Level::Notice, "is in use"),
        LeafState::Offline => (Level::Notice, "is offline"),
        LeafState::Removed => (Level::Error, "is gone"),
        LeafState::Faulted => (Level::Error, faulted),
        LeafState::Degraded => (Level::Warning, "is degraded: errors"),
        LeafState::Unavailable => return None,
    })
}

/// Describes new errors since the last check. Handles counts that were cleared in between.
fn more(old: [u64; 4], now: [u64; 4]) -> Option<String> {
    let words = [
        "reads failed",
        "writes failed",
        "reads gave wrong bytes",
        "operations took half a minute or longer",
    ];
    let changes = old.into_iter().zip(now).zip(words);
    let changes = changes.filter_map(|((old, now), what)| {
        let more = now.checked_sub(old).unwrap_or(now);
        (more > 0).then(|| format!("{more} {what}"))
    });
    let all: Vec<String> = changes.collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_errors_are_logged_and_clear_restarts_counts() {
        assert_eq!(more([1, 2, 3, 4], [1, 2, 3, 4]), None);
        let text = more([0, 0, 0, 0], [2, 0, 1, 0]).unwrap();
        assert_eq!(text, "2 reads failed, 1 reads gave wrong bytes");
        assert_eq!(more([5, 0, 0, 0], [0; 4]), None);
        assert_eq!(more([5, 0, 0, 0], [2, 0, 0, 0]).unwrap(), "2 reads failed");
    }
}
