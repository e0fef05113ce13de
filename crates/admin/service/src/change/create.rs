//! Requests for new pools: their features and their plan.

use super::apply::compatible_features;
use super::keys::root_key;
use super::set::set_owner_quotas;
use crate::host::HostId;
use millpond_control::{ChangeError, NewPoolRequest, Value, Values};
use millpond_engine::{
    FeatureChoice, Pool, PoolBuilder, PoolSetting, PropertyValue, Refusal, SettingTime,
    WriteOptions,
};
use millpond_env::Env;

/// Limits of the root file system. They are set when the pool is there: only then is known what it uses and has.
const LIMITS: [&str; 4] = ["quota", "refquota", "reservation", "refreservation"];

/// The features of a new pool, or an error if one of the requested properties is not valid.
pub(crate) fn features_of(
    request: &NewPoolRequest,
    host: HostId,
) -> Result<FeatureChoice, ChangeError> {
    let mut features = request.features.clone();
    for (name, value) in &request.properties {
        host.refuse_multihost(name, value)?;
        PoolSetting::parse(name, value, SettingTime::Creation)?;
        if name == "compatibility" && features == FeatureChoice::Default {
            features = compatible_features(value)?;
        }
    }
    Ok(features)
}

/// Converts a checked request into a plan.
pub(crate) fn plan(
    request: &NewPoolRequest,
    features: FeatureChoice,
    writing: WriteOptions,
) -> Result<PoolBuilder, ChangeError> {
    // The checks have already refused devices in use and mixed layouts, so the plan forces both.
    let name = request.temporary_name.as_ref().unwrap_or(&request.name);
    let mut plan = PoolBuilder::new(name).force().writing(writing);
    plan = plan.features(features);
    if let Some(ashift) = request.devices.ashift {
        plan = plan.ashift(ashift);
    }
    for top in &request.devices.tops {
        plan = plan.top(top.class, top.layout, &top.paths);
    }
    for spare in &request.devices.spares {
        plan = plan.spare(spare);
    }
    for cache in &request.devices.caches {
        plan = plan.cache(cache);
    }
    for (name, value) in &request.properties {
        plan = plan.property(name, value);
    }
    for (name, value) in &request.root_properties {
        if !LIMITS.contains(&name.as_str()) {
            plan = plan.root_property(name, value);
        }
    }
    let pairs = request.root_properties.iter();
    let properties: Values = pairs
        .map(|(name, value)| (name.clone(), Value::Text(value.clone())))
        .collect();
    if let Some(key) = root_key(&Env::real(), &properties, request.root_key.as_ref())? {
        plan = plan.root_key(key);
    }
    Ok(plan)
}

/// Sets the limits of the root file system of a pool that was just made, and the quotas of owners in it. If that
/// fails, there is no pool.
pub(crate) fn set_root_quotas(pool: &Pool, request: &NewPoolRequest) -> Result<(), ChangeError> {
    let name = request.temporary_name.as_ref().unwrap_or(&request.name);
    let set = set_root_limits(pool, name, request);
    let set = set.and_then(|()| set_owner_quotas(pool, name, &request.root_quotas));
    if set.is_err() {
        // The first error is the one to report.
        let _ = pool.inner().destroy();
    }
    set
}

fn set_root_limits(pool: &Pool, name: &str, request: &NewPoolRequest) -> Result<(), ChangeError> {
    for limit in LIMITS {
        let mut given = request.root_properties.iter();
        let Some((property, value)) = given.find(|(name, _)| name == limit) else {
            continue;
        };
        let change = (property.clone(), PropertyValue::Text(value.clone()));
        let set = pool.datasets().set_properties(name, &[change]);
        set.map_err(|error| match error.into() {
            ChangeError::Refused {
                why: Refusal::BelowUse | Refusal::AboveAvailable,
                ..
            } => ChangeError::Failed("one or more devices is out of space".to_owned()),
            other => other,
        })?;
    }
    Ok(())
}
