//! Parts shared by the walks over all blocks of a pool: a work stack that several threads share, and a budget
//! that ends a walk of trees that refer to more bytes than the devices hold.

mod budget;
mod stack;

pub(crate) use budget::{Budget, Spent};
pub(crate) use stack::Stack;

/// Upper bound of the length of an intent log, in blocks. Writers keep at most a few thousand.
pub(crate) const LOG_BLOCKS_MAX: u64 = 1 << 24;
