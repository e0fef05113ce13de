//! Creates encrypted datasets, and keeps what they share with their clones.
//!
//! Page `docs/format/encryption.md`, "Datasets".

use crate::heads::features;
use crate::keys::FoundKey;
use crate::mos::{During, MosView, contradiction};
use crate::properties::{PropertyValue, table};
use crate::tasks::change_property::Setting;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{DatasetError, KeyRefusal, Refusal, RootKey, is_key_location};
use millpond_crypt::{CryptError, CryptKey, CryptSuite, DatasetKey, IV_BYTES, KeyFormat};
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{CryptKeyValue, Guid, ObjectId, ObjectType, crypt_key_names};
use millpond_pool::PoolError;
use millpond_zap::ZapValue;

/// The values of `encryption` that are not suites.
const ON: u64 = 1;
const OFF: u64 = 2;
const KEY_LOCATION: &str = "keylocation";
const WHAT: &str = "key object";

/// What the properties of a new dataset say about its encryption.
#[derive(Debug, Default)]
pub(crate) struct EncryptionProperties {
    /// The number of `encryption`, if it was given.
    encryption: Option<u64>,
    /// Whether one that only an encrypted dataset can have was given, and which.
    format: Option<u64>,
    location: Option<String>,
    iterations: Option<u64>,
}

/// The keys of a new encrypted dataset.
pub(crate) struct NewCrypt {
    /// With the directory of the root still missing for an own root.
    object: CryptKey,
    pub(crate) key: Arc<DatasetKey>,
    /// Set for a new encryption root.
    root: Option<RootKey>,
}

impl EncryptionProperties {
    /// Takes the properties that concern encryption out of those of a new dataset.
    pub(crate) fn split(
        name: &str,
        properties: &[(String, PropertyValue)],
    ) -> Result<(Self, Vec<(String, PropertyValue)>), DatasetError> {
        let mut own = Self::default();
        let mut rest = vec![];
        for (property, value) in properties {
            let full = table::find(property).map_or(property.as_str(), |known| known.shape.name);
            let number = || {
                crate::heads::new_contents::number_of(full, value).ok_or_else(|| {
                    let values = table::find(full).map_or("", |known| known.shape.values);
                    DatasetError::InvalidProperty {
                        name: name.to_owned(),
                        property: full.to_owned(),
                        reason: format!("must be one of '{values}'"),
                    }
                })
            };
            match (full, value) {
                ("encryption", _) => own.encryption = Some(number()?),
                ("keyformat", _) => own.format = Some(number()?).filter(|format| *format != 0),
                ("pbkdf2iters", _) => {
                    own.iterations = Some(number()?).filter(|rounds| *rounds != 0)
                }
                ("pbkdf2salt", _) => {}
                (KEY_LOCATION, PropertyValue::Text(place)) => {
                    own.location = Some(place.clone()).filter(|place| place != "none");
                }
                _ => rest.push((property.clone(), value.clone())),
            }
        }
        Ok((own, rest))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.encryption.is_none() && !self.has_own_key()
    }

    fn has_own_key(&self) -> bool {
        self.format.is_some() || self.location.is_some() || self.iterations.is_some()
    }
}

fn refused(name: &str, why: KeyRefusal) -> DatasetError {
    Refusal::error(name, Refusal::Key(why))
}

impl MosView<'_> {
    /// Checks a new value of `keylocation` for a head.
    pub(crate) fn check_key_location(
        &self,
        head: &Head,
        value: &PropertyValue,
    ) -> Result<Setting, DatasetError> {
        let invalid = |reason: &str| DatasetError::InvalidProperty {
            name: head.name.clone(),
            property: KEY_LOCATION.to_owned(),
            reason: reason.to_owned(),
        };
        let PropertyValue::Text(place) = value else {
            return Err(invalid("must be a string"));
        };
        match self.encryption_root(head.directory)? {
            None if place != "none" => {
                return Err(invalid(
                    "keylocation must be 'none' for unencrypted datasets",
                ));
            }
            None => {}
            Some(_) if place == "none" => {
                return Err(invalid(
                    "keylocation must not be 'none' for encrypted datasets",
                ));
            }
            Some(_) if !is_key_location(place) => return Err(invalid("invalid keylocation")),
            Some(root) if root != head.directory => {
                return Err(refused(&head.name, KeyRefusal::LocationOfRootOnly));
            }
            Some(_) => {}
        }
        Ok(Setting {
            name: KEY_LOCATION.to_owned(),
            value: value.clone(),
        })
    }
}

