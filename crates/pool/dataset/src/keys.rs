//! Keys of encrypted datasets: where they are stored, and how to unlock them.
//!
//! Page `docs/format/encryption.md`.

use crate::error::Named;
use crate::{Dataset, DatasetError, Directory};
use millpond_crypt::{CryptError, CryptKey, DatasetKey, WrappingKey};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::dsl::keys::CRYPTO_KEY_OBJECT;
use millpond_ondisk::{CryptKeyValue, ObjectId};
use millpond_zap::Zap;
use std::collections::HashMap;

impl Directory {
    /// Reads the wrapped keys of an encrypted dataset; `None` if it is not encrypted.
    ///
    /// # Errors
    /// If the key object cannot be read or is invalid.
    pub fn crypt_key(&self) -> Result<Option<CryptKey>, DatasetError> {
        let name = self.name();
        let Some(id) = self
            .extension(CRYPTO_KEY_OBJECT)?
            .and_then(|words| words.first().copied())
        else {
            return Ok(None);
        };
        let object = self.pool().mos().object(ObjectId(id)).named(name)?;
        let zap = Zap::open(object).named(name)?;
        let mut entries = vec![];
        for entry in zap.iter() {
            let entry = entry.named(name)?;
            let value = match (entry.value.integer_bytes, entry.value.first()) {
                (1, _) => CryptKeyValue::Bytes(entry.value.bytes.clone()),
                (_, Some(number)) => CryptKeyValue::Number(number),
                (_, None) => continue,
            };
            entries.push((String::from_utf8_lossy(&entry.name).into_owned(), value));
        }
        let find = |wanted: &str| {
            entries
                .iter()
                .find(|(key, _)| key == wanted)
                .map(|(_, value)| value.clone())
        };
        CryptKey::decode(find).named(name).map(Some)
    }

    /// The directory whose key wraps this directory's key: itself, an ancestor, or (after a promotion) a
    /// sibling.
    ///
    /// # Errors
    /// If the directory or its key cannot be read.
    pub fn encryption_root(self: &Arc<Self>) -> Result<Option<Arc<Directory>>, DatasetError> {
        let Some(key) = self.crypt_key()? else {
            return Ok(None);
        };
        let mut at = Some(self);
        while let Some(directory) = at {
            if directory.id() == key.root_directory {
                return Ok(Some(Arc::clone(directory)));
            }
            at = directory.parent();
        }
        Self::by_id(self.pool(), key.root_directory).map(Some)
    }

    /// Derives the wrapping key from a user's key: a passphrase, hexadecimal digits or raw bytes.
    ///
    /// Uses the format, salt and iteration count of the encryption root. By design, deriving it from a
    /// passphrase takes some tenths of a second.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the key does not match the format or the dataset is not encrypted.
    pub fn wrapping_key(self: &Arc<Self>, user_key: &[u8]) -> Result<WrappingKey, DatasetError> {
        let root = self.encryption_root()?;
        let key = match &root {
            Some(root) => root.crypt_key()?,
            None => None,
        };
        let Some(key) = key else {
            return Err(self.key_error(format!("'{}' is not encrypted.", self.name())));
        };
        WrappingKey::from_user_key(
            key.key_format,
            user_key,
            key.pbkdf2_salt,
            key.pbkdf2_iterations,
        )
        .map_err(|error| self.key_error(error.to_string()))
    }

    /// Unwraps the dataset's own key with its encryption root's wrapping key.
    ///
    /// # Errors
    /// [`DatasetError::Key`] if the wrapping key is wrong.
    pub fn unlock(&self, wrapping: &WrappingKey) -> Result<Arc<DatasetKey>, DatasetError> {
        let Some(key) = self.crypt_key()? else {
            return Err(self.key_error(format!("'{}' is not encrypted.", self.name())));
        };
        match DatasetKey::unwrap(&key, wrapping) {
            Ok(key) => Ok(Arc::new(key)),
            Err(CryptError::WrongKey) => {
                Err(self.key_error(format!("Incorrect key provided for '{}'.", self.name())))
            }
            Err(error) => Err(self.key_error(error.to_string())),
        }
    }

    fn key_error(&self, reason: String) -> DatasetError {
        DatasetError::Key {
            name: self.name().to_owned(),
            reason,
        }
    }
}

impl Dataset {
    /// Whether its contents are encrypted.
    ///
    /// # Errors
    /// If its directory's table cannot be read.
    pub fn is_encrypted(&self) -> Result<bool, DatasetError> {
        Ok(self.directory().extension(CRYPTO_KEY_OBJECT)?.is_some())
    }
}

/// The keys of a pool that were loaded so far. Keys are derived outside the lock.
#[derive(Default)]
pub struct KeyRing(Mutex<Keys, rank::Leaf>);

#[derive(Default)]
struct Keys {
    /// Wrapping keys by the directory of the encryption root.
    wrapping: HashMap<ObjectId, WrappingKey>,
    /// Derived keys by directory.
    datasets: HashMap<ObjectId, Arc<DatasetKey>>,
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
        let wrapping = directory.wrapping_key(user_key)?;
        let root = root_of(directory)?;
        // The key is right if it unwraps the root's own key object.
        let unlocked = root.unlock(&wrapping)?;
        let mut keys = self.0.lock();
        keys.wrapping.insert(root.id(), wrapping);
        keys.datasets.insert(root.id(), unlocked);
        Ok(())
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
        let Some(root) = directory.encryption_root()? else {
            return Ok(false);
        };
        let mut keys = self.0.lock();
        let was_loaded = keys.wrapping.remove(&root.id()).is_some();
        // Dataset keys of the other roots are derived again when they are needed.
        keys.datasets.clear();
        Ok(was_loaded)
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
        {
            let keys = self.0.lock();
            if let Some(key) = keys.datasets.get(&directory.id()) {
                return Ok(Some(Arc::clone(key)));
            }
            if keys.wrapping.is_empty() {
                return Ok(None);
            }
        }
        let Some(crypt) = directory.crypt_key()? else {
            return Ok(None);
        };
        let wrapping = self.0.lock().wrapping.get(&crypt.root_directory).cloned();
        let Some(wrapping) = wrapping else {
            return Ok(None);
        };
        let key = directory.unlock(&wrapping)?;
        let mut keys = self.0.lock();
        if !keys.wrapping.contains_key(&crypt.root_directory) {
            // It was unloaded meanwhile.
            return Ok(None);
        }
        keys.datasets.insert(directory.id(), Arc::clone(&key));
        Ok(Some(key))
    }
}

fn root_of(directory: &Arc<Directory>) -> Result<Arc<Directory>, DatasetError> {
    let root = directory.encryption_root()?;
    root.ok_or_else(|| directory.key_error(format!("'{}' is not encrypted.", directory.name())))
}
