//! Checks before datasets are created, snapshotted, moved or destroyed.

use crate::heads::initializer::NewContents;
use crate::heads::open::ClosedHead;
use crate::mos::During;
use crate::properties::{NEEDS_UPGRADE, PropertyName, PropertyValue, by_name, table};
use crate::tasks::api::PropertyChanges;
use crate::tasks::change_property::{self, Setting, check_user_property};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::{Head, Snapshot};
use crate::tasks::encryption::{EncryptionProperties, NewCrypt};
use crate::tasks::new_dataset::NewDataset;
use crate::{Creator, DatasetError, DatasetName, NAME_BYTES_MAX, NameTail, Refusal};
use millpond_object::ObjectSetView;
use millpond_ondisk::dsl::keys::{self, RECEIVE_DATASET};
use millpond_ondisk::{DslDatasetFlags, DslDatasetPhys, ObjectId, ObjectSetKind, Txg};
use millpond_pool::HistoryEvent;
use millpond_pool::PoolError;
use millpond_pool::properties::Edit;
use std::collections::BTreeSet;

/// A validated new dataset.
pub(crate) struct NewHead {
    parent: ObjectId,
    component: String,
    contents: NewContents,
    settings: Vec<Setting>,
    crypt: Option<NewCrypt>,
    creator: Option<Creator>,
}

/// A head that is closed for destruction and can no longer be opened.
pub(crate) struct ToDestroy {
    head: Head,
    closed: ClosedHead,
    /// The hidden child of an unfinished receive into the head, which is destroyed first.
    half_received: Option<(Head, ClosedHead)>,
}

/// A dataset prepared for destruction.
pub(crate) enum PreparedDestroy {
    Head(ToDestroy),
    Snapshot(Snapshot),
}

