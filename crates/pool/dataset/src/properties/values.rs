//! The properties of file systems, volumes, snapshots and bookmarks.
//!
//! Page `docs/format/properties.md`.

use super::{Property, PropertySource, PropertyValue};
use crate::properties::content::Content;
use crate::properties::kind::DatasetKind;
use crate::properties::names::{Names, is_origin_of_all};
use crate::properties::special::PropertyName;
use crate::properties::stored::StoredProperties;
use crate::properties::table::{DATASET_PROPERTIES, DatasetProperty};
use crate::{Bookmark, Dataset, DatasetError, DatasetKey, Directory};
use millpond_env::sync::Arc;
use millpond_ondisk::{CryptKey, ObjectId, ObjectSetKind};
use millpond_pool::PoolView;
use millpond_pool::properties::{Edit, preset_value};
use std::collections::{HashMap, HashSet};

/// Computes properties of the datasets of one pool.
///
/// The reader caches data that several datasets share (names, available space, keys of encryption roots),
/// so a whole listing takes linear time with one reader. Create a new reader for each listing. Memory use
/// is proportional to the directories queried.
#[derive(Debug)]
pub struct PropertyReader {
    pub(super) pool: Arc<PoolView>,
    pub(super) names: Names,
    /// Available bytes by directory.
    pub(super) available: HashMap<ObjectId, u64>,
    crypt_keys: HashMap<ObjectId, Option<CryptKey>>,
    content_kinds: HashMap<ObjectId, ObjectSetKind>,
    /// Loaded keys by directory.
    pub(super) loaded: HashMap<ObjectId, Arc<DatasetKey>>,
}

/// The requested properties. Some require reads, so request only what is needed.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// Every property that `zfs get all` lists: native ones in their order, then user properties.
    All,
    /// Exactly these properties, without those that do not apply or have no value.
    Named(&'a [PropertyName]),
}

/// A dataset with the sources of its properties.
pub(super) struct Subject<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) kind: DatasetKind,
    /// The kind of content: that of the dataset, or of the dataset it is a snapshot of.
    content_kind: ObjectSetKind,
    /// A snapshot's own table.
    own: StoredProperties,
    content: Option<Content>,
}

impl PropertyReader {
    /// Creates a reader with empty caches.
    #[must_use]
    pub fn new(pool: &Arc<PoolView>) -> Self {
        Self {
            pool: Arc::clone(pool),
            names: Names::new(pool),
            available: HashMap::new(),
            crypt_keys: HashMap::new(),
            content_kinds: HashMap::new(),
            loaded: HashMap::new(),
        }
    }

    /// Registers the loaded key of a directory. `keystatus` then reports the key as loaded, and encrypted
    /// data of its datasets (space by owner) becomes readable.
    pub fn add_key(&mut self, directory: &Directory, key: Arc<DatasetKey>) {
        self.loaded.insert(directory.id(), key);
    }

    /// Computes properties of a file system, volume or snapshot.
    ///
    /// # Errors
    /// If a source of the values cannot be read. If the dataset's own objects cannot be read,
    /// [`Wanted::All`] only omits the properties stored there (such as `version`).
    pub fn properties(
        &mut self,
        dataset: &Dataset,
        wanted: Wanted<'_>,
    ) -> Result<Vec<Property>, DatasetError> {
        let mut subject = self.subject(dataset)?;
        let mut found = vec![];
        match wanted {
            Wanted::All => {
                for property in DATASET_PROPERTIES.iter().filter(|row| row.shape.is_listed) {
                    match self.native(&mut subject, property) {
                        Ok(value) => found.extend(value),
                        Err(_) if is_of_content(property.shape.name) => {}
                        Err(error) => return Err(error),
                    }
                }
                found.extend(user_properties(&subject)?);
            }
            Wanted::Named(names) => {
                for name in names {
                    found.extend(self.named(&mut subject, name)?);
                }
            }
        }
        Ok(found)
    }

