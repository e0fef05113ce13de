//! Finds what was lost in every dataset, and the newest snapshot from which it can be restored.

use millpond_dataset::{Dataset, DatasetKey, KeyRing};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::{BlockId, ObjectId, ObjectSetKind};
use millpond_pool::{LoggedError, PoolView};
use millpond_posix::{FileSystem, Symlinks};
use millpond_scan::references;
use std::collections::{BTreeMap, BTreeSet};

/// Upper bound of the lost blocks that are remembered with their addresses.
pub(super) const LOST_BLOCKS_MAX: usize = 10_000;
/// In how many datasets lost blocks are looked for.
const LOOKS_MAX: usize = 20_000;
/// For how many objects snapshots are searched.
const SOUGHT_MAX: usize = 100;
/// How many snapshots are searched for these in all.
const SNAPSHOTS_MAX: usize = 20_000;
/// The object that has a volume's content.
const VOLUME_CONTENT: ObjectId = ObjectId(1);

/// An object of a dataset that lost data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostObject {
    /// The dataset's full name; `None` for the pool's own metadata, and if the dataset cannot be opened.
    pub dataset: Option<String>,
    /// Whether the dataset is a snapshot.
    pub is_snapshot: bool,
    /// The object id; 0 for the metadata of the dataset itself.
    pub object: u64,
    /// The file's path below the dataset's root, if it is a file and its path is known.
    pub path: Option<Vec<u8>>,
    /// The newest snapshot, by its full name, in which all of this path's content was read without an error.
    pub whole_in: Option<String>,
}

/// What was lost, in every dataset that refers to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// The objects: those of file systems and volumes first, then those of snapshots.
    pub objects: Vec<LostObject>,
    /// Whether there may be more objects, because too many blocks were lost or something could not be read on the
    /// way.
    pub is_partial: bool,
}

/// Finds the objects that the lost blocks belong to. `is_complete` tells whether `blocks` has all of them.
pub(super) fn collect(
    pool: &Arc<PoolView>,
    keys: &KeyRing,
    blocks: &[LoggedError],
    is_complete: bool,
) -> Losses {
    let (lost, is_partial) = everywhere(pool, blocks);
    let mut datasets = Datasets {
        pool,
        keys,
        open: BTreeMap::new(),
    };
    let mut limits = Limits {
        snapshots: SNAPSHOTS_MAX,
        bytes: pool.store().topology().capacity_bytes(),
    };
    let mut objects = vec![];
    for &(dataset, object) in &lost {
        let mut found = LostObject {
            dataset: None,
            is_snapshot: false,
            object,
            path: None,
            whole_in: None,
        };
        if let Some(open) = datasets.get(dataset) {
            found.dataset = Some(open.dataset.name().to_owned());
            found.is_snapshot = open.dataset.is_snapshot();
            found.path = open
                .files
                .as_ref()
                .and_then(|files| files.path_of(ObjectId(object)).ok().flatten());
        }
        objects.push((dataset, found));
    }
    objects.sort_by_key(|(_, found)| (found.is_snapshot, found.dataset.is_none()));
    let heads = objects.iter_mut().filter(|(_, found)| !found.is_snapshot);
    for (dataset, found) in heads.take(SOUGHT_MAX) {
        found.whole_in = newest_whole(&mut datasets, *dataset, found, &lost, &mut limits);
    }
    Losses {
        objects: objects.into_iter().map(|(_, found)| found).collect(),
        is_partial: is_partial || !is_complete,
    }
}

/// The datasets and objects that refer to the blocks.
fn everywhere(pool: &Arc<PoolView>, blocks: &[LoggedError]) -> (BTreeSet<(u64, u64)>, bool) {
    let mut lost = BTreeSet::new();
    let mut is_partial = false;
    let mut looks_left = LOOKS_MAX;
    for block in blocks {
        lost.insert((block.dataset, block.object));
        if block.dataset == 0 || block.birth.is_none() {
            continue;
        }
        let found = references(pool, block, &mut looks_left);
        is_partial |= found.is_partial;
        lost.extend(found.datasets.iter().map(|id| (id.0, block.object)));
    }
    (lost, is_partial)
}

