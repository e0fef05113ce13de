//! Raises pools as `zpool upgrade` of OpenZFS 2.3 does.

use millpond_engine::{FeatureChoice, Pool, PoolError};
use millpond_ondisk::PoolVersion;
use millpond_pool::features_of_new_pool;

/// Raises a pool, and enables the features that `zdb` of 2.3 knows if it can have features then.
///
/// # Errors
/// Those of the pool.
///
/// # Panics
/// If the features of new pools do not exist.
pub fn raise(pool: &Pool, to: PoolVersion) -> Result<(), PoolError> {
    pool.inner().raise(to)?;
    if to.has_features() {
        let features = features_of_new_pool(&FeatureChoice::Default, &[]);
        let names: Vec<String> = features
            .expect("the features of new pools")
            .iter()
            .map(|feature| feature.name().to_owned())
            .collect();
        pool.inner().upgrade(Some(&names))?;
        pool.features_changed();
    }
    Ok(())
}
