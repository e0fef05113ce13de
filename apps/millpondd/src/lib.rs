//! The daemon: keeps pools imported and file systems mounted, and answers requests.
//!
//! The library contains everything except the process itself, so that tests can run a daemon in their own
//! process. Page `docs/daemon.md`.
//!
//! | module | content |
//! | --- | --- |
//! | `state_dirs` | paths of the state directory and the socket |
//! | `state` | the state directory: its lock, the host id, the cache file, the record of mounts |
//! | `fuse` | mounts through the kernel's FUSE |
//! | `mounts` | mounted file systems, and the effects of changes on them |
//! | `volumes` | block devices of volumes, and the effects of changes on them |
//! | `handler` | the request handler for one caller |
//! | `keys` | keys of encrypted datasets, beside mounts and devices |
//! | `daemon` | the combination of these; start and stop |
//! | `metrics` | Prometheus metrics and their HTTP server |
//! | `log`, `health` | log lines; the health monitor of pools and devices |
//! | `permits` | connection permits |
//! | `cache_watch` | lets the cache follow the memory of the machine |
//! | `heap` | returns free memory to the system |
//! | `run` | the process: socket, connections, signals, exit when idle |
//! | `words` | failures of its own work in words |
//! | `start` | the client side: connects, and starts a daemon if necessary |
#![deny(unsafe_code)]

mod cache_watch;
mod daemon;
mod events;
mod fuse;
mod handler;
mod health;
mod heap;
mod keys;
mod log;
pub mod metrics;
mod mounts;
mod permits;
mod run;
mod snapshots;
mod start;
mod state;
mod state_dirs;
mod volumes;
mod words;

pub use daemon::{Daemon, DaemonOptions, Log, StartError};
pub use fuse::FuseMounter;
pub use log::{Level, Line};
pub use mounts::{Mountable, Mounted, Mounter, NoMounter, PretendMounter};
pub use permits::{ConnectionPermit, ConnectionPermits, PermitLimits};
pub use run::{CONNECTIONS, HELP, Listener, hide_memory, run};
pub use start::{StartFailure, connect, connect_or_start};
pub use state::StateError;
pub use state_dirs::{StateDirs, home_for_mounts};
