//! An open pool and the keys of its encrypted datasets.

use crate::{Dataset, Error, Search};
use millpond_dataset::{DatasetError, DatasetKey, Directory, WrappingKey};
use millpond_env::Env;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::ObjectId;
use millpond_pool::import::{ImportCondition, PoolCandidate, PoolState};
use millpond_pool::{OpenError, OpenOptions};
use std::collections::HashMap;

/// A pool opened for reading. Cheap to clone; dropping the last handle closes the pool.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<millpond_pool::PoolView>,
    keys: Arc<KeyRing>,
    is_live: bool,
}

/// The keys loaded so far. A lock is held only for a single look-up; keys are derived outside the locks.
#[derive(Default)]
pub(crate) struct KeyRing {
    /// Wrapping keys by the directory of the encryption root.
    wrapping: Mutex<HashMap<ObjectId, WrappingKey>>,
    /// Derived keys by directory.
    datasets: Mutex<HashMap<ObjectId, Arc<DatasetKey>>>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyRing({} roots)", self.wrapping.lock().len())
    }
}

impl Pool {
    /// Finds a pool by name or guid and opens it for reading. Nothing is written.
    ///
    /// A destroyed pool is found only by its guid.
    ///
    /// # Errors
    /// If no pool or more than one matches, or the pool cannot be opened.
    pub fn open(search: &Search, name: &str, options: &OpenOptions) -> Result<Self, Error> {
        let candidates = search.pools();
        Self::open_candidate(choose(&candidates, name)?, options)
    }

    /// Opens a pool that a search found.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open_candidate(candidate: &PoolCandidate, options: &OpenOptions) -> Result<Self, Error> {
        let opened = millpond_pool::PoolView::open(&Env::real(), candidate, options);
        let inner = opened.map_err(|error: OpenError| Error::Open {
            name: candidate.name.clone(),
            error: Box::new(error),
        })?;
        Ok(Self {
            inner,
            keys: Arc::new(KeyRing::default()),
            is_live: candidate
                .conditions
                .iter()
                .any(|condition| matches!(condition, ImportCondition::DeviceInUse { .. })),
        })
    }

    /// The committed state of a pool that is open for writing.
    pub(crate) fn of_live(inner: Arc<millpond_pool::PoolView>, keys: Arc<KeyRing>) -> Self {
        Self {
            inner,
            keys,
            is_live: true,
        }
    }

    /// Wraps a pool that was opened by a lower crate. No keys are loaded.
    pub(crate) fn of_inner(inner: Arc<millpond_pool::PoolView>) -> Self {
        Self {
            inner,
            keys: Arc::default(),
            is_live: false,
        }
    }

    /// The pool without its files: configuration, features, history, statistics.
    #[must_use]
    pub fn inner(&self) -> &Arc<millpond_pool::PoolView> {
        &self.inner
    }
    /// Whether another process had one of its devices open for writing when the pool was found. If so, the
    /// content may change during a read, and blocks may already be freed.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.is_live
    }
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// The file system or volume that carries the pool's name.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn root(&self) -> Result<Dataset, Error> {
        self.dataset(self.name())
    }
    /// A file system, volume or snapshot by its full name.
    ///
    /// # Errors
    /// If no dataset has this name or it cannot be read.
    pub fn dataset(&self, name: &str) -> Result<Dataset, Error> {
        let dataset = millpond_dataset::Dataset::find(&self.inner, name)?;
        Ok(Dataset::new(self.clone(), dataset))
    }
    /// A dataset by its object id in the MOS.
    ///
    /// # Errors
    /// If there is no such dataset or it cannot be read.
    pub fn dataset_by_id(&self, id: ObjectId) -> Result<Dataset, Error> {
        let dataset = millpond_dataset::Dataset::by_id(&self.inner, id)?;
        Ok(Dataset::new(self.clone(), dataset))
    }

    /// Iterates over all file systems and volumes, parents before children, in byte order of their names. A
    /// directory that cannot be read yields an error, and the iteration continues.
    #[must_use]
    pub fn datasets(&self) -> DatasetIter {
        let root = Directory::root(&self.inner).map_err(Error::from);
        DatasetIter {
            pool: self.clone(),
            stack: vec![root],
        }
    }

    /// Loads the key of an encryption root, named by itself or by any dataset below it. The key is a
    /// passphrase, hexadecimal digits or raw bytes, according to the root's key format. It unlocks all
    /// datasets that share the encryption root.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the key is wrong.
    pub fn load_key(&self, dataset: &str, key: &[u8]) -> Result<(), Error> {
        let dataset = millpond_dataset::Dataset::find(&self.inner, dataset)?;
        let directory = dataset.directory();
        let wrapping = directory.wrapping_key(key)?;
        let Some(root) = directory.encryption_root()? else {
            let reason = format!("'{}' is not encrypted.", directory.name());
            return Err(DatasetError::Key {
                name: directory.name().to_owned(),
                reason,
            }
            .into());
        };
        // The key is right if it unwraps the root's own key object.
        let unlocked = root.unlock(&wrapping)?;
        self.keys.wrapping.lock().insert(root.id(), wrapping);
        self.keys.datasets.lock().insert(root.id(), unlocked);
        Ok(())
    }

    /// Whether the key of a dataset's encryption root is loaded.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the dataset is not encrypted; if it does not exist or cannot be read.
    pub fn has_key(&self, dataset: &str) -> Result<bool, Error> {
        let found = millpond_dataset::Dataset::find(&self.inner, dataset)?;
        let Some(root) = found.directory().encryption_root()? else {
            let reason = format!("'{dataset}' is not encrypted.");
            return Err(DatasetError::Key {
                name: dataset.to_owned(),
                reason,
            }
            .into());
        };
        Ok(self.keys.wrapping.lock().contains_key(&root.id()))
    }

    /// Unloads the key of an encryption root and the keys of the datasets that share it. Returns false if it
    /// was not loaded.
    ///
    /// # Errors
    /// If the dataset does not exist or cannot be read.
    pub fn unload_key(&self, dataset: &str) -> Result<bool, Error> {
        let dataset = millpond_dataset::Dataset::find(&self.inner, dataset)?;
        let Some(root) = dataset.directory().encryption_root()? else {
            return Ok(false);
        };
        let was_known = self.keys.wrapping.lock().remove(&root.id()).is_some();
        // Dataset keys of the other roots are derived again when they are needed.
        self.keys.datasets.lock().clear();
        Ok(was_known)
    }

    /// The key of a dataset's directory if the key of its encryption root is loaded. `None` if the dataset is
    /// not encrypted or is locked.
    pub(crate) fn key_of(
        &self,
        directory: &Arc<Directory>,
    ) -> Result<Option<Arc<DatasetKey>>, Error> {
        if let Some(key) = self.keys.datasets.lock().get(&directory.id()) {
            return Ok(Some(Arc::clone(key)));
        }
        if self.keys.wrapping.lock().is_empty() {
            return Ok(None);
        }
        let Some(crypt) = directory.crypt_key()? else {
            return Ok(None);
        };
        let wrapping = self
            .keys
            .wrapping
            .lock()
            .get(&crypt.root_directory)
            .cloned();
        let Some(wrapping) = wrapping else {
            return Ok(None);
        };
        let key = directory.unlock(&wrapping)?;
        self.keys
            .datasets
            .lock()
            .insert(directory.id(), Arc::clone(&key));
        Ok(Some(key))
    }
}