    /// Computes properties of a bookmark.
    ///
    /// # Errors
    /// If its redaction list cannot be read.
    pub fn bookmark_properties(
        &mut self,
        bookmark: &Bookmark,
        wanted: Wanted<'_>,
    ) -> Result<Vec<Property>, DatasetError> {
        let is_wanted = |property: &&DatasetProperty| {
            match wanted {
            Wanted::All => property.shape.is_listed,
            Wanted::Named(names) => names.iter().any(
                |name| matches!(name, PropertyName::Native(native) if native.shape.name == property.shape.name),
            ),
        }
        };
        let rows = DATASET_PROPERTIES
            .iter()
            .filter(|row| row.kinds.contains(DatasetKind::Bookmark));
        let mut found = vec![];
        for property in rows.filter(is_wanted) {
            found.extend(self.of_bookmark(bookmark, property)?);
        }
        Ok(found)
    }

    /// The kind of a head or snapshot, as users see it.
    ///
    /// # Errors
    /// If its object set, or that of a snapshot's head, cannot be read.
    pub fn kind(&mut self, dataset: &Dataset) -> Result<DatasetKind, DatasetError> {
        if dataset.is_snapshot() {
            return Ok(DatasetKind::Snapshot);
        }
        Ok(match self.content_kind(dataset)? {
            ObjectSetKind::Volume => DatasetKind::Volume,
            _ => DatasetKind::Filesystem,
        })
    }

    /// The kind of a dataset's content. It is the same for all datasets of a directory, so it is read once.
    fn content_kind(&mut self, dataset: &Dataset) -> Result<ObjectSetKind, DatasetError> {
        let directory = dataset.directory().id();
        if let Some(known) = self.content_kinds.get(&directory) {
            return Ok(*known);
        }
        let kind = dataset.content_kind()?;
        self.content_kinds.insert(directory, kind);
        Ok(kind)
    }

