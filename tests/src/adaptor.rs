//! The library `millpond` as a [`PoolReader`].

use crate::images::Disks;
use crate::reader::{
    Answer, Attributes, DatasetKind, Hold, PoolReader, Properties, ReadError, SpaceOf, SpaceRow,
};
use crate::record::Key;
use millpond_engine::{
    Dataset, Error, FileError, FileKind, FileSystem, LiteralProperty, Node, ObjectId, OpenOptions,
    OwnerKind, Search, View, Volume,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Opens the pool on these images read-only, with the keys of its encryption roots.
///
/// # Errors
/// Those of the library.
pub fn open(disks: &Disks, keys: &BTreeMap<String, Key>) -> Answer<Box<dyn PoolReader>> {
    open_state(disks, keys, false)
}

/// Like [`open`], or opens the state preserved by the pool's checkpoint.
///
/// # Errors
/// Those of the library.
pub fn open_state(
    disks: &Disks,
    keys: &BTreeMap<String, Key>,
    at_checkpoint: bool,
) -> Answer<Box<dyn PoolReader>> {
    let search = Search::new([disks.folder.clone()]);
    let candidates = search.pools();
    let [candidate] = candidates.as_slice() else {
        return Err(ReadError::Other(format!(
            "{} pools found instead of one",
            candidates.len()
        )));
    };
    let options = OpenOptions {
        cache_bytes: Some(64 << 20),
        at_checkpoint,
        ..OpenOptions::default()
    };
    let pool = View::open_candidate(candidate, &options)
        .map_err(|error| ReadError::Refused(error.to_string()))?;
    for (dataset, key) in keys {
        pool.load_key(dataset, &key.bytes)
            .map_err(|error| ReadError::Refused(format!("{dataset}: {error}")))?;
    }
    Ok(Box::new(Reader {
        pool,
        files: BTreeMap::new(),
        volumes: BTreeMap::new(),
        node: None,
    }))
}

struct Reader {
    pool: View,
    files: BTreeMap<String, Arc<FileSystem>>,
    volumes: BTreeMap<String, Arc<Volume>>,
    /// The most recently used file, because content is read in many small pieces.
    node: Option<(String, u64, Node)>,
}

fn failed(error: impl Into<Error>) -> ReadError {
    match error.into() {
        error @ Error::File(FileError::NotAFileSystem { .. }) => {
            ReadError::Other(error.to_string())
        }
        Error::File(FileError::Path { path, error }) if error.is_not_found() => {
            ReadError::Other(format!("{} not found", String::from_utf8_lossy(&path)))
        }
        error if error.is_locked() => ReadError::Refused(error.to_string()),
        error => ReadError::Io(error.to_string()),
    }
}

impl Reader {
    fn dataset(&self, name: &str) -> Answer<Dataset> {
        self.pool.dataset(name).map_err(failed)
    }
    fn files(&mut self, name: &str) -> Answer<Arc<FileSystem>> {
        if let Some(files) = self.files.get(name) {
            return Ok(Arc::clone(files));
        }
        let files = self.dataset(name)?.file_system().map_err(failed)?;
        self.files.insert(name.to_owned(), Arc::clone(&files));
        Ok(files)
    }
    fn volume(&mut self, name: &str) -> Answer<Arc<Volume>> {
        if let Some(volume) = self.volumes.get(name) {
            return Ok(Arc::clone(volume));
        }
        let volume = Arc::new(self.dataset(name)?.volume().map_err(failed)?);
        self.volumes.insert(name.to_owned(), Arc::clone(&volume));
        Ok(volume)
    }
    fn node(&mut self, dataset: &str, object: u64) -> Answer<Node> {
        if let Some((name, id, node)) = &self.node
            && name == dataset
            && *id == object
        {
            return Ok(node.clone());
        }
        let node = self
            .files(dataset)?
            .node(ObjectId(object))
            .map_err(failed)?;
        self.node = Some((dataset.to_owned(), object, node.clone()));
        Ok(node)
    }
}

impl PoolReader for Reader {
    fn name(&mut self) -> Answer<String> {
        Ok(self.pool.name().to_owned())
    }

    fn datasets(&mut self) -> Answer<Vec<(String, DatasetKind)>> {
        let mut all = vec![];
        for dataset in self.pool.datasets() {
            let dataset = dataset.map_err(failed)?;
            let kind = match dataset.kind().map_err(failed)? {
                millpond_engine::DatasetKind::Volume => DatasetKind::Volume,
                _ => DatasetKind::Filesystem,
            };
            all.push((dataset.name().to_owned(), kind));
            for snapshot in dataset.snapshots().map_err(failed)? {
                all.push((snapshot.name().to_owned(), DatasetKind::Snapshot));
            }
            for bookmark in dataset.bookmarks().map_err(failed)? {
                all.push((
                    format!("{}#{}", dataset.name(), bookmark.name),
                    DatasetKind::Bookmark,
                ));
            }
        }
        Ok(all)
    }

    fn pool_properties(&mut self) -> Answer<Properties> {
        Ok(by_name(self.pool.literal_properties().map_err(failed)?))
    }

    fn properties(&mut self, dataset: &str) -> Answer<Properties> {
        let properties = match dataset.split_once('#') {
            Some((head, bookmark)) => {
                let head = self.dataset(head)?;
                head.literal_bookmark_properties(bookmark)
            }
            None => self.dataset(dataset)?.literal_properties(),
        };
        Ok(by_name(properties.map_err(failed)?))
    }

    fn space(&mut self, dataset: &str, of: SpaceOf) -> Answer<Vec<SpaceRow>> {
        let owners = match of {
            SpaceOf::Users => OwnerKind::User,
            SpaceOf::Groups => OwnerKind::Group,
            SpaceOf::Projects => OwnerKind::Project,
        };
        let rows = self.dataset(dataset)?.space_by_owner(owners);
        Ok(rows
            .map_err(failed)?
            .into_iter()
            .map(|row| SpaceRow {
                id: row.id,
                used_bytes: row.used_bytes,
                quota_bytes: row.quota_bytes,
                objects: row.objects,
                objects_quota: row.objects_quota,
            })
            .collect())
    }

    fn holds(&mut self, snapshot: &str) -> Answer<Vec<Hold>> {
        let holds = self.dataset(snapshot)?.holds().map_err(failed)?;
        Ok(holds
            .into_iter()
            .map(|hold| Hold {
                tag: hold.tag,
                placed_s: hold.time_s,
            })
            .collect())
    }

    fn root(&mut self, dataset: &str) -> Answer<u64> {
        Ok(self.files(dataset)?.root_id().0)
    }

    fn list(&mut self, dataset: &str, directory: u64) -> Answer<Vec<(Vec<u8>, u64)>> {
        let entries = self.node(dataset, directory)?.entries().map_err(failed)?;
        entries
            .map(|entry| entry.map(|entry| (entry.name, entry.id.0)).map_err(failed))
            .collect()
    }

    fn attributes(&mut self, dataset: &str, object: u64) -> Answer<Attributes> {
        let node = self.node(dataset, object)?;
        let stat = node.stat().map_err(failed)?;
        let ns = |time: millpond_engine::Timestamp| {
            i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
        };
        let kind = match stat.kind {
            FileKind::Fifo => "fifo",
            FileKind::CharacterDevice => "chr",
            FileKind::Directory => "dir",
            FileKind::BlockDevice => "blk",
            FileKind::Regular => "file",
            FileKind::Symlink => "symlink",
            FileKind::Socket => "sock",
        };
        let mut xattrs = BTreeMap::new();
        for name in node.xattr_names().map_err(failed)? {
            let value = node.xattr(&name).map_err(failed)?.unwrap_or_default();
            xattrs.insert(String::from_utf8_lossy(&name).into_owned(), value);
        }
        // If `.zfs` is visible, a mounted root directory has one link more than it stores.
        let is_root = stat.id == self.files(dataset)?.root_id() && !dataset.contains('@');
        let shown = self
            .dataset(dataset)?
            .inner()
            .property("snapdir", true)
            .map_err(failed)?;
        let has_visible_snapshots =
            shown.is_some_and(|(value, _)| value == millpond_engine::PropertyValue::Number(1));
        Ok(Attributes {
            kind: kind.to_owned(),
            mode: stat.permissions,
            uid: u64::from(stat.uid),
            gid: u64::from(stat.gid),
            nlink: stat.links + u64::from(is_root && has_visible_snapshots),
            size: stat.size_bytes,
            blocks: stat.sectors,
            mtime_ns: ns(stat.mtime),
            ctime_ns: ns(stat.ctime),
            atime_ns: ns(stat.atime),
            target: node.link_target().map_err(failed)?,
            rdev: stat
                .device
                .map(|(major, minor)| (u64::from(major), u64::from(minor))),
            xattrs,
        })
    }

    fn read(&mut self, dataset: &str, object: u64, offset: u64, buffer: &mut [u8]) -> Answer<()> {
        let count = self
            .node(dataset, object)?
            .read(offset, buffer)
            .map_err(failed)?;
        if count < buffer.len() {
            return Err(ReadError::Other(format!(
                "file ends at byte {}",
                offset + count as u64
            )));
        }
        Ok(())
    }

    fn extents(&mut self, dataset: &str, object: u64) -> Answer<Vec<(u64, u64)>> {
        let node = self.node(dataset, object)?;
        node.extents()
            .map(|run| {
                run.map(|run| (run.offset_bytes, run.length_bytes))
                    .map_err(failed)
            })
            .collect()
    }

    fn volume_size(&mut self, dataset: &str) -> Answer<u64> {
        Ok(self.volume(dataset)?.size_bytes())
    }

    fn read_volume(&mut self, dataset: &str, offset: u64, buffer: &mut [u8]) -> Answer<()> {
        self.volume(dataset)?
            .read(offset, buffer)
            .map_err(|error| failed(Error::Volume(error)))
    }
}

fn by_name(properties: Vec<LiteralProperty>) -> Properties {
    properties
        .into_iter()
        .map(|property| (property.name, (property.value, property.source)))
        .collect()
}
