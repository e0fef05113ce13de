//! Splits a pool.

use millpond_control::{ChangeError, NewHalf as Asked, check_pool_name};
use millpond_engine::{
    HalfError, NewHalf, Pool, PoolSetting, SettingError, SettingTime, WriteOptions,
};
use millpond_ondisk::Guid;

/// Splits one side of each mirror off, and makes an exported pool of them.
pub(super) fn split(pool: &Pool, asked: &Asked) -> Result<(), ChangeError> {
    let check = check_pool_name(&asked.name);
    check.map_err(|why| ChangeError::PoolName(why.to_owned()))?;
    let settings = asked.properties.iter();
    let settings: Vec<PoolSetting> = settings
        .map(|(name, value)| PoolSetting::parse(name, value, SettingTime::Later))
        .collect::<Result<_, _>>()?;
    let config = pool.inner().config();
    let is_multihost = |(name, value): &(String, String)| name == "multihost" && value == "on";
    if config.hostid == 0 && asked.properties.iter().any(is_multihost) {
        return Err(SettingError::NeedsHostid.into());
    }
    let half = NewHalf {
        name: &asked.name,
        sides: asked.sides.iter().copied().map(Guid).collect(),
        settings: &settings,
        writing: WriteOptions {
            hostid: config.hostid,
            is_hostid_set: config.hostid != 0,
            hostname: config.hostname,
            ..WriteOptions::default()
        },
    };
    pool.split(&half).map_err(|error| match error {
        HalfError::Split(error) => error.into(),
        other => ChangeError::Failed(other.to_string()),
    })
}
