//! Grants and removes delegated permissions.
//!
//! Page `docs/format/dsl-directory.md`, "Delegation".

use crate::datasets::Datasets;
use crate::mos::{DATASET, MosView, contradiction};
use crate::permissions::{
    PermissionChain, PermissionGrant, PermissionTable, is_permission, is_permission_set,
};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Head;
use crate::{Creator, DatasetError, Refusal};
use millpond_ondisk::dsl::{PermissionHolder, PermissionKey, PermissionReach};
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_pool::PoolError;
use std::collections::{BTreeMap, BTreeSet};

/// The first pool version that has delegated permissions.
/// What an entry of an inner table holds. Only its name means something.
const GRANTED: u64 = 0;

impl Datasets {
    /// Grants permissions at a file system or volume, all in one txg.
    ///
    /// # Errors
    /// [`Refusal::NoSuchPermission`]; [`DatasetError::NotFound`].
    pub fn allow(&self, name: &str, grants: &[PermissionGrant]) -> Result<(), DatasetError> {
        self.task(
            |s| {
                let head = s.find_head(name)?;
                s.check_grants(name, grants)?;
                s.check_tables(head.directory)?;
                let is_empty = |grant: &PermissionGrant| grant.permissions.is_empty();
                match grants.iter().any(is_empty) {
                    true => Err(Refusal::error(name, Refusal::NoSuchPermission)),
                    false => Ok(head),
                }
            },
            |s, head| s.add_permissions(&head, grants),
        )
    }

    /// Removes permissions at a file system or volume and, if asked for, at all its descendants: all in one txg. A
    /// grant without permissions stands for all that its holder has in its reach.
    ///
    /// # Errors
    /// [`Refusal::NoSuchPermission`]; [`DatasetError::NotFound`].
    pub fn unallow(
        &self,
        name: &str,
        recursively: bool,
        removals: &[PermissionGrant],
    ) -> Result<(), DatasetError> {
        self.task(
            |s| {
                let head = s.find_head(name)?;
                s.check_grants(name, removals)?;
                if !recursively {
                    s.check_tables(head.directory)?;
                    return Ok(vec![head]);
                }
                let mut heads = vec![];
                for (name, directory) in s.directories_below(name, head.directory)? {
                    s.check_tables(directory)?;
                    if let Some(dataset) = s.directory(directory)?.head_dataset {
                        heads.push(Head {
                            name,
                            directory,
                            dataset,
                        });
                    }
                }
                Ok(heads)
            },
            |s, heads| {
                for head in heads {
                    s.remove_permissions(&head, removals)?;
                }
                Ok(())
            },
        )
    }
}

impl MosView<'_> {
    fn permission_table(&self, directory: ObjectId) -> Result<PermissionTable, PoolError> {
        match self.directory(directory)?.delegation {
            Some(outer) => PermissionTable::read(outer, |id| self.entries(id)),
            None => Ok(PermissionTable::default()),
        }
    }

    /// The permissions granted at a directory and all its ancestors, without their names.
    pub(crate) fn permission_chain(
        &self,
        directory: ObjectId,
    ) -> Result<PermissionChain, PoolError> {
        let (mut tables, mut at) = (vec![], Some(directory));
        for _ in 0..crate::directory::DEPTH_MAX {
            let Some(id) = at else { break };
            tables.push((String::new(), self.permission_table(id)?));
            at = self.directory(id)?.parent;
        }
        Ok(PermissionChain::new(tables))
    }

    fn check_grants(&self, name: &str, grants: &[PermissionGrant]) -> Result<(), DatasetError> {
        if !self.version().has_delegation() {
            return Err(Refusal::error(name, Refusal::OldPool));
        }
        let is_legal = |grant: &PermissionGrant| {
            let has_reach = grant.reach != PermissionReach::NotApplicable;
            let has_holder = match &grant.holder {
                PermissionHolder::User(_)
                | PermissionHolder::Group(_)
                | PermissionHolder::Everyone => has_reach,
                PermissionHolder::Creator => !has_reach,
                PermissionHolder::Set(set) => !has_reach && is_permission_set(set),
            };
            has_holder && grant.permissions.iter().all(|name| is_permission(name))
        };
        match grants.iter().all(is_legal) {
            true => Ok(()),
            false => Err(Refusal::error(name, Refusal::NoSuchPermission)),
        }
    }

    /// Checks what a change of a directory's tables will rely on: that they are tables of permissions, each with one key.
    /// A forged pool could name other objects, which would be changed and freed.
    fn check_tables(&self, directory: ObjectId) -> Result<(), PoolError> {
        let Some(outer) = self.directory(directory)?.delegation else {
            return Ok(());
        };
        let inner = self.inner_tables(outer)?.into_values();
        let mut seen = BTreeSet::new();
        for id in std::iter::once(outer).chain(inner) {
            if self.object(id, DATASET)?.object_type() != ObjectType::DSL_PERMISSIONS {
                return Err(contradiction(DATASET, "not a table of permissions"));
            }
            if !seen.insert(id) {
                return Err(contradiction(
                    DATASET,
                    "a table of permissions has two keys",
                ));
            }
            self.entries(id)?;
        }
        Ok(())
    }

    /// The create-time permissions of a directory and all its ancestors.
    pub(crate) fn creator_permissions(
        &self,
        directory: ObjectId,
    ) -> Result<BTreeSet<String>, PoolError> {
        let mut permissions = BTreeSet::new();
        let mut at = Some(directory);
        for _ in 0..crate::directory::DEPTH_MAX {
            let Some(id) = at else { break };
            for grant in self.permission_table(id)?.grants() {
                if grant.holder == PermissionHolder::Creator {
                    permissions.extend(grant.permissions);
                }
            }
            at = self.directory(id)?.parent;
        }
        Ok(permissions)
    }

    /// The inner tables of a directory, by key. Keys of an unknown form are left out.
    fn inner_tables(
        &self,
        outer: ObjectId,
    ) -> Result<BTreeMap<PermissionKey, ObjectId>, PoolError> {
        let entries = self.entries(outer)?.into_iter();
        let known = entries.filter_map(|entry| {
            let inner = ObjectId(entry.value.first()?).some()?;
            Some((PermissionKey::parse(&entry.name)?, inner))
        });
        Ok(known.collect())
    }
}

