//! The pool of a run.

use super::*;

/// The key of an encrypted root file system.
const KEY: &[u8] = b"0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";

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
    shape: &Shape,
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
    let mut new = NewPool {
        vdev_options: NewVdevOptions {
            ashift: Some(shape.ashift),
            force: true,
        },
        writing,
        system: "soak".to_owned(),
        cache_bytes: Some(cache_bytes),
        ..NewPool::new(POOL, NewVdevs::of(tops))
    };
    let mut properties = vec![];
    let mut key = None;
    if shape.is_encrypted {
        properties = vec![("encryption", "aes-256-gcm"), ("keyformat", "hex")];
        let derived = RootKey::derive(&world.env(), KeyFormat::Hex, "prompt", None, KEY);
        key = Some(derived.map_err(|error| failure_text("the key", &error))?);
    }
    if shape.is_deduplicated {
        properties.push(("dedup", "on"));
    }
    let properties = properties.into_iter();
    new.root_properties = properties
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Pool::create_with_key(&world.env(), &new, key).map_err(|error| failure_text("creation", &error))
}

/// Opens a pool for reading, with the key that [`create`] gave it.
///
/// # Errors
/// Those of the library.
pub fn view(
    shape: &Shape,
    candidate: &PoolCandidate,
    options: &OpenOptions,
) -> Result<View, millpond_engine::Error> {
    let view = View::open_candidate(candidate, options)?;
    if shape.is_encrypted {
        view.load_key(POOL, KEY)?;
    }
    Ok(view)
}

/// Opens a pool for writing, with the key that [`create`] gave it. All intent logs are replayed.
///
/// # Errors
/// Those of the library.
pub fn open(
    world: &World,
    shape: &Shape,
    candidate: &PoolCandidate,
    options: &OpenOptions,
    writing: &WriteOptions,
) -> Result<Pool, millpond_engine::Error> {
    let pool = Pool::open_candidate(&world.env(), candidate, options, writing)?;
    if !shape.is_encrypted {
        return Ok(pool);
    }
    let view = pool.committed()?;
    view.load_key(POOL, KEY)?;
    // Logs waited for the key. Opening a dataset replays its log.
    for dataset in view.datasets() {
        let dataset = dataset?;
        match dataset.has_files()? {
            true => pool.file_system(dataset.name()).map(drop)?,
            false => pool.volume(dataset.name()).map(drop)?,
        }
    }
    Ok(pool)
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
