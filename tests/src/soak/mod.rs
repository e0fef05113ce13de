//! Simulated runs of a pool on simulated disks, determined by one seed.
//!
//! A [`Plan`] is a pool shape, a seed and a list of operations: work on files and datasets, txgs, power
//! cuts, reopenings, and faults that the shape's redundancy tolerates.
//!
//! [`run`] executes a plan and regularly compares the pool with a model. After a power cut the pool must
//! hold the content of some committed txg, at least the last acknowledged one, plus what the intent logs
//! promised, in order. A failing plan can be [`shrink`]ed, and the same plan fails again.

mod compare;
pub mod deeds;
mod life;
mod logs;
mod meddler;
mod op;
mod shape;
mod shrink;
mod states;
mod threads;
#[cfg(millpond_sim)]
mod turns;

pub use compare::{judged, verified};
pub use life::{Failure, Options, POOL, RunStats, create, found, limits, open, run, view};
pub use op::{Op, Plan};
pub use shape::{SHAPES, Shape};
pub use shrink::shrink;
pub use threads::{Crowd, ThreadStats};
