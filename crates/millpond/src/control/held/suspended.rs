//! Held pools whose devices fail: what is told of them, what may be done to them, how they are left.

use super::{HeldPool, HeldPools, Open};
use crate::control::local::activity;
use crate::control::{ChangeError, ControlError, PoolChange, PoolInfo, SuspendReason};
use crate::live::LivePool;
use millpond_env::sync::Mutex;
use millpond_pool::live::FailMode;

impl HeldPool {
    /// Why it does no I/O; `None` while it does.
    pub(super) fn suspend_reason(&self) -> Option<SuspendReason> {
        let engine = self.live()?.engine();
        engine.suspension()?;
        Some(match engine.failmode() {
            FailMode::Continue => SuspendReason::IoContinue,
            FailMode::Wait | FailMode::Panic => SuspendReason::IoWait,
        })
    }

    /// All about it; of a suspended pool that cannot be read, what was last told, with what its devices
    /// did since.
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
        let engine = self.live()?.engine();
        info.engine = Some(activity::engine(engine));
        let topology = engine.store().topology();
        let mut stack = vec![&mut info.root];
        while let Some(vdev) = stack.pop() {
            activity::figures(&topology, vdev);
            stack.extend(&mut vdev.children);
        }
        Some(info)
    }

    /// Reads what is to be told when nothing can be read.
    pub(super) fn remember(&self) {
        if self.live().is_some() {
            // Without it a suspended pool cannot be described: no reason not to hold the pool.
            let _ = self.info();
        }
    }

    /// # Errors
    /// [`ChangeError::Suspended`] if it waits for its devices.
    pub(super) fn refuse_if_waiting(&self) -> Result<(), ChangeError> {
        let suspension = self.live().and_then(|live| live.engine().suspension());
        match suspension {
            Some(suspension) if suspension.can_resume => {
                Err(ChangeError::Suspended(suspension.reason))
            }
            _ => Ok(()),
        }
    }
}

impl HeldPools {
    /// What would wait for the devices, perhaps for ever, is refused at once.
    pub(super) fn refuse_if_suspended(
        &self,
        pool: &str,
        change: &PoolChange,
    ) -> Result<(), ChangeError> {
        let Some(held) = self.get(pool) else {
            return Ok(());
        };
        match change {
            PoolChange::Clear { .. } | PoolChange::Online { .. } | PoolChange::Abandon => Ok(()),
            // In memory only.
            PoolChange::Set { name, .. } if name == "cachefile" => Ok(()),
            // One that is suspended for good can only be left.
            PoolChange::Export => held.refuse_if_waiting(),
            _ => match held.live().and_then(|live| live.engine().suspension()) {
                Some(suspension) => Err(ChangeError::Suspended(suspension.reason)),
                None => Ok(()),
            },
        }
    }

    /// From now on no pool waits for devices that fail, so that [`HeldPools::let_go`] ends. Names and
    /// reasons of the pools that were suspended: what they had not written is lost.
    pub fn stop_waiting(&self) -> Vec<(String, String)> {
        let mut lost = vec![];
        for (name, pool) in self.all() {
            let Some(live) = pool.live() else { continue };
            if let Some(suspension) = live.engine().suspension() {
                lost.push((name, suspension.reason));
            }
            live.engine().stop_waiting();
        }
        lost
    }

    /// Holds a pool that is open already, on whatever devices it has.
    pub fn adopt(&self, live: LivePool) {
        let name = live.engine().name();
        let pool = HeldPool {
            open: Open::Live(live),
            located: None,
            altroot: None,
            cache_file: Mutex::new(super::CacheFile::None),
            held_since_s: self.now_s(),
            last: Mutex::new(None),
        };
        self.hold(&name, pool);
    }
}
