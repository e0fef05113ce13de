//! File systems mounted through the kernel's FUSE, used as programs use them. What remains on the disks is judged by
//! `zdb`.
//!
//! Needs `/dev/fuse` and the superuser; where they are missing every test says so and passes. The everyday sizes take
//! seconds; `make test-mount` sets `MILLPOND_MOUNT=full`, which takes minutes and also runs real programs where they
//! are installed.

mod basics;
mod crossing;
mod fsx;
mod mapped;
mod power;
mod programs;
mod rig;
mod ring;
#[allow(dead_code, reason = "shared with other tests, which need more of it")]
#[path = "../writing/sim.rs"]
mod sim;
mod stress;
mod stuck;
