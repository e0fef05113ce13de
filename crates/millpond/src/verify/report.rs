//! What a verification found.

use millpond_block::BlockAddress;
use std::collections::BTreeMap;

/// What is wrong with one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProblemKind {
    /// No copy is right: what it held is lost. What each place had to say.
    Lost(Vec<String>),
    /// A device holds wrong bytes or could not be read, and other copies or parity make up for it.
    Repairable(Vec<String>),
    /// The pointer, or what it leads to, cannot be what a correct writer wrote.
    Invalid(String),
}

/// One block that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which block.
    pub address: BlockAddress,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// What became of one leaf device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeafReport {
    /// Its name.
    pub name: String,
    /// Runs of bytes that were wrong.
    pub wrong: u64,
    /// Bytes in them.
    pub wrong_bytes: u64,
    /// Runs that could not be read.
    pub faults: u64,
    /// Runs that lie on it and could not be checked, because the device is absent.
    pub absent: u64,
    /// Runs that it is known to have missed, and does hold otherwise.
    pub stale: u64,
    /// What is wrong with its labels, by label number.
    pub labels: Vec<(usize, String)>,
}

impl LeafReport {
    /// Whether anything is wrong with what it holds.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.faults == 0 && self.labels.is_empty()
    }
}

/// An object with blocks that are not as they should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedObject {
    /// The dataset's full name; `None` for the pool's own objects.
    pub dataset: Option<String>,
    /// The object.
    pub object: u64,
    /// The file's path below the dataset's root, where the object is a file that can be found.
    pub path: Option<Vec<u8>>,
    /// Blocks that are lost.
    pub lost: u64,
    /// Blocks that other copies or parity make up for.
    pub repairable: u64,
    /// What is wrong with the first of them.
    pub first: String,
}

/// The outcome of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Blocks whose every copy was read, each once.
    pub blocks: u64,
    /// Logical bytes of these blocks.
    pub logical_bytes: u64,
    /// Bytes read from devices.
    pub read_bytes: u64,
    /// Blocks of intent logs among them.
    pub log_blocks: u64,
    /// Lost blocks.
    pub lost: u64,
    /// Blocks that other copies or parity make up for.
    pub repairable: u64,
    /// Pointers and structures that cannot be right.
    pub invalid: u64,
    /// By leaf number.
    pub leaves: BTreeMap<u32, LeafReport>,
    /// Objects concerned, worst first; at most [`DAMAGED_OBJECTS_MAX`].
    pub damaged: Vec<DamagedObject>,
    /// How many objects are concerned that do not stand in `damaged`.
    pub damaged_not_listed: u64,
    /// Set when the walk was given up: the pool claims to hold more than fits on it.
    pub gave_up: Option<String>,
}

/// How many damaged objects are named.
pub const DAMAGED_OBJECTS_MAX: usize = 10_000;

impl VerifyReport {
    /// Runs that devices do not hold because they missed them, as their dirty time logs say: redundancy that is not there.
    #[must_use]
    pub fn stale(&self) -> u64 {
        let leaves = self.leaves.values().map(|leaf| leaf.stale);
        leaves.fold(0, u64::saturating_add)
    }

    /// Whether everything that could be read is right, and nothing was missing.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost == 0
            && self.repairable == 0
            && self.invalid == 0
            && self.gave_up.is_none()
            && self.leaves.values().all(LeafReport::is_clean)
    }
}
