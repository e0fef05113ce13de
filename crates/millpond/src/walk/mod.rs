//! What walks over all of a pool's blocks share: unfinished work that several threads take from one stack,
//! and the bound that ends a walk over trees that claim more than there can be.

mod budget;
mod stack;

pub(crate) use budget::{Budget, Spent};
pub(crate) use stack::Stack;

/// No intent log is longer, in blocks; writers keep some thousands at most.
pub(crate) const LOG_BLOCKS_MAX: u64 = 1 << 24;