/// Searches the snapshots of a head, and of its origin, from the newest one on.
fn newest_whole(
    datasets: &mut Datasets<'_>,
    head: u64,
    wanted: &LostObject,
    lost: &BTreeSet<(u64, u64)>,
    limits: &mut Limits,
) -> Option<String> {
    let mut at = datasets.get(head)?.dataset.phys().previous_snapshot;
    while let Some(id) = at {
        limits.snapshots = limits.snapshots.checked_sub(1)?;
        let snapshot = datasets.get(id.0)?;
        if let Some(object) = snapshot.object_of(wanted)
            && !lost.contains(&(id.0, object.0))
            && snapshot.is_whole(object, limits)
        {
            return Some(snapshot.dataset.name().to_owned());
        }
        at = snapshot.dataset.phys().previous_snapshot;
    }
    None
}

/// What the search in snapshots may still do, so that forged trees do not make it endless.
struct Limits {
    snapshots: usize,
    bytes: u64,
}

/// Datasets that were opened.
struct Datasets<'a> {
    pool: &'a Arc<PoolView>,
    keys: &'a KeyRing,
    open: BTreeMap<u64, Option<Open>>,
}

impl Datasets<'_> {
    /// Opened datasets that are kept. Each has a few caches.
    const OPEN_MAX: usize = 64;

    fn get(&mut self, id: u64) -> Option<&Open> {
        if self.open.len() >= Self::OPEN_MAX && !self.open.contains_key(&id) {
            self.open.clear();
        }
        let (pool, keys) = (self.pool, self.keys);
        let open = self.open.entry(id);
        open.or_insert_with(|| Open::new(pool, keys, id)).as_ref()
    }
}

/// An opened dataset.
struct Open {
    dataset: Dataset,
    /// Its content, unless it cannot be opened or its key is not loaded.
    set: Option<Arc<ObjectSetView>>,
    /// The same as files, unless it is a volume.
    files: Option<Arc<FileSystem>>,
}

impl Open {
    fn new(pool: &Arc<PoolView>, keys: &KeyRing, id: u64) -> Option<Self> {
        let dataset = (id != 0).then(|| Dataset::by_id(pool, ObjectId(id)).ok())??;
        let key: Option<Option<Arc<DatasetKey>>> = keys.key_of(dataset.directory()).ok();
        let set = key.and_then(|key| dataset.object_set(key).ok());
        let files = set.clone().and_then(|set| FileSystem::open(set).ok());
        Some(Self {
            dataset,
            set,
            files,
        })
    }

    /// The object that has the wanted path here, or the content of a volume.
    fn object_of(&self, wanted: &LostObject) -> Option<ObjectId> {
        if let Some(path) = &wanted.path {
            let node = self.files.as_ref()?.resolve(path, Symlinks::Keep).ok()?;
            return Some(node.id());
        }
        let is_volume = self.dataset.content_kind().ok()? == ObjectSetKind::Volume;
        (is_volume && wanted.object == VOLUME_CONTENT.0).then_some(VOLUME_CONTENT)
    }

    /// Whether all of an object's content can be read with the bytes that are left to read.
    fn is_whole(&self, object: ObjectId, limits: &mut Limits) -> bool {
        let Some(object) = self.set.as_ref().and_then(|set| set.object(object).ok()) else {
            return false;
        };
        let mut next = BlockId(0);
        loop {
            match object.next_data_block(next) {
                Ok(Some(block)) => next = block,
                Ok(None) => return true,
                Err(_) => return false,
            }
            let Some(left) = limits.bytes.checked_sub(object.block_bytes()) else {
                return false;
            };
            limits.bytes = left;
            if object.read_block(next).is_err() {
                return false;
            }
            let Some(after) = next.0.checked_add(1) else {
                return true;
            };
            next = BlockId(after);
        }
    }
}
