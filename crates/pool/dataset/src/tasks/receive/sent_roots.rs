//! The end of a raw package: datasets get the encryption roots, and the keys of the user, that they have at the sender.
//!
//! A dataset's keys are wrapped with the user's key of its root. So a root and all that inherit from it change together, or
//! not at all: what the package did not bring can only be opened with the key that is here. Page
//! `docs/format/send-stream.md`, "Raw streams".

use crate::DatasetError;
use crate::datasets::Datasets;
use crate::keys::FoundKey;
use crate::tasks::context::SyncTaskContext;
use millpond_crypt::{CryptKey, DatasetKey};
use millpond_env::mark;
use millpond_ondisk::{Guid, ObjectId};
use millpond_pool::PoolError;
use std::collections::{BTreeMap, BTreeSet};

/// The wrapped keys that raw streams brought, by the guid of the master key. Only the last of each counts.
pub type SentKeys = BTreeMap<Guid, CryptKey>;

/// A dataset of the package.
struct Member {
    name: String,
    directory: ObjectId,
    found: FoundKey,
    /// The root that it has at the sender, if that is here.
    root: Option<ObjectId>,
    sent: Option<CryptKey>,
}

impl Datasets {
    /// Gives datasets that were received raw the encryption roots and wrapped keys that they have at the sender. Keys stay
    /// wrapped as they came: the sender wrapped them so.
    ///
    /// `datasets`: the encrypted ones of the package with whether each is a root, parents first. `sent`: the keys that its
    /// streams brought. A root is left as it is, with all that inherit from it here or at the sender, if the keys of one of
    /// them were not sent. Returns the names of the others.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], and those of [`millpond_pool::Pool::sync_task`].
    pub fn set_sent_roots(
        &self,
        datasets: &[(String, bool)],
        sent: &SentKeys,
    ) -> Result<BTreeSet<String>, DatasetError> {
        self.task(
            |s| {
                let mut members = s.members(datasets, sent)?;
                s.retain_whole(&mut members)?;
                Ok(members)
            },
            |s, members| {
                for member in &members {
                    s.put_sent(member)?;
                }
                Ok(members.into_iter().map(|member| member.name).collect())
            },
        )
    }
}

impl SyncTaskContext<'_> {
    /// The datasets with what they have here. Clones are left out: they share the keys of their origin.
    fn members(
        &self,
        datasets: &[(String, bool)],
        sent: &SentKeys,
    ) -> Result<Vec<Member>, DatasetError> {
        let mut roots: BTreeMap<ObjectId, Option<ObjectId>> = BTreeMap::new();
        let mut members = vec![];
        for (name, is_root) in datasets {
            let directory = self.find_head(name)?.directory;
            let Some(found) = self.found_key(directory)? else {
                continue;
            };
            if self.is_clone(directory)? {
                continue;
            }
            let root = match (is_root, self.directory(directory)?.parent) {
                (true, _) => Some(directory),
                (false, Some(parent)) => match roots.get(&parent) {
                    Some(root) => *root,
                    None => self.encryption_root(parent)?,
                },
                (false, None) => None,
            };
            roots.insert(directory, root);
            members.push(Member {
                name: name.clone(),
                directory,
                root,
                sent: sent.get(&found.key.guid).cloned(),
                found,
            });
        }
        Ok(members)
    }

    /// Leaves the members of roots that can change as a whole.
    fn retain_whole(&self, members: &mut Vec<Member>) -> Result<(), PoolError> {
        loop {
            let objects: BTreeSet<ObjectId> =
                members.iter().map(|member| member.found.object).collect();
            let present: BTreeSet<ObjectId> =
                members.iter().map(|member| member.directory).collect();
            let mut left = BTreeSet::new();
            for member in &*members {
                let root = member.root.filter(|root| present.contains(root));
                let below = self.keys_below(member.directory, member.found.key.root_directory)?;
                let has_all = below.iter().all(|(object, _)| objects.contains(object));
                if root.is_none() || member.sent.is_none() || !has_all {
                    left.insert(member.root);
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            mark::hit("sent-root-left");
            members.retain(|member| !left.contains(&member.root));
        }
    }

    fn put_sent(&self, member: &Member) -> Result<(), PoolError> {
        let (Some(root), Some(sent)) = (member.root, &member.sent) else {
            return Ok(());
        };
        let (directory, old) = (member.directory, &member.found.key);
        let new = CryptKey {
            root_directory: root,
            reference_count: old.reference_count,
            ..sent.clone()
        };
        self.put_key_object(member.found.object, &new)?;
        let (was_root, is_root) = (old.root_directory == directory, root == directory);
        if was_root == is_root {
            self.forget_other_wrapping(directory, &new);
            return Ok(());
        }
        self.datasets.keys.forget(directory);
        self.put_key_location(directory, is_root.then_some("prompt"))
    }

    /// Forgets the user's key of a root that does not open its wrapped keys: it is an older one.
    pub(super) fn forget_other_wrapping(&self, directory: ObjectId, key: &CryptKey) {
        let ring = &self.datasets.keys;
        if let Some(wrapping) = ring.wrapping(directory)
            && DatasetKey::unwrap(key, &wrapping).is_err()
        {
            ring.forget_wrapping(directory);
        }
    }
}
