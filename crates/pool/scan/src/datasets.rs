//! The order in which a scan visits datasets.

use crate::ScanError;
use crate::gather::Gathered;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_object::ObjectError;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{
    BlockBookmark, DslDatasetPhys, DslDirectoryPhys, ObjectId, ObjectType, PoolVersion, ScanFlags,
    ScanPhys, Txg,
};
use millpond_pool::{NEXT_DATASET, PoolView, ScanQueue};
use millpond_zap::Zap;
use std::collections::BTreeSet;

/// A dataset as a view shows it.
pub(crate) struct Dataset {
    pub(crate) id: ObjectId,
    pub(crate) phys: DslDatasetPhys,
    /// The head of its directory.
    pub(crate) head: ObjectId,
}

impl Dataset {
    /// `None` if there is no such dataset any more.
    pub(crate) fn open(view: &PoolView, id: ObjectId) -> Result<Option<Self>, ScanError> {
        let object = match view.mos().object(id) {
            Ok(object) => object,
            Err(ObjectError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if object.dnode().bonus_type != ObjectType::DSL_DATASET {
            return Ok(None);
        }
        let phys = DslDatasetPhys::decode(object.bonus()?, object.dnode().endian)?;
        let directory = directory(view, phys.directory).ok();
        Ok(Some(Self {
            id,
            phys,
            head: directory.and_then(|own| own.head_dataset).unwrap_or(id),
        }))
    }

    /// The same, for a scan that visits what can be read.
    ///
    /// # Errors
    /// If it may be readable later. The slice is repeated then.
    pub(crate) fn found(
        view: &PoolView,
        id: ObjectId,
        gathered: &Gathered<'_>,
    ) -> Result<Found, ScanError> {
        match Self::open(view, id) {
            Ok(Some(dataset)) => Ok(Found::Dataset(Box::new(dataset))),
            Ok(None) => Ok(Found::Gone),
            Err(error) if error.is_damage() => {
                gathered.count_unvisited();
                Ok(Found::Lost)
            }
            Err(error) => Err(error),
        }
    }
}

/// What is under the id of a dataset.
pub(crate) enum Found {
    Dataset(Box<Dataset>),
    /// It was destroyed.
    Gone,
    /// It is there, but no copy of it is right.
    Lost,
}

fn directory(view: &PoolView, id: ObjectId) -> Result<DslDirectoryPhys, ScanError> {
    let object = view.mos().object(id)?;
    let endian = object.dnode().endian;
    Ok(DslDirectoryPhys::decode(object.bonus()?, endian)?)
}

/// The snapshot from which all file systems and volumes descend.
fn origin(view: &PoolView) -> Result<Option<ObjectId>, ScanError> {
    let root = directory(view, view.directory_object(key::ROOT_DATASET)?)?;
    let Some(children) = root.child_directories else {
        return Ok(None);
    };
    let children = Zap::open(view.mos().object(children)?)?;
    let Some(id) = children.lookup_u64(keys::ORIGIN_DIRECTORY.as_bytes())? else {
        return Ok(None);
    };
    let Some(head) = directory(view, ObjectId(id))?.head_dataset else {
        return Ok(None);
    };
    let head = Dataset::open(view, head)?;
    Ok(head.and_then(|head| head.phys.previous_snapshot))
}

/// Adds what follows the MOS.
pub(crate) fn after_mos(
    view: &PoolView,
    phys: &mut ScanPhys,
    queue: &mut ScanQueue,
) -> Result<(), ScanError> {
    let first = match PoolVersion(view.version()).has_origin() {
        true => origin(view)?.into_iter().collect(),
        false => all(view)?,
    };
    for id in first {
        queue.insert(id, Txg(0));
    }
    phys.bookmark = NEXT_DATASET;
    Ok(())
}

/// All datasets of a pool in which they do not descend from one snapshot.
fn all(view: &PoolView) -> Result<Vec<ObjectId>, ScanError> {
    let mut found = vec![];
    let mut open = vec![view.directory_object(key::ROOT_DATASET)?];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        // A forged tree may be a circle.
        if !seen.insert(id) {
            continue;
        }
        let directory = directory(view, id)?;
        if let Some(children) = directory.child_directories {
            open.extend(members(view, children)?);
        }
        let Some(head) = directory.head_dataset else {
            continue;
        };
        found.push(head);
        let names = Dataset::open(view, head)?.and_then(|head| head.phys.snapshot_names);
        if let Some(names) = names {
            found.extend(members(view, names)?);
        }
    }
    Ok(found)
}

/// Adds what follows a dataset: the next snapshot or the head, and the clones.
pub(crate) fn after(
    view: &Arc<PoolView>,
    done: &Dataset,
    phys: &mut ScanPhys,
    queue: &mut ScanQueue,
    gathered: &Gathered<'_>,
) -> Result<(), ScanError> {
    phys.bookmark = NEXT_DATASET;
    if phys.flags.contains(ScanFlags::VISIT_DATASET_AGAIN) {
        // A snapshot was destroyed during its visit. Its successor has blocks that were born later.
        phys.flags.remove(ScanFlags::VISIT_DATASET_AGAIN);
        queue.insert(done.id, phys.current_max_txg);
        return Ok(());
    }
    // Nothing follows a head.
    if !PoolVersion(view.version()).has_origin() || !done.phys.is_snapshot() {
        return Ok(());
    }
    let mut following = BTreeSet::new();
    // The next of `$ORIGIN@$ORIGIN` is a head without anything.
    following.extend(done.phys.next_snapshot);
    if let Some(table) = done.phys.next_clones {
        // A scan that failed here would fail again and again: it would never end, and never restore redundancy.
        match members(view, table) {
            Ok(clones) => following.extend(clones),
            Err(error) if error.is_damage() => {
                mark::hit("scan-searches-clones");
                following.extend(search_following(view, done.id, gathered)?);
            }
            Err(error) => return Err(error),
        }
    }
    let born = done.phys.creation_txg;
    for id in following {
        match Dataset::found(view, id, gathered)? {
            // So no dataset comes twice, also where a forged one says that it follows itself.
            Found::Dataset(found) if found.follows(done.id, born) => {
                queue.insert(id, born);
            }
            Found::Dataset(_) | Found::Gone => {}
            Found::Lost => pass_over(view, id, born, queue, gathered)?,
        }
    }
    Ok(())
}

impl Dataset {
    /// Whether it follows a snapshot that was made in txg `born`.
    fn follows(&self, snapshot: ObjectId, born: Txg) -> bool {
        self.phys.previous_snapshot == Some(snapshot)
            && (!self.phys.is_snapshot() || self.phys.creation_txg > born)
    }
}

/// Adds what follows a lost snapshot in its place, with the blocks that are shared with it: those born after `min`.
pub(crate) fn pass_over(
    view: &Arc<PoolView>,
    lost: ObjectId,
    min: Txg,
    queue: &mut ScanQueue,
    gathered: &Gathered<'_>,
) -> Result<(), ScanError> {
    mark::hit("scan-passes-over-dataset");
    for id in search_following(view, lost, gathered)? {
        if let Found::Dataset(found) = Dataset::found(view, id, gathered)?
            && found.follows(lost, min)
        {
            // 0 stands for the txg of the previous snapshot.
            queue.insert(id, min.max(Txg(1)));
        }
    }
    Ok(())
}

/// The objects that a table lists.
pub(crate) fn members(view: &PoolView, table: ObjectId) -> Result<Vec<ObjectId>, ScanError> {
    let mut found = vec![];
    for entry in Zap::open(view.mos().object(table)?)?.iter() {
        found.extend(entry?.value.first().map(ObjectId));
    }
    Ok(found)
}

/// Finds the datasets that follow a snapshot among all objects of the MOS.
fn search_following(
    view: &Arc<PoolView>,
    snapshot: ObjectId,
    gathered: &Gathered<'_>,
) -> Result<Vec<ObjectId>, ScanError> {
    let mut found = vec![];
    for object in view.mos().objects() {
        let object = match object {
            Ok(object) => object,
            Err(error) if error.is_damage() => {
                gathered.count_unvisited();
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if object.dnode().bonus_type != ObjectType::DSL_DATASET {
            continue;
        }
        if let Found::Dataset(one) = Dataset::found(view, object.id(), gathered)?
            && one.phys.previous_snapshot == Some(snapshot)
        {
            found.push(object.id());
        }
    }
    Ok(found)
}

/// Takes the next dataset from the queue; `None` if there is none. Sets `has_missed` if one was not found.
pub(crate) fn next(
    view: &Arc<PoolView>,
    phys: &mut ScanPhys,
    queue: &mut ScanQueue,
    has_missed: &mut bool,
    gathered: &Gathered<'_>,
) -> Result<Option<Dataset>, ScanError> {
    while let Some((id, min)) = queue.pop_first() {
        let dataset = match Dataset::found(view, id, gathered)? {
            Found::Dataset(dataset) => dataset,
            Found::Gone => {
                *has_missed = true;
                continue;
            }
            Found::Lost => {
                pass_over(view, id, min, queue, gathered)?;
                continue;
            }
        };
        let min = match min {
            Txg(0) => dataset.phys.previous_snapshot_txg,
            min => min,
        };
        phys.bookmark = BlockBookmark {
            object_set: id.0,
            ..BlockBookmark::default()
        };
        phys.current_min_txg = min.max(phys.min_txg);
        phys.current_max_txg = match dataset.phys.is_snapshot() {
            true => phys.max_txg.min(dataset.phys.creation_txg),
            false => phys.max_txg,
        };
        return Ok(Some(*dataset));
    }
    Ok(None)
}