impl SyncTaskContext<'_> {
    /// Records an event in the pool's history.
    pub(crate) fn history(
        &self,
        dataset: ObjectId,
        full_name: &str,
        event: &str,
        text: &str,
    ) -> Result<(), PoolError> {
        self.ctx
            .history(&HistoryEvent::of_dataset(event, text, full_name, dataset))
    }

    pub(crate) fn kind_of(&self, head: &Head) -> Result<ObjectSetKind, PoolError> {
        // A head created in this txg has no block pointer yet; it is only in memory.
        if let Some(set) = self.datasets.open_set(head.dataset) {
            return Ok(set.kind());
        }
        let pointer = self.dataset(head.dataset)?.block_pointer;
        let store = std::sync::Arc::clone(self.pool.store());
        let set = ObjectSetView::open(store, head.dataset.0, pointer, None).during("dataset")?;
        Ok(set.kind())
    }

    /// Checks whether the reservations of a new dataset are available.
    pub(crate) fn check_new_reservations(
        &self,
        name: &str,
        parent: ObjectId,
        settings: &[Setting],
    ) -> Result<(), DatasetError> {
        for setting in settings {
            let is_reservation = matches!(setting.name.as_str(), "reservation" | "refreservation");
            if let (true, PropertyValue::Number(bytes)) = (is_reservation, &setting.value)
                && *bytes > self.available(parent)?
            {
                return Err(Refusal::error(name, Refusal::NoSpace));
            }
        }
        Ok(())
    }

    /// The checks common to create and clone. Returns the parent directory and the last component.
    pub(crate) fn check_new_head(
        &self,
        name: &str,
        creator: Option<&Creator>,
    ) -> Result<(ObjectId, String), DatasetError> {
        let (parent, component) = self.check_new_name(name)?;
        let path = name.rsplit_once('/').map_or(name, |(path, _)| path);
        let head = self.find_head(path)?;
        if self.kind_of(&head)? == ObjectSetKind::Volume {
            return Err(Refusal::error(name, Refusal::ParentIsVolume));
        }
        let limits = (keys::FILESYSTEM_COUNT, "filesystem_limit");
        self.check_count_limits((name, creator), parent, limits, 1)?;
        if self.available(parent)? == 0 {
            return Err(Refusal::error(name, Refusal::NoSpace));
        }
        if creator.is_some() {
            // Damaged tables refuse the call here. Once it is applied, they would suspend the pool.
            self.creator_permissions(parent)?;
        }
        Ok((parent, component))
    }

    pub(crate) fn check_create(&self, new: &NewDataset<'_>) -> Result<NewHead, DatasetError> {
        let (name, creator) = (new.name, new.creator);
        let (parent, component) = self.check_new_head(name, creator)?;
        let (encryption, properties) = EncryptionProperties::split(name, new.properties)?;
        let (mut contents, settings) =
            self.check_new_properties(name, new.kind, Some(parent), &properties)?;
        if let (NewContents::FileSystem(files), Some(creator)) = (&mut contents, creator) {
            files.owner = (creator.subject.user, creator.group);
        }
        self.check_new_reservations(name, parent, &settings)?;
        let crypt = self.check_encryption(name, Some(parent), &encryption, new.root_key)?;
        if let Some(crypt) = &crypt {
            check_copies(name, &settings)?;
            check_block(name, &contents, crypt)?;
        }
        Ok(NewHead {
            parent,
            component,
            contents,
            settings,
            crypt,
            creator: creator.cloned(),
        })
    }

    /// Creates a file system or volume that passed [`SyncTaskContext::check_create`].
    pub(crate) fn create(&self, name: &str, new: NewHead) -> Result<(), PoolError> {
        let directory = self.create_directory(Some(new.parent), &new.component)?;
        let origin = self.empty_origin()?;
        let flags = new.contents.dataset_flags();
        let dataset = self.create_head(directory, origin, flags)?;
        self.grant_creator(directory, new.creator.as_ref())?;
        let head = Head {
            name: name.to_owned(),
            directory,
            dataset,
        };
        self.history(dataset, name, "create", " ")?;
        for setting in &new.settings {
            self.apply_setting(&head, setting)?;
        }
        if let Some(crypt) = &new.crypt {
            self.put_new_key(&head, crypt)?;
        }
        let key = new.crypt.map(|crypt| crypt.key);
        (self.datasets).fill(self, &head, &new.contents, key)
    }

    /// Checks whether a file system or volume may be destroyed, and prevents it from being opened.
    pub(crate) fn close_to_destroy(&self, name: &str) -> Result<ToDestroy, DatasetError> {
        let head = self.find_head(name)?;
        let hidden = self.half_received_below(&head)?;
        self.check_destroy_head(&head)?;
        let close = |head: Head| {
            let closed = self.datasets.close_for_good(head.dataset, self.txg());
            let closed = closed.ok_or_else(|| Refusal::error(name, Refusal::Busy))?;
            Ok::<_, DatasetError>((head, closed))
        };
        let half_received = match hidden {
            Some(hidden) => {
                self.check_destroy_head(&hidden)?;
                Some(close(hidden)?)
            }
            None => None,
        };
        match close(head) {
            Ok((head, closed)) => Ok(ToDestroy {
                head,
                closed,
                half_received,
            }),
            Err(error) => {
                if let Some((hidden, _)) = half_received {
                    self.datasets.reopen(hidden.dataset);
                }
                Err(error)
            }
        }
    }

    /// The hidden child dataset of an unfinished receive into a dataset. Only this dataset uses it.
    pub(crate) fn half_received_below(&self, head: &Head) -> Result<Option<Head>, DatasetError> {
        let children = self.children(head.directory)?;
        match children.iter().any(|child| child.0 == RECEIVE_DATASET) {
            true => {
                let name = format!("{}/{RECEIVE_DATASET}", head.name);
                Ok(Some(self.find_head(&name)?))
            }
            false => Ok(None),
        }
    }

    /// Checks whether a dataset may be destroyed, and closes a file system or volume.
    pub(crate) fn prepare_destroy(&self, name: &str) -> Result<PreparedDestroy, DatasetError> {
        if !name.contains('@') {
            return Ok(PreparedDestroy::Head(self.close_to_destroy(name)?));
        }
        let snapshot = self.find_snapshot(name)?;
        self.check_destroy_snapshot(&snapshot, name, false)?;
        Ok(PreparedDestroy::Snapshot(snapshot))
    }

    /// Destroys a dataset prepared by [`SyncTaskContext::prepare_destroy`].
    pub(crate) fn destroy_prepared(&self, prepared: PreparedDestroy) -> Result<(), PoolError> {
        match prepared {
            PreparedDestroy::Head(head) => self.destroy_closed(head),
            PreparedDestroy::Snapshot(snapshot) => self.destroy_or_defer(&snapshot),
        }
    }

    /// Checks whether a snapshot may be destroyed now, or with `defer`, later.
    pub(crate) fn check_destroy_snapshot(
        &self,
        snapshot: &Snapshot,
        name: &str,
        defer: bool,
    ) -> Result<(), DatasetError> {
        let phys = self.dataset(snapshot.dataset)?;
        if defer && !self.version().has_holds() {
            return Err(Refusal::error(name, Refusal::NeverLater));
        }
        if !defer && !self.is_free_to_go(&phys)? {
            let why = match phys.children_count > 1 {
                true => Refusal::HasClones,
                false => Refusal::IsHeld,
            };
            return Err(Refusal::error(name, why));
        }
        let goes_now = self.is_free_to_go(&phys)?;
        if goes_now && !self.datasets.lending.close(snapshot.dataset, self.txg()) {
            return Err(Refusal::error(name, Refusal::Busy));
        }
        Ok(())
    }

    /// Destroys a snapshot, or marks it for deferred destruction.
    pub(crate) fn destroy_or_defer(&self, snapshot: &Snapshot) -> Result<(), PoolError> {
        let full = snapshot.full_name();
        let phys = self.dataset(snapshot.dataset)?;
        if self.is_free_to_go(&phys)? {
            self.history(snapshot.dataset, &full, "destroy", " ")?;
            self.destroy_snapshot(snapshot.dataset, &snapshot.name)?;
            self.wake_background();
            Ok(())
        } else {
            self.history(snapshot.dataset, &full, "defer_destroy", " ")?;
            self.defer_destroy(snapshot.dataset)
        }
    }

    /// Destroys a head closed by [`SyncTaskContext::close_to_destroy`].
    pub(crate) fn destroy_closed(&self, prepared: ToDestroy) -> Result<(), PoolError> {
        let ToDestroy {
            head,
            closed,
            half_received,
        } = prepared;
        if let Some((hidden, closed)) = half_received {
            self.destroy_one(hidden, closed)?;
        }
        self.destroy_one(head, closed)
    }

    fn destroy_one(&self, head: Head, closed: ClosedHead) -> Result<(), PoolError> {
        self.free_log_of(closed.log)?;
        self.free_waiting_log(head.dataset)?;
        let how = self.how_destroyed(&head)?;
        self.history(head.dataset, &head.name, "destroy", &how)?;
        self.destroy_head(head.dataset, &head.name)?;
        self.wake_background();
        Ok(())
    }

    /// A directory and all above it.
    pub(crate) fn lineage(&self, directory: ObjectId) -> Result<BTreeSet<ObjectId>, PoolError> {
        let mut lineage = BTreeSet::new();
        let mut at = Some(directory);
        while let Some(id) = at
            && lineage.insert(id)
        {
            at = self.directory(id)?.parent;
        }
        Ok(lineage)
    }

    /// Checks whether moved space fits the quotas of the new directory and its ancestors, except ancestors
    /// shared with the old directory.
    pub(crate) fn check_transfer(
        &self,
        from: ObjectId,
        to: ObjectId,
        bytes: i64,
        name: &str,
    ) -> Result<(), DatasetError> {
        let above_from = self.lineage(from)?;
        let bytes = u64::try_from(bytes).unwrap_or(0);
        let mut at = Some(to);
        let mut seen = BTreeSet::new();
        while let Some(id) = at
            && !above_from.contains(&id)
            && seen.insert(id)
        {
            let phys = self.directory(id)?;
            if phys.quota_bytes != 0 && phys.used_bytes.saturating_add(bytes) > phys.quota_bytes {
                return Err(Refusal::error(name, Refusal::OverQuota));
            }
            at = phys.parent;
        }
        Ok(())
    }

    pub(crate) fn head_of_snapshot(&self, snapshot: &Snapshot) -> Result<ObjectId, PoolError> {
        Ok(snapshot.head.dataset)
    }
}

