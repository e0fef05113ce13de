//! Which pools lie on volumes of other pools.

use super::{Entry, Volumes, pool_of};
use millpond_control::{ChangeError, DeviceProblem, PoolChange};
use millpond_engine::NvList;
use millpond_service::ImportedPools;
use std::path::Path;

/// Pools do not lie on each other more often.
const DEPTH_MAX: u32 = 16;

/// The pool whose volume a device is, if it is one of this daemon's.
fn pool_at<'t>(table: &'t [Entry], device: &Path) -> Option<&'t str> {
    let real = std::fs::canonicalize(device).ok()?;
    let real = real.to_str()?;
    let found = table.iter().find(|entry| {
        let rest = entry.path.to_str().and_then(|path| real.strip_prefix(path));
        // The device itself, or a partition of it.
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('p'))
    });
    found.map(|entry| pool_of(&entry.wanted.name))
}

/// Adds the paths of all devices below a vdev.
fn add_paths(vdev: &NvList, depth: u32, paths: &mut Vec<String>) {
    paths.extend(vdev.string("path").ok().map(str::to_owned));
    for kind in ["children", "spares", "l2cache"] {
        let below = vdev.list_array(kind).unwrap_or_default();
        for child in below.iter().filter(|_| depth < DEPTH_MAX) {
            add_paths(child, depth + 1, paths);
        }
    }
}

/// Whether a pool is `target`, or lies on one of its volumes, directly or not.
fn lies_on(
    table: &[Entry],
    pools: &ImportedPools,
    pool: &str,
    (target, depth): (&str, u32),
) -> bool {
    if pool == target || depth == DEPTH_MAX {
        return true;
    }
    let config = pools.get(pool).and_then(|pool| pool.configuration());
    let mut paths = vec![];
    if let Some(vdevs) = config
        .as_ref()
        .and_then(|config| config.list("vdev_tree").ok())
    {
        add_paths(vdevs, 0, &mut paths);
    }
    let mut below = paths
        .iter()
        .filter_map(|path| pool_at(table, Path::new(path)));
    below.any(|below| lies_on(table, pools, below, (target, depth + 1)))
}

impl Volumes {
    /// Refuses a device that is a volume of the pool which would get it, or of a pool that lies on such a volume: the
    /// pool would wait for itself.
    pub(super) fn check_devices(
        &self,
        pools: &ImportedPools,
        pool: &str,
        change: &PoolChange,
    ) -> Result<(), ChangeError> {
        let paths: Vec<&String> = match change {
            PoolChange::Add(devices) => devices.paths().collect(),
            PoolChange::Attach(side) => vec![&side.path],
            _ => return Ok(()),
        };
        let table = self.table.lock();
        for path in paths {
            let owner = pool_at(&table, Path::new(path));
            if owner.is_some_and(|owner| lies_on(&table, pools, owner, (pool, 0))) {
                let why = "a pool cannot lie on its own volumes".to_owned();
                return Err(ChangeError::Device {
                    path: path.clone(),
                    problem: DeviceProblem::Unusable(why),
                });
            }
        }
        Ok(())
    }
}
