//! Lists of block pointers: bpobj, deadlist, livelist, bptree.
//!
//! Pages `docs/format/bpobj.md` and `docs/format/deadlist.md`.

mod bpobj;
mod bptree;
mod deadlist;
mod livelist;

pub use bpobj::{BpObjectEntries, BpObjectEntry, BpObjectForm, BpObjectPhys};
pub use bptree::{BP_TREE_ENTRY_BYTES, BpTreeEntry, BpTreePhys};
pub use deadlist::{DEADLIST_BYTES, DeadlistPhys};
pub use livelist::live_pointers;

#[cfg(test)]
mod tests;
