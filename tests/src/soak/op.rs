//! What is done in a life.

use super::shape::Shape;
use crate::hostile::dice::Dice;

/// One thing to do. Each carries what decides its details, so that a list of them means the same when
/// some are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A random change of files, volumes or datasets.
    Work(u64),
    /// Everything so far becomes durable.
    Sync,
    /// A file, a file system or a volume is put on stable storage by its intent log.
    Commit(u64),
    /// The power fails, and log devices that have no copy are gone.
    LoseLog(u64),
    /// The files of a dataset are read through the changing side, unsynced changes included.
    ReadBack(u64),
    /// Everything becomes durable, then the committed state is compared.
    Look,
    /// Exported and opened again.
    Reopen,
    /// The power fails at some moment since the last one that was forgotten; opened again.
    Cut(u64),
    /// A disk that may fail is gone.
    Vanish(u64),
    /// All disks are back and without faults.
    Heal,
    /// A stretch of a disk that may fail turns into noise.
    Rot(u64),
    /// A disk that may fail starts to err.
    Err(u64),
    /// Any disk refuses writes while a txg is written; then the power fails. Without redundancy the pool must
    /// stop, and keep what it promised.
    Refuse(u64),
}

impl Op {
    /// Whether it is a fault within the promise of redundancy.
    #[must_use]
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Self::LoseLog(_) | Self::Vanish(_) | Self::Rot(_) | Self::Err(_) | Self::Refuse(_)
        )
    }
}

/// A whole life.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The pool's shape.
    pub shape: &'static Shape,
    /// Decides all that the operations do not: disks that may fail, the world's dice.
    pub seed: u64,
    /// What is done.
    pub ops: Vec<Op>,
}

impl Plan {
    /// The life of a seed with so many operations.
    #[must_use]
    pub fn new(shape: &'static Shape, seed: u64, count: usize) -> Self {
        let named = shape.name.bytes();
        let mixed = named.fold(seed ^ 0x50a4, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        let mut dice = Dice::new(mixed);
        // Some lives commit often, some seldom.
        let syncs = *dice.pick(&[60, 150, 400]).unwrap_or(&0);
        // So do programs in them; where much is promised the power fails more often.
        let commits = *dice.pick(&[0, 200, 1000, 4000]).unwrap_or(&0);
        let cuts = 40 + commits / 40;
        let mut ops: Vec<Op> = (0..count)
            .map(|_| {
                let word = dice.word();
                match dice.below(20_000) {
                    0..50 => Op::ReadBack(word),
                    50..60 => Op::Look,
                    60..70 => Op::Reopen,
                    110..140 => Op::Vanish(word),
                    140..160 => Op::Rot(word),
                    160..180 => Op::Err(word),
                    180..190 => Op::Refuse(word),
                    190..230 => Op::Heal,
                    230..240 => Op::LoseLog(word),
                    rest if rest < 240 + cuts => Op::Cut(word),
                    rest if rest < 240 + cuts + syncs => Op::Sync,
                    rest if rest < 240 + cuts + syncs + commits => Op::Commit(word),
                    _ => Op::Work(word),
                }
            })
            .collect();
        ops.extend([Op::Cut(seed), Op::Reopen]);
        Self { shape, seed, ops }
    }
}
