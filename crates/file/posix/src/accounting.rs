//! Completes space accounting by owner in a file system that is older than the accounting feature.
//!
//! A background thread of the mount writes every object once more, and then sets the object set's flag that
//! everything is counted.
//!
//! Page `docs/format/object-set.md`, "Accounting".

use crate::FileSystem;
use crate::error::FileError;
use crate::writing::NODE_BYTES;
use millpond_env::mark;
use millpond_ondisk::ObjectId;

/// The number of objects rewritten in one transaction.
const OBJECTS: usize = 64;

/// Object set flags: which accounting is complete.
pub(crate) const USERS: u64 = 1;
pub(crate) const OBJECT_COUNTS: u64 = 2;
pub(crate) const PROJECTS: u64 = 4;

impl FileSystem {
    /// The flags of accounting that the pool keeps, but that does not count every object of this file system
    /// yet.
    #[must_use]
    pub fn incomplete_accounting(&self) -> u64 {
        let Ok(writing) = self.writing() else {
            return 0;
        };
        let set = writing.set();
        let policy = set.policy();
        let mut kept = 0;
        for (is_kept, flag) in [
            (policy.accounts_users, USERS),
            (policy.accounts_objects, OBJECT_COUNTS),
            (policy.accounts_projects, PROJECTS),
        ] {
            if is_kept {
                kept |= flag;
            }
        }
        kept & !set.flags()
    }

    /// Completes the accounting before it returns. It is on stable storage with the open txg.
    ///
    /// # Errors
    /// If objects cannot be read, or no transaction can begin.
    pub fn complete_accounting_now(&self) -> Result<(), FileError> {
        self.complete_accounting(&|| true)
    }

    /// Completes the accounting, until `continues` returns false.
    ///
    /// A later call resumes where this one stopped, unless the file system was closed in the meantime.
    ///
    /// # Errors
    /// If objects cannot be read, or no transaction can begin.
    pub(crate) fn complete_accounting(
        &self,
        continues: &dyn Fn() -> bool,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let missing = self.incomplete_accounting();
        if missing == 0 {
            return Ok(());
        }
        let set = writing.set();
        let mut cursor = set.accounting_cursor().unwrap_or(0);
        while continues() {
            let mut ids = vec![];
            let mut after = ObjectId(cursor.saturating_sub(1));
            while ids.len() < OBJECTS
                && let Some(id) = set.next_object(after)?
            {
                ids.push(id);
                after = id;
            }
            let tx = self.begin(NODE_BYTES + ids.len() as u64 * NODE_BYTES / 4)?;
            for id in &ids {
                // Some objects may have been freed since.
                if let Ok(object) = set.object(*id) {
                    object.touch(&tx);
                }
            }
            if ids.len() == OBJECTS {
                mark::hit("accounting-goes-on-in-next-transaction");
                cursor = after.0.saturating_add(1);
                set.set_accounting_cursor(&tx, cursor);
                continue;
            }
            set.set_accounting_cursor(&tx, u64::MAX);
            set.set_flags(&tx, set.flags() | missing);
            writing.source().note_accounting(
                &tx,
                missing & OBJECT_COUNTS != 0,
                missing & PROJECTS != 0,
            );
            return Ok(());
        }
        Ok(())
    }
}
