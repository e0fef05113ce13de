//! The loaded keys of a pool.

use crate::keys::FoundKey;
use crate::mos::MosView;
use crate::tasks::context::SyncTaskContext;
use crate::{DatasetError, Datasets, Directory};
use millpond_crypt::{CryptError, DatasetKey, WrappingKey};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, Weak};
use millpond_ondisk::{Guid, ObjectId};
use millpond_pool::PoolError;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The keys of a pool that were loaded so far. Keys are derived outside the lock.
#[derive(Default)]
pub struct KeyRing {
    keys: Mutex<Keys, rank::Leaf>,
    /// The datasets of a pool that is open for changes.
    changing: Weak<Datasets>,
    /// Whether the object sets lack objects ([`DatasetKey::for_cut_object_sets`]).
    is_of_cut: bool,
}

#[derive(Default)]
struct Keys {
    /// Wrapping keys by the directory of the encryption root.
    wrapping: HashMap<ObjectId, WrappingKey>,
    /// Unwrapped keys by key object. A changed wrapping key leaves them as they are.
    unwrapped: HashMap<ObjectId, Unwrapped>,
}

struct Unwrapped {
    /// Tells a key object from an earlier one with the same id.
    guid: Guid,
    root: ObjectId,
    key: Arc<DatasetKey>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyRing({} roots)", self.keys.lock().wrapping.len())
    }
}

impl KeyRing {
    /// The keys of a pool that is open for changes.
    pub(crate) fn of_changing(datasets: &Weak<Datasets>) -> Self {
        Self {
            keys: Mutex::default(),
            changing: datasets.clone(),
            is_of_cut: false,
        }
    }

    /// The keys of a pool whose encrypted object sets come from raw streams that were cut
    /// ([`DatasetKey::for_cut_object_sets`]). For reading only.
    #[must_use]
    pub fn of_cut_streams() -> Self {
        Self {
            is_of_cut: true,
            ..Self::default()
        }
    }

    fn unwrapped(
        &self,
        found: &FoundKey,
        wrapping: &WrappingKey,
    ) -> Result<Arc<DatasetKey>, CryptError> {
        let key = DatasetKey::unwrap(&found.key, wrapping)?;
        Ok(Arc::new(match self.is_of_cut {
            true => key.for_cut_object_sets(),
            false => key,
        }))
    }

    /// Loads the key of a directory's encryption root: a passphrase, hexadecimal digits or raw bytes, according
    /// to the root's key format. It unlocks all datasets that share the encryption root. Returns false if it was loaded
    /// already.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the key is wrong or the directory is not encrypted.
    pub fn load(&self, directory: &Arc<Directory>, user_key: &[u8]) -> Result<bool, DatasetError> {
        let (root, wrapping, found) = Self::check(directory, user_key)?;
        match self
            .changing
            .upgrade()
            .filter(|datasets| datasets.pool().is_ok())
        {
            Some(datasets) => datasets.put_loaded_key(&root, wrapping),
            None => {
                let key = self.unwrapped(&found, &wrapping);
                let key = key.map_err(|error| root.key_error(wrong(root.name(), &error)))?;
                Ok(self.insert_new(root.id(), wrapping, found.object, &key))
            }
        }
    }

    /// Adds the wrapping key of an encryption root with the root's own key. Returns false if it was loaded already.
    fn insert_new(
        &self,
        root: ObjectId,
        wrapping: WrappingKey,
        object: ObjectId,
        key: &Arc<DatasetKey>,
    ) -> bool {
        let is_new = match self.keys.lock().wrapping.entry(root) {
            Entry::Vacant(place) => {
                place.insert(wrapping);
                true
            }
            Entry::Occupied(_) => false,
        };
        if is_new {
            self.note(object, root, key);
        }
        is_new
    }

    /// Whether a key is that of a directory's encryption root. Nothing is loaded.
    ///
    /// # Errors
    /// As [`KeyRing::load`].
    pub fn verify(directory: &Arc<Directory>, user_key: &[u8]) -> Result<(), DatasetError> {
        Self::check(directory, user_key).map(|_| ())
    }

    fn check(
        directory: &Arc<Directory>,
        user_key: &[u8],
    ) -> Result<(Arc<Directory>, WrappingKey, FoundKey), DatasetError> {
        let wrapping = directory.wrapping_key(user_key)?;
        let root = root_of(directory)?;
        let found = root.found_key()?.ok_or_else(|| root.not_encrypted())?;
        // The key is right if it unwraps the root's own key object.
        root.unlock(&wrapping)?;
        Ok((root, wrapping, found))
    }

    /// Whether the key of a directory's encryption root is loaded.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the directory is not encrypted.
    pub fn is_loaded(&self, directory: &Arc<Directory>) -> Result<bool, DatasetError> {
        let root = root_of(directory)?;
        Ok(self.keys.lock().wrapping.contains_key(&root.id()))
    }

