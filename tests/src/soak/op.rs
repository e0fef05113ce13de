//! The operations of a simulated run.

use super::shape::Shape;
use crate::hostile::rng::SeededRng;

/// One operation.
///
/// Each contains the seed for its details, so the others keep their meaning if some are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A random change of files, volumes or datasets.
    Work(u64),
    /// Commits all changes so far.
    Sync,
    /// Syncs a file, a file system or a volume through its intent log.
    Commit(u64),
    /// A power cut, with the loss of log devices without redundancy.
    LoseLog(u64),
    /// Reads the files of a dataset through the writing code, including unwritten changes.
    ReadBack(u64),
    /// Commits all changes, then compares the committed state.
    Look,
    /// Exports the pool and opens it again.
    Reopen,
    /// A power cut at some moment since the journal was cleared; the pool is opened again.
    Cut(u64),
    /// A disk that may fail disappears.
    Vanish(u64),
    /// All disks are present and work again.
    Heal,
    /// A range of a disk that may fail is overwritten with noise.
    Rot(u64),
    /// A disk that may fail starts to return errors.
    Err(u64),
    /// Some slices of a scrub or resilver.
    Scan(u64),
    /// All disks work again; a resilver and a scrub end all damage, and other disks may fail from then on.
    Mend(u64),
    /// A disk is attached: it replaces another, or becomes a side of a mirror.
    Attach(u64),
    /// Ends complete replacements, or gives one up.
    Detach(u64),
    /// A hot spare is listed, steps in where a disk is gone, or is taken off the list.
    Spare(u64),
    /// Disks become larger, and the pool with them.
    Grow(u64),
    /// Free space is discarded, or filled.
    Trim(u64),
    /// A checkpoint is taken, or discarded.
    Checkpoint,
    /// A data vdev is removed or added, or a RAID-Z vdev is expanded, and some slices of it are made.
    Reshape(u64),
    /// Any disk refuses writes while a txg is written; then the power fails.
    ///
    /// Without redundancy the pool must stop, and keep all promised data.
    Refuse(u64),
}

impl Op {
    /// Whether it is a fault that the redundancy tolerates.
    #[must_use]
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Self::LoseLog(_) | Self::Vanish(_) | Self::Rot(_) | Self::Err(_) | Self::Refuse(_)
        )
    }
}

/// Makes an operation of the seed for its details.
type Kind = fn(u64) -> Op;

/// A complete simulated run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The pool's shape.
    pub shape: &'static Shape,
    /// Determines everything besides the operations.
    ///
    /// That is, the disks that may fail, and the random numbers of the simulated world.
    pub seed: u64,
    /// The operations.
    pub ops: Vec<Op>,
}

impl Plan {
    /// Creates the plan of a seed with `count` operations.
    #[must_use]
    pub fn new(shape: &'static Shape, seed: u64, count: usize) -> Self {
        let named = shape.name.bytes();
        let mixed = named.fold(seed ^ 0x50a4, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        let mut rng = SeededRng::new(mixed);
        // The frequency of commits varies between runs.
        let syncs = *rng.pick(&[60, 150, 400]).unwrap_or(&0);
        // So does the frequency of syncs; with many promises, power cuts are more frequent.
        let commits = *rng.pick(&[0, 200, 1000, 4000]).unwrap_or(&0);
        let cuts = 40 + commits / 40;
        // In one run of three disks fail and are changed very often.
        let often = *rng.pick(&[1, 1, 12]).unwrap_or(&1);
        let reshapes = if shape.is_reshaped { 300 } else { 0 };
        let kinds: [(usize, Kind); 20] = [
            (50, Op::ReadBack),
            (10, |_| Op::Look),
            (10, |_| Op::Reopen),
            (25 * often, Op::Scan),
            (15 * often, Op::Mend),
            (30 * often, Op::Vanish),
            (20 * often, Op::Rot),
            (20 * often, Op::Err),
            (10 * often, Op::Refuse),
            (40 * often, |_| Op::Heal),
            (10, Op::LoseLog),
            (20 * often, Op::Attach),
            (15 * often, Op::Detach),
            (25 * often, Op::Spare),
            (8 * often, Op::Grow),
            (10 * often, Op::Trim),
            (12 * often, |_| Op::Checkpoint),
            (reshapes, Op::Reshape),
            (cuts, Op::Cut),
            (syncs, |_| Op::Sync),
        ];
        let mut ops: Vec<Op> = (0..count)
            .map(|_| {
                let word = rng.word();
                let mut drawn = rng.below(20_000);
                for (weight, kind) in kinds {
                    match drawn.checked_sub(weight) {
                        None => return kind(word),
                        Some(rest) => drawn = rest,
                    }
                }
                match drawn < commits {
                    true => Op::Commit(word),
                    false => Op::Work(word),
                }
            })
            .collect();
        ops.extend([Op::Cut(seed), Op::Reopen]);
        Self { shape, seed, ops }
    }
}