    fn subject<'a>(&mut self, dataset: &'a Dataset) -> Result<Subject<'a>, DatasetError> {
        Ok(Subject {
            dataset,
            kind: self.kind(dataset)?,
            content_kind: self.content_kind(dataset)?,
            own: dataset.own_properties()?,
            content: None,
        })
    }

    fn named(
        &mut self,
        subject: &mut Subject<'_>,
        name: &PropertyName,
    ) -> Result<Option<Property>, DatasetError> {
        match name {
            PropertyName::Native(property) => self.native(subject, property),
            PropertyName::User(name) => subject.user(name),
            PropertyName::WrittenSince { name, since } => {
                let bytes = self.written_since(subject.dataset, since)?;
                Ok(bytes.map(|bytes| Property {
                    source: PropertySource::Local,
                    ..Property::numeric(name, bytes)
                }))
            }
            PropertyName::PerOwner {
                name,
                owner_kind,
                subject: measure,
                owner,
            } => {
                let number = self.of_owner(subject.dataset, *owner_kind, *measure, owner)?;
                Ok(number.map(|number| Property {
                    source: PropertySource::Local,
                    ..Property::numeric(name, number)
                }))
            }
        }
    }

    fn native(
        &mut self,
        subject: &mut Subject<'_>,
        property: &'static DatasetProperty,
    ) -> Result<Option<Property>, DatasetError> {
        if !subject.has(property) {
            return Ok(None);
        }
        let shape = &property.shape;
        match shape.name {
            "volsize" | "volblocksize" | "version" | "utf8only" | "normalization"
            | "casesensitivity" => subject.of_content(shape.name),
            name if name.starts_with("default") && name.ends_with("quota") => {
                subject.of_content(shape.name)
            }
            "mountpoint" => subject.mountpoint(property),
            "encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt" | "encryptionroot"
            | "keyguid" | "keystatus" => self.of_key(subject.dataset, property),
            _ if shape.edit == Edit::ReadOnly => self.statistic(subject, shape.name),
            "special_small_blocks" | "xattr" => self.of_the_times(subject, property),
            _ => subject.setting(property).map(Some),
        }
    }

    /// Settings that OpenZFS 2.4 prints differently from 2.3. The pool shows which of the two has written
    /// it.
    fn of_the_times(
        &self,
        subject: &Subject<'_>,
        property: &'static DatasetProperty,
    ) -> Result<Option<Property>, DatasetError> {
        let mut setting = subject.setting(property)?;
        let is_2_4 = self.pool.was_written_by_2_4()?;
        let is_default = setting.source == PropertySource::Default;
        match property.shape.name {
            "special_small_blocks" if subject.kind == DatasetKind::Volume => {
                Ok((is_2_4 || !is_default).then_some(setting))
            }
            "xattr" if is_2_4 && setting.value == Some(PropertyValue::Number(XATTR_SA)) => {
                setting.value = Some(PropertyValue::Text("sa".into()));
                Ok(Some(setting))
            }
            _ => Ok(Some(setting)),
        }
    }

    /// Properties from the key object of an encrypted dataset.
    fn of_key(
        &mut self,
        dataset: &Dataset,
        property: &'static DatasetProperty,
    ) -> Result<Option<Property>, DatasetError> {
        let name = property.shape.name;
        let plain = || match property.shape.edit {
            Edit::ReadOnly => None,
            _ => Some(Property::new(
                name,
                preset_value(&property.shape),
                PropertySource::Default,
            )),
        };
        let directory = dataset.directory().id();
        let Some(key) = self.crypt_key(dataset.directory())? else {
            return Ok(plain());
        };
        // Format, salt and iteration count are valid only in the encryption root's own key object.
        let root = match key.root_directory.some() {
            Some(root) if root != directory => self.crypt_key_of(root)?,
            _ => Some(key.clone()),
        };
        let has_root = root.is_some();
        // If the root no longer exists, what was copied from it is all there is.
        let root = root.unwrap_or_else(|| key.clone());
        let number = match name {
            "encryption" => key.suite.number(),
            "keyguid" => key.guid.0,
            "keyformat" => root.key_format as u64,
            "keystatus" if self.loaded.contains_key(&directory) => KEY_AVAILABLE,
            "keystatus" => KEY_UNAVAILABLE,
            "encryptionroot" if !has_root => return Ok(plain()),
            "encryptionroot" => {
                let text = self.names.directory(key.root_directory)?;
                let value = Some(PropertyValue::Text(text));
                return Ok(Some(Property::new(name, value, PropertySource::None)));
            }
            _ => {
                let number = match name {
                    "pbkdf2salt" => root.pbkdf2_salt,
                    _ => root.pbkdf2_iterations,
                };
                if number == 0 {
                    return Ok(plain());
                }
                number
            }
        };
        Ok(Some(Property::numeric(name, number)))
    }

    fn crypt_key(&mut self, directory: &Arc<Directory>) -> Result<Option<CryptKey>, DatasetError> {
        if let Some(known) = self.crypt_keys.get(&directory.id()) {
            return Ok(known.clone());
        }
        let key = directory.crypt_key()?;
        self.crypt_keys.insert(directory.id(), key.clone());
        Ok(key)
    }

    fn crypt_key_of(&mut self, id: ObjectId) -> Result<Option<CryptKey>, DatasetError> {
        if let Some(known) = self.crypt_keys.get(&id) {
            return Ok(known.clone());
        }
        let key = match Directory::exists(&self.pool, id)? {
            true => Directory::by_id(&self.pool, id)?.crypt_key()?,
            false => None,
        };
        self.crypt_keys.insert(id, key.clone());
        Ok(key)
    }
}

/// The number of both `on` and `sa`.
const XATTR_SA: u64 = 2;
const KEY_UNAVAILABLE: u64 = 1;
const KEY_AVAILABLE: u64 = 2;

