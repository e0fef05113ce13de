//! Completes a received snapshot.

use super::{Receiving, Replaced, head, hidden_name};
use crate::datasets::Datasets;
use crate::heads::open::ClosedHead;
use crate::mos::contradiction;
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::Snapshot;
use crate::{DatasetError, Refusal};
use millpond_env::Tunable;
use millpond_ondisk::{DslDatasetFlags, Guid, ObjectId, Txg};
use millpond_pool::PoolError;
use millpond_stream::RawKeys;

const WHAT: &str = "completing a received snapshot";
/// How often a snapshot waits for a later txg than the one before it.
const TRIES_MAX: u32 = 4;
/// One transaction changes at most this many bytes.
const TRANSACTION_BYTES_MAX: u64 = 64 << 20;

/// Whether a received dataset references more than a refquota permits; 0 for none. Each byte of a transaction counts
/// `inflation` times until it is written, so a sender may exceed its refquota by as much. What it could store, its copy can.
fn is_beyond(quota: u64, referenced_bytes: u64, inflation: u64) -> bool {
    let excess = TRANSACTION_BYTES_MAX.saturating_mul(inflation);
    quota > 0 && referenced_bytes > quota.saturating_add(excess)
}

/// What the end of a receive does.
struct Plan {
    /// The dataset that took the objects, and its directory.
    received: ObjectId,
    swap: Option<Swap>,
}

/// The exchange with an existing dataset.
struct Swap {
    head: ObjectId,
    /// Its snapshots to destroy, newest first.
    newer: Vec<Snapshot>,
    closed: ClosedHead,
}

/// The name, guid and time of the new snapshot.
struct NewSnapshot {
    dataset_name: String,
    name: String,
    guid: Guid,
    creation_s: u64,
    /// The keys of a raw stream.
    raw: Option<RawKeys>,
}

impl Datasets {
    /// Completes a receive: the contents come into force, and the snapshot exists.
    ///
    /// # Errors
    /// [`Refusal`]: the dataset was changed meanwhile, is in use, or exceeds its quota. What was received is then
    /// given up as by [`Datasets::abort_receive`].
    pub fn end_receive(&self, receiving: Receiving) -> Result<(), DatasetError> {
        let mut outcome = Err(Refusal::error(&receiving.target.name, Refusal::Busy));
        for _ in 0..TRIES_MAX {
            outcome = self.try_end_receive(&receiving);
            let is_busy = matches!(
                outcome,
                Ok(false)
                    | Err(DatasetError::Refused {
                        why: Refusal::Busy,
                        ..
                    })
            );
            if !is_busy {
                break;
            }
            self.pool()?.sync()?;
        }
        match outcome {
            Ok(true) => Ok(()),
            Ok(false) => {
                let name = receiving.target.name.clone();
                self.abort_receive(receiving, true)?;
                Err(Refusal::error(&name, Refusal::Busy))
            }
            Err(error) => {
                // The first error says why.
                let _ = self.abort_receive(receiving, true);
                Err(error)
            }
        }
    }

    /// Returns false if the snapshot must wait for another txg.
    fn try_end_receive(&self, receiving: &Receiving) -> Result<bool, DatasetError> {
        let new = NewSnapshot {
            dataset_name: receiving.target.name.clone(),
            name: receiving.target.snapshot.clone(),
            guid: receiving.guid,
            creation_s: receiving.creation_s,
            raw: receiving.raw.clone(),
        };
        self.task(
            |s| s.check_end_receive(receiving),
            |s, plan| {
                let Some(plan) = plan else { return Ok(false) };
                s.end_receive(&new, plan)?;
                Ok(true)
            },
        )
    }
}

