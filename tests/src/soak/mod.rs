//! A pool's life on simulated disks, decided by one number.
//!
//! A [`Plan`] is a shape of pool, a seed and a list of operations: work on files and datasets, txgs,
//! power cuts, reopenings, and faults within what the shape's redundancy promises. [`run`] lives it and
//! compares the pool with a model at every turn: after a power cut it must hold what it held at some
//! committed txg, not older than the last one that was acknowledged, and behind that what intent logs promised,
//! in their order. A plan that fails can be
//! [`shrink`]ed, and the same plan fails again.

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
pub use life::{Failure, Figures, Options, POOL, create, found, limits, run};
pub use op::{Op, Plan};
pub use shape::{SHAPES, Shape};
pub use shrink::shrink;
pub use threads::{Crowd, ThreadFigures};
