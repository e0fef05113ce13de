//! Claiming a pool with multihost before it is written.
//!
//! Between the end of a watch and the first txg lie the reading of the pool, which may take minutes, and the claims of its
//! intent logs. A heartbeat ends the watches of others as soon as the pool has been read, and later ones follow at once. But two
//! systems whose watches end at the same time would both write one. So each writes it with a number of its own, waits for an
//! interval, and looks whether it is still the newest: the other system has seen it, or has written by then.
//!
//! A system writes its number at most half an interval after it looked. If it was slower, it looks again. So the other one
//! has always seen that number when its own interval is over.
//!
//! Page `docs/format/import.md`, "Multihost".

use super::{INTERVAL_MIN_MS, NS_PER_MS, Promise, is_on};
use crate::import::{ActivityCheck, ActivitySettings, PoolCandidate};
use crate::labels::{CommitError, heartbeat_target, write_heartbeat};
use crate::pool::{Pool, SyncMode};
use crate::{OpenError, PoolError};
use millpond_block::Topology;
use millpond_env::sync::{Condvar, Mutex};
use millpond_env::{Env, mark, rank};
use millpond_ondisk::{MmpState, Uberblock, UberblockRank};
use millpond_vdev::LeafId;
use std::time::Duration;

/// How often a claim must stay the newest. Two systems may have chosen the same number once.
const ROUNDS: usize = 3;
/// How often devices may be too slow for a round.
const SLOW_ROUNDS: usize = 20;
/// Above this, the time is counted up, so that there are enough other numbers.
const SEQUENCE_MAX: u16 = 0x7fff;
/// A longer interval is not waited for: devices that answer within half of this are quick enough.
const WAIT_MAX_MS: u64 = 5000;

/// A system that wants a pool which others may want, too.
pub(super) struct Claimant<'a> {
    env: &'a Env,
    topology: &'a Topology,
    candidate: &'a PoolCandidate,
    /// The newest uberblock that this system knows: the one found, or its own claim.
    newest: Uberblock,
    interval_ns: u64,
}

impl<'a> Claimant<'a> {
    pub(super) fn new(
        env: &'a Env,
        topology: &'a Topology,
        candidate: &'a PoolCandidate,
        newest: Uberblock,
    ) -> Self {
        let promise = Promise::of(&env.tunables);
        // All systems take the same one, which is that of the uberblock.
        let interval_ms = newest.mmp().and_then(|mmp| mmp.interval_ms);
        let interval_ms = u64::from(interval_ms.unwrap_or(promise.interval_ms));
        let interval_ms = interval_ms.clamp(INTERVAL_MIN_MS, WAIT_MAX_MS);
        Self {
            env,
            topology,
            candidate,
            newest,
            interval_ns: interval_ms.saturating_mul(NS_PER_MS),
        }
    }

    /// Claims the pool. `wait` waits for an interval. Returns the claim, and when it was looked at last.
    ///
    /// # Errors
    /// [`OpenError::InUseElsewhere`] if another system has it, or claims it at the same time. Nothing is written if that is
    /// seen at first.
    pub(super) fn claim(
        &mut self,
        wait: &mut dyn FnMut(Duration),
    ) -> Result<(UberblockRank, u64), OpenError> {
        let (mut rounds, mut slow) = (0, 0);
        while rounds < ROUNDS {
            let looked_ns = self.env.clock.uptime_ns();
            self.look()?;
            let is_written = self.write();
            match self.env.clock.uptime_ns().saturating_sub(looked_ns) <= self.interval_ns / 2 {
                true if is_written => rounds += 1,
                _ => {
                    (rounds, slow) = (0, slow + 1);
                    mark::hit("multihost-claim-late");
                }
            }
            if slow > SLOW_ROUNDS {
                let error = PoolError::from(CommitError::NoUberblock);
                let txg = self.newest.txg;
                return Err(OpenError::State { txg, error });
            }
            wait(Duration::from_nanos(self.interval_ns));
        }
        let looked_ns = self.env.clock.uptime_ns();
        self.look()?;
        mark::hit("multihost-claimed");
        Ok((self.newest.rank(), looked_ns))
    }

