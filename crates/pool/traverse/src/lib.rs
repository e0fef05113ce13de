//! Layer `pool`: traverses the block trees of object sets.
//!
//! A [`Traversal`] follows the block pointers of one or several [`Tree`]s and calls a [`Visitor`] for each
//! block. It reads only blocks that hold pointers or dnodes, unless the visitor wants data too.
//!
//! - [`Traversal::run_parallel`] visits in any order with several threads. Unfinished work is on one stack,
//!   last in, first out, so memory stays bounded: each thread adds at most one batch of blocks per level.
//!   Blocks of a batch are read together.
//! - [`Traversal::run_in_order`] visits in the calling thread, parents first or children first, in ascending
//!   order of objects and blocks. It queues prefetch requests for the blocks that come next. It can stop at
//!   each block and resume there in another txg or process: [`Bookmark`] says where.
//! - [`Traversal::run_object`] visits one object.
//!
//! Two states of an object set can be traversed side by side ([`Tree::previous`]): positions with the same
//! pointer are skipped with everything below them. Blocks outside a range of births are skipped too
//! ([`Tree::born_after`], [`Tree::born_max`]).
//!
//! Trees may be forged. Depth is bounded by the levels of a dnode, as a level below is always one less. The
//! bytes of metadata to read are bounded by [`Traversal::metadata_bytes_max`]. A pointer or block that no
//! correct writer produces is a [`Fault`], and the visitor decides whether to continue.
//!
//! Users, and how they use it:
//!
//! | user | order | what it sets |
//! |---|---|---|
//! | `verify` | parallel | prunes by birth, reads by audits of all copies, data too |
//! | `check` | parallel | each dataset beside the previous one, totals for each object |
//! | `inspect` | parents first | one object, or each dataset pruned by birth |
//! | destroy | children first | prunes by birth; stops when a time slice ends, resumes from the bookmark |
//! | scrub, resilver | parents first | prunes by `born_max` and the births of missed writes; collects addresses, then issues them sorted; the bookmark is kept in the pool |
//! | send | parents first | prunes by the birth of the older snapshot; all holes are visited, each object by itself |
//! | diff (not implemented yet) | parents first | two snapshots side by side, dnodes only |
//!
//! Gang blocks are visited as one block, as the block layer shows them. Without a key, encrypted object sets
//! are traversed raw: pointers and dnodes are readable, data and bonus areas stay encrypted.
//!
//! Pages: `docs/format/dnode.md`, `docs/format/block-pointer.md`, `docs/format/intent-log.md`.
#![forbid(unsafe_code)]

mod bookmark;
mod budget;
mod log;
mod objects;
mod progress;
mod roots;
mod sides;
mod stack;
mod traversal;
mod tree;
mod visitor;

#[cfg(test)]
mod tests;

pub use bookmark::Bookmark;
pub use budget::{Budget, Spent};
pub use progress::Progress;
pub use sides::Side;
pub use traversal::{Job, Order, Outcome, Traversal};
pub use tree::{Object, Tree};
pub use visitor::{Fault, LogVisit, Step, Visit, Visitor};
