//! Checks whether a snapshot can be received, and creates the dataset that takes it.

use super::{IncomingSnapshot, ReceiveTarget, Receiving, Replaced, UnderWay, head, hidden_name};
use crate::datasets::Datasets;
use crate::heads::features;
use crate::mos::{During, contradiction};
use crate::redaction::REDACTION_SNAPSHOTS_MAX;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::{Head, Snapshot};
use crate::tasks::encryption::{EncryptionProperties, NewCrypt};
use crate::{DatasetError, Refusal};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::dsl::keys::{self, RECEIVE_DATASET};
use millpond_ondisk::{DslDatasetFlags, DslDatasetPhys, Guid, ObjectId, ObjectSetKind, Txg};
use millpond_pool::PoolError;

const WHAT: &str = "receiving a snapshot";

/// A validated receive.
struct Plan {
    destination: Destination,
    /// The snapshot that the dataset begins with, if it is not empty.
    origin: Option<ObjectId>,
    /// The directory whose key a clone shares.
    key_of: Option<ObjectId>,
    crypt: Option<NewCrypt>,
}

enum Destination {
    /// A new dataset below this directory, with this last component.
    New(ObjectId, String),
    /// The hidden child of this one.
    Hidden(Head),
}

impl Datasets {
    /// Begins to receive a snapshot. The dataset that takes it is on stable storage when this returns.
    ///
    /// # Errors
    /// [`Refusal`]: the snapshot or dataset exists, its older snapshot does not, the dataset was changed, or the pool
    /// lacks a feature.
    pub fn begin_receive(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
    ) -> Result<Receiving, DatasetError> {
        let ((id, name, replaced), has_origin, under_way) = self.task(
            |s| s.check_begin_receive(incoming, target),
            |s, plan| {
                let has_origin = plan.origin.is_some();
                let begun = s.begin_receive(incoming, target, plan)?;
                // Marked at once, so that another receive never takes it for a state that was left.
                let under_way = UnderWay::begin(self, begun.0);
                Ok((begun, has_origin, under_way))
            },
        )?;
        let head = match self.open_receiving(incoming, id, &name) {
            Ok(head) => head,
            Err(error) => {
                self.destroy_received(&name)?;
                return Err(error);
            }
        };
        // The dataset is new.
        let under_way = under_way.ok_or_else(|| Refusal::error(&target.name, Refusal::Busy))?;
        Ok(Receiving {
            head,
            target: target.clone(),
            guid: incoming.guid,
            creation_s: incoming.creation_s,
            replaced,
            has_origin,
            raw: incoming.raw.clone(),
            _under_way: under_way,
        })
    }

    /// Checks whether [`Datasets::begin_receive`] would be refused.
    ///
    /// # Errors
    /// As [`Datasets::begin_receive`].
    pub fn check_receive(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
    ) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_begin_receive(incoming, target).map(drop),
            |_, ()| Ok(()),
        )
    }
}

