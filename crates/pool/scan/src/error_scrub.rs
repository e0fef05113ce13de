//! Error scrubs: the blocks of the log of known errors are read and repaired.

use crate::gather::{Found, SharedBlocks};
use crate::issue::issue;
use crate::references::{References, references};
use crate::{ScanError, Scanner};
use millpond_env::sync::Arc;
use millpond_ondisk::{ObjectId, ScanFunction};
use millpond_pool::{ErrorSliceOutcome, LoggedError, Pool, PoolView};
use std::collections::BTreeSet;

/// The most entries of the log in a slice.
const ENTRIES_MAX: usize = 4096;
/// In how many datasets the block of an entry is looked for.
const LOOKS_MAX: usize = 10_000;

impl Scanner {
    /// Makes one slice of the running error scrub. Returns whether there was anything to do.
    ///
    /// # Errors
    /// [`ScanError`]. The error scrub then continues where the last slice ended.
    pub fn error_slice(self, pool: &Arc<Pool>) -> Result<bool, ScanError> {
        let Some(slice) = pool.begin_error_slice() else {
            return Ok(false);
        };
        let view = pool.committed()?;
        if view.uberblock().txg < slice.since_txg {
            // The state is that of a txg that is still being written.
            pool.sync()?;
            return Ok(true);
        }
        let entries = view.known_errors(slice.after.as_ref(), self.entries_max())?;
        let may_continue = |_| pool.is_error_scrubbing() && !view.store().has_expired();
        let Some(outcome) = self.read_again(&view, &entries, &may_continue)? else {
            return Ok(true);
        };
        drop(view);
        pool.end_error_slice(&slice, &outcome)?;
        Ok(true)
    }

    fn entries_max(self) -> usize {
        self.limits.blocks.min(ENTRIES_MAX)
    }

    /// Reads the blocks of these entries. `None` if it was stopped.
    fn read_again(
        self,
        view: &Arc<PoolView>,
        entries: &BTreeSet<LoggedError>,
        may_continue: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Option<ErrorSliceOutcome>, ScanError> {
        let mut outcome = ErrorSliceOutcome {
            last: entries.last().copied(),
            ..ErrorSliceOutcome::default()
        };
        let mut found = vec![];
        let mut whole: Vec<(LoggedError, References)> = vec![];
        for entry in entries {
            if !may_continue(0) {
                return Ok(None);
            }
            let places = references(view, entry, &mut { LOOKS_MAX });
            match places.block {
                Some((pointer, address)) => {
                    found.push(Found {
                        pointer,
                        address,
                        logged_under: ObjectId(entry.dataset),
                    });
                    whole.push((*entry, places));
                }
                // It cannot be told whether it is still in use.
                None if places.is_partial => {
                    outcome.lost.insert(*entry);
                }
                None => {}
            }
        }
        outcome.examined = found.len() as u64;
        let before = view.store().write_back_errors();
        let issued = issue(
            view.store(),
            ScanFunction::ErrorScrub,
            found,
            &SharedBlocks::new(),
            self.limits.threads,
            may_continue,
        );
        let Some((issued, repaired)) = issued else {
            return Ok(None);
        };
        outcome.lost.extend(issued.lost);
        let leaves = repaired.keys().copied();
        let are_durable = view.store().flush_repairs(leaves, &before).is_empty();
        for (entry, places) in whole {
            if !are_durable {
                outcome.lost.insert(entry);
            }
            if !outcome.lost.contains(&entry) {
                for dataset in places.datasets {
                    let address = entry.address(dataset.0);
                    view.store().forget_damage_at(&address);
                }
            }
        }
        Ok(Some(outcome))
    }
}
