//! Imported pools whose devices fail: their status, the changes allowed, and their export.

use super::stopped::StoppedPrograms;
use super::{ImportedPool, ImportedPools, Open};
use crate::info::activity;
use millpond_control::{ChangeError, ControlError, PoolChange, PoolInfo, SuspendReason};
use millpond_engine::Pool;
use millpond_env::sync::Mutex;
use millpond_pool::{FailMode, SuspensionCause};

impl ImportedPool {
    /// Why its I/O is suspended; `None` if it is not.
    pub(super) fn suspend_reason(&self) -> Option<SuspendReason> {
        let engine = self.live()?.inner();
        if engine.suspension()?.cause == SuspensionCause::Multihost {
            return Some(SuspendReason::Multihost);
        }
        Some(match engine.failmode() {
            FailMode::Continue => SuspendReason::IoContinue,
            FailMode::Wait | FailMode::Panic => SuspendReason::IoWait,
        })
    }

    /// All information about it. For a suspended pool that cannot be read, the last information read, with
    /// current device statistics.
    pub(super) fn info(&self) -> Result<PoolInfo, ControlError> {
        match self.read_info() {
            Ok(info) => {
                *self.last.lock() = Some(info.clone());
                Ok(info)
            }
            Err(error) => self.remembered().ok_or(error),
        }
    }

    fn remembered(&self) -> Option<PoolInfo> {
        let suspended = Some(self.suspend_reason()?);
        let mut info = self.last.lock().clone()?;
        info.suspended = suspended;
        let engine = self.live()?.inner();
        info.engine = Some(activity::engine(engine));
        let topology = engine.store().topology();
        let mut stack = vec![&mut info.root];
        while let Some(vdev) = stack.pop() {
            activity::leaf_stats(&topology, vdev);
            stack.extend(&mut vdev.children);
        }
        Some(info)
    }

    /// Reads the information to show while the pool cannot be read.
    pub(super) fn remember(&self) {
        if self.live().is_some() {
            // An error only means that the pool could not be described while suspended. It is no reason to
            // refuse the pool.
            let _ = self.info();
        }
    }

    /// Refuses changes while the pool waits for its devices.
    ///
    /// # Errors
    /// [`ChangeError::Suspended`] if the pool waits for its devices.
    pub(crate) fn refuse_if_waiting(&self) -> Result<(), ChangeError> {
        let suspension = self.live().and_then(|live| live.inner().suspension());
        match suspension {
            Some(suspension) if suspension.can_resume => {
                Err(ChangeError::Suspended(suspension.reason))
            }
            _ => Ok(()),
        }
    }
}

impl ImportedPools {
    /// Refuses a change at once if it would wait for devices, possibly forever.
    pub(super) fn refuse_if_suspended(
        &self,
        pool: &str,
        change: &PoolChange,
    ) -> Result<(), ChangeError> {
        let Some(imported_pool) = self.get(pool) else {
            return Ok(());
        };
        match change {
            PoolChange::Clear { .. } | PoolChange::Online { .. } | PoolChange::Abandon => Ok(()),
            // This changes only memory.
            PoolChange::Set { name, .. } if name == "cachefile" => Ok(()),
            // A pool that is suspended for good can only be exported.
            PoolChange::Export => imported_pool.refuse_if_waiting(),
            _ => match imported_pool
                .live()
                .and_then(|live| live.inner().suspension())
            {
                Some(suspension) => Err(ChangeError::Suspended(suspension.reason)),
                None => Ok(()),
            },
        }
    }

    /// Makes all pools stop waiting for failed devices, so that [`ImportedPools::release_all`] terminates. Returns
    /// names and reasons of the suspended pools; their unwritten changes are lost.
    pub fn stop_waiting(&self) -> Vec<(String, String)> {
        let mut lost = vec![];
        for (name, pool) in self.all() {
            let Some(live) = pool.live() else { continue };
            if let Some(suspension) = live.inner().suspension() {
                lost.push((name, suspension.reason));
            }
            live.inner().stop_waiting();
        }
        lost
    }

    /// Adds a pool that is already open, with its current devices.
    pub fn adopt(&self, live: Pool) {
        let name = live.inner().name();
        let pool = ImportedPool {
            open: Open::Live(live),
            located: None,
            altroot: None,
            cache_file: Mutex::new(super::CacheFile::None),
            imported_since_s: self.now_s(),
            last: Mutex::new(None),
            stopped_programs: StoppedPrograms::default(),
        };
        self.add_imported(&name, pool);
    }
}
