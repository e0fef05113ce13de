//! File systems mounted through the kernel's FUSE and used like programs use them.
//!
//! `zdb` judges the disks afterwards.
//!
//! Requires `/dev/fuse` and root; without them every test prints a message and passes. By default the tests
//! take seconds. `make test-mount` sets `MILLPOND_MOUNT=full`, which takes minutes and also runs real
//! programs that are installed.

mod basics;
mod crossing;
mod fsx;
mod mapped;
mod power;
mod programs;
mod replaced;
mod rig;
mod ring;
#[allow(dead_code, reason = "shared with other tests, which need more of it")]
#[path = "../writing/sim.rs"]
mod sim;
mod sparse;
mod stress;
mod stuck;
