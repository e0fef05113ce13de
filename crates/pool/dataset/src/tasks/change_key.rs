//! Changes wrapping keys: of an encryption root, of a dataset that becomes one, and of one that inherits again.
//!
//! The keys of the blocks never change, only how they are wrapped. All key objects change in one txg.
//!
//! Page `docs/format/encryption.md`, "Changing keys".

use crate::datasets::Datasets;
use crate::mos::{contradiction, required};
use crate::properties::PropertyValue;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::tasks::encryption::describe_as;
use crate::{DatasetError, KeyRefusal, Refusal, RootKey};
use millpond_crypt::{CryptError, CryptKey, DatasetKey, WrappingKey};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{ObjectId, crypt_key_names};
use millpond_pool::PoolError;
use std::collections::BTreeSet;

const KEY_LOCATION: &str = "keylocation";
const WHAT: &str = "key object";

/// What a dataset's key is wrapped with from now on.
#[derive(Debug, Clone, Copy)]
pub enum KeyChange<'k> {
    /// With its own new key. The dataset becomes an encryption root, or stays one.
    Own(&'k RootKey),
    /// With the key of the parent's encryption root.
    Inherit,
}

/// A key object that a change covers, with its unwrapped key.
struct Covered {
    object: ObjectId,
    wrapped: CryptKey,
    key: Arc<DatasetKey>,
}

struct Plan {
    head: Head,
    covered: Vec<Covered>,
    root: ObjectId,
    wrapping: WrappingKey,
}

impl Datasets {
    /// Changes the wrapping key of a dataset and of all datasets that inherit it from there.
    ///
    /// # Errors
    /// [`Refusal::Key`].
    pub fn change_key(&self, name: &str, change: KeyChange<'_>) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_change_key(name, change),
            |s, plan| s.change_key(&plan, change),
        )
    }
}

