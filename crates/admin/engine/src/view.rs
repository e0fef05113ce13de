//! An open pool and the keys of its encrypted datasets.

use crate::{Dataset, Error, Search};
use millpond_check::{CheckOptions, CheckReport, Finding, Progress, check_with_keys};
use millpond_dataset::{DatasetKey, Directory, KeyRing};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_pool::import::{ImportCondition, PoolCandidate, PoolState};
use millpond_pool::{OpenError, OpenOptions};
use millpond_verify::{Problem, VerifyReport, verify_pool};

/// A pool opened for reading. Cheap to clone; dropping the last handle closes the pool.
#[derive(Debug, Clone)]
pub struct View {
    inner: Arc<millpond_pool::PoolView>,
    keys: Arc<KeyRing>,
    is_live: bool,
}

impl View {
    /// Finds a pool by name or guid and opens it for reading. Nothing is written.
    ///
    /// A destroyed pool is found only by its guid.
    ///
    /// # Errors
    /// If no pool or more than one matches, or the pool cannot be opened.
    pub fn open(search: &Search, name: &str, options: &OpenOptions) -> Result<Self, Error> {
        Self::open_candidate(&Self::find(search, name)?, options)
    }

    /// Finds a pool by name or guid for reading; it may be in use.
    ///
    /// # Errors
    /// If no pool or more than one matches.
    pub fn find(search: &Search, name: &str) -> Result<PoolCandidate, Error> {
        Ok(choose(&search.pools(), name)?.clone())
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
            is_live: is_in_use(candidate),
        })
    }

    /// The same of a pool that raw streams were received into that were cut ([`KeyRing::of_cut_streams`]).
    #[must_use]
    pub fn of_cut_streams(self) -> Self {
        Self {
            keys: Arc::new(KeyRing::of_cut_streams()),
            ..self
        }
    }

    /// The committed state of a pool that is open for writing.
    pub(crate) fn of_live(inner: Arc<millpond_pool::PoolView>, keys: Arc<KeyRing>) -> Self {
        Self {
            inner,
            keys,
            is_live: true,
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

    /// The bytes that its datasets use.
    ///
    /// # Errors
    /// If the root directory cannot be read.
    pub fn used_bytes(&self) -> Result<u64, Error> {
        Ok(Directory::root(&self.inner)?.phys().used_bytes)
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
    /// datasets that share the encryption root. Returns false if it was loaded already.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the key is wrong, also if it was changed after the view was taken.
    pub fn load_key(&self, dataset: &str, key: &[u8]) -> Result<bool, Error> {
        let dataset = millpond_dataset::Dataset::find(&self.inner, dataset)?;
        Ok(self.keys.load(dataset.directory(), key)?)
    }

    /// Whether a key is that of a dataset's encryption root. Nothing is loaded.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the key is wrong.
    pub fn verify_key(&self, dataset: &str, key: &[u8]) -> Result<(), Error> {
        let dataset = millpond_dataset::Dataset::find(&self.inner, dataset)?;
        Ok(KeyRing::verify(dataset.directory(), key)?)
    }

    /// The name of a dataset's encryption root; `None` if it is not encrypted.
    ///
    /// # Errors
    /// If the dataset does not exist or cannot be read.
    pub fn encryption_root(&self, dataset: &str) -> Result<Option<String>, Error> {
        let dataset = millpond_dataset::Dataset::find(&self.inner, dataset)?;
        let root = dataset.directory().encryption_root()?;
        Ok(root.map(|root| root.name().to_owned()))
    }

    /// Whether the key of a dataset's encryption root is loaded.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the dataset is not encrypted; if it does not exist or cannot be read.
    pub fn has_key(&self, dataset: &str) -> Result<bool, Error> {
        let found = millpond_dataset::Dataset::find(&self.inner, dataset)?;
        Ok(self.keys.is_loaded(found.directory())?)
    }

    /// Unloads the key of an encryption root and the keys of the datasets that share it. Returns false if it
    /// was not loaded.
    ///
    /// # Errors
    /// If the dataset does not exist or cannot be read.
    pub fn unload_key(&self, dataset: &str) -> Result<bool, Error> {
        let dataset = millpond_dataset::Dataset::find(&self.inner, dataset)?;
        Ok(self.keys.unload(dataset.directory())?)
    }

    /// Makes this view of a pool that is open for changes read from the disks that the pool has, as they change. For
    /// views of snapshots that stay open; see [`BlockStore::follow_leaves`](millpond_block::BlockStore::follow_leaves).
    pub(crate) fn follow_leaves(&self) {
        self.inner().store().follow_leaves();
    }

    /// The key of a dataset's directory if the key of its encryption root is loaded. `None` if the dataset is
    /// not encrypted or is locked.
    pub fn key_of(&self, directory: &Arc<Directory>) -> Result<Option<Arc<DatasetKey>>, Error> {
        Ok(self.keys.key_of(directory)?)
    }

    /// Checks all metadata; see [`check_with_keys`].
    ///
    /// # Errors
    /// If the pool's root directory cannot be read: then nothing can be checked.
    /// [`PoolError::ViewExpired`](millpond_pool::PoolError::ViewExpired): it ends then, and passes nothing more
    /// to `on_finding`.
    pub fn check(
        &self,
        options: &CheckOptions,
        progress: &Progress,
        on_finding: &(dyn Fn(&Finding) + Sync),
    ) -> Result<CheckReport, Error> {
        let (pool, keys) = (&self.inner, &self.keys);
        let on_finding = |finding: &Finding| {
            if pool.check_not_expired().is_ok() {
                on_finding(finding);
            }
        };
        let report = check_with_keys(pool, keys, options, progress, &on_finding)?;
        pool.check_not_expired()?;
        Ok(report)
    }

    /// Reads and verifies every copy of all blocks; see [`verify_pool`].
    ///
    /// # Errors
    /// [`PoolError::ViewExpired`](millpond_pool::PoolError::ViewExpired): it ends then, and passes nothing more
    /// to `on_problem`. What cannot be read is part of the report.
    pub fn verify(
        &self,
        progress: &Progress,
        on_problem: &(dyn Fn(&Problem) + Sync),
    ) -> Result<VerifyReport, Error> {
        let (pool, keys) = (&self.inner, &self.keys);
        let on_problem = |problem: &Problem| {
            if pool.check_not_expired().is_ok() {
                on_problem(problem);
            }
        };
        let report = verify_pool(pool, keys, progress, &on_problem);
        pool.check_not_expired()?;
        Ok(report)
    }
}

/// Whether another process had a device of the pool open for writing when the pool was found.
#[must_use]
pub fn is_in_use(candidate: &PoolCandidate) -> bool {
    let mut conditions = candidate.conditions.iter();
    conditions.any(|condition| matches!(condition, ImportCondition::DeviceInUse { .. }))
}

/// Iterator over the file systems and volumes of a pool; see [`View::datasets`].
#[derive(Debug)]
pub struct DatasetIter {
    pool: View,
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
