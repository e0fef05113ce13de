//! Writes of blocks to in-memory devices, and reads of them.
#![forbid(unsafe_code)]

mod failures;
mod forms;
mod gangs;
mod hang;
mod pool;
mod status;
mod waits;
mod write_back;
