//! Attaches a device to an open pool: a new side, or a replacement.

use super::checks::open_to_write;
use millpond_control::{ChangeError, NewSide};
use millpond_engine::Pool;
use millpond_env::thread;
use millpond_ondisk::Guid;
use millpond_pool::{
    AttachError, AttachKind, AttachRefusal, NewDevice, NewVdevOptions, Offline, ResilverKind,
};
use std::time::Duration;

/// How often the device is tried that a leaf has just released, and the time between. Open views may still have it.
const OPEN_TRIES: u32 = 50;
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// Attaches the device. It belongs to the pool when this returns.
pub(super) fn attach(pool: &Pool, side: &NewSide) -> Result<(), ChangeError> {
    let engine = pool.inner();
    let old = Guid(side.old);
    let how = match side.is_sequential {
        true => ResilverKind::Sequential,
        false => ResilverKind::Healing,
    };
    if side.is_replacement
        && let Some(spare) = engine.free_spare_at(&side.path)?
    {
        let device = || Some(open(&side.path, false).ok()?.device);
        engine.use_spare(how, old, spare, device)?;
        return Ok(());
    }
    if side.is_distributed_spare() {
        return Err(AttachError::from(AttachRefusal::NotSpare).into());
    }
    let kind = match side.is_replacement {
        true => AttachKind::Replacement,
        false => AttachKind::Mirror,
    };
    // A new disk at the path of the old one, whose device is still open.
    let takes_path = side.is_replacement && uses_path(pool, old, &side.path);
    if takes_path {
        let how = Offline {
            is_fault: false,
            is_temporary: true,
        };
        engine.offline_leaf(old, how)?;
    }
    // What the labels say was checked before.
    let options = NewVdevOptions {
        ashift: None,
        force: true,
    };
    let attached = open(&side.path, takes_path).and_then(|device| {
        if kind == AttachKind::Mirror && engine.is_raidz(old) {
            if side.is_sequential {
                return Err(AttachError::from(AttachRefusal::NotSequential).into());
            }
            engine.expand_raidz(old, &device, options, &|_| false)?;
            return Ok(());
        }
        engine.attach_leaf_as(how, old, &device, kind, options, &|_| false)?;
        Ok(())
    });
    if attached.is_err() && takes_path {
        let found = open_to_write(&side.path).ok();
        // The error to show is the first one.
        let _ = engine.online_leaf(old, found.as_ref().map(|found| &found.device));
    }
    attached
}

/// Whether a leaf is in use at this path.
fn uses_path(pool: &Pool, leaf: Guid, path: &str) -> bool {
    let topology = pool.inner().store().topology();
    let Some(number) = topology.tree.find_leaf(leaf) else {
        return false;
    };
    let has_path = topology
        .tree
        .leaves()
        .any(|(id, node)| id == number && node.config.path.as_deref() == Some(path));
    has_path && topology.condition(number).is_usable()
}

fn open(path: &str, was_released: bool) -> Result<NewDevice, ChangeError> {
    let mut tries_left = OPEN_TRIES;
    loop {
        match open_to_write(path) {
            Err(_) if was_released && tries_left > 0 => {
                tries_left -= 1;
                thread::sleep(OPEN_PAUSE);
            }
            outcome => return outcome,
        }
    }
}
