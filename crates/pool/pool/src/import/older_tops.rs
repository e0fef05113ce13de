//! Top-level vdevs that are older than the pool: their devices were replaced by older copies, or put back to older contents.
//!
//! Page `docs/format/import.md`, "Older vdevs".

use crate::import::PoolCandidate;
use crate::import::assemble::AssembledLeaf;
use millpond_ondisk::{Guid, Txg};
use millpond_vdev::{VdevConfig, VdevType};
use std::collections::{BTreeMap, BTreeSet};

/// Vdevs that get an uberblock if no label is written in its txg. Of more vdevs, that many random ones get it.
const HOLDERS: usize = 3;

/// A top-level vdev that lacks committed txgs of its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OlderTop {
    /// Its guid.
    pub guid: Guid,
    /// The paths of its devices.
    pub paths: Vec<String>,
    /// The newest txg of its uberblocks and labels.
    pub last: Txg,
    /// The time of the last uberblock of the pool that it may have, in seconds since 1970; `None` if that is not known.
    pub last_s: Option<u64>,
    /// The newest uberblock of the pool.
    pub newest: Txg,
    /// Its time in seconds since 1970.
    pub newest_s: u64,
}

struct Top {
    guid: Guid,
    paths: Vec<String>,
    /// The newest label.
    label: Txg,
    /// The newest label or uberblock.
    last: Txg,
}

impl Top {
    /// `None` for a vdev that does not get uberblocks, or none of whose devices is there.
    fn new(config: &VdevConfig, leaves: &BTreeMap<Guid, &AssembledLeaf>) -> Option<Self> {
        let mut guids = vec![];
        leaf_guids(config, &mut guids);
        let leaves = guids.iter().filter_map(|guid| leaves.get(guid));
        let used: Vec<&&AssembledLeaf> = leaves.filter(|leaf| leaf.device.is_some()).collect();
        let label = used.iter().filter_map(|leaf| leaf.label_txg).max()?;
        let newest = used.iter().filter_map(|leaf| leaf.newest_txg).max();
        (config.metaslab_array.0 != 0).then(|| Self {
            guid: config.guid,
            paths: used
                .iter()
                .filter_map(|leaf| leaf.found_as.clone())
                .collect(),
            label,
            last: newest.unwrap_or_default().max(label),
        })
    }
}

/// Recursion depth is bounded by the depth of a configuration.
fn leaf_guids(config: &VdevConfig, guids: &mut Vec<Guid>) {
    guids.push(config.guid);
    for child in &config.children {
        leaf_guids(child, guids);
    }
}

impl PoolCandidate {
    /// The top-level vdevs of which all devices certainly lack txgs of the pool. Log vdevs do not count.
    ///
    /// A vdev may lack the last uberblock: the power can fail while it is written. Of up to three vdevs each gets every uberblock. Of
    /// more, each gets those of txgs that write labels, as every import does; a copy of after the last of these cannot be
    /// recognised. `until` is the newest txg that counts, if the pool is to be opened as it was then.
    #[must_use]
    pub fn older_tops(&self, until: Option<Txg>) -> Vec<OlderTop> {
        let Ok(assembly) = &self.assembly else {
            return vec![];
        };
        let is_wanted = |txg: Txg| until.is_none_or(|until| txg <= until);
        let times: BTreeMap<Txg, u64> = (self.uberblocks.iter().rev())
            .map(|found| (found.uberblock.txg, found.uberblock.timestamp_s))
            .filter(|(txg, _)| is_wanted(*txg))
            .collect();
        let Some((newest, newest_s)) = times.last_key_value() else {
            return vec![];
        };
        let leaves = assembly.leaves.iter().map(|leaf| (leaf.guid, leaf));
        let leaves: BTreeMap<Guid, &AssembledLeaf> = leaves.collect();
        let has_uberblocks = |top: &&VdevConfig| {
            let has_devices = !matches!(
                top.kind,
                VdevType::Hole | VdevType::Missing | VdevType::Indirect
            );
            has_devices && !top.is_log
        };
        let configs = assembly.root.children.iter().filter(has_uberblocks);
        let all_get_all = configs.clone().count() <= HOLDERS;
        let tops: Vec<Top> = configs.filter_map(|top| Top::new(top, &leaves)).collect();
        let committed: BTreeSet<Txg> = times.keys().copied().collect();
        // If there is no uberblock after a label, the one of its txg may be incomplete.
        let labels = tops.iter().map(|top| top.label);
        let labels = labels.filter(|label| label < newest && is_wanted(*label));
        let label = labels.max();
        let older = tops.into_iter().filter(|top| {
            let lacks = |txg: Txg| top.last < txg;
            let later = committed.iter().filter(|txg| lacks(**txg)).count();
            all_get_all && later > 1 || label.is_some_and(lacks)
        });
        older
            .map(|top| OlderTop {
                guid: top.guid,
                paths: top.paths,
                last: top.last,
                last_s: times.range(..=top.last).next_back().map(|(_, time)| *time),
                newest: *newest,
                newest_s: *newest_s,
            })
            .collect()
    }

    /// What is wrong with a pool that has such vdevs, and what helps: it should not be opened for writing. `None` if it has
    /// none.
    #[must_use]
    pub fn why_older(&self, until: Option<Txg>) -> Option<String> {
        let older = self.older_tops(until);
        (!older.is_empty()).then(|| text_of(&older))
    }
}

fn text_of(tops: &[OlderTop]) -> String {
    let tops: Vec<String> = tops.iter().map(one_text).collect();
    format!(
        "{}; older copies of these devices are in their place, or they were put back to older contents, and what was written to them since is \
         lost; make the current devices available, or import the pool read-only or with -f, and then 'zpool scrub' finds the files that are lost",
        tops.join("; ")
    )
}

fn one_text(top: &OlderTop) -> String {
    let age = top.last_s.map(|last_s| top.newest_s.saturating_sub(last_s));
    let age = age.map_or_else(String::new, |age_s| format!(", {} older", span_text(age_s)));
    let (last, newest) = (top.last, top.newest);
    format!(
        "{} ended at txg {last} and the pool at txg {newest}{age}",
        top.paths.join(" and ")
    )
}

fn span_text(span_s: u64) -> String {
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(unit_s, _)| span_s / unit_s >= 2);
    let (unit_s, name) = unit.unwrap_or((1, "seconds"));
    format!("{} {name}", span_s / unit_s)
}
