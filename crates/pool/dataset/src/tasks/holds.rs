//! Holds, which prevent snapshots from being destroyed.
//!
//! Page `docs/format/holds.md`.

use crate::mos::contradiction;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Snapshot;
use crate::{DatasetError, Refusal};
use millpond_ondisk::dsl::hex_key;
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_pool::PoolError;

/// The longest tag, in bytes.
const TAG_BYTES_MAX: usize = 255;
/// The entry of the object directory that names the table of temporary holds.
const TEMPORARY_HOLDS: &str = "tmp_userrefs";

impl SyncTaskContext<'_> {
    pub(crate) fn check_hold(
        &self,
        names: &[&str],
        tag: &str,
    ) -> Result<Vec<Snapshot>, DatasetError> {
        let mut found = vec![];
        for name in names {
            if !self.version().has_holds() {
                return Err(Refusal::error(name, Refusal::OldPool));
            }
            if tag.len() > TAG_BYTES_MAX || tag.is_empty() {
                return Err(Refusal::error(name, Refusal::TagTooLong));
            }
            if tag.contains('\0') {
                return Err(Refusal::error(name, Refusal::Invalid("a tag with a NUL")));
            }
            let snapshot = self.find_snapshot(name)?;
            let holds = self.dataset(snapshot.dataset)?.user_references;
            if let Some(holds) = holds
                && self.lookup(holds, tag)?.is_some()
            {
                return Err(Refusal::error(name, Refusal::TagExists));
            }
            found.push(snapshot);
        }
        Ok(found)
    }

    pub(crate) fn hold(&self, snapshot: &Snapshot, tag: &str) -> Result<(), PoolError> {
        let mut phys = self.dataset(snapshot.dataset)?;
        let holds = match phys.user_references {
            Some(holds) => holds,
            None => {
                let made = self.create_zap(ObjectType::USER_REFS)?;
                phys.user_references = Some(made);
                self.put_dataset(snapshot.dataset, &phys)?;
                made
            }
        };
        self.update(holds, tag, self.now_s())?;
        let count = self.entry_count(holds)?;
        let text = format!("tag={tag} temp=0 refs={count}");
        self.history(snapshot.dataset, &snapshot.full_name(), "hold", &text)
    }

    pub(crate) fn check_release(
        &self,
        names: &[&str],
        tag: &str,
    ) -> Result<Vec<Snapshot>, DatasetError> {
        let mut found = vec![];
        for name in names {
            let snapshot = self.find_snapshot(name)?;
            let holds = self.dataset(snapshot.dataset)?.user_references;
            let is_held = match holds {
                Some(holds) => self.lookup(holds, tag)?.is_some(),
                None => false,
            };
            if !is_held {
                return Err(Refusal::error(name, Refusal::NoSuchTag));
            }
            found.push(snapshot);
        }
        Ok(found)
    }

    pub(crate) fn release(&self, snapshot: &Snapshot, tag: &str) -> Result<(), PoolError> {
        self.release_tag(snapshot.dataset, &snapshot.full_name(), tag)
    }

    fn release_tag(&self, snapshot: ObjectId, full_name: &str, tag: &str) -> Result<(), PoolError> {
        let phys = self.dataset(snapshot)?;
        let holds = phys
            .user_references
            .ok_or_else(|| contradiction("hold", "no table of holds"))?;
        self.remove(holds, tag)?;
        let key = format!("{}-{tag}", hex_key(snapshot.0));
        if let Some(temporary) = self.ctx.directory_object(TEMPORARY_HOLDS)? {
            self.remove(temporary, &key)?;
        }
        let count = self.entry_count(holds)?;
        let text = format!("tag={tag} refs={count}");
        self.history(snapshot, full_name, "release", &text)?;
        self.destroy_if_deferred(snapshot)
    }

    /// Releases the temporary holds left over when a pool is opened. Such holds end with the process that
    /// created them.
    pub(crate) fn release_temporary_holds(&self) -> Result<(), PoolError> {
        let Some(table) = self.ctx.directory_object(TEMPORARY_HOLDS)? else {
            return Ok(());
        };
        for entry in self.entries(table)? {
            let key = String::from_utf8_lossy(&entry.name).into_owned();
            let Some((id, tag)) = key.split_once('-') else {
                continue;
            };
            let id = millpond_ondisk::dsl::hex_key_number(id.as_bytes()).map(ObjectId);
            let Some(snapshot) = id else { continue };
            let name = self.dataset_name(snapshot)?;
            self.release_tag(snapshot, &name, tag)?;
            self.remove(table, &key)?;
        }
        Ok(())
    }
}
