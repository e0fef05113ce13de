//! Creates the initial datasets of a new pool.
//!
//! Page `docs/format/dsl-directory.md`, "What a new pool holds".

use crate::DatasetError;
use crate::heads::initializer::NewContents;
use crate::mos::{MosView, required};
use crate::properties::PropertyValue;
use crate::tasks::checks::check_copies;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::destroy_snapshot::FREE_LIST;
use crate::tasks::directories::{Head, ROOT};
use crate::tasks::encryption::EncryptionProperties;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{DslDatasetFlags, ObjectId, ObjectSetKind, Txg};
use millpond_pool::BpObject;
use millpond_pool::PoolError;
use std::collections::BTreeMap;

impl MosView<'_> {
    /// The empty snapshot from which every dataset descends; `None` before version 11.
    pub(crate) fn empty_origin(&self) -> Result<Option<ObjectId>, PoolError> {
        if !self.version().has_origin() {
            return Ok(None);
        }
        let directory = self.special_directory(keys::ORIGIN_DIRECTORY)?;
        let head = self.directory(directory)?.head_dataset;
        let head = self.dataset(required(head, "$ORIGIN has no head")?)?;
        required(head.previous_snapshot, "$ORIGIN has no snapshot").map(Some)
    }
}

impl SyncTaskContext<'_> {
    /// Creates the root directory and `$MOS`, and what the pool's version has of `$FREE` with its list and
    /// `$ORIGIN` with its snapshot. Returns the root directory.
    fn create_skeleton(&self) -> Result<ObjectId, PoolError> {
        let root = self.create_directory(None, "")?;
        self.ctx.set_directory_number(ROOT, root.0)?;
        self.create_directory(Some(root), keys::MOS_DIRECTORY)?;
        if self.version().has_split_deadlists() {
            self.create_free_list(root)?;
        }
        if self.version().has_origin() {
            self.create_origin(root)?;
        }
        Ok(root)
    }

    /// Creates `$FREE` and the list of blocks that wait to be freed.
    pub(crate) fn create_free_list(&self, root: ObjectId) -> Result<(), PoolError> {
        self.create_directory(Some(root), keys::FREE_DIRECTORY)?;
        let free = BpObject::create(self.ctx)?;
        self.ctx.set_directory_number(FREE_LIST, free.id().0)
    }

    /// Creates `$ORIGIN` with its snapshot, which is returned.
    pub(crate) fn create_origin(&self, root: ObjectId) -> Result<ObjectId, PoolError> {
        let origin = self.create_directory(Some(root), keys::ORIGIN_DIRECTORY)?;
        let head = self.create_head(origin, None, DslDatasetFlags::default())?;
        let snapshot = self.take_snapshot(head, keys::ORIGIN_DIRECTORY)?;
        // Every block is younger, also in a pool that was raised.
        self.edit_dataset(head, |phys| {
            phys.creation_txg = Txg(1);
            phys.previous_snapshot_txg = Txg(1);
        })?;
        self.edit_dataset(snapshot, |phys| phys.creation_txg = Txg(1))?;
        Ok(snapshot)
    }

    /// Creates the initial datasets and the root file system with its properties, given as text.
    pub(crate) fn create_root_dataset(
        &self,
        root_properties: &BTreeMap<String, String>,
    ) -> Result<(), PoolError> {
        let name = self.pool.name();
        let properties: Vec<_> = root_properties
            .iter()
            .map(|(name, value)| (name.clone(), PropertyValue::Text(value.clone())))
            .collect();
        let refused = |error: DatasetError| match error {
            DatasetError::Pool(error) => error,
            DatasetError::InvalidProperty {
                property, reason, ..
            } => PoolError::RootProperty { property, reason },
            other => PoolError::Suspended {
                reason: other.to_string(),
            },
        };
        let root_key = self.datasets.root_key.lock().take();
        let (encryption, properties) =
            EncryptionProperties::split(&name, &properties).map_err(refused)?;
        let (new, settings) = self
            .check_new_properties(&name, ObjectSetKind::FileSystem, None, &properties)
            .map_err(refused)?;
        let crypt = self
            .check_encryption(&name, None, &encryption, root_key.as_ref())
            .map_err(refused)?;
        if crypt.is_some() {
            check_copies(&name, &settings).map_err(refused)?;
        }
        let directory = self.create_skeleton()?;
        let origin = self.empty_origin()?;
        let dataset = self.create_head(directory, origin, new.dataset_flags())?;
        let head = Head {
            name,
            directory,
            dataset,
        };
        for setting in &settings {
            let checked = self.check_limits(&head, setting);
            checked.map_err(|error| match error {
                DatasetError::Refused { why, .. } => PoolError::RootProperty {
                    property: setting.name.clone(),
                    reason: why.to_string(),
                },
                other => refused(other),
            })?;
            self.apply_setting(&head, setting)?;
        }
        if let Some(crypt) = &crypt {
            self.put_new_key(&head, crypt)?;
        }
        let key = crypt.map(|crypt| crypt.key);
        self.datasets.fill(self, &head, &new, key)
    }

    /// Splits the properties of a new dataset into those that determine its contents and those that are
    /// stored.
    pub(crate) fn check_new_properties(
        &self,
        name: &str,
        kind: ObjectSetKind,
        parent: Option<ObjectId>,
        properties: &[(String, PropertyValue)],
    ) -> Result<(NewContents, Vec<crate::tasks::change_property::Setting>), DatasetError> {
        crate::heads::new_contents::check(self, name, kind, parent, properties)
    }
}
