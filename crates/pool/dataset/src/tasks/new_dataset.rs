//! Creates file systems, volumes and clones. Each call returns when its change is on stable storage. A refused call
//! changes nothing.

use crate::datasets::Datasets;
use crate::tasks::api::PropertyChanges;
use crate::tasks::checks::check_copies;
use crate::tasks::directories::Head;
use crate::tasks::encryption::EncryptionProperties;
use crate::{Creator, DatasetError, KeyRefusal, Refusal, RootKey};
use millpond_ondisk::{DslDatasetFlags, ObjectSetKind};

/// A file system or volume to create.
#[derive(Debug, Clone, Copy)]
pub struct NewDataset<'a> {
    /// Its full name.
    pub name: &'a str,
    /// File system or volume.
    pub kind: ObjectSetKind,
    /// Its properties. For a volume they include `volsize`, for an encryption root `keyformat`.
    pub properties: &'a PropertyChanges,
    /// The key, if it is to be an encryption root.
    pub root_key: Option<&'a RootKey>,
    /// The user who creates it, if not the superuser: the owner of its root directory, with the create-time
    /// permissions of its ancestors.
    pub creator: Option<&'a Creator>,
}

impl Datasets {
    /// Creates a file system.
    ///
    /// # Errors
    /// Refusals for name, limits and space; [`DatasetError::InvalidProperty`].
    pub fn create_filesystem(
        &self,
        name: &str,
        properties: &PropertyChanges,
    ) -> Result<(), DatasetError> {
        self.create(name, ObjectSetKind::FileSystem, properties, None)
    }

    /// Creates a volume. The properties must include `volsize`.
    ///
    /// # Errors
    /// As for [`Datasets::create_filesystem`].
    pub fn create_volume(
        &self,
        name: &str,
        properties: &PropertyChanges,
    ) -> Result<(), DatasetError> {
        self.create(name, ObjectSetKind::Volume, properties, None)
    }

    /// Creates a file system or volume that is an encryption root. The properties must include `keyformat`, and
    /// `volsize` for a volume.
    ///
    /// # Errors
    /// As for [`Datasets::create_filesystem`]; [`Refusal::Key`].
    pub fn create_encryption_root(
        &self,
        name: &str,
        kind: ObjectSetKind,
        properties: &PropertyChanges,
        key: &RootKey,
    ) -> Result<(), DatasetError> {
        self.create(name, kind, properties, Some(key))
    }

    /// Creates file systems in order, like [`Datasets::create_filesystem`], but many per txg to reduce
    /// waiting. A file system may be a descendant of an earlier one in the list.
    ///
    /// # Errors
    /// As for a single one, for the first that is refused. The earlier ones then exist.
    pub fn create_filesystems(
        &self,
        names: &[&str],
        properties: &PropertyChanges,
    ) -> Result<(), DatasetError> {
        self.one_by_one(
            names,
            |s, name| {
                s.check_create(&NewDataset {
                    name,
                    kind: ObjectSetKind::FileSystem,
                    properties,
                    root_key: None,
                    creator: None,
                })
            },
            |s, name, new| s.create(name, new),
        )
    }

    fn create(
        &self,
        name: &str,
        kind: ObjectSetKind,
        properties: &PropertyChanges,
        root_key: Option<&RootKey>,
    ) -> Result<(), DatasetError> {
        self.create_dataset(&NewDataset {
            name,
            kind,
            properties,
            root_key,
            creator: None,
        })
    }

    /// Creates a file system or volume.
    ///
    /// # Errors
    /// As for [`Datasets::create_filesystem`]; [`Refusal::Key`].
    pub fn create_dataset(&self, new: &NewDataset<'_>) -> Result<(), DatasetError> {
        self.task(|s| s.check_create(new), |s, head| s.create(new.name, head))
    }

    /// Creates a clone of a snapshot.
    ///
    /// # Errors
    /// Refusals for name, limits and space; [`DatasetError::InvalidProperty`].
    pub fn clone_snapshot(
        &self,
        snapshot: &str,
        name: &str,
        properties: &PropertyChanges,
    ) -> Result<(), DatasetError> {
        self.clone_snapshot_by(snapshot, name, properties, None)
    }

    /// Creates a clone of a snapshot. `creator` is the user who does so, if not the superuser.
    ///
    /// # Errors
    /// As for [`Datasets::clone_snapshot`].
    pub fn clone_snapshot_by(
        &self,
        snapshot: &str,
        name: &str,
        properties: &PropertyChanges,
        creator: Option<&Creator>,
    ) -> Result<(), DatasetError> {
        self.task(
            |s| {
                let origin = s.find_snapshot(snapshot)?;
                let (parent, component) = s.check_new_head(name, creator)?;
                let phys = s.dataset(origin.dataset)?;
                if phys.flags.contains(DslDatasetFlags::INCONSISTENT) {
                    return Err(Refusal::error(snapshot, Refusal::Inconsistent));
                }
                let (encryption, properties) = EncryptionProperties::split(name, properties)?;
                if !encryption.is_empty() {
                    let why = Refusal::Key(KeyRefusal::OfOrigin);
                    return Err(Refusal::error(name, why));
                }
                let kind = s.kind_of(&origin.head)?;
                let mut settings = vec![];
                for (property, value) in &properties {
                    settings.push(s.check_value(name, kind, property, value)?);
                }
                if s.encryption_root(origin.head.directory)?.is_some() {
                    check_copies(name, &settings)?;
                }
                Ok((origin, parent, component, settings))
            },
            |s, (origin, parent, component, settings)| {
                let directory = s.create_directory(Some(parent), &component)?;
                s.share_key(origin.head.directory, directory)?;
                let dataset = s.create_clone(directory, origin.dataset)?;
                s.grant_creator(directory, creator)?;
                let head = Head {
                    name: name.to_owned(),
                    directory,
                    dataset,
                };
                let text = format!("origin={} ({})", origin.full_name(), origin.dataset);
                s.history(dataset, name, "clone", &text)?;
                for setting in &settings {
                    s.apply_setting(&head, setting)?;
                }
                Ok(())
            },
        )
    }
}
