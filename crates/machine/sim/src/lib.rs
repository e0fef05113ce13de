//! Layer `machine`: a world that exists only in memory and is decided by one seed.
//!
//! A [`World`] gives the engine its clock, its randomness and its [`SimDisk`]s. A disk behaves as the
//! worst disk that keeps its promises: what was written since the last flush may be lost, in any
//! subset and torn at any sector, when the power is cut; and it can be told to break promises
//! ([`Fault`]): fail, lose, misdirect or corrupt requests, be slow, vanish, come back. Memory can flip bits in what is about to be
//! written ([`EvilMemory`]).
//!
//! Every write and flush of all disks goes through one [`Journal`], so that a test can rebuild the disks
//! as they would stand had the power been cut between any two of them ([`Journal::crash_at`]).
//!
//! ```
//! use millpond_device::Device;
//! use millpond_sim::{PowerCut, World};
//! let world = World::new(7);
//! let disk = world.disk(1 << 20, 512);
//! disk.write(0, b"kept").unwrap();
//! disk.flush().unwrap();
//! disk.write(512, b"gone").unwrap();
//! let after = world.power_cut(PowerCut::NothingUnflushed);
//! let mut bytes = [0; 4];
//! after[0].read(0, &mut bytes).unwrap();
//! assert_eq!(&bytes, b"kept");
//! after[0].read(512, &mut bytes).unwrap();
//! assert_eq!(bytes, [0; 4]);
//! ```
#![forbid(unsafe_code)]

mod content;
mod disk;
mod fault;
mod hang;
mod journal;
mod page_cache;
mod seed;
mod trace;
mod world;

pub use content::Content;
pub use disk::SimDisk;
pub use fault::{EvilMemory, Fault, FaultPlan, Scope};
pub use hang::{HangPlan, Hanging};
pub use journal::{Event, Journal, Kept, PowerCut};
pub use seed::Seed;
pub use trace::{Request, RequestKind, Trace};
pub use world::World;
