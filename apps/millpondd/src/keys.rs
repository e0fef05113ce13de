//! Keys of encrypted datasets: loaded and unloaded beside mounts and the devices of volumes.

use crate::daemon::Daemon;
use millpond_control::{DatasetQuery, KeyProblem};
use millpond_engine::{DatasetError, Error, Refusal};
use millpond_env::thread;
use millpond_service::read_key_file;
use std::path::Path;
use std::time::Duration;

/// How often, and after which pauses, unloading a key is tried again that is in use.
const KEY_TRIES: u32 = 20;
const KEY_PAUSE: Duration = Duration::from_millis(50);

fn view_of(daemon: &Daemon, dataset: &str) -> Result<millpond_engine::View, KeyProblem> {
    let pool = dataset.split('/').next().unwrap_or(dataset);
    let imported_pool = daemon.pools.get(pool).ok_or(KeyProblem::NoSuchDataset)?;
    imported_pool.view().map_err(key_problem)
}

fn key_problem(error: Error) -> KeyProblem {
    match error {
        Error::Dataset(DatasetError::NotFound { .. }) => KeyProblem::NoSuchDataset,
        Error::Dataset(DatasetError::Key { reason, .. }) => KeyProblem::Text(reason),
        other => KeyProblem::Text(other.to_string()),
    }
}

/// Unloads the key of an encryption root, after the devices of its volumes were detached.
pub(crate) fn unload_key(daemon: &Daemon, dataset: &str) -> Result<(), KeyProblem> {
    let busy = || KeyProblem::Text(format!("'{dataset}' is busy."));
    let view = view_of(daemon, dataset)?;
    let root = view.encryption_root(dataset).map_err(key_problem)?;
    for mount in daemon.mounts.list() {
        // A mount of another pool, or of a dataset that is not encrypted, has another root or none.
        if root.is_some() && view.encryption_root(&mount.dataset).ok().flatten() == root {
            return Err(busy());
        }
    }
    let pool = dataset.split('/').next().unwrap_or(dataset);
    let is_of_root =
        |name: &str| root.is_some() && view.encryption_root(name).ok().flatten() == root;
    let released = daemon.volumes.release(&is_of_root);
    let outcome = match released {
        Ok(()) => {
            let mut outcome = unload_unused_key(daemon, &view, dataset);
            // What was written back at an unmount, or when a device was detached, may be on its way to the disks.
            for _ in 0..KEY_TRIES {
                if outcome != Err(busy()) {
                    break;
                }
                thread::sleep(KEY_PAUSE);
                outcome = unload_unused_key(daemon, &view, dataset);
            }
            outcome
        }
        Err(_) => Err(busy()),
    };
    daemon.volumes.follow(&daemon.pools, pool);
    outcome
}

/// Unloads a key that neither mounts nor devices of volumes use.
fn unload_unused_key(
    daemon: &Daemon,
    view: &millpond_engine::View,
    dataset: &str,
) -> Result<(), KeyProblem> {
    let busy = || KeyProblem::Text(format!("'{dataset}' is busy."));
    let pool = dataset.split('/').next().unwrap_or(dataset);
    let imported_pool = daemon.pools.get(pool).ok_or(KeyProblem::NoSuchDataset)?;
    let unloaded = match imported_pool.live() {
        Some(pool) => pool.datasets().unload_key(dataset).map_err(Error::from),
        None => view.unload_key(dataset),
    };
    match unloaded.map_err(|error| match error {
        Error::Dataset(DatasetError::Refused {
            why: Refusal::Busy, ..
        }) => busy(),
        other => key_problem(other),
    })? {
        true => Ok(()),
        false => {
            let text = format!("Key already unloaded for '{dataset}'.");
            Err(KeyProblem::Text(text))
        }
    }
}

/// Loads or checks a key, and makes the devices of the volumes that it opens.
pub(crate) fn load_key(
    daemon: &Daemon,
    dataset: &str,
    key: &[u8],
    only_check: bool,
) -> Result<(), KeyProblem> {
    keep_key(daemon, dataset, key, only_check)?;
    if !only_check {
        // Volumes that share the key may be anywhere in the pool: clones, and what is below them.
        let pool = dataset.split('/').next().unwrap_or(dataset);
        daemon.volumes.follow(&daemon.pools, pool);
    }
    Ok(())
}

/// Loads or checks a key. The devices of volumes are left as they are.
fn keep_key(daemon: &Daemon, dataset: &str, key: &[u8], check: bool) -> Result<(), KeyProblem> {
    let view = view_of(daemon, dataset)?;
    if check {
        return view.verify_key(dataset, key).map_err(key_problem);
    }
    let loaded_already = || KeyProblem::Text(format!("Key already loaded for '{dataset}'."));
    if view.has_key(dataset).map_err(key_problem)? {
        return Err(loaded_already());
    }
    // Deriving the key takes time, and another request may have loaded it meanwhile.
    if !view.load_key(dataset, key).map_err(key_problem)? {
        return Err(loaded_already());
    }
    Ok(())
}

/// Loads the keys from the files in `keylocation`. Returns the count of keys loaded and of keys tried.
pub(crate) fn load_keys_from_files(daemon: &Daemon, pool: &str) -> (u64, u64) {
    use millpond_control::properties::{DatasetKind, Kinds, by_name};
    let names = ["keylocation", "encryptionroot"];
    let query = DatasetQuery {
        root: pool.to_owned(),
        depth: DatasetQuery::WHOLE_TREE,
        kinds: Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Volume]),
        wanted: millpond_control::Wanted::Named(names.iter().filter_map(|n| by_name(n)).collect()),
        names_damaged: false,
    };
    let mut roots = vec![];
    let _ = daemon.pools.datasets(&query, &mut |info| {
        let text = |name: &str| {
            info.property(name)?
                .value
                .as_ref()?
                .text()
                .map(str::to_owned)
        };
        if text("encryptionroot").as_deref() == Some(info.name.as_str()) {
            roots.push((info.name.clone(), text("keylocation")));
        }
        Ok(())
    });
    let tried = roots.len() as u64;
    let loaded = roots.iter().filter(|(name, location)| {
        let file = location.as_deref().and_then(|l| l.strip_prefix("file://"));
        let key = file.map(|file| read_key_file(Path::new(file)));
        let Some(Ok(bytes)) = key else {
            return false;
        };
        keep_key(daemon, name, &bytes, false).is_ok()
    });
    let loaded = loaded.count() as u64;
    daemon.volumes.follow(&daemon.pools, pool);
    (loaded, tried)
}