    /// Unloads the key of a directory's encryption root and the keys of the datasets that share it. Returns
    /// false if it was not loaded.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn unload(&self, directory: &Arc<Directory>) -> Result<bool, DatasetError> {
        match directory.encryption_root()? {
            Some(root) => Ok(self.forget(root.id())),
            None => Ok(false),
        }
    }

    /// The key of a directory if the key of its encryption root is loaded. `None` if it is not encrypted or is
    /// locked.
    ///
    /// # Errors
    /// If the directory cannot be read, or the key does not unwrap.
    pub fn key_of(
        &self,
        directory: &Arc<Directory>,
    ) -> Result<Option<Arc<DatasetKey>>, DatasetError> {
        if self.keys.lock().wrapping.is_empty() {
            return Ok(None);
        }
        let Some(found) = directory.found_key()? else {
            return Ok(None);
        };
        self.unwrap(&found)
            .map_err(|error| directory.key_error(wrong(directory.name(), &error)))
    }

    /// The unwrapped key of a key object; `None` if its root's key is not loaded.
    pub(crate) fn unwrap(&self, found: &FoundKey) -> Result<Option<Arc<DatasetKey>>, CryptError> {
        let root = found.key.root_directory;
        let wrapping = {
            let keys = self.keys.lock();
            let known = keys.unwrapped.get(&found.object);
            if let Some(known) = known.filter(|known| known.guid == found.key.guid) {
                return Ok(Some(Arc::clone(&known.key)));
            }
            keys.wrapping.get(&root).cloned()
        };
        let Some(wrapping) = wrapping else {
            return Ok(None);
        };
        let key = self.unwrapped(found, &wrapping)?;
        // If it was unloaded meanwhile, it stays unloaded.
        Ok(self.note(found.object, root, &key).then_some(key))
    }

    /// The wrapping key of an encryption root, if it is loaded.
    pub(crate) fn wrapping(&self, root: ObjectId) -> Option<WrappingKey> {
        self.keys.lock().wrapping.get(&root).cloned()
    }

    pub(crate) fn insert(&self, root: ObjectId, wrapping: WrappingKey) {
        self.keys.lock().wrapping.insert(root, wrapping);
    }

    /// Remembers an unwrapped key, if its root's key is loaded.
    pub(crate) fn note(&self, object: ObjectId, root: ObjectId, key: &Arc<DatasetKey>) -> bool {
        let mut keys = self.keys.lock();
        let is_loaded = keys.wrapping.contains_key(&root);
        if is_loaded {
            let unwrapped = Unwrapped {
                guid: key.guid(),
                root,
                key: Arc::clone(key),
            };
            keys.unwrapped.insert(object, unwrapped);
        }
        is_loaded
    }

    /// Forgets the key of an encryption root, and those that it unwrapped. Returns whether it was loaded.
    pub(crate) fn forget(&self, root: ObjectId) -> bool {
        let mut keys = self.keys.lock();
        keys.unwrapped.retain(|_, unwrapped| unwrapped.root != root);
        keys.wrapping.remove(&root).is_some()
    }

    /// Forgets a wrapping key whose root inherits another one now.
    pub(crate) fn forget_wrapping(&self, root: ObjectId) {
        self.keys.lock().wrapping.remove(&root);
    }
}

impl Datasets {
    /// Loads a wrapping key that was derived from an older state of the pool. Meanwhile, the key of the root may have
    /// changed, and what an older key wraps could not be opened again. So the state that counts decides, while no
    /// operation changes it.
    fn put_loaded_key(
        &self,
        root: &Directory,
        wrapping: WrappingKey,
    ) -> Result<bool, DatasetError> {
        let pool = self.pool()?;
        let view = MosView { pool: &pool };
        let _names = self.names.read();
        let found = match view.is_encryption_root(root.id())? {
            true => view.found_key(root.id())?,
            false => None,
        };
        let found = found.ok_or_else(|| {
            let name = root.name();
            root.key_error(format!(
                "'{name}' stopped being an encryption root while its key was loaded."
            ))
        })?;
        let key = DatasetKey::unwrap(&found.key, &wrapping)
            .map_err(|error| root.key_error(wrong(root.name(), &error)))?;
        let key = Arc::new(key);
        Ok((self.keys).insert_new(root.id(), wrapping, found.object, &key))
    }
}

impl SyncTaskContext<'_> {
    /// The loaded key of an encryption root. `None` also if it does not open the root's own key object: what it wraps could
    /// not be opened again.
    pub(crate) fn root_wrapping(&self, root: ObjectId) -> Result<Option<WrappingKey>, PoolError> {
        let Some(wrapping) = self.datasets.keys.wrapping(root) else {
            return Ok(None);
        };
        let own = self.found_key(root)?;
        let opens = own.is_some_and(|own| DatasetKey::unwrap(&own.key, &wrapping).is_ok());
        Ok(opens.then_some(wrapping))
    }
}

fn root_of(directory: &Arc<Directory>) -> Result<Arc<Directory>, DatasetError> {
    let root = directory.encryption_root()?;
    root.ok_or_else(|| directory.not_encrypted())
}

/// What is wrong with a key that does not unwrap.
pub(crate) fn wrong(name: &str, error: &CryptError) -> String {
    match error {
        CryptError::WrongKey => format!("Incorrect key provided for '{name}'."),
        other => other.to_string(),
    }
}
