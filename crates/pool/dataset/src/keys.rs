//! Keys of encrypted datasets: where they are stored, and how to unlock them.
//!
//! Page `docs/format/encryption.md`.

use crate::error::Named;
use crate::key_ring::wrong;
use crate::mos::{During, MosView};
use crate::tasks::encryption::describe_as;
use crate::{Dataset, DatasetError, Directory};
use millpond_crypt::{CryptKey, DatasetKey, WrappingKey};
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::keys::{CRYPTO_KEY_OBJECT, IVSET_GUID};
use millpond_ondisk::{CryptKeyValue, DecodeError, ObjectId};
use millpond_pool::PoolError;
use millpond_zap::{Zap, ZapEntry};

/// The key object of a directory.
#[derive(Debug, Clone)]
pub(crate) struct FoundKey {
    pub(crate) object: ObjectId,
    pub(crate) key: CryptKey,
}

fn decode(entries: &[ZapEntry]) -> Result<CryptKey, DecodeError> {
    CryptKey::decode(|wanted: &str| {
        let entry = entries
            .iter()
            .find(|entry| entry.name == wanted.as_bytes())?;
        match entry.value.integer_bytes {
            1 => Some(CryptKeyValue::Bytes(entry.value.bytes.clone())),
            _ => entry.value.first().map(CryptKeyValue::Number),
        }
    })
}

impl MosView<'_> {
    /// The key object of a directory; `None` if it is not encrypted.
    pub(crate) fn found_key(&self, directory: ObjectId) -> Result<Option<FoundKey>, PoolError> {
        let Some(id) = self.extension_number(directory, CRYPTO_KEY_OBJECT)? else {
            return Ok(None);
        };
        let object = ObjectId(id);
        let key = self.key_object(object)?;
        Ok(Some(FoundKey { object, key }))
    }

    pub(crate) fn key_object(&self, object: ObjectId) -> Result<CryptKey, PoolError> {
        decode(&self.entries(object)?).during("key object")
    }

    /// The directory of the encryption root that a directory belongs to; `None` if it is not encrypted.
    pub(crate) fn encryption_root(
        &self,
        directory: ObjectId,
    ) -> Result<Option<ObjectId>, PoolError> {
        Ok(self
            .found_key(directory)?
            .map(|found| found.key.root_directory))
    }
}

/// What is wrong with a dataset whose encryption root no longer exists, and what helps.
#[must_use]
pub fn lost_root_text(dataset: &str) -> String {
    format!(
        "The encryption root of '{dataset}' no longer exists. A raw copy ('zfs send -w') can be opened with the key that this \
         root had."
    )
}

impl Directory {
    /// Reads the wrapped keys of an encrypted dataset; `None` if it is not encrypted.
    ///
    /// # Errors
    /// If the key object cannot be read or is invalid.
    pub fn crypt_key(&self) -> Result<Option<CryptKey>, DatasetError> {
        Ok(self.found_key()?.map(|found| found.key))
    }

    pub(crate) fn found_key(&self) -> Result<Option<FoundKey>, DatasetError> {
        let name = self.name();
        let Some(id) = self
            .extension(CRYPTO_KEY_OBJECT)?
            .and_then(|words| words.first().copied())
        else {
            return Ok(None);
        };
        let object = self.pool().mos().object(ObjectId(id)).named(name)?;
        let zap = Zap::open(object).named(name)?;
        let entries: Result<Vec<_>, _> = zap.iter().collect();
        let key = decode(&entries.named(name)?).named(name)?;
        Ok(Some(FoundKey {
            object: ObjectId(id),
            key,
        }))
    }

    /// The directory whose key wraps this directory's key: itself, an ancestor, or (after a promotion) a
    /// sibling.
    ///
    /// # Errors
    /// If the directory or its key cannot be read; [`DatasetError::Key`] if the root no longer exists.
    pub fn encryption_root(self: &Arc<Self>) -> Result<Option<Arc<Directory>>, DatasetError> {
        let Some(key) = self.crypt_key()? else {
            return Ok(None);
        };
        match self.root_named_by(&key)? {
            Some(root) => Ok(Some(root)),
            None => Err(self.key_error(lost_root_text(self.name()))),
        }
    }

    /// The encryption root that the directory's key object names; `None` if it no longer exists.
    fn root_named_by(
        self: &Arc<Self>,
        key: &CryptKey,
    ) -> Result<Option<Arc<Directory>>, DatasetError> {
        let mut at = Some(self);
        while let Some(directory) = at {
            if directory.id() == key.root_directory {
                return Ok(Some(Arc::clone(directory)));
            }
            at = directory.parent();
        }
        if !Self::exists(self.pool(), key.root_directory)? {
            return Ok(None);
        }
        let root = Self::by_id(self.pool(), key.root_directory)?;
        // Another directory may have its id now.
        Ok(root.crypt_key()?.is_some().then_some(root))
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
            return Err(self.not_encrypted());
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
        let key = self.crypt_key()?.ok_or_else(|| self.not_encrypted())?;
        match DatasetKey::unwrap(&key, wrapping) {
            Ok(key) => Ok(Arc::new(key)),
            Err(error) => Err(self.key_error(wrong(self.name(), &error))),
        }
    }

    pub(crate) fn not_encrypted(&self) -> DatasetError {
        self.key_error(format!("'{}' is not encrypted.", self.name()))
    }

    pub(crate) fn key_error(&self, reason: String) -> DatasetError {
        DatasetError::Key {
            name: self.name().to_owned(),
            reason,
        }
    }
}

impl Dataset {
    /// The wrapped keys with the description of the user's key, which is that of the encryption root. `None` if it is
    /// not encrypted.
    ///
    /// # Errors
    /// If a key object cannot be read or is invalid.
    pub fn sent_key(&self) -> Result<Option<CryptKey>, DatasetError> {
        let directory = self.directory();
        let Some(mut key) = directory.crypt_key()? else {
            return Ok(None);
        };
        if let Some(root) = directory.root_named_by(&key)?
            && let Some(of_root) = root.crypt_key()?
        {
            describe_as(&of_root, &mut key);
        }
        Ok(Some(key))
    }

    /// The guid of a snapshot's IV set, if it has one.
    ///
    /// # Errors
    /// If the dataset object's table cannot be read.
    pub fn iv_set(&self) -> Result<Option<u64>, DatasetError> {
        let words = self.extension(IVSET_GUID)?;
        Ok(words.and_then(|words| words.first().copied()))
    }

    /// Whether its contents are encrypted.
    ///
    /// # Errors
    /// If its directory's table cannot be read.
    pub fn is_encrypted(&self) -> Result<bool, DatasetError> {
        Ok(self.directory().extension(CRYPTO_KEY_OBJECT)?.is_some())
    }
}
