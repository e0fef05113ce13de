//! Layer `pool`: scrubs and resilvers.
//!
//! A scan visits every block that the pool refers to, each once: the MOS, then the datasets from the oldest
//! snapshot on, each without the blocks of the one before. It works in slices. A slice
//!
//! 1. opens a view of the last committed state, whose blocks are not reused meanwhile,
//! 2. traverses from the stored bookmark on and gathers block pointers, a bounded number (`gather`),
//! 3. reads all copies of these blocks in the order of their addresses, writes right bytes over wrong and missing
//!    ones (`issue`), and flushes,
//! 4. stores the new bookmark, the sums and the errors in a sync task ([`Pool::end_slice`]).
//!
//! So a crash costs at most a slice. Nothing grows with the size of the pool. OpenZFS continues a scan that
//! Millpond began, and the other way round.
//!
//! A resilver is a scan of the blocks that were born while a leaf was away. Blocks whose vdevs lack nothing are
//! not read.
//!
//! An error scrub reads only the blocks of the error log (`error_scrub`).
//!
//! Page `docs/format/scan-state.md`.
#![forbid(unsafe_code)]

mod datasets;
mod error_scrub;
mod gather;
mod issue;
mod references;
mod scanner;

pub use references::{References, references};
pub use scanner::{Limits, ScanError, Scanner};

#[cfg(doc)]
use millpond_pool::Pool;
