//! Splits a pool.

use super::checks::open_to_write;
use millpond_control::{ChangeError, NewHalf as Asked, check_pool_name};
use millpond_device::Device;
use millpond_engine::{HalfError, NewHalf, Pool, PoolSetting, SettingTime, WriteOptions};
use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_ondisk::Guid;
use millpond_vdev::VdevConfig;
use std::time::Duration;

/// How long the old pool may take to close a device: requests that are under way end first.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Splits one side of each mirror off, and makes an exported pool of them.
pub(super) fn split(pool: &Pool, asked: &Asked) -> Result<(), ChangeError> {
    let check = check_pool_name(&asked.name);
    check.map_err(|why| ChangeError::PoolName(why.to_owned()))?;
    let settings = asked.properties.iter();
    let settings: Vec<PoolSetting> = settings
        .map(|(name, value)| PoolSetting::parse(name, value, SettingTime::Later))
        .collect::<Result<_, _>>()?;
    let config = pool.inner().config();
    let half = NewHalf {
        name: &asked.name,
        sides: asked.sides.iter().copied().map(Guid).collect(),
        settings: &settings,
        writing: WriteOptions {
            hostid: config.hostid,
            hostname: config.hostname,
            ..WriteOptions::default()
        },
    };
    pool.split(&half, &reopen).map_err(|error| match error {
        HalfError::Split(error) => error.into(),
        other => ChangeError::Failed(other.to_string()),
    })
}

/// Opens the device of a side for the new pool. That it can be locked proves that nothing of the old pool can write to it
/// any more.
fn reopen(leaf: &VdevConfig) -> Result<Arc<dyn Device>, String> {
    let path = leaf.path.clone().unwrap_or_default();
    let pause: Mutex<(), rank::Leaf> = Mutex::new(());
    let mut tries = PATIENCE.as_millis() / BETWEEN_TRIES.as_millis();
    loop {
        match open_to_write(&path) {
            Ok(found) => return Ok(found.device),
            Err(error) if tries == 0 => return Err(format!("{path}: {error:?}")),
            Err(_) => tries -= 1,
        }
        // Nobody notifies: it is the system that opens the device.
        Condvar::new().wait_for(&mut pause.lock(), BETWEEN_TRIES);
    }
}
