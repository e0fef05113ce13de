//! Tests of pools open for changes on simulated disks: written, cut off, reopened.

mod commit;
mod crash;
mod hung;
pub(crate) mod leaks;
mod lists;
pub(crate) mod made;
mod suspended;
mod threads;
