//! Layer `admin`: compares the layouts that a number of equal disks can have.
//!
//! Space is exact: it is computed as a new pool computes it. Chances and speeds are estimates from the rates that the
//! caller gives: disks fail independently of each other, and a failed one is replaced and rebuilt.
#![forbid(unsafe_code)]

mod layout;
mod risk;
mod space;

pub use layout::{Layout, VdevLayout};
pub use risk::Risk;
pub use space::Space;

use std::cmp::Ordering;

/// The most disks that are planned for.
pub const DISKS_MAX: u64 = 1000;
/// The hours of a year, on average.
pub(crate) const YEAR_HOURS: f64 = 8766.0;

/// What the owner of the disks cares about most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Goal {
    /// The most space among the layouts that are safe enough.
    #[default]
    Balance,
    /// The most space that survives one failure.
    Space,
    /// The smallest chance to lose data.
    Safety,
    /// The most random reads in a second that survive one failure.
    Speed,
}

/// The disks, and what is assumed about them.
#[derive(Debug, Clone, PartialEq)]
pub struct Assumptions {
    /// How many disks.
    pub disks: u64,
    /// Bytes of each.
    pub disk_bytes: u64,
    /// log2 of the sector size of the pool.
    pub ashift: u64,
    /// The chance that a disk fails within a year: above 0 and below 1.
    pub yearly_failure: f64,
    /// Hours until a failed disk is replaced, if no spare is there.
    pub replace_hours: f64,
    /// Bytes a second that a rebuild writes to the new disk.
    pub rebuild_bytes_per_s: f64,
    /// How full the pool is when a disk fails: 0 to 1.
    pub fill: f64,
    /// Bytes a second that one disk reads or writes in order.
    pub disk_bytes_per_s: f64,
    /// Reads at random that one disk makes in a second.
    pub disk_reads_per_s: f64,
    /// Bits that cannot be read and that no scrub has found, for each bit read.
    pub read_errors_per_bit: f64,
    /// The chance to lose data within a year that is still called safe.
    pub acceptable_loss: f64,
}

impl Assumptions {
    /// Usual values for hard disks.
    #[must_use]
    pub fn hard_disks(disks: u64, disk_bytes: u64) -> Self {
        Self {
            disks,
            disk_bytes,
            ashift: 12,
            yearly_failure: 0.015,
            replace_hours: 24.0,
            rebuild_bytes_per_s: 100e6,
            fill: 0.8,
            disk_bytes_per_s: 200e6,
            disk_reads_per_s: 150.0,
            read_errors_per_bit: 1e-16,
            acceptable_loss: 1e-3,
        }
    }

    fn check(&self) -> Result<(), PlanError> {
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        let rates = [
            self.rebuild_bytes_per_s,
            self.disk_bytes_per_s,
            self.disk_reads_per_s,
        ];
        let are_sound = rates.into_iter().all(is_rate)
            && (self.replace_hours.is_finite() && self.replace_hours >= 0.0)
            && (self.yearly_failure > 0.0 && self.yearly_failure < 1.0)
            && (0.0..=1.0).contains(&self.fill)
            && (0.0..1.0).contains(&self.read_errors_per_bit)
            && (9..=16).contains(&self.ashift);
        match self.disks {
            0 => Err(PlanError::NoDisks),
            DISKS_MAX.. if self.disks > DISKS_MAX => Err(PlanError::TooManyDisks),
            _ if !are_sound => Err(PlanError::Assumption),
            _ => Ok(()),
        }
    }
}

/// Why nothing was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No disk.
    #[error("there must be at least one disk")]
    NoDisks,
    /// Too many disks.
    #[error("at most {DISKS_MAX} disks can be planned for")]
    TooManyDisks,
    /// The disks are too small for a pool.
    #[error("the disks are too small: a pool needs at least 64 MiB on each")]
    TooSmall,
    /// A rate or share is outside its range.
    #[error(
        "an assumption is outside its range: rates and sizes are above 0, shares between 0 and 1"
    )]
    Assumption,
}

