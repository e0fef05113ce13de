//! Whether the metadata of an object set can be read.

use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::thread;
use millpond_ondisk::BlockPointer;
use millpond_pool::PoolView;
use millpond_traverse::{Fault, Step, Traversal, Tree, Visit, Visitor};

/// What of the metadata of an object set cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LostMetadata {
    /// How many blocks. What is below them is not counted.
    pub blocks: u64,
    /// Why one of them cannot be read.
    pub reason: Option<String>,
}

impl LostMetadata {
    /// Reads all metadata of an object set: indirect blocks, dnodes, directories, attributes. Contents of files and
    /// volumes are not read. Encrypted metadata is read as it is stored.
    ///
    /// `dataset` is the object id of the dataset in the MOS.
    #[must_use]
    pub fn of(pool: &PoolView, dataset: u64, root: BlockPointer) -> Self {
        let topology = pool.store().topology();
        let tops = topology.tree.tops();
        let capacity = tops.fold(0, |sum: u64, (_, top)| {
            sum.saturating_add(top.config.asize_bytes)
        });
        let metadata = Metadata::default();
        Traversal::new(pool.store(), &metadata)
            .metadata_bytes_max(capacity)
            .run_parallel(
                vec![Tree::new(dataset, root, ())],
                vec![],
                thread::parallelism() * 2,
            );
        Self {
            blocks: metadata.lost.load(Ordering::Relaxed),
            reason: metadata.reason.into_inner(),
        }
    }
}

#[derive(Default)]
struct Metadata {
    lost: AtomicU64,
    reason: Mutex<Option<String>, rank::Leaf>,
}

impl Visitor for Metadata {
    type Tree = ();
    type Object = ();
    const READS_DATA: bool = true;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let is_metadata =
            block.leads_on() || block.is_spill() || block.pointer.object_type().is_metadata();
        match is_metadata {
            true => Step::Descend,
            false => Step::Skip,
        }
    }

    fn fault(&self, _: &Visit<'_, Self>, fault: Fault) -> Step {
        self.lost.fetch_add(1, Ordering::Relaxed);
        (self.reason.lock()).get_or_insert_with(|| fault.to_string());
        Step::Skip
    }
}
