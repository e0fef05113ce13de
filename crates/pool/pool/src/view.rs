//! A committed state of a pool.

use crate::import::Assembly;
use crate::object_directory::ObjectDirectory;
use crate::pins::TxgPin;
use crate::{Features, PoolError, PoolSpace};
use millpond_block::BlockStore;
use millpond_env::Env;
use millpond_env::sync::{Arc, OnceLock};
use millpond_nvlist::NvList;
use millpond_object::{CachingCells, ObjectSetView};
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{Guid, ObjectId, Uberblock};

/// A pool opened for reading: the MOS as of one uberblock. It does not change while it is open.
pub struct PoolView {
    pub(crate) env: Env,
    pub(crate) name: String,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) mos: Arc<ObjectSetView>,
    pub(crate) directory: ObjectDirectory,
    pub(crate) config: NvList,
    pub(crate) uberblock: Uberblock,
    pub(crate) features: Features,
    pub(crate) assembly: Assembly,
    pub(crate) spares: Vec<NvList>,
    pub(crate) caches: Vec<NvList>,
    pub(crate) load_guid: u64,
    /// Keeps the state's blocks from being reused. `None` if this process does not write the pool.
    pub(crate) pin: Option<TxgPin>,
    pub(crate) space: OnceLock<Result<Arc<PoolSpace>, PoolError>>,
    /// Of the pool that is open for changes, if there is one.
    pub(crate) caching_cells: Arc<CachingCells>,
}

impl std::fmt::Debug for PoolView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolView")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Drop for PoolView {
    fn drop(&mut self) {
        // Wait for prefetch requests, so that the next caller to open the devices does not find them in
        // use.
        self.store.cancel_prefetch();
    }
}

impl PoolView {
    /// Checks that blocks of this state were not reused since it was opened. An error that was met while
    /// reading is only then one of the pool.
    ///
    /// # Errors
    /// [`PoolError::ViewExpired`].
    pub fn check_not_expired(&self) -> Result<(), PoolError> {
        match self.pin.as_ref().is_some_and(TxgPin::has_expired) {
            true => Err(PoolError::ViewExpired {
                txg: self.uberblock.txg,
            }),
            false => Ok(()),
        }
    }
    /// The name the pool was opened under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The pool's guid.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.store.topology().tree.pool_guid()
    }
    /// The pool's version: 1 to 28, or 5000 with feature flags.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.uberblock.version
    }
    /// The uberblock that the pool was opened at.
    #[must_use]
    pub fn uberblock(&self) -> &Uberblock {
        &self.uberblock
    }
    /// The trusted configuration, as stored in the MOS.
    #[must_use]
    pub fn config(&self) -> &NvList {
        &self.config
    }
    /// The pool's feature flags.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.features
    }
    /// The vdevs of the trusted configuration, with the state and device of each.
    #[must_use]
    pub fn assembly(&self) -> &Assembly {
        &self.assembly
    }
    /// The configurations of the pool's hot spares.
    #[must_use]
    pub fn spares(&self) -> &[NvList] {
        &self.spares
    }
    /// The configurations of the pool's cache devices.
    #[must_use]
    pub fn caches(&self) -> &[NvList] {
        &self.caches
    }
    /// The meta object set.
    #[must_use]
    pub fn mos(&self) -> &Arc<ObjectSetView> {
        &self.mos
    }
    /// The store that the pool's blocks are read from.
    #[must_use]
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }
    /// What the cache keeps of the datasets that are open for reading.
    #[must_use]
    pub fn caching_cells(&self) -> &Arc<CachingCells> {
        &self.caching_cells
    }
    /// The pool's clock and randomness.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Looks up an entry of the object directory.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn directory_value(&self, key: &str) -> Result<Option<ZapValue>, PoolError> {
        self.directory.value(key)
    }
    /// The names of all entries of the object directory, in hash order.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn directory_names(&self) -> Result<Vec<String>, PoolError> {
        self.directory.names()
    }
    /// Looks up an entry of the object directory that holds a single number.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn directory_number(&self, key: &str) -> Result<Option<u64>, PoolError> {
        self.directory.number(key)
    }
    /// Looks up an entry of the object directory that names an object; `None` if it is absent or 0.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn find_directory_object(&self, key: &str) -> Result<Option<ObjectId>, PoolError> {
        self.directory.find_object(key)
    }
    /// Like [`PoolView::find_directory_object`], for entries that every pool has.
    ///
    /// # Errors
    /// [`PoolError::NoEntry`] if the entry is absent, or an error if the directory cannot be read.
    pub fn directory_object(&self, key: &str) -> Result<ObjectId, PoolError> {
        self.directory.object(key)
    }
}