    /// Refuses a pool that another system writes.
    pub(super) fn look(&self) -> Result<(), OpenError> {
        match self.candidate.reread_rank() == Some(self.newest.rank()) {
            true => Ok(()),
            false => Err(self.candidate.in_use_elsewhere()),
        }
    }

    /// Writes the newest uberblock with another number to all leaves. Returns whether any took it.
    pub(super) fn write(&mut self) -> bool {
        self.newest = self.next();
        let mut is_written = false;
        for leaf in 0..self.topology.devices.len() {
            let leaf = LeafId(u32::try_from(leaf).unwrap_or(u32::MAX));
            if heartbeat_target(self.topology, leaf).is_some() {
                let limit_ns = self.interval_ns;
                is_written |= write_heartbeat(self.topology, leaf, &self.newest, 0, limit_ns);
            }
        }
        is_written
    }

    fn next(&self) -> Uberblock {
        let rank = self.newest.rank();
        let (timestamp_s, used) = match rank.mmp_sequence > SEQUENCE_MAX {
            true => (rank.timestamp_s.saturating_add(1), 0),
            false => (rank.timestamp_s, rank.mmp_sequence),
        };
        let mut random = [0; 8];
        self.env.entropy.fill(&mut random);
        let left = u64::from(u16::MAX - used);
        let above = u64::from_le_bytes(random) % left.max(1) + 1;
        let promise = Promise::of(&self.env.tunables);
        let delay_ns = self.newest.mmp().map_or(0, |mmp| mmp.delay_ns);
        let newer = Uberblock {
            timestamp_s,
            ..self.newest
        };
        newer.with_mmp(MmpState {
            delay_ns: delay_ns.max(1),
            interval_ms: Some(promise.interval_ms),
            sequence: Some(u16::try_from(u64::from(used) + above).unwrap_or(u16::MAX)),
            fail_intervals: Some(promise.fail_intervals),
        })
    }
}

impl Pool {
    /// Makes sure, right before the first write, that no other system has begun to use the pool since it was found, and tells
    /// the others. For a pool that another system used last, that takes a few intervals.
    ///
    /// # Errors
    /// [`OpenError::InUseElsewhere`].
    pub(crate) fn claim_from_others(
        &self,
        candidate: &PoolCandidate,
        settings: ActivitySettings,
    ) -> Result<(), OpenError> {
        let Some(newest) = candidate.newest().map(|newest| newest.uberblock) else {
            return Ok(());
        };
        let is_watched = candidate.activity_check(settings) != ActivityCheck::NotNeeded;
        if !is_on(&newest) && !is_watched {
            return Ok(());
        }
        let mut known = newest.rank();
        let mut looked_ns = self.now_ns();
        if candidate.reread_rank() > Some(known) {
            return Err(candidate.in_use_elsewhere());
        }
        let is_own = candidate.hostid == settings.hostid;
        if is_on(&newest) && !is_own && self.sync_mode == SyncMode::Thread {
            let topology = self.store.topology();
            let mut claimant = Claimant::new(&self.env, &topology, candidate, newest);
            let (lock, wake) = (Mutex::<(), rank::Leaf>::new(()), Condvar::new());
            (known, looked_ns) = claimant.claim(&mut |pause| {
                let until_ns = after(&self.env, pause);
                while let Some(left) = left_until(&self.env, until_ns) {
                    wake.wait_for(&mut lock.lock(), left);
                }
            })?;
        }
        self.heartbeat.writing.lock().continue_after(known);
        if is_on(&self.uberblock()) && self.sync_mode == SyncMode::Thread {
            // Also a process that is stopped just now must not write any more when it continues.
            self.begin_lease(looked_ns);
        }
        Ok(())
    }
}

fn after(env: &Env, pause: Duration) -> u64 {
    let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
    env.clock.monotonic_ns().saturating_add(pause_ns)
}

fn left_until(env: &Env, until_ns: u64) -> Option<Duration> {
    let left_ns = until_ns.saturating_sub(env.clock.monotonic_ns());
    (left_ns > 0).then(|| Duration::from_nanos(left_ns))
}
