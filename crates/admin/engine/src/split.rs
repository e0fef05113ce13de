//! Makes a pool of the sides that were split from another one.

use super::initializer::FileSystemInitializer;
use crate::{Error, Pool};
use millpond_dataset::Datasets;
use millpond_device::Candidate;
use millpond_env::sync::Arc;
use millpond_ondisk::Guid;
use millpond_pool::import::{PoolCandidate, find_pools, scan_devices};
use millpond_pool::{
    DatasetPort, FoundLogs, OpenOptions, Pool as Inner, PoolSetting, PoolView, RequestDeadline,
    SplitError, SplitHalf, SplitSide, SyncMode, WriteOptions,
};

/// A pool to split from another one.
#[derive(Debug, Clone)]
pub struct NewHalf<'a> {
    /// Its name.
    pub name: &'a str,
    /// The leaves that become its vdevs, one of each mirror.
    pub sides: Vec<Guid>,
    /// Its properties, apart from those of the other pool.
    pub settings: &'a [PoolSetting],
    /// The host and system that its labels and history name.
    pub writing: WriteOptions,
}

/// Why no pool was made of sides that have left their pool.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HalfError {
    /// The pool could not be split. It is unchanged.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The sides have left the pool, but are no pool yet.
    #[error(
        "the devices were detached, but no pool was made of them: {reason}; attach them again with 'zpool attach -f'"
    )]
    Detached {
        /// Why.
        reason: String,
    },
}

impl Pool {
    /// Splits one side of each mirror off, and makes an exported pool of them.
    ///
    /// # Errors
    /// [`HalfError`].
    pub fn split(&self, half: &NewHalf<'_>) -> Result<(), HalfError> {
        // Once the sides have left, the pool lacks them until they are attached again and resilvered. So what can fail is
        // tried before.
        for setting in half.settings {
            let checked = self.inner().check_property(setting);
            checked.map_err(SplitError::Pool)?;
        }
        self.inner().check_split(&half.sides)?;
        self.try_half(half)?;
        let gone = self.inner().split_off(&half.sides)?;
        let detached = |reason: String| HalfError::Detached { reason };
        self.make_half(half, gone)
            .map_err(|error| detached(error.to_string()))
    }

    /// Reads what the new pool will be opened with, from the sides alone.
    fn try_half(&self, half: &NewHalf<'_>) -> Result<(), SplitError> {
        let mut outcome = Ok(());
        for _ in 0..TRIES {
            // Without a later txg nothing that is read is written over.
            let state = self.inner().committed()?;
            outcome = self.read_half(half);
            let is_same = state.uberblock().txg == self.inner().uberblock().txg;
            if outcome.is_ok() || is_same && state.check_not_expired().is_ok() {
                break;
            }
        }
        outcome.map_err(|error| SplitError::Unreadable {
            reason: error.to_string(),
        })
    }

    fn read_half(&self, half: &NewHalf<'_>) -> Result<(), Error> {
        let sides = self.inner().devices_of_sides(&half.sides);
        let candidate = self.candidate_of(half, sides)?;
        let open = |error| Error::Open {
            name: half.name.to_owned(),
            error: Box::new(error),
        };
        let view = PoolView::open(self.inner().env(), &candidate, &half_options()).map_err(open)?;
        let writing = &half.writing;
        let datasets = Datasets::new(FileSystemInitializer::of(self.inner().env(), writing));
        datasets.choose_found_logs(FoundLogs::Discard);
        Ok(datasets.check_writable(&view)?)
    }

    /// The pool as it is found on the sides alone.
    fn candidate_of(
        &self,
        half: &NewHalf<'_>,
        sides: Vec<SplitSide>,
    ) -> Result<PoolCandidate, Error> {
        let candidates = sides.into_iter().map(|(leaf, device)| Candidate {
            path: leaf.path.unwrap_or_default().into(),
            aliases: vec![],
            partition: None,
            device,
            is_live: false,
        });
        let found = scan_devices(candidates.collect());
        let pools = find_pools(&found, half.writing.hostid).into_iter();
        let mut own = pools.filter(|found| found.guid == self.inner().guid());
        let mut candidate = own.next().ok_or_else(|| Error::NoSuchPool {
            name: self.inner().name(),
        })?;
        candidate.name = half.name.to_owned();
        Ok(candidate)
    }

    fn make_half(&self, half: &NewHalf<'_>, gone: Vec<SplitSide>) -> Result<(), Error> {
        let candidate = self.candidate_of(half, gone)?;
        let options = half_options();
        let writing = WriteOptions {
            sync_mode: SyncMode::Caller,
            can_be_resumed: false,
            stored_name: None,
            // The new pool is what was committed; the old one keeps its log.
            found_logs: FoundLogs::Discard,
            deadline: RequestDeadline(None),
            ..half.writing.clone()
        };
        let datasets = Datasets::new(FileSystemInitializer::of(self.inner().env(), &writing));
        datasets.choose_found_logs(writing.found_logs);
        let split = SplitHalf {
            sides: half.sides.clone(),
            from: self.inner().name(),
        };
        let port = Arc::clone(&datasets);
        let opened = Inner::open_split(
            self.inner().env(),
            &candidate,
            &options,
            &writing,
            port,
            &split,
        );
        let new = opened.map_err(|error| Error::Open {
            name: half.name.to_owned(),
            error: Box::new(error),
        })?;
        for setting in half.settings {
            new.set_property(setting)?;
        }
        Ok(new.export()?)
    }
}

fn half_options() -> OpenOptions {
    OpenOptions {
        // A small one of its own: the pool is open only for a moment. And what is tried is read from the sides.
        cache_bytes: Some(CACHE_BYTES),
        prefetch: false,
        ..OpenOptions::default()
    }
}

/// How often the sides are read if something else is written meanwhile.
const TRIES: usize = 4;
/// The cache of the new pool while its first txgs are written, in bytes.
const CACHE_BYTES: u64 = 16 << 20;
