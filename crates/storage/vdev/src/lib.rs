//! Layer `storage`: maps blocks to bytes on leaves, and plans how to read and write them.
//!
//! Pure functions over a validated tree of vdevs. From the tree, a range and the health of the leaves a
//! plan derives leaf reads. From their outcomes it derives the data, further reads, or a failure that names
//! everything that was tried. This crate touches no device and takes no lock, so every pattern of losses
//! can be tested without a disk. It has no notion of block pointers, checksums or compression: a closure
//! decides whether bytes are right.
//!
//! ```
//! use millpond_ondisk::{Guid, Txg, VdevId};
//! use millpond_vdev::*;
//! let mut mirror = VdevConfig::new(VdevType::Mirror, Guid(2));
//! mirror.ashift = 12;
//! mirror.children = vec![
//!     VdevConfig::new(VdevType::File, Guid(3)),
//!     VdevConfig::new(VdevType::File, Guid(4)),
//! ];
//! let tree = VdevTree::new(VdevConfig::root(Guid(1), vec![mirror]), Reflow::default()).unwrap();
//! let range = BlockRange { vdev: VdevId(0), offset_bytes: 0, size_bytes: 4096, birth: Txg(5) };
//! let mut plan = ReadPlan::new(&tree, &AllGood, &NoIndirect, range).unwrap();
//! let is_right = &mut |bytes: &[u8]| bytes.iter().all(|byte| *byte == 7);
//! // One side is asked; it lies, and the other side is asked.
//! let Step::Read(first) = plan.advance(Vec::new(), is_right) else { panic!() };
//! assert_eq!((first.len(), first[0].offset_bytes), (1, 4 << 20));
//! let Step::Read(second) = plan.advance(vec![Ok(vec![0; 4096].into())], is_right) else { panic!() };
//! assert_ne!(first[0].leaf, second[0].leaf);
//! let Step::Done(good) = plan.advance(vec![Ok(vec![7; 4096].into())], is_right) else { panic!() };
//! assert_eq!(good.liars[0].leaf, first[0].leaf);
//! ```
//!
//! Pages: `docs/format/vdev-tree.md`, `raidz-layout.md`, `draid.md`, `indirect-vdev.md`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod draid;
mod health;
mod indirect;
mod mirror;
mod plan;
mod raidz;
mod space;
mod tree;
#[cfg(test)]
mod twin;
mod units;
mod write;

pub use draid::{DraidColumn, DraidGeometry, DraidRow};
pub use health::{AllGood, Health, LeafEntry, LeafHealth, LeafTable};
pub use indirect::{IndirectMap, IndirectMapping, IndirectTables, NoIndirect, Segment};
pub use plan::{
    AuditFinding, AuditPlan, AuditReport, AuditStep, Blame, BlameReason, BlockPiece, BlockRange,
    Failure, FailureKind, LeafBytes, LeafFault, LeafOutcome, LeafRead, PlanError, ReadPlan, Repair,
    Resolved, Role, Step, StoredCopy, StoredPart, Verdict, block_pieces,
};
pub use raidz::{
    CellPlaces, ChildRun, ExpandedCell, ExpandedMap, RAIDZ_CHILDREN_MAX, RAIDZ_SCRATCH_BYTES,
    RAIDZ_SCRATCH_START_BYTES, RaidzColumn, RaidzGeometry, RaidzMap, RaidzMove,
};
pub use space::{METASLABS_MIN, metaslab_shift_for};
pub use tree::{
    AllocationClass, CHILDREN_MAX, DEPTH_MAX, LeafId, NODES_MAX, NodeId, Reflow, TreeError,
    VdevConfig, VdevConfigError, VdevKind, VdevListScope, VdevNode, VdevTree, VdevType,
};
pub use write::{Filler, LeafContent, LeafWrite, WriteOutcome, WritePlan, WritePlanError};
