//! Outside the house: compares what Millpond reads with what OpenZFS recorded.
//!
//! A *golden case* is a folder with compressed disk images of a pool and a record of everything in it
//! (`testdata/golden/README.md` describes the form). [`images`] finds and unpacks them, [`record`]
//! reads the record, [`reader`] is the small view of a pool that the comparison needs, [`adaptor`]
//! fills it from the library `millpond`, [`compare`] finds differences, [`absence`] enumerates which
//! disks may be missing, [`mutate`] makes disks rot, and [`runner`] runs and prints cases like the standard test harness does.
//! [`oracle`] asks OpenZFS's own programs and kernel module what they think of images that were written here.
//! [`recount`] counts every figure of every dataset anew. [`soak`] lives in pools on simulated disks that fail.
//! [`workload`] does random work to a pool and to a model of it.
//! [`hostile`] is another matter: pools that were made to harm.
//!
//! The comparison knows nothing of the library: it can be (and is) tested against a pool that lies in
//! memory, with each kind of difference planted.
#![forbid(unsafe_code)]

pub mod absence;
pub mod adaptor;
pub mod calendar;
pub mod compare;
pub mod hostile;
pub mod images;
pub mod mutate;
pub mod old_pools;
pub mod oracle;
pub mod properties;
pub mod reader;
pub mod record;
pub mod recount;
pub mod runner;
pub mod soak;
pub mod tree;
pub mod workload;
