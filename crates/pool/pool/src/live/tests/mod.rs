//! The changing pool on simulated disks: written, cut off, opened again.

mod commit;
mod crash;
mod hung;
mod leaks;
mod lists;
mod made;
mod suspended;
mod threads;
