//! The results of a verification.

use super::Losses;
use millpond_block::BlockAddress;
use millpond_ondisk::Txg;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// The kind of a problem with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProblemKind {
    /// No copy is correct, so the content is lost. Contains one message per copy.
    Lost(Vec<String>),
    /// A device has wrong bytes or could not be read, but other copies or parity suffice to repair it.
    Repairable(Vec<String>),
    /// The pointer, or the structure it refers to, cannot come from a correct writer.
    Invalid(String),
}

/// A problem with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The block.
    pub address: BlockAddress,
    /// When the block was written; `None` if that is not known.
    pub birth: Option<Txg>,
    /// The kind of the problem.
    pub kind: ProblemKind,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, detail) = match &self.kind {
            ProblemKind::Lost(copies) => ("lost", copies.join("; ")),
            ProblemKind::Repairable(copies) => {
                ("damaged, other copies are right", copies.join("; "))
            }
            ProblemKind::Invalid(reason) => ("not valid", reason.clone()),
        };
        write!(f, "{}: {word}: {detail}", self.address)
    }
}

/// Results for a leaf device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeafReport {
    /// Its name.
    pub name: String,
    /// Count of extents with wrong bytes.
    pub wrong: u64,
    /// Bytes in these extents.
    pub wrong_bytes: u64,
    /// Count of extents that could not be read.
    pub faults: u64,
    /// Count of extents that could not be checked because the device is absent.
    pub absent: u64,
    /// Count of extents that the device missed according to its dirty time log, and that have other content.
    pub stale: u64,
    /// Problems with its labels, by label number.
    pub labels: Vec<(usize, String)>,
}

impl LeafReport {
    /// Whether the device has no wrong or unreadable extents and no problems with labels.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.faults == 0 && self.labels.is_empty()
    }
}

/// An object with damaged blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedObject {
    /// The dataset's full name; `None` for objects of the MOS.
    pub dataset: Option<String>,
    /// The object id.
    pub object: u64,
    /// The file's path below the dataset's root, if the object is a file and its path is known.
    pub path: Option<Vec<u8>>,
    /// Count of lost blocks.
    pub lost: u64,
    /// Count of repairable blocks.
    pub repairable: u64,
    /// The first problem found.
    pub first: String,
}

/// What the results of a verification mean for the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolVerdict {
    /// All copies of all blocks are right.
    Sound,
    /// What could be read is right, but devices are absent.
    Degraded,
    /// Nothing is damaged, but devices lack what was written while they were away.
    Stale,
    /// Devices have wrong or unreadable bytes. Nothing is lost.
    Repairable,
    /// Some blocks have no right copy.
    Lost,
    /// The verification stopped before its end.
    Undecided,
}

impl PoolVerdict {
    /// Its name in output.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Degraded => "degraded",
            Self::Stale => "stale",
            Self::Repairable => "repairable",
            Self::Lost => "lost",
            Self::Undecided => "undecided",
        }
    }
}

/// The outcome of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Count of blocks verified, each counted once.
    pub blocks: u64,
    /// Logical bytes of these blocks.
    pub logical_bytes: u64,
    /// Bytes read from devices.
    pub read_bytes: u64,
    /// Count of intent log blocks among them.
    pub log_blocks: u64,
    /// Count of lost blocks.
    pub lost: u64,
    /// Count of repairable blocks.
    pub repairable: u64,
    /// Count of invalid pointers and structures.
    pub invalid: u64,
    /// Results by leaf id.
    pub leaves: BTreeMap<u32, LeafReport>,
    /// Damaged objects, worst first; at most [`DAMAGED_OBJECTS_MAX`].
    pub damaged: Vec<DamagedObject>,
    /// Count of damaged objects that are not in `damaged`.
    pub damaged_not_listed: u64,
    /// What was lost, in every dataset that refers to it.
    pub losses: Losses,
    /// Why the verification was stopped: the pool's pointers refer to more data than fits on its devices.
    pub gave_up: Option<String>,
}

/// Upper bound of the damaged objects in the report.
pub const DAMAGED_OBJECTS_MAX: usize = 10_000;

impl VerifyReport {
    /// Count of extents that devices missed according to their dirty time logs. Redundancy is reduced for
    /// them.
    #[must_use]
    pub fn stale(&self) -> u64 {
        let leaves = self.leaves.values().map(|leaf| leaf.stale);
        leaves.fold(0, u64::saturating_add)
    }

    /// What the results mean.
    #[must_use]
    pub fn verdict(&self) -> PoolVerdict {
        if self.lost > 0 || self.invalid > 0 {
            PoolVerdict::Lost
        } else if self.gave_up.is_some() {
            PoolVerdict::Undecided
        } else if self.repairable > 0 || !self.leaves.values().all(LeafReport::is_clean) {
            PoolVerdict::Repairable
        } else if self.stale() > 0 {
            PoolVerdict::Stale
        } else if self.leaves.values().any(|leaf| leaf.absent > 0) {
            PoolVerdict::Degraded
        } else {
            PoolVerdict::Sound
        }
    }

    /// Whether all content is correct and nothing was skipped. Absent devices and missed extents do not count
    /// as damage.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost == 0
            && self.repairable == 0
            && self.invalid == 0
            && self.gave_up.is_none()
            && self.leaves.values().all(LeafReport::is_clean)
    }
}
