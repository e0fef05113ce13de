//! The loaded keys of a pool.

use crate::keys::FoundKey;
use crate::{DatasetError, Directory};
use millpond_crypt::{CryptError, DatasetKey, WrappingKey};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{Guid, ObjectId};
use std::collections::HashMap;

/// The keys of a pool that were loaded so far. Keys are derived outside the lock.
#[derive(Default)]
pub struct KeyRing(Mutex<Keys, rank::Leaf>);

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
        write!(f, "KeyRing({} roots)", self.0.lock().wrapping.len())
    }
}

impl KeyRing {
    /// Loads the key of a directory's encryption root: a passphrase, hexadecimal digits or raw bytes, according
    /// to the root's key format. It unlocks all datasets that share the encryption root.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the key is wrong or the directory is not encrypted.
    pub fn load(&self, directory: &Arc<Directory>, user_key: &[u8]) -> Result<(), DatasetError> {
        let (root, wrapping, found, key) = Self::check(directory, user_key)?;
        self.insert(root.id(), wrapping);
        self.note(found.object, root.id(), &key);
        Ok(())
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
    ) -> Result<(Arc<Directory>, WrappingKey, FoundKey, Arc<DatasetKey>), DatasetError> {
        let wrapping = directory.wrapping_key(user_key)?;
        let root = root_of(directory)?;
        let found = root.found_key()?.ok_or_else(|| root.not_encrypted())?;
        // The key is right if it unwraps the root's own key object.
        let key = root.unlock(&wrapping)?;
        Ok((root, wrapping, found, key))
    }

    /// Whether the key of a directory's encryption root is loaded.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the directory is not encrypted.
    pub fn is_loaded(&self, directory: &Arc<Directory>) -> Result<bool, DatasetError> {
        let root = root_of(directory)?;
        Ok(self.0.lock().wrapping.contains_key(&root.id()))
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
        if self.0.lock().wrapping.is_empty() {
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
            let keys = self.0.lock();
            let known = keys.unwrapped.get(&found.object);
            if let Some(known) = known.filter(|known| known.guid == found.key.guid) {
                return Ok(Some(Arc::clone(&known.key)));
            }
            keys.wrapping.get(&root).cloned()
        };
        let Some(wrapping) = wrapping else {
            return Ok(None);
        };
        let key = Arc::new(DatasetKey::unwrap(&found.key, &wrapping)?);
        // If it was unloaded meanwhile, it stays unloaded.
        Ok(self.note(found.object, root, &key).then_some(key))
    }

    /// The wrapping key of an encryption root, if it is loaded.
    pub(crate) fn wrapping(&self, root: ObjectId) -> Option<WrappingKey> {
        self.0.lock().wrapping.get(&root).cloned()
    }

    pub(crate) fn insert(&self, root: ObjectId, wrapping: WrappingKey) {
        self.0.lock().wrapping.insert(root, wrapping);
    }

    /// Remembers an unwrapped key, if its root's key is loaded.
    pub(crate) fn note(&self, object: ObjectId, root: ObjectId, key: &Arc<DatasetKey>) -> bool {
        let mut keys = self.0.lock();
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
        let mut keys = self.0.lock();
        keys.unwrapped.retain(|_, unwrapped| unwrapped.root != root);
        keys.wrapping.remove(&root).is_some()
    }

    /// Forgets a wrapping key whose root inherits another one now.
    pub(crate) fn forget_wrapping(&self, root: ObjectId) {
        self.0.lock().wrapping.remove(&root);
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
