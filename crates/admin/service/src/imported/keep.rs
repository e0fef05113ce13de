//! Keeps a committed state of a pool while another process reads it from the devices.

use super::{ImportedPools, io};
use millpond_control::ControlError;
use millpond_env::sync::Arc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;
use std::os::unix::net::UnixStream;

/// How often it is checked whether the state is still wanted and kept, in nanoseconds. An export waits for that long.
const CHECK_EVERY_NS: i64 = 50_000_000;

impl ImportedPools {
    /// Answers [`millpond_control::Request::KeepState`].
    ///
    /// # Errors
    /// [`ControlError`] if there is no such pool or its state cannot be read.
    pub fn keep_state(
        &self,
        name: &str,
        mut reader: UnixStream,
        is_abandoned: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), ControlError> {
        let pool = self.find(name)?;
        if let Some(live) = pool.live()
            && live.inner().suspension().is_none()
            && !live.inner().is_frozen()
        {
            // What was changed before the command is part of the state.
            live.sync().map_err(io)?;
        }
        let view = pool.view().map_err(io)?;
        writeln!(reader, "{}", view.inner().uberblock().txg.0).map_err(io)?;
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: CHECK_EVERY_NS,
        };
        loop {
            let mut waited = [PollFd::new(&reader, PollFlags::IN)];
            // The reader sends nothing: what can be read is the end.
            let is_closed = matches!(poll(&mut waited, Some(&time)), Ok(1..));
            let is_here = self.get(name).is_some_and(|now| Arc::ptr_eq(&now, &pool));
            let is_kept = view.inner().check_not_expired().is_ok();
            if is_closed || !is_here || !is_kept || is_abandoned() {
                return Ok(());
            }
        }
    }
}