impl SyncTaskContext<'_> {
    fn check_begin_receive(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
    ) -> Result<Plan, DatasetError> {
        let refused = |why| Refusal::error(&target.name, why);
        let extensible = [features::EXTENSIBLE_DATASET];
        let needed = target.resume.as_ref().map_or(&[][..], |_| &extensible[..]);
        let mut needed = incoming.needs.iter().chain(needed);
        if needed.any(|guid| !self.is_enabled(guid)) {
            return Err(refused(Refusal::FeatureDisabled));
        }
        let lists = [&incoming.redacted, &incoming.redacted_from];
        let mut lists = lists.into_iter().flatten();
        if lists.any(|guids| guids.len() > REDACTION_SNAPSHOTS_MAX) {
            return Err(refused(Refusal::ManyRedactionSnapshots));
        }
        if incoming.needs_system_attributes && !self.version().has_system_attributes() {
            return Err(refused(Refusal::FeatureDisabled));
        }
        let plan = match self.find_head(&target.name) {
            Ok(head) => self.check_receive_into(incoming, target, head),
            Err(DatasetError::NotFound { .. }) => self.check_receive_as_new(incoming, target),
            Err(error) => Err(error),
        }?;
        if let Some(directory) = plan.key_of
            && incoming.raw.is_none()
        {
            self.datasets.write_key(self, &target.name, directory)?;
        }
        Ok(plan)
    }

    fn check_receive_as_new(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
    ) -> Result<Plan, DatasetError> {
        if incoming.from.is_some() && target.origin.is_none() {
            return Err(DatasetError::NotFound {
                name: target.name.clone(),
            });
        }
        let (parent, component) = self.check_new_head(&target.name, target.creator.as_ref())?;
        let limits = (keys::SNAPSHOT_COUNT, "snapshot_limit");
        let who = (target.name.as_str(), target.creator.as_ref());
        self.check_count_limits(who, parent, limits, 1)?;
        let destination = Destination::New(parent, component);
        let Some(origin) = &target.origin else {
            let crypt = match target.is_plain || incoming.raw.is_some() {
                true => None,
                false => {
                    let given = EncryptionProperties::split(&target.name, &target.encryption)?.0;
                    let root = target.root_key.as_ref();
                    self.check_encryption(&target.name, Some(parent), &given, root)?
                }
            };
            return Ok(Plan {
                destination,
                origin: None,
                key_of: None,
                crypt,
            });
        };
        let origin = self.find_snapshot(origin)?;
        self.check_origin(incoming, target, &origin)?;
        self.check_raw(incoming, target, origin.head.directory, origin.dataset)?;
        Ok(Plan {
            destination,
            origin: Some(origin.dataset),
            key_of: Some(origin.head.directory),
            crypt: None,
        })
    }

    /// Checks whether a snapshot can be the one that the stream is a change of.
    fn check_origin(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        origin: &Snapshot,
    ) -> Result<(), DatasetError> {
        let refused = |why| Err(Refusal::error(&target.name, why));
        let phys = self.dataset(origin.dataset)?;
        if incoming.from.is_some_and(|from| from != phys.guid) {
            return refused(Refusal::NoSource);
        }
        if phys.flags.contains(DslDatasetFlags::INCONSISTENT) {
            return refused(Refusal::Inconsistent);
        }
        self.check_redaction(incoming, target, origin.dataset)?;
        self.check_large_blocks(incoming, target, origin.dataset)
    }

    /// Checks whether the stream has what a redacted older snapshot lacks, or leaves it out too.
    fn check_redaction(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        source: ObjectId,
    ) -> Result<(), DatasetError> {
        // A full stream has everything.
        let held = self.extension(source, features::REDACTED_DATASETS)?;
        let Some(held) = held.filter(|_| incoming.from.is_some()) else {
            return Ok(());
        };
        let has_all = |guids: &[u64]| guids.iter().all(|guid| held.contains(guid));
        let fits = match (&incoming.redacted_from, &incoming.redacted) {
            (Some(guids), _) | (None, Some(guids)) => has_all(guids),
            (None, None) => held.contains(&incoming.guid.0),
        };
        match fits {
            true => Ok(()),
            false => Err(Refusal::error(&target.name, Refusal::RedactedOtherwise)),
        }
    }

    fn check_large_blocks(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        source: ObjectId,
    ) -> Result<(), DatasetError> {
        let has_them = self.extension(source, features::LARGE_BLOCKS)?.is_some();
        match has_them && !incoming.has_large_blocks {
            true => Err(Refusal::error(&target.name, Refusal::NeedsLargeBlocks)),
            false => Ok(()),
        }
    }

    fn check_receive_into(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        head: Head,
    ) -> Result<Plan, DatasetError> {
        let refused = |why| Err(Refusal::error(&target.name, why));
        let phys = self.dataset(head.dataset)?;
        let children = self.children(head.directory)?;
        let is_partial = phys.flags.contains(DslDatasetFlags::INCONSISTENT);
        let hidden = self.half_received_below(&head)?;
        if is_partial || hidden.is_some() {
            let partial = hidden.map_or(head.dataset, |hidden| hidden.dataset);
            return refused(match UnderWay::has_begun(self.datasets, partial) {
                true => Refusal::Busy,
                false => Refusal::PartlyReceived,
            });
        }
        if self.snapshot_entry(&phys, &target.snapshot)?.is_some() {
            return refused(Refusal::SnapshotExists(target.snapshot.clone()));
        }
        if incoming.kind == ObjectSetKind::Volume && !children.is_empty() {
            return refused(Refusal::HasChildren);
        }
        let limits = (keys::SNAPSHOT_COUNT, "snapshot_limit");
        let who = (target.name.as_str(), target.creator.as_ref());
        self.check_count_limits(who, head.directory, limits, 1)?;
        let origin = match incoming.from {
            Some(from) => {
                let Some(source) = self.source_in(&phys, from)? else {
                    return refused(Refusal::NoSource);
                };
                self.check_redaction(incoming, target, source)?;
                self.check_large_blocks(incoming, target, source)?;
                self.check_raw(incoming, target, head.directory, source)?;
                // The IVs of later snapshots are others.
                if incoming.raw.is_some()
                    && !target.is_forced
                    && phys.previous_snapshot != Some(source)
                {
                    return refused(Refusal::NoSource);
                }
                if target.is_forced {
                    Some(source)
                } else if self.is_changed_since(head.dataset, source)? {
                    return refused(Refusal::Modified);
                } else {
                    // Snapshots that were taken since have the same content.
                    phys.previous_snapshot
                }
            }
            None if !target.is_forced => return refused(Refusal::Exists),
            None => {
                self.check_replace(&head, &phys)?;
                if incoming.raw.is_some() {
                    return refused(Refusal::EncryptionReplaced);
                }
                None
            }
        };
        Ok(Plan {
            key_of: origin.map(|_| head.directory),
            destination: Destination::Hidden(head),
            origin,
            crypt: None,
        })
    }

    /// Checks whether a full stream can replace a head.
    fn check_replace(&self, head: &Head, phys: &DslDatasetPhys) -> Result<(), DatasetError> {
        let refused = |why| Err(Refusal::error(&head.name, why));
        if phys.previous_snapshot != self.empty_origin()? {
            return refused(match self.snapshot_entries(phys)?.is_empty() {
                true => Refusal::IsClone,
                false => Refusal::HasSnapshots,
            });
        }
        match self.encryption_root(head.directory)? {
            Some(_) => refused(Refusal::EncryptionReplaced),
            None => Ok(()),
        }
    }

    /// The snapshot with this guid among those of a head's own directory.
    fn source_in(&self, head: &DslDatasetPhys, guid: Guid) -> Result<Option<ObjectId>, PoolError> {
        let mut at = head.previous_snapshot;
        let mut last = Txg(u64::MAX);
        while let Some(id) = at {
            let phys = self.dataset(id)?;
            if phys.directory != head.directory {
                break;
            }
            if phys.guid == guid {
                return Ok(Some(id));
            }
            if phys.creation_txg >= last {
                return Err(contradiction(WHAT, "snapshots do not become older"));
            }
            last = phys.creation_txg;
            at = phys.previous_snapshot;
        }
        Ok(None)
    }

    /// Whether a head has other objects than a snapshot before it. Its intent log does not count.
    pub(super) fn is_changed_since(
        &self,
        head: ObjectId,
        snapshot: ObjectId,
    ) -> Result<bool, PoolError> {
        let now = self.dataset(head)?.block_pointer;
        let before = self.dataset(snapshot)?;
        if now.birth() <= before.creation_txg {
            return Ok(false);
        }
        let open = |dataset: ObjectId, root| {
            let store = Arc::clone(self.pool.store());
            let set = ObjectSetView::open(store, dataset.0, root, None).during(WHAT)?;
            Ok::<_, PoolError>(set.phys().meta_dnode.clone())
        };
        Ok(open(head, now)? != open(snapshot, before.block_pointer)?)
    }

    fn begin_receive(
        &self,
        incoming: &IncomingSnapshot,
        target: &ReceiveTarget,
        plan: Plan,
    ) -> Result<(ObjectId, String, Option<Replaced>), PoolError> {
        let mut flags = DslDatasetFlags::INCONSISTENT;
        if incoming.is_case_insensitive {
            flags |= DslDatasetFlags::CASE_INSENSITIVE;
        }
        let begun_with = match plan.origin {
            Some(origin) => Some(origin),
            None => self.empty_origin()?,
        };
        let (name, directory, replaced) = match &plan.destination {
            Destination::New(parent, component) => {
                let directory = self.create_directory(Some(*parent), component)?;
                (target.name.clone(), directory, None)
            }
            Destination::Hidden(above) => {
                let directory = self.create_directory(Some(above.directory), RECEIVE_DATASET)?;
                let replaced = Replaced {
                    head: above.dataset,
                    origin: begun_with,
                };
                (hidden_name(&target.name), directory, Some(replaced))
            }
        };
        if let Some(from) = plan.key_of {
            self.share_key(from, directory)?;
        }
        let dataset = self.create_head(directory, begun_with, flags)?;
        // The hidden child does not stay: what is received has the permissions of the dataset that it replaces.
        if replaced.is_none() {
            self.grant_creator(directory, target.creator.as_ref())?;
        }
        // Those of the older snapshot do not hold any more.
        self.deactivate_feature(dataset, features::REDACTED_DATASETS)?;
        if let Some(guids) = &incoming.redacted {
            self.activate_feature(dataset, features::REDACTED_DATASETS, guids)?;
        }
        for guid in &incoming.uses {
            self.activate_feature(dataset, guid, &[0])?;
        }
        let own = head(&name, directory, dataset);
        if let Some(crypt) = &plan.crypt {
            self.put_new_key(&own, crypt)?;
        }
        let new_raw = incoming.raw.as_ref().filter(|_| plan.origin.is_none());
        if let Some(raw) = new_raw {
            self.put_sent_key(&own, raw)?;
        }
        self.history(dataset, &name, "receive", " ")?;
        if let Some(allowances) = &target.resume {
            self.begin_resumable(dataset, incoming, allowances)?;
        }
        match plan.origin {
            Some(_) => self.clear_log(dataset, directory)?,
            None if let Some(raw) = new_raw => {
                self.datasets.fill_raw(self, &own, incoming.kind, raw)?;
            }
            None => {
                let key = plan.crypt.map(|crypt| crypt.key);
                self.datasets.fill_empty(self, &own, incoming.kind, key)?;
            }
        }
        Ok((dataset, name, replaced))
    }
}
