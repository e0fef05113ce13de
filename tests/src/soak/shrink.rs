//! Shrinks a failing plan.

use super::life::{Failure, Options, run};
use super::op::Plan;
use millpond_env::Env;
use std::time::Duration;

/// Leaves out operations while the plan still fails, for at most `time`.
///
/// Returns the smallest failing plan with its failure.
///
/// Large pieces are tried first, then half of their size, down to single operations.
#[must_use]
pub fn shrink(plan: &Plan, failure: Failure, options: &Options, time: Duration) -> (Plan, Failure) {
    let clock = Env::real().clock;
    let end = clock
        .monotonic_ns()
        .saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let (mut best, mut failure) = (plan.clone(), failure);
    // Operations after the failure are irrelevant.
    best.ops.truncate(failure.at + 1);
    let mut piece = best.ops.len().div_ceil(2).max(1);
    if failure.is_hang {
        return (best, failure);
    }
    loop {
        let mut start = 0;
        let mut is_smaller = false;
        while start < best.ops.len() {
            if clock.monotonic_ns() > end {
                return (best, failure);
            }
            let mut less = best.clone();
            let stop = (start + piece).min(less.ops.len());
            less.ops.drain(start..stop);
            match run(&less, options) {
                Err(again) => {
                    less.ops.truncate(again.at + 1);
                    (best, failure) = (less, again);
                    is_smaller = true;
                }
                Ok(_) => start = stop,
            }
        }
        if piece == 1 && !is_smaller {
            return (best, failure);
        }
        piece = (piece / 2).max(1);
    }
}
