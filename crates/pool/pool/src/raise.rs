//! Raises the version of a pool.
//!
//! One txg changes the version in its uberblock and all objects that the new version has in another form, so
//! that a crash leaves the old pool or the new one.
//!
//! Page `docs/format/pool-versions.md`, "Raising".

use crate::PoolError;
use crate::error::Reading;
use crate::history::append::{HistoryEvent, pool_event_text};
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_checksum::Salt;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::PoolVersion;
use millpond_ondisk::pool_directory::{self, key};
use millpond_ondisk::zap::ZapValue;
use millpond_vdev::VdevType;

impl Pool {
    /// Raises the pool to a version, and returns when it is on stable storage. A pool that has it already
    /// does not change.
    ///
    /// Features are enabled by [`Pool::upgrade`] afterwards.
    ///
    /// # Errors
    /// [`PoolError::Unsupported`] for an unknown version or one below the pool's; as [`Pool::sync_task`].
    pub fn raise(&self, to: PoolVersion) -> Result<(), PoolError> {
        if !self.check_raise(to)? {
            return Ok(());
        }
        self.sync_task(|ctx| {
            ctx.raise(to)?;
            let text = pool_event_text(to.0, &self.system);
            ctx.history(&HistoryEvent::of_pool("upgrade", text))
        })
    }

    /// Whether the version is above the pool's.
    ///
    /// # Errors
    /// [`PoolError::Unsupported`] for an unknown version or one below the pool's.
    pub(crate) fn check_raise(&self, to: PoolVersion) -> Result<bool, PoolError> {
        let from = PoolVersion(self.version());
        match to.is_known() && to >= from {
            true => Ok(to > from),
            false => Err(PoolError::Unsupported {
                what: "raising the pool to this version",
            }),
        }
    }
}

impl SyncContext<'_> {
    /// Raises the pool in the txg being written, unless it has that version already.
    ///
    /// # Errors
    /// If the MOS cannot be read or changed.
    pub(crate) fn raise(&self, to: PoolVersion) -> Result<(), PoolError> {
        let from = PoolVersion(self.pool.version());
        if !to.is_known() || to <= from {
            return Ok(());
        }
        self.pool.state.write().config.version = to.0;
        self.mark_config_dirty();
        if to.has_deflation() && !from.has_deflation() {
            self.begin_deflation()?;
        }
        self.pool.port.raise(self, from)?;
        if to.has_features() {
            self.make_feature_tables()?;
            self.make_salt()?;
        }
        self.refresh_forms();
        self.pool.port.feature_enabled(self)?;
        self.history(&HistoryEvent::of_pool("set", format!("version={}", to.0)))
    }

    /// What version 3 changes of the vdevs: RAID-Z vdevs name their parity, and space is accounted for
    /// without it. A pool that has such vdevs already keeps its way of accounting.
    fn begin_deflation(&self) -> Result<(), PoolError> {
        let mut has_raidz = false;
        {
            let mut state = self.pool.state.write();
            for top in &mut state.config.root.children {
                if top.kind == VdevType::Raidz {
                    has_raidz = true;
                    top.nparity.get_or_insert(1);
                }
            }
            state.is_topology_stale = true;
        }
        if has_raidz {
            return Ok(());
        }
        self.pool.is_deflated.store(true, Ordering::Relaxed);
        self.set_directory_number(key::DEFLATE, 1)
    }

    /// Creates the salt of checksum functions that have one, if there is none.
    fn make_salt(&self) -> Result<(), PoolError> {
        const WHAT: &str = "checksum salt";
        let directory = self.table(pool_directory::OBJECT_DIRECTORY)?;
        let name = key::CHECKSUM_SALT.as_bytes();
        if directory.lookup(name).reading(WHAT)?.is_some() {
            return Ok(());
        }
        let mut salt = [0; 32];
        self.pool.env().entropy.fill(&mut salt);
        directory
            .update(name, &ZapValue::from_bytes(&salt))
            .reading(WHAT)?;
        self.pool.store.set_salt(Salt(salt));
        Ok(())
    }
}