impl Subject<'_> {
    /// Whether the property applies to the dataset's kind and, for a snapshot, to the kind of its content.
    fn has(&self, property: &DatasetProperty) -> bool {
        let kinds = property.kinds;
        if !kinds.contains(self.kind) {
            return false;
        }
        if self.kind != DatasetKind::Snapshot {
            return true;
        }
        let live = match self.content_kind {
            ObjectSetKind::Volume => DatasetKind::Volume,
            _ => DatasetKind::Filesystem,
        };
        let is_of_snapshots_only =
            !kinds.contains(DatasetKind::Filesystem) && !kinds.contains(DatasetKind::Volume);
        is_of_snapshots_only || kinds.contains(live)
    }

    fn content(&mut self) -> Result<&Content, DatasetError> {
        if self.content.is_none() {
            self.content = Some(Content::read(self.dataset)?);
        }
        Ok(self.content.as_ref().unwrap_or(&Content::Other))
    }

    fn of_content(&mut self, name: &str) -> Result<Option<Property>, DatasetError> {
        use millpond_ondisk::DslDatasetFlags as Flags;
        if self.dataset.phys().flags.contains(Flags::INCONSISTENT) && name != "volsize" {
            return Ok(None);
        }
        let (number, source) = match (self.content()?, name) {
            (Content::Volume { size_bytes, .. }, "volsize") => (*size_bytes, PropertySource::Local),
            (Content::Volume { block_bytes, .. }, "volblocksize") => {
                let source = match *block_bytes {
                    VOLUME_BLOCK_BYTES => PropertySource::Default,
                    _ => PropertySource::None,
                };
                (Some(*block_bytes), source)
            }
            (content, name) => (content.file_system_number(name), PropertySource::None),
        };
        Ok(number.map(|number| Property::new(name, Some(PropertyValue::Number(number)), source)))
    }

    /// The effective value of a setting: the set value, or the default.
    fn setting(&self, property: &DatasetProperty) -> Result<Property, DatasetError> {
        let shape = &property.shape;
        let is_inheritable = shape.edit == Edit::Inheritable;
        let (value, source) = match self.stored(shape.name, is_inheritable)? {
            Some((value, source)) => (Some(value), source),
            None => (preset_value(shape), PropertySource::Default),
        };
        Ok(Property {
            received: self.received(shape.name)?,
            ..Property::new(shape.name, value, source)
        })
    }

    fn user(&self, name: &str) -> Result<Option<Property>, DatasetError> {
        let stored = self.stored(name, true)?;
        let received = self.received(name)?;
        Ok(stored.map(|(value, source)| Property {
            received,
            ..Property::new(name, Some(value), source)
        }))
    }

    fn stored(
        &self,
        name: &str,
        is_inheritable: bool,
    ) -> Result<Option<(PropertyValue, PropertySource)>, DatasetError> {
        self.dataset.property_with(&self.own, name, is_inheritable)
    }

    fn received(&self, name: &str) -> Result<Option<PropertyValue>, DatasetError> {
        if self.dataset.is_snapshot() {
            return Ok(self.own.received(name).cloned());
        }
        let stored = self.dataset.directory().stored_properties()?;
        Ok(stored.received(name).cloned())
    }

    /// An inherited mountpoint is extended by the path from the directory that sets it to this one.
    fn mountpoint(&self, property: &DatasetProperty) -> Result<Option<Property>, DatasetError> {
        let name = self.dataset.directory().name();
        let mut found = self.setting(property)?;
        let set_at = match &found.source {
            PropertySource::Inherited(from) => from.as_str(),
            PropertySource::Default => "",
            _ => return Ok(Some(found)),
        };
        if let Some(PropertyValue::Text(path)) = &mut found.value
            && path.starts_with('/')
        {
            let rest = name.strip_prefix(set_at).unwrap_or("");
            let rest = rest.trim_start_matches('/');
            *path = format!("{}/{rest}", path.trim_end_matches('/'));
        }
        Ok(Some(found))
    }
}

/// The default block size of volumes in bytes.
const VOLUME_BLOCK_BYTES: u64 = 16 << 10;

fn is_of_content(name: &str) -> bool {
    ["volsize", "volblocksize", "version", "utf8only"].contains(&name)
        || ["normalization", "casesensitivity"].contains(&name)
        || (name.starts_with("default") && name.ends_with("quota"))
}

/// User properties of a snapshot, then of its dataset, then of the ancestors. The first value found for a
/// name wins.
fn user_properties(subject: &Subject<'_>) -> Result<Vec<Property>, DatasetError> {
    let mut found: Vec<Property> = vec![];
    let mut seen = HashSet::new();
    let mut collect = |table: &StoredProperties| -> Result<(), DatasetError> {
        for name in table.names().filter(|name| name.contains(':')) {
            if seen.insert(name.to_owned()) {
                found.extend(subject.user(name)?);
            }
        }
        Ok(())
    };
    collect(&subject.own)?;
    let mut at = Some(subject.dataset.directory());
    while let Some(directory) = at {
        collect(directory.stored_properties()?.as_ref())?;
        at = directory.parent();
    }
    Ok(found)
}

/// Hides names that are internal.
pub(super) fn visible(name: String) -> Option<String> {
    (!is_origin_of_all(&name)).then_some(name)
}