impl SyncTaskContext<'_> {
    /// The heads and names to snapshot; `None` if one of them must wait for another txg.
    pub(crate) fn check_snapshots(
        &self,
        names: &[&str],
        user_properties: &PropertyChanges,
        creator: Option<&Creator>,
    ) -> Result<Option<Vec<(Head, String)>>, DatasetError> {
        let mut plan = vec![];
        let mut heads = BTreeSet::new();
        let mut must_wait = false;
        for full in names {
            let (path, name) = split_snapshot(full)?;
            if full.contains(['%', '$']) {
                return Err(DatasetError::InvalidName {
                    name: (*full).to_owned(),
                    reason: "invalid character in name",
                });
            }
            check_snapshot_properties(full, user_properties)?;
            let head = self.find_head(path)?;
            let phys = self.dataset(head.dataset)?;
            if !heads.insert(head.dataset) {
                return Err(Refusal::error(full, Refusal::SameDatasetTwice));
            }
            if self.snapshot_entry(&phys, name)?.is_some() {
                return Err(Refusal::error(full, Refusal::Exists));
            }
            if phys.flags.contains(DslDatasetFlags::INCONSISTENT) {
                return Err(Refusal::error(full, Refusal::Inconsistent));
            }
            let counts = (keys::SNAPSHOT_COUNT, "snapshot_limit");
            self.check_count_limits((full, creator), head.directory, counts, 1)?;
            let reserved = self.ref_reservation(head.directory)?;
            let more = phys.unique_bytes.min(reserved);
            if more > 0 && more > self.available(head.directory)? {
                return Err(Refusal::error(full, Refusal::NoSpace));
            }
            // In a full pool nothing is added. Quotas of datasets do not count: a snapshot takes nothing of theirs.
            if self.root_available()? == 0 {
                return Err(Refusal::error(&self.pool.name(), Refusal::NoSpace));
            }
            must_wait |= phys.previous_snapshot_txg >= self.txg()
                || (phys.creation_txg >= self.txg() && self.txg() > Txg(4));
            plan.push((head, name.to_owned()));
        }
        Ok((!must_wait).then_some(plan))
    }

    pub(crate) fn check_destroy_head(&self, head: &Head) -> Result<(), DatasetError> {
        let refused = |why| Err(Refusal::error(&head.name, why));
        if self.directory(head.directory)?.parent.is_none() {
            return refused(Refusal::IsRoot);
        }
        let mut children = self.children(head.directory)?.into_iter();
        if children.any(|child| child.0 != RECEIVE_DATASET) {
            return refused(Refusal::HasChildren);
        }
        let phys = self.dataset(head.dataset)?;
        if !self.snapshot_entries(&phys)?.is_empty() {
            return refused(Refusal::HasSnapshots);
        }
        self.check_root_unused(head, &BTreeSet::new())?;
        self.check_freed_at_once(head, &phys)
    }

    /// Refuses a head whose blocks would be freed at once, if its object set is lost: that would suspend the pool.
    pub(crate) fn check_freed_at_once(
        &self,
        head: &Head,
        phys: &DslDatasetPhys,
    ) -> Result<(), DatasetError> {
        let is_queued = self.is_enabled(crate::heads::features::ASYNC_DESTROY)
            || self.livelist_of(head.directory)?.is_some();
        if !is_queued && !phys.block_pointer.is_hole() {
            self.kind_of(head)?;
        }
        Ok(())
    }

    /// Refuses a head that is in use.
    pub(crate) fn check_closable(&self, name: &str, head: ObjectId) -> Result<(), DatasetError> {
        match self.datasets.is_closable(head, self.txg()) {
            true => Ok(()),
            false => Err(Refusal::error(name, Refusal::Busy)),
        }
    }

    /// The history's description of how a head was destroyed.
    pub(crate) fn how_destroyed(&self, head: &Head) -> Result<String, PoolError> {
        let phys = self.dataset(head.dataset)?;
        let way = if self.livelist_of(head.directory)?.is_some() {
            "livelist"
        } else if self.is_enabled(crate::heads::features::ASYNC_DESTROY) {
            "bptree"
        } else {
            "synchronous"
        };
        Ok(format!("({way}, mintxg={})", phys.previous_snapshot_txg))
    }
}