impl SyncTaskContext<'_> {
    fn check_change_key(&self, name: &str, change: KeyChange<'_>) -> Result<Plan, DatasetError> {
        let refused = |why| Refusal::error(name, Refusal::Key(why));
        let head = self.find_head(name)?;
        let directory = head.directory;
        let old = self.encryption_root(directory)?;
        let old = old.ok_or_else(|| refused(KeyRefusal::NotEncrypted))?;
        if self.is_clone(directory)? {
            return Err(refused(KeyRefusal::OfClone));
        }
        let ring = &self.datasets.keys;
        let (root, wrapping) = match change {
            KeyChange::Own(own) => (directory, own.wrapping.clone()),
            KeyChange::Inherit => {
                let parent = self.directory(directory)?.parent;
                let parent = parent.ok_or_else(|| refused(KeyRefusal::PoolRoot))?;
                if old != directory {
                    return Err(refused(KeyRefusal::NotARoot));
                }
                let root = self.encryption_root(parent)?;
                let root = root.ok_or_else(|| refused(KeyRefusal::ParentNotEncrypted))?;
                let wrapping = self.root_wrapping(root)?;
                (
                    root,
                    wrapping.ok_or_else(|| refused(KeyRefusal::ParentKeyMissing))?,
                )
            }
        };
        if self.root_wrapping(old)?.is_none() {
            return Err(refused(KeyRefusal::KeyMissing));
        }
        let mut covered = vec![];
        for (object, wrapped) in self.keys_below(directory, old)? {
            let found = crate::keys::FoundKey {
                object,
                key: wrapped,
            };
            let key = match ring.unwrap(&found) {
                // Only an earlier key of the root opens it: the new one would not either.
                Err(CryptError::WrongKey) if !covered.is_empty() => {
                    mark::hit("key-of-an-earlier-root");
                    continue;
                }
                key => key.map_err(|error| {
                    let text = crate::key_ring::wrong(name, &error);
                    refused(KeyRefusal::Crypt(text))
                })?,
            };
            covered.push(Covered {
                object,
                wrapped: found.key,
                key: key.ok_or_else(|| refused(KeyRefusal::KeyMissing))?,
            });
        }
        Ok(Plan {
            head,
            covered,
            root,
            wrapping,
        })
    }

    fn change_key(&self, plan: &Plan, change: KeyChange<'_>) -> Result<(), PoolError> {
        let ring = &self.datasets.keys;
        let (of_root, location) = match change {
            KeyChange::Own(own) => {
                ring.insert(plan.root, own.wrapping.clone());
                (None, Some(own.location.as_str()))
            }
            KeyChange::Inherit => (self.found_key(plan.root)?, None),
        };
        for covered in &plan.covered {
            let mut object = covered.wrapped.clone();
            object.root_directory = plan.root;
            match (change, &of_root) {
                (KeyChange::Own(own), _) => own.describe(&mut object),
                (KeyChange::Inherit, Some(root)) => describe_as(&root.key, &mut object),
                (KeyChange::Inherit, None) => {
                    return Err(contradiction(WHAT, "the encryption root has none"));
                }
            }
            (covered.key)
                .wrap(&plan.wrapping, self.wrapping_iv(), &mut object)
                .map_err(|_| contradiction(WHAT, "cannot be wrapped"))?;
            self.put_key_object(covered.object, &object)?;
            ring.note(covered.object, plan.root, &covered.key);
        }
        self.put_key_location(plan.head.directory, location)?;
        if plan.root != plan.head.directory {
            ring.forget_wrapping(plan.head.directory);
        }
        Ok(())
    }

    /// Sets the location of a root's key, or removes it where the dataset inherits.
    pub(crate) fn put_key_location(
        &self,
        directory: ObjectId,
        location: Option<&str>,
    ) -> Result<(), PoolError> {
        let table = self.directory(directory)?.properties;
        let table = required(table, "a directory without properties")?;
        match location {
            Some(location) => {
                let value = PropertyValue::Text(location.to_owned());
                self.store_value(table, KEY_LOCATION, &value)
            }
            None => self.remove(table, KEY_LOCATION).map(|_| ()),
        }
    }

    pub(crate) fn is_clone(&self, directory: ObjectId) -> Result<bool, PoolError> {
        let origin = self.directory(directory)?.origin;
        Ok(origin.is_some() && origin != self.empty_origin()?)
    }

    /// The key objects of a directory and of those below that share its encryption root, its own first. Clones share the
    /// object of their origin; only what lies below them has keys of its own. Those of a root are all that name it.
    pub(crate) fn keys_below(
        &self,
        directory: ObjectId,
        root: ObjectId,
    ) -> Result<Vec<(ObjectId, CryptKey)>, PoolError> {
        if directory == root {
            return self.keys_of_root(root);
        }
        let mut found = vec![];
        let mut seen = BTreeSet::new();
        // A clone is first met as a child, where it ends the search, or through its origin.
        let mut open = vec![(directory, false)];
        while let Some((id, is_clone_of_found)) = open.pop() {
            let Some(own) = self.found_key(id)? else {
                continue;
            };
            let is_other = own.key.root_directory != root;
            let is_met_as_child = !is_clone_of_found && id != directory && self.is_clone(id)?;
            if is_other || is_met_as_child || !seen.insert(id) {
                continue;
            }
            if !is_clone_of_found {
                found.push((own.object, own.key));
            }
            open.extend((self.children(id)?.into_iter()).map(|(_, child)| (child, false)));
            if let Some(clones) = self.directory(id)?.clones {
                for head in self.set_members(clones)? {
                    open.push((self.dataset(head)?.directory, true));
                }
            }
        }
        Ok(found)
    }

    /// Checks a promotion of an encrypted clone. Returns whether the clone becomes the encryption root.
    pub(crate) fn check_promote_key(
        &self,
        name: &str,
        clone: ObjectId,
        origin: ObjectId,
    ) -> Result<bool, DatasetError> {
        let Some(root) = self.encryption_root(origin)? else {
            return Ok(false);
        };
        if root == origin {
            return Ok(true);
        }
        let root_above = |directory: ObjectId| -> Result<Option<ObjectId>, PoolError> {
            match self.directory(directory)?.parent {
                Some(parent) => self.encryption_root(parent),
                None => Ok(None),
            }
        };
        if !self.is_encryption_root(root)? {
            // It no longer exists, so there is nothing to stay below.
            return Ok(false);
        }
        let (one, other) = (root_above(clone)?, root_above(origin)?);
        match one.is_some() && one == other {
            true => Ok(false),
            false => {
                let why = Refusal::Key(KeyRefusal::PromotedOutside);
                Err(Refusal::error(name, why))
            }
        }
    }

    /// Makes a clone the encryption root in place of its origin. No key is wrapped anew.
    pub(crate) fn promote_key(&self, clone: ObjectId, origin: ObjectId) -> Result<(), PoolError> {
        let ring = &self.datasets.keys;
        let covered = self.keys_below(origin, origin)?;
        let wrapping = ring.wrapping(origin);
        if let Some(wrapping) = &wrapping {
            ring.insert(clone, wrapping.clone());
        }
        for (object, key) in covered {
            self.update(object, crypt_key_names::ROOT_DIRECTORY, clone.0)?;
            self.key_uses_changed();
            let found = crate::keys::FoundKey { object, key };
            if let Ok(Some(key)) = ring.unwrap(&found) {
                ring.note(object, clone, &key);
            }
        }
        let properties = self.directory(origin)?.properties;
        let location = match properties {
            Some(table) => self.lookup_value(table, KEY_LOCATION)?,
            None => None,
        };
        let location = location.map(|value| {
            let text = value.bytes.split(|byte| *byte == 0).next();
            String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
        });
        self.put_key_location(clone, Some(location.as_deref().unwrap_or("prompt")))?;
        self.put_key_location(origin, None)?;
        ring.forget_wrapping(origin);
        Ok(())
    }
}
