//! Directories: the nodes of the name tree.
//!
//! Page `docs/format/dsl-directory.md`.

use crate::error::Named;
use crate::{Dataset, DatasetError, StoredProperties};
use millpond_env::sync::{Arc, OnceLock};
use millpond_object::{ObjectError, ObjectView};
use millpond_ondisk::dsl::keys::is_hidden_name;
use millpond_ondisk::{DecodeError, DslDirectoryPhys, ObjectId, ObjectType};
use millpond_pool::PoolView;
use millpond_zap::Zap;
use std::collections::HashSet;

/// The deepest nesting of names. A longer chain of parents on disk is a cycle.
pub(crate) const DEPTH_MAX: usize = 128;

/// A node of the name tree: the part of a name before `@` or `#`, such as `pool/a/b`.
#[derive(Debug)]
pub struct Directory {
    pool: Arc<PoolView>,
    parent: Option<Arc<Directory>>,
    object: ObjectView,
    phys: DslDirectoryPhys,
    name: String,
    depth: usize,
    properties: OnceLock<Arc<StoredProperties>>,
}

impl Directory {
    /// The pool's root directory.
    ///
    /// # Errors
    /// If the root directory cannot be found in the MOS.
    pub fn root(pool: &Arc<PoolView>) -> Result<Arc<Self>, DatasetError> {
        let id = pool.directory_object("root_dataset")?;
        Self::open(pool, None, id, pool.name().to_owned())
    }

    fn open(
        pool: &Arc<PoolView>,
        parent: Option<Arc<Directory>>,
        id: ObjectId,
        name: String,
    ) -> Result<Arc<Self>, DatasetError> {
        let object = pool.mos().object(id).named(&name)?;
        let invalid = |reason| Err(DecodeError::new("DSL directory", reason, 0)).named(&name);
        // A directory's object changes its type when it becomes a ZAP, but its bonus type never changes.
        if object.dnode().bonus_type != ObjectType::DSL_DIRECTORY {
            return invalid("the object is not a directory");
        }
        let depth = parent.as_ref().map_or(0, |parent| parent.depth + 1);
        if depth > DEPTH_MAX {
            return invalid("directories nest too deep");
        }
        let bonus = object.bonus().named(&name)?;
        let phys = DslDirectoryPhys::decode(bonus, object.dnode().endian).named(&name)?;
        // Otherwise a directory could be its own descendant or have two parents, and a small pool could
        // contain an unbounded number of names.
        if let Some(parent) = &parent
            && phys.parent != Some(parent.id())
        {
            return invalid("the directory belongs to another parent");
        }
        let pool = Arc::clone(pool);
        Ok(Arc::new(Self {
            pool,
            parent,
            object,
            phys,
            name,
            depth,
            properties: OnceLock::new(),
        }))
    }

    /// Whether an object of the MOS is a directory.
    pub(crate) fn exists(pool: &Arc<PoolView>, id: ObjectId) -> Result<bool, DatasetError> {
        let Some(id) = id.some() else {
            return Ok(false);
        };
        match pool.mos().object(id) {
            Ok(object) => Ok(object.dnode().bonus_type == ObjectType::DSL_DIRECTORY),
            Err(ObjectError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error).named(&format!("directory {id}")),
        }
    }

    /// Opens a directory by its object id and determines its name from its parents.
    ///
    /// # Errors
    /// If one of them cannot be read, or they form a cycle.
    pub fn by_id(pool: &Arc<PoolView>, id: ObjectId) -> Result<Arc<Self>, DatasetError> {
        let mut chain = vec![];
        let mut at = id;
        loop {
            let probe = Self::open(pool, None, at, format!("directory {at}"))?;
            let parent = probe.phys.parent;
            chain.push(at);
            match parent {
                None => break,
                Some(parent) if chain.len() <= DEPTH_MAX => at = parent,
                Some(_) => {
                    return Err(DecodeError::new(
                        "DSL directory",
                        "parents form a cycle",
                        16,
                    ))
                    .named(&probe.name);
                }
            }
        }
        let mut directory = Self::root(pool)?;
        for id in chain.into_iter().rev().skip(1) {
            let found = directory
                .child_entries()?
                .into_iter()
                .find(|(_, child)| *child == id);
            let Some((component, _)) = found else {
                return Err(DatasetError::NotFound {
                    name: format!("directory {id}"),
                });
            };
            let name = format!("{}/{component}", directory.name);
            directory = Self::open(pool, Some(directory), id, name)?;
        }
        Ok(directory)
    }

