//! The pool of a run.

use super::*;

/// A dirty limit so high that no writer waits for txgs.
#[must_use]
pub fn limits() -> DirtyLimits {
    DirtyLimits {
        limit_bytes: 4 << 30,
        ..DirtyLimits::default()
    }
}

pub(super) fn writing() -> WriteOptions {
    WriteOptions {
        sync_mode: SyncMode::Caller,
        limits: limits(),
        ..WriteOptions::default()
    }
}

pub(in crate::soak) fn path(disk: usize) -> String {
    format!("/sim/d{disk}")
}

/// Creates the pool of a shape on new disks.
///
/// # Errors
/// Why the pool cannot be created.
pub fn create(
    world: &World,
    shape: &crate::soak::Shape,
    writing: WriteOptions,
    cache_bytes: u64,
) -> Result<Pool, String> {
    let mut tops = vec![];
    let mut next = 0;
    for (class, layout, leaves) in shape.tops {
        let devices = (next..next + leaves).map(|number| {
            let disk = world.disk(DISK_BYTES, 512);
            NewDevice::file(&path(number), disk as Arc<dyn Device>)
        });
        tops.push(NewTop {
            layout: *layout,
            class: *class,
            devices: devices.collect(),
        });
        next += leaves;
    }
    let new = NewPool {
        vdev_options: NewVdevOptions {
            ashift: Some(shape.ashift),
            force: true,
        },
        writing,
        system: "soak".to_owned(),
        cache_bytes: Some(cache_bytes),
        ..NewPool::new(POOL, NewVdevs::of(tops))
    };
    Pool::create(&world.env(), &new).map_err(|error| failure_text("creation", &error))
}

/// Finds the only pool on the disks, without the absent ones.
///
/// # Errors
/// If no pool is found, or several.
pub fn found(world: &World, absent: &BTreeSet<usize>) -> Result<PoolCandidate, String> {
    let disks = world.disks().into_iter().enumerate();
    let candidates = disks
        .filter(|(number, _)| !absent.contains(number))
        .map(|(number, disk)| Candidate {
            path: path(number).into(),
            aliases: vec![],
            partition: None,
            device: disk,
            is_live: false,
        });
    let pools = find_pools(&scan_devices(candidates.collect()), 0);
    match <[PoolCandidate; 1]>::try_from(pools) {
        Ok([pool]) => Ok(pool),
        Err(pools) => Err(format!("{} pools are found", pools.len())),
    }
}