impl SyncTaskContext<'_> {
    fn fill(&self, bytes: &mut [u8]) {
        self.ctx.pool().env().entropy.fill(bytes);
    }

    /// A nonce for wrapping a key. It is never used again.
    pub(crate) fn wrapping_iv(&self) -> [u8; IV_BYTES] {
        let mut iv = [0; IV_BYTES];
        self.fill(&mut iv);
        iv
    }

    /// Checks how a new dataset below `parent` is encrypted, and makes its keys. `None` if it is not encrypted.
    pub(crate) fn check_encryption(
        &self,
        name: &str,
        parent: Option<ObjectId>,
        properties: &EncryptionProperties,
        root: Option<&RootKey>,
    ) -> Result<Option<NewCrypt>, DatasetError> {
        let above = match parent {
            Some(parent) => self.found_key(parent)?,
            None => None,
        };
        let inherited = above.as_ref().map_or(OFF, |above| above.key.suite.number());
        let number = match properties.encryption.unwrap_or(inherited) {
            ON => CryptSuite::Aes256Gcm.number(),
            number => number,
        };
        let Some(suite) = CryptSuite::from_number(number) else {
            return match properties.has_own_key() {
                true => Err(refused(name, KeyRefusal::EncryptionOff)),
                false => Ok(None),
            };
        };
        let is_enabled = |guid| self.is_enabled(guid);
        if !is_enabled(features::ENCRYPTION) || !is_enabled(features::BOOKMARK_V2) {
            return Err(refused(name, KeyRefusal::FeatureDisabled));
        }
        if let Some(place) = &properties.location
            && !is_key_location(place)
        {
            return Err(DatasetError::InvalidProperty {
                name: name.to_owned(),
                property: KEY_LOCATION.to_owned(),
                reason: "invalid keylocation".to_owned(),
            });
        }
        if properties.format.is_none() && (above.is_none() || properties.has_own_key()) {
            return Err(refused(name, KeyRefusal::NoKeyFormat));
        }
        let is_passphrase = properties.format == Some(KeyFormat::Passphrase.number());
        if properties.iterations.is_some() && !is_passphrase {
            return Err(refused(name, KeyRefusal::IterationsOfOtherFormat));
        }
        let missing = || refused(name, KeyRefusal::RootKeyMissing);
        let (wrapping, of_root, root) = match (properties.format, above) {
            (None, Some(above)) => {
                let directory = above.key.root_directory;
                let wrapping = self.root_wrapping(directory)?;
                (wrapping.ok_or_else(missing)?, Some(above.key), None)
            }
            _ => {
                let root = root.ok_or_else(missing)?;
                (root.wrapping.clone(), None, Some(root.clone()))
            }
        };
        let failed = |error: CryptError| refused(name, KeyRefusal::Crypt(error.to_string()));
        let guid = Guid(self.random().max(1));
        let key = DatasetKey::generate(suite, guid, |bytes| self.fill(bytes)).map_err(failed)?;
        let mut object = CryptKey {
            suite,
            guid,
            version: key.version(),
            wrapped_master: [0; 32],
            wrapped_hmac: [0; 64],
            iv: [0; IV_BYTES],
            mac: [0; 16],
            root_directory: of_root.as_ref().map_or(ObjectId(0), |r| r.root_directory),
            reference_count: 1,
            key_format: KeyFormat::None,
            pbkdf2_salt: 0,
            pbkdf2_iterations: 0,
        };
        match (&root, &of_root) {
            (Some(root), _) => root.describe(&mut object),
            (None, Some(above)) => describe_as(above, &mut object),
            (None, None) => {}
        }
        key.wrap(&wrapping, self.wrapping_iv(), &mut object)
            .map_err(failed)?;
        Ok(Some(NewCrypt {
            object,
            key: Arc::new(key),
            root,
        }))
    }

    /// Stores the keys of a new dataset.
    pub(crate) fn put_new_key(&self, head: &Head, new: &NewCrypt) -> Result<(), PoolError> {
        let mut object = new.object.clone();
        if new.root.is_some() {
            object.root_directory = head.directory;
        }
        let id = self.create_zap(ObjectType::METADATA_ZAP)?;
        self.put_key_object(id, &object)?;
        self.zapify(head.directory)?;
        self.update(head.directory, keys::CRYPTO_KEY_OBJECT, id.0)?;
        self.activate_feature(head.dataset, features::ENCRYPTION, &[0])?;
        let ring = &self.datasets.keys;
        if let Some(root) = &new.root {
            let setting = Setting {
                name: KEY_LOCATION.to_owned(),
                value: PropertyValue::Text(root.location.clone()),
            };
            self.apply_setting(head, &setting)?;
            ring.insert(head.directory, root.wrapping.clone());
        }
        ring.note(id, object.root_directory, &new.key);
        Ok(())
    }

    /// Writes every entry of a key object.
    pub(crate) fn put_key_object(&self, id: ObjectId, key: &CryptKey) -> Result<(), PoolError> {
        self.key_uses_changed();
        for (name, value) in key.entries() {
            match value {
                CryptKeyValue::Number(number) => self.update(id, name, number)?,
                CryptKeyValue::Bytes(bytes) => {
                    let value = ZapValue::from_bytes(&bytes);
                    self.zap(id)?.update(name.as_bytes(), &value).during(WHAT)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a clone share the key of its origin's directory, if that is encrypted.
    pub(crate) fn share_key(&self, from: ObjectId, clone: ObjectId) -> Result<(), PoolError> {
        let Some(FoundKey { object, key }) = self.found_key(from)? else {
            return Ok(());
        };
        self.key_uses_changed();
        let count = key
            .reference_count
            .checked_add(1)
            .ok_or_else(|| contradiction(WHAT, "too many directories share it"))?;
        self.update(object, crypt_key_names::REFERENCE_COUNT, count)?;
        self.zapify(clone)?;
        self.update(clone, keys::CRYPTO_KEY_OBJECT, object.0)
    }

    /// Ends a directory's use of its key: decrements the reference count of the key object, and frees it with its
    /// last reference.
    pub(crate) fn release_key(&self, directory: ObjectId) -> Result<(), PoolError> {
        let Some(id) = self.extension_number(directory, keys::CRYPTO_KEY_OBJECT)? else {
            return Ok(());
        };
        let object = ObjectId(id);
        // Another directory may get the same id.
        self.datasets.keys.forget(directory);
        self.forget_key_use(directory);
        match self.lookup(object, crypt_key_names::REFERENCE_COUNT)? {
            Some(count) if count > 1 => {
                self.update(object, crypt_key_names::REFERENCE_COUNT, count - 1)
            }
            _ => self.free_object(object),
        }
    }

    /// Refuses a move of a dataset to a parent outside its encryption root. A root that no longer exists holds nothing.
    pub(crate) fn check_rename_key(
        &self,
        name: &str,
        directory: ObjectId,
        new_parent: ObjectId,
    ) -> Result<(), DatasetError> {
        match self.encryption_root(directory)? {
            Some(root) if root != directory => match self.encryption_root(new_parent)? {
                Some(other) if other == root => Ok(()),
                _ if !self.is_encryption_root(root)? => Ok(()),
                _ => Err(refused(name, KeyRefusal::MovedOutside)),
            },
            _ => Ok(()),
        }
    }
}

/// Enters into a key object what the key object of its encryption root says of the user's key.
pub(crate) fn describe_as(root: &CryptKey, object: &mut CryptKey) {
    object.key_format = root.key_format;
    object.pbkdf2_salt = root.pbkdf2_salt;
    object.pbkdf2_iterations = root.pbkdf2_iterations;
}

impl RootKey {
    /// Enters what the key's owner chose into a key object.
    pub(crate) fn describe(&self, object: &mut CryptKey) {
        object.key_format = self.format;
        object.pbkdf2_salt = self.salt;
        object.pbkdf2_iterations = self.iterations;
    }
}
