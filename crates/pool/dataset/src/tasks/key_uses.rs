//! Which key objects an encryption root's key wraps.
//!
//! Not only those of the datasets below it: clones share the key of their origin wherever they are, and what lies below
//! them has the same root. After renames, such datasets may reach each other only: one lies below a clone of its own
//! snapshot. So the whole pool is searched.
//!
//! Page `docs/format/encryption.md`, "Changing keys".

use crate::mos::MosView;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{DatasetError, KeyRefusal, Refusal};
use millpond_crypt::{CryptKey, DatasetKey, WrappingKey};
use millpond_object::ObjectError;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{ObjectId, crypt_key_names};
use millpond_pool::PoolError;
use std::collections::{BTreeMap, BTreeSet};

/// How many datasets an error names.
const SHOWN_MAX: usize = 3;

/// The key object of a directory, and the directory of the encryption root that it names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyUse {
    object: ObjectId,
    root: ObjectId,
}

/// Of all directories of the pool.
pub(crate) type KeyUses = BTreeMap<ObjectId, KeyUse>;

/// Whether what was to be read is lost, or is not there.
fn is_gone(error: &PoolError) -> bool {
    let PoolError::Object { error: object, .. } = error else {
        return error.is_damage();
    };
    object.is_damage() || matches!(object, ObjectError::NotFound { .. })
}

/// What is lost counts as absent: nothing can open it any more.
fn unless_gone<T>(found: Result<Option<T>, PoolError>) -> Result<Option<T>, PoolError> {
    match found {
        Err(error) if is_gone(&error) => Ok(None),
        other => other,
    }
}

/// The first names of a list that may be long.
fn listed(names: &[String]) -> String {
    let shown: Vec<String> = (names.iter().take(SHOWN_MAX))
        .map(|name| format!("'{name}'"))
        .collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl MosView<'_> {
    fn key_use(&self, directory: ObjectId) -> Result<Option<KeyUse>, PoolError> {
        let Some(object) = self.extension_number(directory, keys::CRYPTO_KEY_OBJECT)? else {
            return Ok(None);
        };
        let object = ObjectId(object);
        let root = self.lookup(object, crypt_key_names::ROOT_DIRECTORY)?;
        Ok(root.map(|root| KeyUse {
            object,
            root: ObjectId(root),
        }))
    }

    /// Whether a directory is an encryption root. What was destroyed or is lost is none.
    pub(crate) fn is_encryption_root(&self, directory: ObjectId) -> Result<bool, PoolError> {
        let own = unless_gone(self.key_use(directory))?;
        Ok(own.is_some_and(|own| own.root == directory))
    }

    fn find_key_uses(&self) -> Result<KeyUses, PoolError> {
        let mut uses = KeyUses::new();
        let mut seen = BTreeSet::new();
        let mut open = vec![self.root_directory()?];
        while let Some(directory) = open.pop() {
            if !seen.insert(directory) {
                continue;
            }
            if let Some(found) = unless_gone(self.key_use(directory))? {
                uses.insert(directory, found);
            }
            let children = unless_gone(self.children(directory).map(Some))?;
            open.extend((children.into_iter().flatten()).map(|(_, child)| child));
        }
        Ok(uses)
    }
}

impl SyncTaskContext<'_> {
    /// Runs `query` on all directories with keys. They are searched once per context, unless keys change.
    fn with_key_uses<R>(&self, query: impl FnOnce(&KeyUses) -> R) -> Result<R, PoolError> {
        let mut known = self.key_uses.borrow_mut();
        let uses = match known.take() {
            Some(uses) => uses,
            None => self.find_key_uses()?,
        };
        Ok(query(known.insert(uses)))
    }

    /// Notes that key objects, or which directories use them, have changed.
    pub(crate) fn key_uses_changed(&self) {
        *self.key_uses.borrow_mut() = None;
    }

    /// Notes that a directory is gone.
    pub(crate) fn forget_key_use(&self, directory: ObjectId) {
        if let Some(uses) = &mut *self.key_uses.borrow_mut() {
            uses.remove(&directory);
        }
    }

    /// The key objects that the key of an encryption root wraps, wherever their datasets are; its own is the first.
    pub(crate) fn keys_of_root(
        &self,
        root: ObjectId,
    ) -> Result<Vec<(ObjectId, CryptKey)>, PoolError> {
        let Some(own) = self.found_key(root)? else {
            return Ok(vec![]);
        };
        let others: BTreeSet<ObjectId> = self.with_key_uses(|uses| {
            let uses = uses.values();
            let of_root = uses.filter(|used| used.root == root && used.object != own.object);
            of_root.map(|used| used.object).collect()
        })?;
        let mut found = vec![(own.object, own.key)];
        for object in others {
            let key = unless_gone(self.key_object(object).map(Some))?;
            found.extend(key.map(|key| (object, key)));
        }
        Ok(found)
    }

    /// Refuses to destroy an encryption root whose key others need. Those whose directories are in `gone` do not count.
    pub(crate) fn check_root_unused(
        &self,
        head: &Head,
        gone: &BTreeSet<ObjectId>,
    ) -> Result<(), DatasetError> {
        let root = head.directory;
        if !self.is_encryption_root(root)? {
            return Ok(());
        }
        let users: Vec<(ObjectId, ObjectId)> = self.with_key_uses(|uses| {
            let of_root = uses.iter().filter(|(_, used)| used.root == root);
            let of_root = of_root.filter(|(id, _)| !gone.contains(*id));
            of_root.map(|(id, used)| (*id, used.object)).collect()
        })?;
        let (mut owners, mut clones) = (vec![], vec![]);
        for (directory, object) in users {
            // What lies below it is an unfinished receive, which goes with it.
            if self.is_within(directory, root)? || !self.may_open(root, object)? {
                continue;
            }
            let name = self.directory_name(directory)?;
            match self.is_clone(directory)? {
                true => clones.push(name),
                false => owners.push(name),
            }
        }
        // The keys of clones change with those of their origins.
        let names = match owners.is_empty() {
            true => clones,
            false => owners,
        };
        match names.is_empty() {
            true => Ok(()),
            false => {
                let why = Refusal::Key(KeyRefusal::RootOfOthers(listed(&names)));
                Err(Refusal::error(&head.name, why))
            }
        }
    }

    /// Whether the key of an encryption root may open a key object that names this root. It does not if an earlier
    /// dataset with the root's id wrapped it, or an earlier key of the root; which is known if the key is loaded.
    fn may_open(&self, root: ObjectId, object: ObjectId) -> Result<bool, PoolError> {
        let own = unless_gone(self.found_key(root))?;
        let Some(key) = unless_gone(self.key_object(object).map(Some))? else {
            return Ok(false);
        };
        let opens =
            |wrapping: &WrappingKey, key: &CryptKey| DatasetKey::unwrap(key, wrapping).is_ok();
        Ok(match (self.datasets.keys.wrapping(root), own) {
            (Some(wrapping), Some(own)) if opens(&wrapping, &own.key) => opens(&wrapping, &key),
            _ => true,
        })
    }
}