/// Iterator over the file systems and volumes of a pool; see [`Pool::datasets`].
#[derive(Debug)]
pub struct DatasetIter {
    pool: Pool,
    stack: Vec<Result<Arc<Directory>, Error>>,
}

impl Iterator for DatasetIter {
    type Item = Result<Dataset, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let directory = match self.stack.pop()? {
                Ok(directory) => directory,
                Err(error) => return Some(Err(error)),
            };
            match directory.children() {
                Ok(children) => self.stack.extend(children.into_iter().rev().map(Ok)),
                Err(error) => self.stack.push(Err(error.into())),
            }
            match directory.head() {
                Ok(Some(head)) => return Some(Ok(Dataset::new(self.pool.clone(), head))),
                Ok(None) => {}
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}

/// Selects the pool with a name or guid. A destroyed pool is found only by its guid.
pub(crate) fn choose<'c>(
    candidates: &'c [PoolCandidate],
    name: &str,
) -> Result<&'c PoolCandidate, Error> {
    let guid = name.parse::<u64>().ok();
    let mut found: Vec<&PoolCandidate> = candidates
        .iter()
        .filter(|pool| pool.name == name && pool.state != PoolState::Destroyed)
        .collect();
    if found.is_empty() {
        found = candidates
            .iter()
            .filter(|pool| Some(pool.guid.0) == guid)
            .collect();
    }
    match found.as_slice() {
        [] => Err(Error::NoSuchPool {
            name: name.to_owned(),
        }),
        [candidate] => Ok(candidate),
        several => Err(Error::AmbiguousPool {
            name: name.to_owned(),
            guids: several.iter().map(|pool| pool.guid.0).collect(),
        }),
    }
}