impl SyncTaskContext<'_> {
    fn check_end_receive(&self, receiving: &Receiving) -> Result<Option<Plan>, DatasetError> {
        let target = &receiving.target;
        let refused = |why| Refusal::error(&target.name, why);
        let received = receiving.head.id();
        let Some(Replaced { head, origin }) = receiving.replaced.clone() else {
            let phys = self.dataset(received)?;
            let is_early = phys.previous_snapshot_txg >= self.txg();
            // Later users of the dataset need its key.
            if !is_early
                && receiving.is_raw()
                && !self.datasets.close_received(&receiving.head, self.txg())
            {
                return Err(refused(Refusal::Busy));
            }
            let plan = Plan {
                received,
                swap: None,
            };
            return Ok((!is_early).then_some(plan));
        };
        let phys = self.dataset(head)?;
        if let Some(origin) = origin
            && self.dataset(origin)?.creation_txg >= self.txg()
        {
            return Ok(None);
        }
        if self.snapshot_entry(&phys, &target.snapshot)?.is_some() {
            return Err(refused(Refusal::SnapshotExists(target.snapshot.clone())));
        }
        let newer = self.snapshots_after(&target.name, head, origin)?;
        // A forced receive does not ask: the empty snapshot that it may begin with has no contents to compare.
        let is_changed = || match origin {
            Some(origin) => self.is_changed_since(head, origin),
            None => Ok(true),
        };
        if !target.is_forced && (!newer.is_empty() || is_changed()?) {
            return Err(refused(Refusal::Modified));
        }
        let quota = self.ref_quota(phys.directory)?;
        // The count has committed blocks only.
        let committed = self.ctx.pool().uberblock().txg;
        if quota > 0 && self.datasets.dirty.is_dirty_after(received, committed) {
            return Ok(None);
        }
        let tunables = &self.ctx.pool().env().tunables;
        let inflation = tunables.get(Tunable::AsizeInflation);
        if is_beyond(quota, self.dataset(received)?.referenced_bytes, inflation) {
            return Err(refused(Refusal::OverQuota));
        }
        for snapshot in &newer {
            self.check_destroy_snapshot(snapshot, &snapshot.full_name(), false)?;
        }
        // The caller and the table of open heads hold the hidden one.
        let closed = self.datasets.close_for_good(head, self.txg());
        let closed = closed.ok_or_else(|| refused(Refusal::Busy))?;
        if !self.datasets.close_received(&receiving.head, self.txg()) {
            self.datasets.reopen(head);
            return Err(refused(Refusal::Busy));
        }
        let swap = Swap {
            head,
            newer,
            closed,
        };
        Ok(Some(Plan {
            received,
            swap: Some(swap),
        }))
    }

    /// The snapshots of a head that are newer than one of its chain, newest first.
    fn snapshots_after(
        &self,
        name: &str,
        id: ObjectId,
        origin: Option<ObjectId>,
    ) -> Result<Vec<Snapshot>, PoolError> {
        let phys = self.dataset(id)?;
        let entries = self.snapshot_entries(&phys)?;
        let own = head(name, phys.directory, id);
        let mut found = vec![];
        let mut at = phys.previous_snapshot;
        let mut last = Txg(u64::MAX);
        while let Some(dataset) = at.filter(|at| Some(*at) != origin) {
            let before = self.dataset(dataset)?;
            let entry = entries.iter().find(|(_, entry)| *entry == dataset);
            let (Some((name, _)), true) = (entry, before.creation_txg < last) else {
                return Err(contradiction(WHAT, "its head does not descend from it"));
            };
            found.push(Snapshot {
                head: own.clone(),
                name: name.clone(),
                dataset,
            });
            last = before.creation_txg;
            at = before.previous_snapshot;
        }
        Ok(found)
    }

    fn end_receive(&self, new: &NewSnapshot, plan: Plan) -> Result<(), PoolError> {
        let received = plan.received;
        let text = format!("snap={}", new.name);
        let Some(swap) = plan.swap else {
            self.history(received, &new.dataset_name, "finish receiving", &text)?;
            self.end_resumable(received)?;
            self.complete(received, new)?;
            if new.raw.is_some() {
                self.datasets.reopen(received);
            }
            return Ok(());
        };
        let hidden = hidden_name(&new.dataset_name);
        self.history(received, &hidden, "finish receiving", &text)?;
        for snapshot in &swap.newer {
            self.destroy_or_defer(snapshot)?;
        }
        self.free_log_of(swap.closed.log)?;
        self.free_waiting_log(swap.head)?;
        self.end_resumable(received)?;
        self.swap_with_clone(received, swap.head)?;
        if let Some(raw) = &new.raw {
            let directory = self.dataset(swap.head)?.directory;
            self.update_sent_key(directory, raw)?;
        }
        let last = new.dataset_name.rsplit('/').next();
        let parent = format!("parent={}", last.unwrap_or_default());
        self.history(received, &hidden, "clone swap", &parent)?;
        self.complete(swap.head, new)?;
        let directory = self.dataset(received)?.directory;
        let how = self.how_destroyed(&head(&hidden, directory, received))?;
        self.history(received, &hidden, "destroy", &how)?;
        self.destroy_head(received, &hidden)?;
        self.wake_background();
        self.datasets.reopen(swap.head);
        Ok(())
    }

    /// Marks a head as complete, and takes the received snapshot of it.
    fn complete(&self, id: ObjectId, new: &NewSnapshot) -> Result<(), PoolError> {
        self.edit_dataset(id, |phys| phys.flags.remove(DslDatasetFlags::INCONSISTENT))?;
        let snapshot = self.take_snapshot(id, &new.name)?;
        self.edit_dataset(snapshot, |phys| {
            phys.guid = new.guid;
            phys.creation_time = new.creation_s;
        })?;
        if let Some(raw) = &new.raw {
            self.put_iv_set(snapshot, raw)?;
        }
        let full = format!("{}@{}", new.dataset_name, new.name);
        self.history(snapshot, &full, "snapshot", " ")
    }
}

#[cfg(test)]
mod tests {
    use super::is_beyond;

    #[test]
    fn a_refquota_permits_what_one_transaction_may_exceed_it_by() {
        let quota = 50 << 20;
        assert!(!is_beyond(quota, quota + (1536 << 20), 24));
        assert!(is_beyond(quota, quota + (1536 << 20) + 1, 24));
        assert!(is_beyond(quota, quota + (128 << 20) + 1, 2));
        assert!(!is_beyond(0, u64::MAX, 0) && !is_beyond(u64::MAX, u64::MAX, 0));
    }
}
