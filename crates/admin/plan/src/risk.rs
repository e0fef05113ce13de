//! Which failures a layout survives, and how likely its loss is.

use crate::layout::Layout;
use crate::{Assumptions, YEAR_HOURS};

/// Up to how many failures at once are judged.
pub const FAILURES_MAX: usize = 4;

/// What a layout survives.
#[derive(Debug, Clone, PartialEq)]
pub struct Risk {
    /// The failures that it always survives.
    pub always_survived: u64,
    /// The failures that it survives if the right disks fail.
    pub survived_at_most: u64,
    /// The chance that the pool is lost with 1, 2, 3, … random disks failed at once.
    pub lost_with: [f64; FAILURES_MAX],
    /// The chance that the next failed disk takes the pool with it, if one has failed and is not rebuilt yet.
    pub next_kills: f64,
    /// The chance to lose the pool within a year.
    pub yearly_loss: f64,
    /// The chance to lose any data within a year: the pool, or files with blocks that a rebuild could not read.
    pub yearly_damage: f64,
}

impl Risk {
    pub(crate) fn of(
        layout: Layout,
        rebuild_hours: f64,
        rebuild_read_bytes: f64,
        ask: &Assumptions,
    ) -> Self {
        let vdev = VdevRates::of(layout, rebuild_hours, ask);
        let yearly = |rate: f64| -(-(layout.vdevs as f64) * rate).exp_m1();
        // Only without redundancy left does an unreadable bit cost a block.
        let unreadable = -(-rebuild_read_bytes * 8.0 * ask.read_errors_per_bit).exp_m1();
        let parity = layout.kind.parity();
        let lost_with = lost_with(layout);
        let [one, two, ..] = lost_with;
        Self {
            always_survived: parity,
            survived_at_most: parity.saturating_mul(layout.vdevs),
            lost_with,
            next_kills: match one < 1.0 {
                true => (two - one) / (1.0 - one),
                false => 1.0,
            },
            yearly_loss: yearly(vdev.losses),
            yearly_damage: yearly(vdev.losses + vdev.unprotected * unreadable),
        }
    }
}

/// The share of sets of 1, 2, 3, … disks of the vdevs whose failure loses the pool.
fn lost_with(layout: Layout) -> [f64; FAILURES_MAX] {
    let (width, parity) = (layout.kind.disks(), layout.kind.parity());
    // Coefficient k: the number of sets of k disks that all vdevs so far survive.
    let mut sets = [0.0; FAILURES_MAX + 1];
    sets[0] = 1.0;
    for _ in 0..layout.vdevs {
        let mut next = [0.0; FAILURES_MAX + 1];
        for (before, count) in sets.iter().enumerate() {
            for more in 0..=FAILURES_MAX - before {
                if more as u64 <= parity
                    && let Some(slot) = next.get_mut(before + more)
                {
                    *slot += count * choose(width, more);
                }
            }
        }
        sets = next;
    }
    let disks = width.saturating_mul(layout.vdevs);
    let mut lost = [1.0; FAILURES_MAX];
    for (number, lost) in lost.iter_mut().enumerate() {
        let all = choose(disks, number + 1);
        let survived = sets.get(number + 1).copied().unwrap_or(0.0);
        if all > 0.0 {
            *lost = (1.0 - survived / all).clamp(0.0, 1.0);
        }
    }
    lost
}

/// The number of sets of `count` out of `of`.
fn choose(of: u64, count: usize) -> f64 {
    (0..count as u64).fold(1.0, |sets, at| {
        sets * of.saturating_sub(at) as f64 / (at + 1) as f64
    })
}

/// What happens to one vdev in a year. It is a Markov chain over its failed disks: failures at the rate of the disks that
/// are left, one rebuild at a time.
struct VdevRates {
    /// How often it is lost.
    losses: f64,
    /// How often it has no redundancy left.
    unprotected: f64,
}

impl VdevRates {
    fn of(layout: Layout, rebuild_hours: f64, ask: &Assumptions) -> Self {
        let (width, parity) = (layout.kind.disks(), layout.kind.parity());
        // Failures of one disk in an hour.
        let failures = -(1.0 - ask.yearly_failure).ln() / YEAR_HOURS;
        let wait = match layout.spares + layout.kind.distributed_spares() {
            0 => ask.replace_hours,
            _ => 0.0,
        };
        let repairs = 1.0 / (wait + rebuild_hours).max(1e-6);
        // The mean time from `failed` to one more failed disk for the first time.
        let mut to_next = 0.0;
        let (mut to_loss, mut to_unprotected) = (0.0, 0.0);
        for failed in 0..=parity {
            let rate = width.saturating_sub(failed) as f64 * failures;
            let back = match failed {
                0 => 0.0,
                _ => repairs,
            };
            to_unprotected = to_loss;
            to_next = (1.0 + back * to_next) / rate;
            to_loss += to_next;
        }
        Self {
            losses: YEAR_HOURS / to_loss,
            // A vdev without parity never has redundancy; what it cannot read is not counted.
            unprotected: match parity {
                0 => 0.0,
                _ => YEAR_HOURS / to_unprotected,
            },
        }
    }
}
