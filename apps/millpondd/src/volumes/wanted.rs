//! Which volumes have a device, by their properties.

use millpond_control::properties::{DatasetKind, Kinds, by_name};
use millpond_control::{
    ControlError, DatasetInfo, DatasetQuery, Value, Wanted as WantedProperties,
};
use millpond_env::{Tunable, Tunables};
use millpond_service::ImportedPools;

/// `volmode=dev`: the system looks for no partitions.
const DEV: u64 = 2;
/// `volmode=none`.
const NONE: u64 = 3;
/// `snapdev=visible`.
const VISIBLE: u64 = 1;
/// `keystatus=unavailable`.
const UNAVAILABLE: u64 = 1;

/// What decides about a device. The words of properties have their numbers in the table of properties.
const PROPERTIES: [&str; 7] = [
    "volmode",
    "snapdev",
    "volsize",
    "readonly",
    "keystatus",
    "objsetid",
    "redacted",
];

/// A volume, or a snapshot of one, that has a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: String,
    /// The object of the dataset, which keeps its number when the dataset is renamed.
    pub(super) id: u64,
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
    pub(super) has_partitions: bool,
}

/// A property as the number of its word. Words and numbers both occur: those of the defaults are words.
fn number(info: &DatasetInfo, name: &str) -> Option<u64> {
    match info.property(name)?.value.as_ref()? {
        Value::Number(number) => Some(*number),
        Value::Text(word) => match word.as_str() {
            "on" | "visible" | "unavailable" | "full" | "geom" => Some(1),
            "dev" => Some(DEV),
            "none" => Some(NONE),
            other => other.parse().ok(),
        },
    }
}

/// The device that a dataset should have, and whether its snapshots have devices too.
fn of(info: &DatasetInfo, tunables: &Tunables) -> Option<(Wanted, bool)> {
    let mode = match number(info, "volmode").unwrap_or(0) {
        0 => tunables.get(Tunable::VolumeMode),
        mode => mode,
    };
    let is_locked = number(info, "keystatus") == Some(UNAVAILABLE);
    // What a receive has not completed has no size.
    let size_bytes = number(info, "volsize").filter(|size| *size > 0)?;
    // What was left out of it would read as zeros.
    let is_redacted = number(info, "redacted") == Some(1);
    let is_incomplete = is_redacted && !tunables.is_on(Tunable::AllowRedactedDatasetMount);
    if mode == NONE || is_locked || is_incomplete {
        return None;
    }
    let is_snapshot = info.name.contains('@');
    let wanted = Wanted {
        name: info.name.clone(),
        id: number(info, "objsetid")?,
        size_bytes,
        is_read_only: is_snapshot || number(info, "readonly") == Some(1),
        has_partitions: mode != DEV,
    };
    Some((wanted, number(info, "snapdev") == Some(VISIBLE)))
}

fn read_kind(
    pools: &ImportedPools,
    (root, depth, kind): (&str, u32, DatasetKind),
    each: &mut dyn FnMut(&DatasetInfo),
) -> Result<(), ControlError> {
    let names = PROPERTIES.iter().filter_map(|name| by_name(name));
    let query = DatasetQuery {
        root: root.to_owned(),
        depth,
        kinds: Kinds::only(&[kind]),
        wanted: WantedProperties::Named(names.collect()),
        names_damaged: false,
    };
    pools.datasets(&query, &mut |info| {
        each(&info);
        Ok(())
    })
}

/// The devices of the volumes at and below a dataset, and of their snapshots.
pub(super) fn read(
    pools: &ImportedPools,
    root: &str,
    tunables: &Tunables,
) -> Result<Vec<Wanted>, ControlError> {
    let (mut all, mut shown) = (vec![], vec![]);
    let tree = (root, DatasetQuery::WHOLE_TREE, DatasetKind::Volume);
    read_kind(pools, tree, &mut |info| {
        if let Some((wanted, shows_snapshots)) = of(info, tunables) {
            if shows_snapshots {
                shown.push(wanted.clone());
            }
            all.push(wanted);
        }
    })?;
    for volume in shown {
        let snapshots = (volume.name.as_str(), 1, DatasetKind::Snapshot);
        read_kind(pools, snapshots, &mut |info| {
            all.extend(of(info, tunables).map(|(own, _)| Wanted {
                has_partitions: volume.has_partitions,
                ..own
            }));
        })?;
    }
    Ok(all)
}
