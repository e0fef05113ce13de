//! What a higher version of the pool changes in the tree of datasets. All of it is part of the txg that
//! raises the pool.
//!
//! Page `docs/format/pool-versions.md`, "Raising".

use crate::mos::{contradiction, required};
use crate::tasks::context::SyncTaskContext;
use millpond_env::mark;
use millpond_ondisk::{ObjectId, ObjectType, PoolVersion, Txg};
use millpond_pool::PoolError;

const WHAT: &str = "raising the pool";

/// A head with the oldest dataset of its directory.
struct Chain {
    directory: ObjectId,
    oldest: ObjectId,
    /// The snapshot of another directory that it continues.
    origin: Option<ObjectId>,
}

impl SyncTaskContext<'_> {
    /// Brings the datasets of a pool of version `from` into the form of the pool's version, which is higher.
    pub(crate) fn raise(&self, from: PoolVersion) -> Result<(), PoolError> {
        let to = self.version();
        let root = self.root_directory()?;
        let chains = self.chains(root)?;
        if to.has_split_deadlists() && !from.has_split_deadlists() {
            self.create_free_list(root)?;
        }
        if to.has_origin() && !from.has_origin() {
            mark::hit("origin-made-for-old-datasets");
            let origin = self.create_origin(root)?;
            for chain in &chains {
                self.link_chain(chain, origin)?;
            }
        }
        if to.has_split_deadlists() && !from.has_split_deadlists() {
            mark::hit("clones-noted-in-directories");
            self.note_all_clones(root)?;
        }
        Ok(())
    }

    fn chains(&self, root: ObjectId) -> Result<Vec<Chain>, PoolError> {
        let mut chains = vec![];
        for (_, directory) in self.directories_below("", root)? {
            let phys = self.directory(directory)?;
            let Some(head) = phys.head_dataset else {
                continue;
            };
            let (mut oldest, mut last) = (head, Txg(u64::MAX));
            let origin = loop {
                let Some(previous) = self.dataset(oldest)?.previous_snapshot else {
                    break None;
                };
                let before = self.dataset(previous)?;
                if before.directory != directory {
                    break Some(previous);
                }
                if before.creation_txg >= last {
                    return Err(contradiction(WHAT, "snapshots do not become older"));
                }
                last = before.creation_txg;
                oldest = previous;
            };
            chains.push(Chain {
                directory,
                oldest,
                origin,
            });
        }
        Ok(chains)
    }

    /// Enters the oldest dataset of a directory into the table of clones of its origin. One without an
    /// origin gets the empty snapshot.
    fn link_chain(&self, chain: &Chain, empty: ObjectId) -> Result<(), PoolError> {
        let origin = chain.origin.unwrap_or(empty);
        if chain.origin.is_none() {
            let creation_txg = self.dataset(empty)?.creation_txg;
            self.edit_dataset(chain.oldest, |phys| {
                phys.previous_snapshot = Some(empty);
                phys.previous_snapshot_txg = creation_txg;
            })?;
            self.edit_directory(chain.directory, |phys| phys.origin = Some(empty))?;
            self.edit_dataset(empty, |phys| {
                phys.children_count = phys.children_count.saturating_add(1);
            })?;
        }
        let clones = match self.dataset(origin)?.next_clones {
            Some(clones) => clones,
            None => {
                let made = self.create_zap(ObjectType::NEXT_CLONES)?;
                self.edit_dataset(origin, |phys| phys.next_clones = Some(made))?;
                made
            }
        };
        self.set_insert(clones, chain.oldest.0)
    }

    /// Enters all clones into the tables of the directories of their origins.
    fn note_all_clones(&self, root: ObjectId) -> Result<(), PoolError> {
        for (_, directory) in self.directories_below("", root)? {
            let phys = self.directory(directory)?;
            let Some(origin) = phys.origin else { continue };
            let head = required(phys.head_dataset, "a clone without a head")?;
            let above = self.dataset(origin)?.directory;
            self.add_clone(above, head)?;
        }
        Ok(())
    }
}
