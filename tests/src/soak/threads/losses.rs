//! Flushes that fail on all disks, and the administrator who resumes the pool.
//!
//! As on Linux, a failed flush loses what was written, and is reported once. When it is reported on all disks the
//! pool waits, until someone resumes it. The disks may fail at different moments, so that sometimes only one of them
//! lacks what was written.

use super::slow_down;
use millpond_engine::Pool;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_sim::{FaultPlan, Seed, World};
use std::time::Duration;

/// How often the administrator looks.
const LOOK: Duration = Duration::from_millis(1);
/// How often resuming may fail in a row.
const REFUSALS_MAX: u32 = 20;

/// Lets flushes fail during the work of an iteration.
pub(super) struct Losses {
    rng: Seed,
    seed: u64,
    is_over: Mutex<bool>,
    ended: Condvar,
}

impl Losses {
    pub(super) fn of(seed: u64, round: usize) -> Self {
        Self {
            rng: Seed::new(seed.wrapping_mul(409).wrapping_add(round as u64)),
            seed,
            is_over: Mutex::new(false),
            ended: Condvar::new(),
        }
    }

    /// The threads have ended: nothing fails any more.
    pub(super) fn end(&self) {
        *self.is_over.lock() = true;
        self.ended.notify_all();
    }

    fn end_faults(&self, world: &World) {
        world.disks().iter().for_each(|disk| disk.set_faults(None));
        slow_down(world, self.seed);
    }

    fn begin(world: &World, rng: &mut Seed) {
        let good = rng.below(40);
        let count = [1, 2, 5, u64::MAX][usize::try_from(rng.below(4)).unwrap_or(0)];
        for disk in world.disks() {
            let plan = FaultPlan::new(rng.fork());
            disk.set_faults(Some(plan.failing_flushes_after(good, count)));
        }
    }

    /// Makes flushes fail, and resumes the pool whenever it is suspended. What failed flushes lost is then dropped from
    /// the disks' caches. Returns when the threads have ended, and the pool works.
    pub(super) fn work(&self, world: &World, pool: &Pool) -> Result<(), String> {
        let mut rng = self.rng.clone();
        // A pool that only its waiting thread holds is abandoned.
        let engine = Arc::clone(pool.inner());
        let mut refused = 0;
        Self::begin(world, &mut rng);
        loop {
            let is_over = {
                let mut is_over = self.is_over.lock();
                if !*is_over {
                    self.ended.wait_for(&mut is_over, LOOK);
                }
                *is_over
            };
            if is_over {
                self.end_faults(world);
            }
            if engine.suspension().is_some() {
                self.end_faults(world);
                // As `zpool clear` does.
                engine.clear_leaves(None);
                let resumed = engine.resume();
                world.disks().iter().for_each(|disk| disk.evict());
                if let Err(error) = resumed {
                    // Something that began before may still have failed. The disks work now.
                    refused += 1;
                    if refused > REFUSALS_MAX {
                        return Err(error.to_string());
                    }
                    continue;
                }
                refused = 0;
                if !is_over {
                    Self::begin(world, &mut rng);
                }
            } else if is_over {
                return Ok(());
            }
        }
    }
}
