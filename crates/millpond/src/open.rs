//! How to open a pool.

use crate::{Error, ErrorKind, Pool};
use millpond_engine::{PoolCandidate, PoolState, Rewind, Search, Txg, View, WriteOptions};
use millpond_env::{Env, host};
use std::collections::BTreeSet;
use std::path::Path;

/// How to find and open a pool. By default it is searched among the system's devices and opened for reading.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    search: Search,
    write: bool,
    force: bool,
    reading: millpond_engine::OpenOptions,
}

impl OpenOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Searches in this file, device or directory, and not among the system's devices. Can be repeated.
    #[must_use]
    pub fn search(mut self, path: impl AsRef<Path>) -> Self {
        self.search.paths.push(path.as_ref().to_owned());
        self
    }

    /// Opens the pool for reading and writing. Its devices are locked against other processes.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Opens the pool for writing even if another system used it last and did not export it. If that system
    /// still uses it, the pool is destroyed. Also opens a pool in which an older copy takes the place of a device
    /// without redundancy. Writing then damages it further.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Gives the pool a block cache of its own, of this size in bytes. Otherwise all pools of the process share
    /// one.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.reading.cache_bytes = Some(bytes);
        self
    }

    /// Reads a pool even if whole top-level vdevs are missing. What they contain is lost. With [`OpenOptions::write`] this
    /// changes nothing.
    #[must_use]
    pub fn allow_missing_vdevs(mut self, allow: bool) -> Self {
        self.reading.allow_missing_tops = allow;
        self
    }

    /// If the newest state cannot be read, takes the newest of the last few that can. With [`OpenOptions::write`]
    /// everything newer is lost for good.
    #[must_use]
    pub fn rewind(mut self) -> Self {
        self.reading.rewind = Rewind::Recent;
        self
    }

    /// Takes the newest readable state that is not newer than this transaction group. With [`OpenOptions::write`]
    /// everything newer is lost for good.
    #[must_use]
    pub fn rewind_to(mut self, txg: u64) -> Self {
        self.reading.rewind = Rewind::ToTxg(Txg(txg));
        self
    }

    /// The names of all pools that are found, in byte order, without destroyed ones.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        let mut pools = self.search.pools();
        pools.retain(|pool| pool.state != PoolState::Destroyed);
        let names: BTreeSet<String> = pools.into_iter().map(|pool| pool.name).collect();
        names.into_iter().collect()
    }

    /// Opens the pool with this name or guid.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InvalidInput`] if the name is not unique;
    /// [`ErrorKind::Unsupported`] and [`ErrorKind::ReadOnly`] name the feature or device; [`ErrorKind::Busy`] if
    /// another program or system has it open; [`ErrorKind::Device`]; [`ErrorKind::Damaged`].
    pub fn open(&self, name: &str) -> Result<Pool, Error> {
        if !self.write {
            return Ok(Pool::of_view(View::open(
                &self.search,
                name,
                &self.reading,
            )?));
        }
        let mut search = self.search.clone();
        search.hostid = host::hostid();
        let candidate = millpond_engine::Pool::find(&search, name)?;
        if !self.force {
            refuse_used_elsewhere(&candidate)?;
            self.refuse_older(&candidate)?;
        }
        let pool = millpond_engine::Pool::open_candidate(
            &Env::real(),
            &candidate,
            &self.reading,
            &writing(),
        )?;
        Ok(Pool::of_open(pool))
    }

    fn refuse_older(&self, candidate: &PoolCandidate) -> Result<(), Error> {
        let until = match self.reading.rewind {
            Rewind::ToTxg(txg) => Some(txg),
            _ => None,
        };
        match candidate.why_older(until) {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::ReadOnly, why).about(&candidate.name)),
        }
    }
}

/// This system and this program, as labels and histories record them.
pub(crate) fn writing() -> WriteOptions {
    WriteOptions {
        hostid: host::hostid(),
        is_hostid_set: host::hostid() != 0,
        hostname: host::hostname(),
        ..WriteOptions::default()
    }
}

fn refuse_used_elsewhere(candidate: &PoolCandidate) -> Result<(), Error> {
    match candidate.other_host(host::hostname().as_deref()) {
        None => Ok(()),
        Some(other) => {
            let text = format!(
                "the pool was last used by {} and not exported; if that system no longer uses it, open it with force",
                other.unwrap_or("another system")
            );
            Err(Error::new(ErrorKind::Busy, text).about(&candidate.name))
        }
    }
}
