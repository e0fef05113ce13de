//! Datasets: live file systems and volumes, and their snapshots.
//!
//! Page `docs/format/dsl-dataset.md`.

use crate::directory::extension;
use crate::error::Named;
use crate::heads::features::REDACTED_DATASETS;
use crate::properties::DatasetKind;
use crate::{DatasetError, DatasetName, Directory, NameTail};
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_object::{BlockChoice, Caching, CachingCell, ObjectSetView, ObjectView};
use millpond_ondisk::{
    BookmarkPhys, DecodeError, DslDatasetPhys, Guid, ObjectId, ObjectSetKind, ObjectType, dsl,
};
use millpond_pool::PoolView;
use millpond_pool::properties::PropertyValue;
use millpond_zap::Zap;

/// A live file system or volume, or a snapshot.
#[derive(Debug, Clone)]
pub struct Dataset {
    directory: Arc<Directory>,
    object: ObjectView,
    phys: DslDatasetPhys,
    name: String,
    snapshot: Option<String>,
}

/// A bookmark of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bookmark {
    /// The name after `#`.
    pub name: String,
    /// Its stored metadata.
    pub phys: BookmarkPhys,
}

/// A hold on a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The tag chosen by the holder.
    pub tag: String,
    /// When it was created, in seconds since 1970.
    pub time_s: u64,
}

impl Dataset {
    /// Opens the dataset with this object id. `snapshot` is the name after `@`, `None` for a head.
    pub(crate) fn open(
        directory: &Arc<Directory>,
        id: ObjectId,
        snapshot: Option<String>,
    ) -> Result<Self, DatasetError> {
        let name = match &snapshot {
            None => directory.name().to_owned(),
            Some(snapshot) => format!("{}@{snapshot}", directory.name()),
        };
        let object = directory.pool().mos().object(id).named(&name)?;
        if object.dnode().bonus_type != ObjectType::DSL_DATASET {
            return Err(DecodeError::new(
                "DSL dataset",
                "the object is not a dataset",
                0,
            ))
            .named(&name);
        }
        let phys = DslDatasetPhys::decode(object.bonus().named(&name)?, object.dnode().endian)
            .named(&name)?;
        Ok(Self {
            directory: Arc::clone(directory),
            object,
            phys,
            name,
            snapshot,
        })
    }

    /// Finds a file system, volume or snapshot by its full name.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`] (also for bookmarks, which are not datasets), or if something on the path
    /// to it cannot be read.
    pub fn find(pool: &Arc<PoolView>, name: &str) -> Result<Self, DatasetError> {
        let missing = || DatasetError::NotFound {
            name: name.to_owned(),
        };
        let parsed = DatasetName::parse(name)?;
        let directory = find_directory(pool, &parsed)?;
        let head = directory.head()?.ok_or_else(missing)?;
        match parsed.tail {
            NameTail::Head => Ok(head),
            NameTail::Snapshot(snapshot) => head.snapshot(snapshot),
            NameTail::Bookmark(_) => Err(missing()),
        }
    }

    /// Opens a dataset by its object id and determines its name.
    ///
    /// # Errors
    /// If it, its directory or its name cannot be read.
    pub fn by_id(pool: &Arc<PoolView>, id: ObjectId) -> Result<Self, DatasetError> {
        let provisional = format!("dataset {id}");
        let object = pool.mos().object(id).named(&provisional)?;
        if object.dnode().bonus_type != ObjectType::DSL_DATASET {
            return Err(DecodeError::new(
                "DSL dataset",
                "the object is not a dataset",
                0,
            ))
            .named(&provisional);
        }
        let bonus = object.bonus().named(&provisional)?;
        let phys = DslDatasetPhys::decode(bonus, object.dnode().endian).named(&provisional)?;
        let directory = Directory::by_id(pool, phys.directory)?;
        if !phys.is_snapshot() {
            return Self::open(&directory, id, None);
        }
        let head = directory
            .head()?
            .ok_or(DatasetError::NotFound { name: provisional })?;
        let entry = head
            .snapshot_entries()?
            .into_iter()
            .find(|(_, entry)| *entry == id);
        let name = entry.map_or_else(|| format!("%{id}"), |(name, _)| name);
        Self::open(&directory, id, Some(name))
    }

