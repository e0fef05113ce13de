//! Writes of blocks to in-memory devices, and reads of them.
#![forbid(unsafe_code)]

mod behind;
mod copies;
mod encrypted;
mod encrypted_damage;
mod failures;
mod forms;
mod gang_rewrites;
mod gangs;
mod hang;
mod heal;
mod io_stats;
mod late_repairs;
mod pool;
mod status;
mod write_back;
