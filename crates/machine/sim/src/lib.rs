//! Layer `machine`: a simulated world in memory that one seed determines.
//!
//! A [`World`] gives the engine its clock, its randomness and its [`SimDisk`]s. A disk behaves as the worst
//! disk that still honours its contract: at a power cut, any subset of the writes since the last flush may
//! be lost, and any write may be torn at a sector boundary. A [`Fault`] makes a disk violate the contract:
//! requests fail, get lost, are misdirected, corrupted or slow, and disks vanish and return. Memory can
//! flip bits in data that is about to be written ([`FaultyMemory`]).
//!
//! One [`Journal`] records every write and flush of all disks. With it, a test can rebuild the disks as
//! they would be after a power cut between any two of these ([`Journal::crash_at`]).
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

pub use content::{Content, Discarded};
pub use disk::SimDisk;
pub use fault::{Fault, FaultPlan, FaultyMemory, Scope};
pub use hang::{HangPlan, Hanging};
pub use journal::{Event, Journal, Kept, PowerCut};
pub use seed::{Seed, noise};
pub use trace::{Request, RequestKind, Trace};
pub use world::World;