    /// The pool of the directory.
    #[must_use]
    pub fn pool(&self) -> &Arc<PoolView> {
        &self.pool
    }
    /// The parent directory; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<&Arc<Directory>> {
        self.parent.as_ref()
    }
    /// The full name, such as `pool/a/b`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The object id in the MOS.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }
    /// The stored metadata.
    #[must_use]
    pub fn phys(&self) -> &DslDirectoryPhys {
        &self.phys
    }

    /// Looks up an entry of the directory object's own ZAP (counts for limits, the key object, …); `None`
    /// if the entry is absent or the object is not a ZAP.
    ///
    /// # Errors
    /// If the ZAP cannot be read.
    pub fn extension(&self, key: &str) -> Result<Option<Vec<u64>>, DatasetError> {
        extension(&self.object, key, &self.name)
    }

    /// Names and object ids of the child directories in byte order of the names, including internal and
    /// temporary ones (`$`, `%`).
    ///
    /// # Errors
    /// If the table of children cannot be read, or contains one directory under two names.
    pub fn child_entries(&self) -> Result<Vec<(String, ObjectId)>, DatasetError> {
        let mut children = self.stored_child_entries()?;
        children.sort();
        Ok(children)
    }

    /// As [`Directory::child_entries`], in the order of the table.
    fn stored_child_entries(&self) -> Result<Vec<(String, ObjectId)>, DatasetError> {
        let Some(id) = self.phys.child_directories else {
            return Ok(vec![]);
        };
        let object = self.pool.mos().object(id).named(&self.name)?;
        let zap = Zap::open(object).named(&self.name)?;
        let mut children = vec![];
        for entry in zap.iter() {
            let entry = entry.named(&self.name)?;
            let Some(child) = entry.value.first() else {
                continue;
            };
            let component = String::from_utf8_lossy(&entry.name).into_owned();
            children.push((component, ObjectId(child)));
        }
        let mut seen = HashSet::with_capacity(children.len());
        if !children.iter().all(|(_, child)| seen.insert(*child)) {
            let reason = "two names for one directory";
            return Err(DecodeError::new("DSL directory", reason, 0)).named(&self.name);
        }
        Ok(children)
    }

    /// The child directories visible to users, in byte order of their names.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn children(self: &Arc<Self>) -> Result<Vec<Arc<Directory>>, DatasetError> {
        self.child_entries()?
            .into_iter()
            .filter(|(component, _)| !is_hidden_name(component.as_bytes()))
            .map(|(component, id)| self.open_child(&component, id))
            .collect()
    }

    /// As [`Directory::children`], in the order of the table of children: that of the datasets in a package.
    ///
    /// # Errors
    /// As [`Directory::children`].
    pub fn children_in_table_order(self: &Arc<Self>) -> Result<Vec<Arc<Directory>>, DatasetError> {
        self.stored_child_entries()?
            .into_iter()
            .filter(|(component, _)| !is_hidden_name(component.as_bytes()))
            .map(|(component, id)| self.open_child(&component, id))
            .collect()
    }

    /// Opens one entry of [`Directory::child_entries`].
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn open_child(
        self: &Arc<Self>,
        component: &str,
        id: ObjectId,
    ) -> Result<Arc<Directory>, DatasetError> {
        let name = format!("{}/{component}", self.name);
        Self::open(&self.pool, Some(Arc::clone(self)), id, name)
    }

    /// Opens the child directory with this name.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], or if the directory cannot be read.
    pub fn child(self: &Arc<Self>, component: &str) -> Result<Arc<Directory>, DatasetError> {
        let name = format!("{}/{component}", self.name);
        let missing = || DatasetError::NotFound { name: name.clone() };
        let table = self.phys.child_directories.ok_or_else(missing)?;
        let object = self.pool.mos().object(table).named(&self.name)?;
        let zap = Zap::open(object).named(&self.name)?;
        let id = zap
            .lookup_u64(component.as_bytes())
            .named(&self.name)?
            .ok_or_else(missing)?;
        self.open_child(component, ObjectId(id))
    }

    /// The live file system or volume; `None` for internal directories without one.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn head(self: &Arc<Self>) -> Result<Option<Dataset>, DatasetError> {
        match self.phys.head_dataset {
            None => Ok(None),
            Some(id) => Dataset::open(self, id, None).map(Some),
        }
    }

    /// The properties set on this directory. Read once and cached.
    ///
    /// # Errors
    /// If their table cannot be read.
    pub fn stored_properties(&self) -> Result<Arc<StoredProperties>, DatasetError> {
        if let Some(known) = self.properties.get() {
            return Ok(Arc::clone(known));
        }
        let loaded = Arc::new(StoredProperties::load(
            &self.pool,
            self.phys.properties,
            &self.name,
        )?);
        Ok(Arc::clone(self.properties.get_or_init(|| loaded)))
    }
}

/// Looks up an entry of a directory's or dataset's own object, if that object is a ZAP.
pub(crate) fn extension(
    object: &ObjectView,
    key: &str,
    name: &str,
) -> Result<Option<Vec<u64>>, DatasetError> {
    if object.dnode().object_type != ObjectType::METADATA_ZAP {
        return Ok(None);
    }
    let zap = Zap::open(object.clone()).named(name)?;
    let value = zap.lookup(key.as_bytes()).named(name)?;
    Ok(value.map(|value| value.integers().collect::<Vec<_>>()))
}