/// Refuses a volume whose blocks its suite cannot encrypt.
fn check_block(name: &str, contents: &NewContents, crypt: &NewCrypt) -> Result<(), DatasetError> {
    match contents {
        NewContents::Volume { block_bytes, .. }
            if *block_bytes > crypt.key.suite().block_bytes_max() =>
        {
            Err(DatasetError::InvalidProperty {
                name: name.to_owned(),
                property: "volblocksize".to_owned(),
                reason: "must be at most 8M with a suite of mode CCM".to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// Refuses the third copy, whose address would lie where encrypted blocks have salt and IV.
pub(crate) fn check_copies(name: &str, settings: &[Setting]) -> Result<(), DatasetError> {
    let is_third =
        |setting: &Setting| setting.name == "copies" && setting.value == PropertyValue::Number(3);
    match settings.iter().any(is_third) {
        true => Err(DatasetError::InvalidProperty {
            name: name.to_owned(),
            property: "copies".to_owned(),
            reason: "encrypted datasets cannot have 3 copies".to_owned(),
        }),
        false => Ok(()),
    }
}

/// Splits `path@name`.
pub(crate) fn split_snapshot(full: &str) -> Result<(&str, &str), DatasetError> {
    let parsed = DatasetName::parse(full)?;
    match parsed.tail {
        NameTail::Snapshot(name) if full.len() <= NAME_BYTES_MAX => Ok((parsed.path, name)),
        _ => Err(Refusal::error(
            full,
            Refusal::Invalid("not a snapshot's name"),
        )),
    }
}

/// Snapshots accept user properties only.
/// The full name of a property that is inherited. With `to_received`, also one that only has its received value restored.
pub(crate) fn inheritable(
    name: &str,
    property: &str,
    to_received: bool,
) -> Result<String, DatasetError> {
    let invalid = |reason: &str| DatasetError::InvalidProperty {
        name: name.to_owned(),
        property: property.to_owned(),
        reason: reason.to_owned(),
    };
    match by_name(property) {
        Some(PropertyName::Native(known)) => {
            let edit = known.shape.edit;
            if edit != Edit::Inheritable && !(to_received && edit == Edit::Settable) {
                return Err(invalid("property cannot be inherited"));
            }
            Ok(known.shape.name.to_owned())
        }
        Some(PropertyName::User(user)) if user.len() <= change_property::NAME_BYTES_MAX => Ok(user),
        _ => Err(invalid("invalid property")),
    }
}

impl SyncTaskContext<'_> {
    /// Takes snapshots that passed [`SyncTaskContext::check_snapshots`].
    pub(crate) fn take_snapshots(
        &self,
        plan: &[(Head, String)],
        user_properties: &PropertyChanges,
    ) -> Result<(), PoolError> {
        for (head, name) in plan {
            let full = format!("{}@{name}", head.name);
            let id = self.take_snapshot(head.dataset, name)?;
            self.history(id, &full, "snapshot", " ")?;
            self.set_snapshot_properties(id, &full, user_properties)?;
        }
        Ok(())
    }

    /// Checks whether user properties of a snapshot may be set.
    pub(crate) fn check_set_on_snapshot(
        &self,
        name: &str,
        changes: &PropertyChanges,
    ) -> Result<Snapshot, DatasetError> {
        let snapshot = self.find_snapshot(name)?;
        if !self.version().has_snapshot_properties() {
            let property = changes.first().map(|(property, _)| property.clone());
            return Err(DatasetError::InvalidProperty {
                name: name.to_owned(),
                property: property.unwrap_or_default(),
                reason: NEEDS_UPGRADE.to_owned(),
            });
        }
        check_snapshot_properties(name, changes)?;
        Ok(snapshot)
    }

    /// Sets user properties of a snapshot, all of which are texts.
    pub(crate) fn set_snapshot_properties(
        &self,
        snapshot: ObjectId,
        full_name: &str,
        changes: &PropertyChanges,
    ) -> Result<(), PoolError> {
        for (property, value) in changes {
            if let PropertyValue::Text(text) = value {
                self.set_snapshot_property(snapshot, full_name, property, Some(text))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn check_snapshot_properties(
    name: &str,
    changes: &PropertyChanges,
) -> Result<(), DatasetError> {
    for (property, value) in changes {
        let is_user = table::find(property).is_none() && property.contains(':');
        let checked = match is_user && matches!(value, PropertyValue::Text(_)) {
            true => check_user_property(property, value).map(drop),
            false => Err("this property can not be modified for snapshots"),
        };
        checked.map_err(|reason| DatasetError::InvalidProperty {
            name: name.to_owned(),
            property: property.clone(),
            reason: reason.to_owned(),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_of_snapshots_fit_their_tables() {
        let change = |name: usize, value: usize| {
            let name = format!("test:{}", "x".repeat(name - 5));
            let change = (name, PropertyValue::Text("y".repeat(value)));
            check_snapshot_properties("tank@s", &[change])
        };
        assert_eq!(change(255, 8191), Ok(()));
        for (name, value) in [(256, 1), (6, 8192)] {
            let refused = change(name, value);
            assert!(matches!(refused, Err(DatasetError::InvalidProperty { .. })));
        }
    }
}
