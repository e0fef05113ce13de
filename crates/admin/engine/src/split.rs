//! Makes a pool of the sides that were split from another one.

use super::initializer::FileSystemInitializer;
use crate::{Error, Pool};
use millpond_dataset::Datasets;
use millpond_device::Candidate;
use millpond_env::sync::Arc;
use millpond_ondisk::Guid;
use millpond_pool::import::{find_pools, scan_devices};
use millpond_pool::{
    FoundLogs, OpenOptions, Pool as Inner, PoolSetting, RequestDeadline, SplitError, SplitHalf,
    SyncMode, WriteOptions,
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
        let gone = self.inner().split_off(&half.sides)?;
        let detached = |reason: String| HalfError::Detached { reason };
        let mut candidates = vec![];
        for (leaf, device) in gone {
            let path = leaf.path.unwrap_or_default();
            candidates.push(Candidate {
                path: path.into(),
                aliases: vec![],
                partition: None,
                device,
                is_live: false,
            });
        }
        self.make_half(half, candidates)
            .map_err(|error| detached(error.to_string()))
    }

    fn make_half(&self, half: &NewHalf<'_>, candidates: Vec<Candidate>) -> Result<(), Error> {
        let pools = find_pools(&scan_devices(candidates), half.writing.hostid);
        let own = |found: &&millpond_pool::import::PoolCandidate| found.guid == self.inner().guid();
        let found = pools.iter().find(own);
        let mut candidate = found.cloned().ok_or_else(|| Error::NoSuchPool {
            name: self.inner().name(),
        })?;
        candidate.name = half.name.to_owned();
        let options = OpenOptions {
            // A small one of its own: the pool is open only for a moment.
            cache_bytes: Some(CACHE_BYTES),
            prefetch: false,
            ..OpenOptions::default()
        };
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

/// The cache of the new pool while its first txgs are written, in bytes.
const CACHE_BYTES: u64 = 16 << 20;