/// A layout with its properties.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The layout.
    pub layout: Layout,
    /// Its space.
    pub space: Space,
    /// What it survives.
    pub risk: Risk,
    /// Bytes a second for a program that reads one long file.
    pub read_bytes_per_s: f64,
    /// Bytes a second for a program that writes one long file.
    pub write_bytes_per_s: f64,
    /// Small reads at random in a second, over many files.
    pub reads_per_s: f64,
    /// Bytes read from the other disks to rebuild one.
    pub rebuild_read_bytes: u64,
    /// Hours for the rebuild alone.
    pub rebuild_hours: f64,
}

impl Plan {
    /// The usable space in steps of three percent: less than that is not worth any risk.
    fn space_step(&self) -> f64 {
        (self.space.usable_bytes.max(1) as f64)
            .ln()
            .div_euclid(0.03)
    }

    fn new(layout: Layout, ask: &Assumptions) -> Option<Self> {
        let space = Space::of(layout, ask.disk_bytes, ask.ashift)?;
        let full = ask.fill * space.usable_bytes as f64;
        let vdevs = layout.vdevs as f64;
        let data = layout.kind.data_disks();
        // What a failed disk held.
        let held = full / vdevs / data;
        let rebuild_speed = ask.rebuild_bytes_per_s * layout.kind.rebuild_writers();
        let rebuild_hours = held / rebuild_speed / 3600.0;
        let rebuild_read_bytes = held * layout.kind.rebuild_sources();
        let (stream, random) = (ask.disk_bytes_per_s, ask.disk_reads_per_s);
        Some(Self {
            layout,
            space,
            risk: Risk::of(layout, rebuild_hours, rebuild_read_bytes, ask),
            read_bytes_per_s: vdevs * stream * layout.kind.stream_readers(),
            write_bytes_per_s: vdevs * stream * data,
            reads_per_s: vdevs * random * layout.kind.random_readers(),
            rebuild_read_bytes: rebuild_read_bytes as u64,
            rebuild_hours,
        })
    }
}

/// All sensible layouts of the disks, the best for `goal` first.
///
/// # Errors
/// [`PlanError`].
pub fn plans(ask: &Assumptions, goal: Goal) -> Result<Vec<Plan>, PlanError> {
    ask.check()?;
    let layouts = Layout::all(ask.disks).into_iter();
    let mut plans: Vec<Plan> = layouts
        .filter_map(|layout| Plan::new(layout, ask))
        .collect();
    if plans.is_empty() {
        return Err(PlanError::TooSmall);
    }
    plans.sort_by(|one, other| order(one, other, goal, ask.acceptable_loss));
    Ok(plans)
}

/// Better plans come first.
fn order(one: &Plan, other: &Plan, goal: Goal, acceptable_loss: f64) -> Ordering {
    let survives = |plan: &Plan| plan.layout.kind.parity() > 0;
    let more = |of: fn(&Plan) -> f64| of(other).total_cmp(&of(one));
    let space = || more(|plan| plan.space.usable_bytes as f64);
    let loss = || (one.risk.yearly_damage).total_cmp(&other.risk.yearly_damage);
    let first = match goal {
        Goal::Safety => Ordering::Equal,
        Goal::Space | Goal::Speed => survives(other).cmp(&survives(one)),
        Goal::Balance => {
            let is_safe = |plan: &Plan| plan.risk.yearly_damage <= acceptable_loss;
            is_safe(other).cmp(&is_safe(one))
        }
    };
    first.then_with(|| match goal {
        Goal::Safety => loss().then_with(space),
        Goal::Space => space().then_with(loss),
        Goal::Speed => more(|plan| plan.reads_per_s).then_with(loss),
        Goal::Balance if one.risk.yearly_damage > acceptable_loss => loss(),
        Goal::Balance => more(Plan::space_step).then_with(loss),
    })
}

#[cfg(test)]
mod tests;