    /// The directory of which it is the head or a snapshot.
    #[must_use]
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }
    /// The pool of the dataset.
    #[must_use]
    pub fn pool(&self) -> &Arc<PoolView> {
        self.directory.pool()
    }
    /// The full name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The name after `@` if it is a snapshot.
    #[must_use]
    pub fn snapshot_name(&self) -> Option<&str> {
        self.snapshot.as_deref()
    }
    /// Whether it is a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }
    /// The object id in the MOS.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }
    /// The guid, which is the same in every copy of the dataset.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.phys.guid
    }
    /// The stored metadata.
    #[must_use]
    pub fn phys(&self) -> &DslDatasetPhys {
        &self.phys
    }

    /// Looks up an entry of the dataset object's own ZAP; `None` if the entry is absent or the object is
    /// not a ZAP.
    ///
    /// # Errors
    /// If the ZAP cannot be read.
    pub fn extension(&self, key: &str) -> Result<Option<Vec<u64>>, DatasetError> {
        extension(&self.object, key, &self.name)
    }

    /// The guids of the snapshots with respect to which it is redacted: it lacks the blocks that all of them have
    /// changed. `None` if it lacks nothing.
    ///
    /// # Errors
    /// If the ZAP cannot be read.
    pub fn redacted_for(&self) -> Result<Option<Vec<u64>>, DatasetError> {
        self.extension(REDACTED_DATASETS)
    }

    /// Looks up an entry of the dataset object's own ZAP, in its stored form.
    ///
    /// # Errors
    /// If the ZAP cannot be read.
    pub fn extension_value(
        &self,
        key: &str,
    ) -> Result<Option<millpond_ondisk::zap::ZapValue>, DatasetError> {
        if self.object.dnode().object_type != ObjectType::METADATA_ZAP {
            return Ok(None);
        }
        let zap = Zap::open(self.object.clone()).named(&self.name)?;
        zap.lookup(key.as_bytes()).named(&self.name)
    }

    /// Opens the object set. Without `key`, the contents of an encrypted dataset are locked.
    ///
    /// # Errors
    /// If the object set cannot be read.
    pub fn object_set(
        &self,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<Arc<ObjectSetView>, DatasetError> {
        let store = Arc::clone(self.pool().store());
        let (id, root, caching) = (self.id().0, self.phys.block_pointer, self.caching());
        ObjectSetView::open_with(store, id, root, key, caching).named(&self.name)
    }

    /// What the cache keeps of the dataset and what is prefetched, by the properties of its directory.
    fn caching(&self) -> Arc<CachingCell> {
        let (cells, id) = (self.pool().caching_cells(), self.directory.id());
        if let Some(cell) = cells.find(id) {
            return cell;
        }
        // A property that cannot be read must not keep the content from being read.
        let choice = |name| match self.directory.property(name, true) {
            Ok(Some((PropertyValue::Number(number), _))) => BlockChoice::from_number(number),
            _ => BlockChoice::All,
        };
        let caching = Caching {
            kept: choice("primarycache"),
            copied: choice("secondarycache"),
            prefetched: choice("prefetch"),
        };
        cells.get(id, caching)
    }

    /// The kind of dataset as users see it: file system, volume or snapshot.
    ///
    /// # Errors
    /// If the object set cannot be read.
    pub fn kind(&self) -> Result<DatasetKind, DatasetError> {
        if self.is_snapshot() {
            return Ok(DatasetKind::Snapshot);
        }
        Ok(match self.content_kind()? {
            ObjectSetKind::Volume => DatasetKind::Volume,
            _ => DatasetKind::Filesystem,
        })
    }

    /// The kind of content: that of the dataset, or of the dataset it is a snapshot of.
    ///
    /// # Errors
    /// If the object set cannot be read.
    pub fn content_kind(&self) -> Result<ObjectSetKind, DatasetError> {
        // Programs that list datasets ask for this: the properties are not looked up for it.
        let store = Arc::clone(self.pool().store());
        let set = ObjectSetView::open(store, self.id().0, self.phys.block_pointer, None);
        Ok(set.named(&self.name)?.kind())
    }

    /// Names and object ids of the directory's snapshots, in no particular order, including temporary ones
    /// (`%`).
    ///
    /// # Errors
    /// If the table of snapshots cannot be read.
    pub fn snapshot_entries(&self) -> Result<Vec<(String, ObjectId)>, DatasetError> {
        let head;
        let names = if self.is_snapshot() {
            head = self.directory.head()?;
            head.as_ref().and_then(|head| head.phys.snapshot_names)
        } else {
            self.phys.snapshot_names
        };
        let Some(id) = names else { return Ok(vec![]) };
        let object = self.pool().mos().object(id).named(&self.name)?;
        let zap = Zap::open(object).named(&self.name)?;
        let mut entries = vec![];
        for entry in zap.iter() {
            let entry = entry.named(&self.name)?;
            let Some(snapshot) = entry.value.first() else {
                continue;
            };
            entries.push((
                String::from_utf8_lossy(&entry.name).into_owned(),
                ObjectId(snapshot),
            ));
        }
        Ok(entries)
    }

    /// Opens one entry of [`Dataset::snapshot_entries`].
    ///
    /// # Errors
    /// If the snapshot cannot be read.
    pub fn open_snapshot(&self, name: &str, id: ObjectId) -> Result<Dataset, DatasetError> {
        Self::open(&self.directory, id, Some(name.to_owned()))
    }

    /// The snapshots visible to users, oldest first.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn snapshots(&self) -> Result<Vec<Dataset>, DatasetError> {
        self.snapshots_but(&mut |_, error| Err(error))
    }

    /// The same, without those that cannot be read. Their full names go to `damaged`, which may end this with an error.
    ///
    /// # Errors
    /// If the list cannot be read; those of `damaged`.
    pub fn snapshots_but(
        &self,
        damaged: &mut dyn FnMut(String, DatasetError) -> Result<(), DatasetError>,
    ) -> Result<Vec<Dataset>, DatasetError> {
        let mut snapshots = vec![];
        for (name, id) in self.snapshot_entries()? {
            if dsl::keys::is_hidden_name(name.as_bytes()) {
                continue;
            }
            match Self::open(&self.directory, id, Some(name.clone())) {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(error) => damaged(format!("{}@{name}", self.directory.name()), error)?,
            }
        }
        snapshots
            .sort_by(|a, b| (a.phys.creation_txg, &a.name).cmp(&(b.phys.creation_txg, &b.name)));
        Ok(snapshots)
    }

    /// The snapshot with this name after `@`.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], or if the snapshot cannot be read.
    pub fn snapshot(&self, name: &str) -> Result<Dataset, DatasetError> {
        let missing = || DatasetError::NotFound {
            name: format!("{}@{name}", self.directory.name()),
        };
        let table = self.phys.snapshot_names.ok_or_else(missing)?;
        let object = self.pool().mos().object(table).named(&self.name)?;
        let zap = Zap::open(object).named(&self.name)?;
        let id = zap
            .lookup_u64(name.as_bytes())
            .named(&self.name)?
            .ok_or_else(missing)?;
        Self::open(&self.directory, ObjectId(id), Some(name.to_owned()))
    }

    /// The bookmarks of a head in byte order of their names. Snapshots have none.
    ///
    /// # Errors
    /// If their table cannot be read.
    pub fn bookmarks(&self) -> Result<Vec<Bookmark>, DatasetError> {
        let Some(table) = self
            .extension(dsl::keys::BOOKMARKS)?
            .and_then(|words| words.first().copied())
        else {
            return Ok(vec![]);
        };
        let object = self
            .pool()
            .mos()
            .object(ObjectId(table))
            .named(&self.name)?;
        let zap = Zap::open(object).named(&self.name)?;
        let mut bookmarks = vec![];
        for entry in zap.iter() {
            let entry = entry.named(&self.name)?;
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let phys = BookmarkPhys::from_words(&entry.value.integers().collect::<Vec<_>>())
                .named(&self.name)?;
            bookmarks.push(Bookmark { name, phys });
        }
        bookmarks.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(bookmarks)
    }

    /// The holds on a snapshot in byte order of their tags.
    ///
    /// # Errors
    /// If their table cannot be read.
    pub fn holds(&self) -> Result<Vec<Hold>, DatasetError> {
        let Some(table) = self.phys.user_references else {
            return Ok(vec![]);
        };
        let object = self.pool().mos().object(table).named(&self.name)?;
        let zap = Zap::open(object).named(&self.name)?;
        let mut holds = vec![];
        for entry in zap.iter() {
            let entry = entry.named(&self.name)?;
            let tag = String::from_utf8_lossy(&entry.name).into_owned();
            holds.push(Hold {
                tag,
                time_s: entry.value.first().unwrap_or(0),
            });
        }
        holds.sort_by(|a, b| a.tag.cmp(&b.tag));
        Ok(holds)
    }

    /// The snapshot that a clone was created from; `None` for a dataset that is not a clone.
    ///
    /// # Errors
    /// If the snapshot cannot be read.
    pub fn origin(&self) -> Result<Option<Dataset>, DatasetError> {
        let Some(id) = self.directory.phys().origin else {
            return Ok(None);
        };
        let origin = Self::by_id(self.pool(), id)?;
        let is_internal = origin.name.contains("/$");
        Ok((!is_internal).then_some(origin))
    }
}

fn find_directory(
    pool: &Arc<PoolView>,
    name: &DatasetName<'_>,
) -> Result<Arc<Directory>, DatasetError> {
    let mut components = name.components();
    if components.next() != Some(pool.name()) {
        return Err(DatasetError::NotFound {
            name: name.path.to_owned(),
        });
    }
    let mut directory = Directory::root(pool)?;
    for component in components {
        directory = directory.child(component)?;
    }
    Ok(directory)
}
