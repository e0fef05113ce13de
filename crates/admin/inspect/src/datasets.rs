//! Lists all datasets of a pool, as described by their MOS objects.

use millpond_dataset::{Dataset, DatasetError, Directory};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::{BlockPointer, DslDatasetPhys, ObjectSetKind};
use millpond_pool::PoolView;

/// Summary of a dataset.
#[derive(Debug, Clone)]
pub struct DatasetSummary {
    /// Its full name.
    pub name: String,
    /// Its object id in the MOS.
    pub id: u64,
    /// The kind of its content; `None` if its object set cannot be read.
    pub kind: Option<ObjectSetKind>,
    /// The txg in which it was created.
    pub creation_txg: u64,
    /// Referenced bytes.
    pub referenced_bytes: u64,
    /// Count of its objects.
    pub object_count: u64,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
    /// Whether it is partially received or being destroyed.
    pub is_inconsistent: bool,
    /// Whether it has an intent log chain (never true of a snapshot).
    pub has_log: bool,
    /// The block pointer to its object set.
    pub root: BlockPointer,
    /// The decoded content of its MOS object.
    pub phys: DslDatasetPhys,
}

impl DatasetSummary {
    /// Describes a dataset.
    #[must_use]
    pub fn of(dataset: &Dataset) -> Self {
        let phys = dataset.phys().clone();
        let set: Option<Arc<ObjectSetView>> = dataset.object_set(None).ok();
        Self {
            name: dataset.name().to_owned(),
            id: dataset.id().0,
            kind: set.as_ref().map(|set| set.kind()),
            creation_txg: phys.creation_txg.0,
            referenced_bytes: phys.referenced_bytes,
            object_count: phys.block_pointer.fill(),
            is_snapshot: dataset.is_snapshot(),
            is_inconsistent: phys
                .flags
                .contains(millpond_ondisk::DslDatasetFlags::INCONSISTENT),
            has_log: !dataset.is_snapshot()
                && set
                    .as_ref()
                    .is_some_and(|set| millpond_intent::IntentLog::open(set).is_some()),
            root: phys.block_pointer,
            phys,
        }
    }
}

/// Iterates over all datasets of a pool that have content, including internal and temporary ones. For each
/// directory: its head, its snapshots, then its children. Only the names of one directory are in memory at a
/// time.
pub fn datasets(pool: &Arc<PoolView>) -> Summaries {
    Summaries {
        stack: vec![Directory::root(pool)],
        queue: Vec::new().into_iter(),
    }
}

/// See [`datasets`].
#[derive(Debug)]
pub struct Summaries {
    stack: Vec<Result<Arc<Directory>, DatasetError>>,
    queue: std::vec::IntoIter<Result<Dataset, DatasetError>>,
}

impl Summaries {
    fn enter(&mut self, directory: &Arc<Directory>) -> Result<(), DatasetError> {
        for (component, id) in directory.child_entries()?.into_iter().rev() {
            let child = directory.open_child(&component, id);
            self.stack.push(child);
        }
        let Some(head) = directory.head()? else {
            return Ok(());
        };
        let mut found = vec![];
        if !head.phys().block_pointer.is_hole() {
            let snapshots = head.snapshots()?;
            found.push(Ok(head));
            found.extend(snapshots.into_iter().map(Ok));
        }
        self.queue = found.into_iter();
        Ok(())
    }
}

impl Iterator for Summaries {
    type Item = Result<Dataset, DatasetError>;
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(dataset) = self.queue.next() {
                return Some(dataset);
            }
            let entered = match self.stack.pop()? {
                Ok(directory) => self.enter(&directory),
                Err(error) => Err(error),
            };
            if let Err(error) = entered {
                return Some(Err(error));
            }
        }
    }
}
