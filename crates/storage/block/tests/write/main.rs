//! The way of a block to devices in memory, and back.
#![forbid(unsafe_code)]

mod failures;
mod forms;
mod gangs;
mod hang;
mod pool;
mod status;
mod waits;
mod write_back;
