//! The vdevs that pools of each version can have.
//!
//! Page `docs/format/pool-versions.md`, "Devices".

use super::new_vdev::{DRAID, NewLayout, NewTop, NewVdevError, NewVdevs};
use millpond_ondisk::PoolVersion;
use millpond_vdev::AllocationClass;

/// What an older pool cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NewerDevices {
    /// RAID-Z with more parity. The words are those of OpenZFS, which has no others for it.
    #[error(
        "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs"
    )]
    Parity,
    /// Another kind of top-level vdev.
    #[error("pool must be upgraded to add these vdevs")]
    Vdevs,
    /// Hot spares.
    #[error("pool must be upgraded to add hot spares")]
    Spares,
    /// Cache devices.
    #[error("pool must be upgraded to add cache devices")]
    Caches,
}

/// Whether new vdevs have something, whether pools of a version can have that, and what it is.
type Limit = (fn(&NewVdevs) -> bool, fn(PoolVersion) -> bool, NewerDevices);

const LIMITS: [Limit; 6] = [
    (
        |new| has_layout(new, |layout| layout == NewLayout::Raidz(2)),
        PoolVersion::has_raidz2,
        NewerDevices::Parity,
    ),
    (
        |new| has_layout(new, |layout| layout == NewLayout::Raidz(3)),
        PoolVersion::has_raidz3,
        NewerDevices::Parity,
    ),
    (
        |new| has_class(new, |class| class == AllocationClass::Log),
        PoolVersion::has_log_devices,
        NewerDevices::Vdevs,
    ),
    (
        |new| {
            let is_later =
                |class| matches!(class, AllocationClass::Special | AllocationClass::Dedup);
            has_class(new, is_later)
                || has_layout(new, |layout| matches!(layout, NewLayout::Draid(_)))
        },
        PoolVersion::has_features,
        NewerDevices::Vdevs,
    ),
    (
        |new| !new.spares.is_empty(),
        PoolVersion::has_spares,
        NewerDevices::Spares,
    ),
    (
        |new| !new.caches.is_empty(),
        PoolVersion::has_cache_devices,
        NewerDevices::Caches,
    ),
];

fn has_layout(new: &NewVdevs, is_meant: impl Fn(NewLayout) -> bool) -> bool {
    new.tops.iter().any(|top| is_meant(top.layout))
}

fn has_class(new: &NewVdevs, is_meant: impl Fn(AllocationClass) -> bool) -> bool {
    new.tops.iter().any(|top| is_meant(top.class))
}

impl NewVdevs {
    /// Checks that a pool of this version can have the vdevs.
    pub(crate) fn check_version(&self, version: PoolVersion) -> Result<(), NewVdevError> {
        let refused = LIMITS
            .iter()
            .find(|(is_there, may_be, _)| is_there(self) && !may_be(version));
        match refused {
            Some((_, _, what)) => Err(NewVdevError::NeedsVersion(*what)),
            None => Ok(()),
        }
    }

    /// Checks that the pool has the features that the vdevs need.
    pub(crate) fn check_features(
        &self,
        is_enabled: impl Fn(&str) -> bool,
    ) -> Result<(), NewVdevError> {
        let is_draid = |top: &NewTop| matches!(top.layout, NewLayout::Draid(_));
        match self.tops.iter().any(is_draid) && !is_enabled(DRAID) {
            true => Err(NewVdevError::DraidDisabled),
            false => Ok(()),
        }
    }
}
