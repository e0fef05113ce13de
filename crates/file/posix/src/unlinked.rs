//! The unlinked set: files without a name, until their space is freed.

use crate::FileSystem;
use crate::attributes::zap;
use crate::content::FREE_BLOCKS_MAX;
use crate::drain::DrainQueue;
use crate::error::FileError;
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, MutexGuard};
use millpond_env::{Tunable, mark};
use millpond_object::{Object, ObjectError};
use millpond_ondisk::{BlockId, ObjectId};
use millpond_sa::FileFlags;
use millpond_txg::Transaction;
use millpond_zap::Zap;
use std::collections::VecDeque;

/// The table of files without a name, and the queue of those that are no longer open.
#[derive(Debug)]
pub(crate) struct Unlinked {
    table: Arc<Object>,
    /// Held while the table changes, from before the transaction begins.
    table_lock: Mutex<(), rank::UnlinkedSet>,
    /// Files whose last handle was dropped. Destructors add them; operations remove them.
    orphans: Mutex<VecDeque<ObjectId>, rank::Leaf>,
    /// Large files that are freed in the background.
    drain: DrainQueue,
    /// How many files came into the table, those that were in it at first too.
    unlinks: AtomicU64,
    /// How many files left the table.
    unlinked: AtomicU64,
}

impl Unlinked {
    pub(crate) fn new(table: Arc<Object>) -> Self {
        // Only a statistic: a table that cannot be read is reported by the first use.
        let zap = Zap::from_source(Arc::clone(&table) as _);
        let files = zap.and_then(|zap| zap.entry_count()).unwrap_or(0);
        Self {
            table,
            table_lock: Mutex::new(()),
            orphans: Mutex::new(VecDeque::new()),
            drain: DrainQueue::default(),
            unlinks: AtomicU64::new(files),
            unlinked: AtomicU64::new(0),
        }
    }
    pub(crate) fn drain(&self) -> &DrainQueue {
        &self.drain
    }
    /// Queues a file without a name whose last handle was dropped.
    pub(crate) fn push(&self, id: ObjectId) {
        self.orphans.lock().push_back(id);
    }
    fn pop(&self) -> Option<ObjectId> {
        self.orphans.lock().pop_front()
    }
    /// Locks the table for [`Unlinked::add`] and [`Unlinked::remove`]. Call it before the transaction begins.
    pub(crate) fn lock_table(&self) -> MutexGuard<'_, ()> {
        self.table_lock.lock()
    }
    pub(crate) fn add(&self, tx: &Transaction, id: ObjectId) -> Result<(), FileError> {
        zap(&self.table, tx).insert_number(id.0, id.0)?;
        self.unlinks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    pub(crate) fn remove(&self, tx: &Transaction, id: ObjectId) -> Result<(), FileError> {
        if zap(&self.table, tx).remove_number(id.0)? {
            self.unlinked.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
    /// How many files came into the table, and how many left it.
    pub(crate) fn counts(&self) -> (u64, u64) {
        // A file leaves after it came: read in the other order, more could have left.
        let unlinked = self.unlinked.load(Ordering::Relaxed);
        (self.unlinks.load(Ordering::Relaxed), unlinked)
    }
    fn contains(&self, id: ObjectId) -> Result<bool, FileError> {
        let _still = self.table_lock.lock();
        let table = Zap::from_source(Arc::clone(&self.table) as _)?;
        Ok(table.lookup_number(id.0)?.is_some())
    }
    pub(crate) fn first_ids(&self, count: usize) -> Result<Vec<ObjectId>, FileError> {
        let _still = self.table_lock.lock();
        let table = Zap::from_source(Arc::clone(&self.table) as _)?;
        let mut ids = vec![];
        for entry in table.iter().take(count) {
            ids.extend(entry?.value.first().map(ObjectId));
        }
        Ok(ids)
    }
}

/// How many entries are read at once, so that memory stays bounded for any size of the set.
const BATCH: usize = 1024;

impl FileSystem {
    /// Whether there are files without a name.
    pub(crate) fn has_unlinked(&self) -> Result<bool, FileError> {
        let writing = self.writing()?;
        Ok(!writing.unlinked().first_ids(1)?.is_empty())
    }

    /// Frees every file without a name that is not open. Call it after opening, to free what a crash or the
    /// last use left. A large file takes several transactions.
    ///
    /// # Errors
    /// If the table cannot be read or no transaction can begin. A damaged file that cannot be freed stays in
    /// the set, and the others are freed.
    pub fn free_unlinked(&self) -> Result<(), FileError> {
        self.free_set(&|id| self.free_orphan(id))
    }

    /// Like [`FileSystem::free_unlinked`], but skips files that take more than one transaction.
    ///
    /// # Errors
    /// As [`FileSystem::free_unlinked`].
    pub fn free_small_unlinked(&self) -> Result<(), FileError> {
        let writing = self.writing()?;
        self.free_set(&|id| match writing.set().object(id) {
            Ok(object) if is_large(&object) => Ok(false),
            _ => self.free_orphan(id),
        })
    }

    /// Whether nothing of the unlinked set is freed for now, as the tunable says.
    fn suspends_unlinks(&self) -> bool {
        let tunables = self.writing().map(|writing| &writing.env().tunables);
        tunables.is_ok_and(|tunables| tunables.is_on(Tunable::UnlinkSuspendProgress))
    }

    /// Traverses the unlinked set. `free` returns whether it freed a file.
    fn free_set(
        &self,
        free: &dyn Fn(ObjectId) -> Result<bool, FileError>,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let mut stuck = 0;
        let in_background = writing.unlinked().drain().is_allowed();
        if self.suspends_unlinks() {
            return Ok(());
        }
        loop {
            let ids = writing.unlinked().first_ids(stuck + BATCH)?;
            if ids.len() <= stuck {
                return Ok(());
            }
            // Files that could not be freed are read again, and not necessarily first. So only a pass that
            // frees nothing ends the traversal.
            let before = ids.len();
            let mut freed = 0;
            for id in ids {
                if in_background && !writing.unlinked().drain().is_allowed() {
                    // Unmounted: the rest is freed after the next mount.
                    return Ok(());
                }
                match free(id) {
                    Ok(true) => freed += 1,
                    Ok(false) => {}
                    Err(error) if error.is_failure() => {}
                    Err(error) => return Err(error),
                }
            }
            if freed == 0 && before < stuck + BATCH {
                return Ok(());
            }
            stuck = before - freed;
        }
    }

    /// Frees the files without a name whose last handle was dropped.
    ///
    /// # Errors
    /// As [`FileSystem::free_unlinked`].
    pub fn reap(&self) -> Result<(), FileError> {
        let writing = self.writing()?;
        while let Some(id) = writing.unlinked().pop() {
            match self.free_orphan_or_leave(id) {
                Ok(_) => {}
                Err(error) if error.is_failure() => {}
                Err(error) => {
                    // Retry later. The file is in the table, so nothing is lost.
                    writing.unlinked().push(id);
                    return match error {
                        FileError::Transaction(_) => Ok(()),
                        error => Err(error),
                    };
                }
            }
        }
        Ok(())
    }

    /// Like [`FileSystem::free_orphan`], but leaves large files to the background.
    fn free_orphan_or_leave(&self, id: ObjectId) -> Result<bool, FileError> {
        let writing = self.writing()?;
        if writing.unlinked().drain().is_allowed()
            && let Ok(object) = writing.set().object(id)
            && is_large(&object)
            && self.leave_to_drain(id)
        {
            return Ok(false);
        }
        self.free_orphan(id)
    }

    /// Frees a file without a name unless it is open. Returns whether it was freed.
    ///
    /// In the background, it stops when the file system is unmounted.
    pub(crate) fn free_orphan(&self, id: ObjectId) -> Result<bool, FileError> {
        let writing = self.writing()?;
        if self.suspends_unlinks() {
            return Ok(false);
        }
        // The reservation prevents the file from being opened.
        let Err(_reservation) = writing.cache().get(id) else {
            return Ok(false);
        };
        if !writing.unlinked().contains(id)? {
            return Ok(false);
        }
        let object = match writing.set().object(id) {
            Ok(object) => object,
            Err(ObjectError::NotFound { .. }) => {
                let _table = writing.unlinked().lock_table();
                let tx = self.begin_freeing(ENTRY_BYTES, 0)?;
                writing.unlinked().remove(&tx, id)?;
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        };
        let state = writing.tables().read(&object)?;
        if state.links != 0 {
            return Err(self.corrupt(id, "it has links and is among those that have none"));
        }
        let is_directory = state.kind() == Some(crate::FileKind::Directory);
        if is_directory && state.flags.contains(FileFlags::XATTR) {
            self.empty_xattr_directory(&object)?;
        }
        let mut freed_blocks = 0;
        if !is_directory {
            let in_background = writing.unlinked().drain().is_allowed();
            let continues = || !in_background || writing.unlinked().drain().is_allowed();
            match self.free_content(&object, &continues)? {
                Some(rest) => freed_blocks = rest,
                None => return Ok(false),
            }
        }
        let hidden = state.xattr_directory.map(|id| writing.set().object(id));
        // Ignore an extended attribute directory that is already freed.
        let hidden = match hidden.transpose() {
            Err(ObjectError::NotFound { .. }) => None,
            hidden => hidden?,
        };
        let table = writing.unlinked().lock_table();
        let tx = self.begin_freeing(2 * NODE_BYTES + 2 * ENTRY_BYTES, freed_blocks)?;
        if let Some(hidden) = &hidden {
            mark::hit("hidden-directory-follows-its-file");
            let old = writing.tables().read(hidden)?;
            let mut new = old;
            new.links = 0;
            self.store_hidden(&tx, hidden, &old, &new)?;
            let unfinished = tx.unfinished();
            writing.unlinked().add(&tx, hidden.id())?;
            unfinished.done();
        }
        // If the table update fails, a freed object remains in the set. The next pass removes its entry.
        writing.tables().free(&tx, id)?;
        writing.unlinked().remove(&tx, id)?;
        // The file is not open, so no further records can follow.
        self.forget_records(id);
        drop((tx, table));
        if let Some(hidden) = hidden {
            writing.unlinked().push(hidden.id());
        }
        Ok(true)
    }
}

/// Whether a file takes more than one transaction to free.
fn is_large(object: &Object) -> bool {
    let all = BlockId(0)..BlockId(u64::MAX);
    object.next_free_chunk(all, FREE_BLOCKS_MAX).end.is_some()
}
