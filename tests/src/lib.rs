//! Test harness: compares what Millpond reads with what OpenZFS recorded.
//!
//! A *golden case* is a directory with compressed disk images of a pool and a record of everything in it
//! (`testdata/golden/README.md` describes the format).
//!
//! - [`images`] finds and unpacks golden cases, [`record`] reads their records.
//! - [`reader`] is the interface to a pool that the comparison needs, [`adaptor`] implements it with the
//!   library `millpond`, [`compare`] finds differences.
//! - [`absence`] enumerates which disks may be absent, [`mutate`] damages disks.
//! - [`runner`] runs and prints cases like the standard test harness.
//! - [`oracle`] lets OpenZFS's own programs and kernel module check images that were written here.
//! - [`leaves`] finds the leaves of a pool.
//! - [`recount`] recomputes all space counters of every dataset.
//! - [`soak`] runs pools on simulated disks that fail.
//! - [`workload`] applies random work to a pool and to a model of it.
//! - [`hostile`] creates pools with hostile content.
//!
//! The comparison is independent of the library. It is tested with a pool in memory and planted differences
//! of each kind.
#![forbid(unsafe_code)]

pub mod absence;
pub mod adaptor;
pub mod calendar;
pub mod compare;
pub mod hostile;
pub mod images;
pub mod leaves;
pub mod mutate;
pub mod old_pools;
pub mod oracle;
pub mod properties;
pub mod raised;
pub mod reader;
pub mod record;
pub mod recount;
pub mod runner;
pub mod soak;
pub mod tree;
pub mod workload;