impl SyncTaskContext<'_> {
    fn add_permissions(&self, head: &Head, grants: &[PermissionGrant]) -> Result<(), PoolError> {
        for (key, name) in self.store_grants(head.directory, grants)? {
            let text = format!("{key} {name}");
            self.history(head.dataset, &head.name, "permission update", &text)?;
        }
        Ok(())
    }

    /// Stores permissions. Returns each of them with its key.
    fn store_grants(
        &self,
        directory: ObjectId,
        grants: &[PermissionGrant],
    ) -> Result<Vec<(PermissionKey, String)>, PoolError> {
        let mut stored = vec![];
        if grants.is_empty() {
            return Ok(stored);
        }
        let outer = match self.directory(directory)?.delegation {
            Some(outer) => outer,
            None => {
                let made = self.create_zap(ObjectType::DSL_PERMISSIONS)?;
                self.edit_directory(directory, |phys| phys.delegation = Some(made))?;
                made
            }
        };
        let mut known = self.inner_tables(outer)?;
        for grant in grants {
            for name in &grant.permissions {
                let key = grant.key(name.starts_with('@'));
                let inner = match known.get(&key) {
                    Some(inner) => *inner,
                    None => {
                        let made = self.create_zap(ObjectType::DSL_PERMISSIONS)?;
                        self.update(outer, &key.to_string(), made.0)?;
                        known.insert(key.clone(), made);
                        made
                    }
                };
                self.update(inner, name, GRANTED)?;
                stored.push((key, name.clone()));
            }
        }
        Ok(stored)
    }

    fn remove_permissions(
        &self,
        head: &Head,
        removals: &[PermissionGrant],
    ) -> Result<(), PoolError> {
        let Some(outer) = self.directory(head.directory)?.delegation else {
            return Ok(());
        };
        for removal in removals {
            let known = self.inner_tables(outer)?;
            for key in [removal.key(false), removal.key(true)] {
                let Some(inner) = known.get(&key).copied() else {
                    continue;
                };
                if removal.permissions.is_empty() {
                    self.destroy_inner(outer, &key, inner)?;
                    let text = key.to_string();
                    self.history(head.dataset, &head.name, "permission who remove", &text)?;
                    continue;
                }
                let names = removal.permissions.iter();
                for name in names.filter(|name| name.starts_with('@') == key.names_sets) {
                    if self.remove(inner, name)? {
                        let text = format!("{key} {name}");
                        self.history(head.dataset, &head.name, "permission remove", &text)?;
                    }
                }
                if self.entry_count(inner)? == 0 {
                    self.destroy_inner(outer, &key, inner)?;
                }
            }
        }
        Ok(())
    }

    fn destroy_inner(
        &self,
        outer: ObjectId,
        key: &PermissionKey,
        inner: ObjectId,
    ) -> Result<(), PoolError> {
        self.free_object(inner)?;
        self.remove(outer, &key.to_string()).map(drop)
    }

    /// Grants the creator of a directory, in this directory, the create-time permissions of all its ancestors. The
    /// superuser needs none.
    pub(crate) fn grant_creator(
        &self,
        directory: ObjectId,
        creator: Option<&Creator>,
    ) -> Result<(), PoolError> {
        let Some(creator) = creator.filter(|creator| creator.subject.user != 0) else {
            return Ok(());
        };
        let Some(parent) = self.directory(directory)?.parent else {
            return Ok(());
        };
        let permissions = self.creator_permissions(parent)?;
        if permissions.is_empty() {
            return Ok(());
        }
        let grant = PermissionGrant {
            holder: PermissionHolder::User(creator.subject.user.into()),
            reach: PermissionReach::Local,
            permissions,
        };
        self.store_grants(directory, &[grant]).map(drop)
    }
}
