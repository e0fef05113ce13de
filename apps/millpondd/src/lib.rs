//! The daemon: pools held open, file systems kept mounted, commands answered.
//!
//! Everything but the process itself is here, so that tests run it inside of theirs. The page is
//! `docs/daemon.md`.
//!
//! | module | what is there |
//! | --- | --- |
//! | `places` | where state and socket lie |
//! | `state` | the state directory: its lock, the host id, the cache file, the record of mounts |
//! | `fuse` | mounting through the kernel's FUSE |
//! | `mounts` | which file systems are mounted, and what changes do to that |
//! | `verbs` | the control verbs for one caller |
//! | `daemon` | a daemon's parts together; start and end |
//! | `metrics` | figures for Prometheus |
//! | `log`, `lookout` | lines of the log; what pools and devices did since the last look |
//! | `seats` | how many are answered at once |
//! | `run` | the process: socket, connections, signals, the idle minute |
//! | `start` | the asking side: connect, or start a daemon and connect |
#![forbid(unsafe_code)]

mod daemon;
mod events;
mod fuse;
mod log;
mod lookout;
pub mod metrics;
mod mounts;
mod places;
mod run;
mod seats;
mod start;
mod state;
mod verbs;

pub use daemon::{Daemon, Log, StartError};
pub use fuse::FuseMounter;
pub use log::{Level, Line};
pub use mounts::{Mountable, Mounted, Mounter, NoMounter, PretendMounter};
pub use places::Places;
pub use run::{CONNECTIONS, Listener, hide_memory, run};
pub use seats::{Seat, SeatLimits, Seats};
pub use start::{StartFailure, connect, connect_or_start};
pub use state::StateError;
