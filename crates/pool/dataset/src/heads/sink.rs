//! Writes the blocks of one dataset, and accounts for their births and frees.
//!
//! Page `docs/format/space-accounting.md`, "How the values change".

use millpond_block::BlockError;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_object::{BlockSink, Leak, ObjectError, WriteJob};
use millpond_ondisk::{BlockPointer, EmbeddedKind, Txg};
use millpond_pool::PoolError;
use millpond_pool::{SpaceChange, SyncContext};

/// Totals of blocks born and freed in one head in one txg.
///
/// Dead pointers that an older snapshot references are kept until [`Tally::take_dead`]; everything else is
/// only summed up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Births minus deaths: the change of the head's referenced space.
    pub(crate) change: SpaceChange,
    /// Births minus deaths of blocks that no snapshot references: the change charged to the directory.
    pub(crate) own: SpaceChange,
    /// Dead blocks that a snapshot references, for the deadlist.
    pub(crate) dead: Vec<BlockPointer>,
    /// Deflated bytes of dead blocks that only the previous snapshot still references.
    pub(crate) left_to_previous: i64,
    /// Deflated bytes of dead blocks that were born in this directory and stay in its snapshots.
    pub(crate) left_to_snapshots: i64,
    /// Allocated blocks, for the livelist of a clone.
    pub(crate) allocated: Vec<BlockPointer>,
    pub(crate) freed: Vec<BlockPointer>,
    /// Freed space per bookmark of [`HeadFacts::bookmarks`].
    pub(crate) freed_of_bookmarks: Vec<SpaceChange>,
}

/// The facts that decide how a freed block is accounted for, as of the start of the txg.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadFacts {
    /// Blocks born up to this txg belong to the previous snapshot.
    pub(crate) previous_txg: Txg,
    /// Where the interval of the previous snapshot starts, if that snapshot is in the same directory.
    pub(crate) previous_interval_begin: Option<Txg>,
    /// Creation txg of the directory's origin; 0 without one.
    pub(crate) origin_txg: Txg,
    /// Whether births and deaths are recorded in a livelist.
    pub(crate) has_livelist: bool,
    /// Creation txgs of the bookmarks that count frees.
    pub(crate) bookmarks: Vec<Txg>,
}

impl Tally {
    pub(crate) fn new(facts: &HeadFacts) -> Self {
        Self {
            freed_of_bookmarks: vec![SpaceChange::default(); facts.bookmarks.len()],
            ..Self::default()
        }
    }

    /// Accounts for a block that is born.
    pub(crate) fn born(&mut self, facts: &HeadFacts, pointer: &BlockPointer, space: SpaceChange) {
        if !counts(pointer) {
            return;
        }
        self.change += space;
        self.own += space;
        if facts.has_livelist && !pointer.is_embedded() {
            self.allocated.push(*pointer);
        }
    }

    /// Accounts for a block that dies. Returns whether it can be freed; otherwise a snapshot references it.
    pub(crate) fn died(
        &mut self,
        facts: &HeadFacts,
        pointer: &BlockPointer,
        space: SpaceChange,
    ) -> bool {
        if !counts(pointer) {
            return false;
        }
        let birth = pointer.allocation_birth();
        self.change -= space;
        for (freed, bookmark) in self.freed_of_bookmarks.iter_mut().zip(&facts.bookmarks) {
            if *bookmark >= facts.previous_txg && birth <= *bookmark {
                *freed += space;
            }
        }
        if facts.has_livelist && birth > facts.origin_txg && !pointer.is_embedded() {
            self.freed.push(*pointer);
        }
        if birth > facts.previous_txg {
            self.own -= space;
            return true;
        }
        self.dead.push(*pointer);
        if facts
            .previous_interval_begin
            .is_some_and(|begin| birth > begin)
        {
            self.left_to_previous = self.left_to_previous.saturating_add(space.used);
        }
        if birth > facts.origin_txg {
            self.left_to_snapshots = self.left_to_snapshots.saturating_add(space.used);
        }
        false
    }
}

/// Whether a block is accounted for. Holes and blocks omitted from a redacted stream are not.
pub(crate) fn counts(pointer: &BlockPointer) -> bool {
    !pointer.is_hole() && pointer.embedded_kind() != Some(EmbeddedKind::Redacted)
}

/// The block sink of one head.
pub(crate) struct DatasetSink<'a> {
    ctx: &'a SyncContext<'a>,
    facts: HeadFacts,
    state: Mutex<(Tally, Option<PoolError>), rank::HeadSink>,
}

impl<'a> DatasetSink<'a> {
    pub(crate) fn new(ctx: &'a SyncContext<'a>, facts: HeadFacts) -> Self {
        let tally = Tally::new(&facts);
        Self {
            ctx,
            facts,
            state: Mutex::new((tally, None)),
        }
    }

    /// Returns the totals.
    ///
    /// # Errors
    /// If a free could not be recorded.
    pub(crate) fn finish(self) -> Result<Tally, PoolError> {
        match self.state.into_inner() {
            (tally, None) => Ok(tally),
            (_, Some(error)) => Err(error),
        }
    }

    fn note_death(&self, pointer: &BlockPointer) {
        let space = self.ctx.space_of(pointer);
        let mut state = self.state.lock();
        if state.0.died(&self.facts, pointer, space)
            && let Err(error) = self.ctx.free_block(pointer)
        {
            state.1.get_or_insert(error);
        }
    }
}

impl BlockSink for DatasetSink<'_> {
    fn write(&self, jobs: Vec<WriteJob>) -> Vec<Result<BlockPointer, BlockError>> {
        let replaced = (jobs.iter()).map(|job| (job.previous, job.is_clone, job.keeps_birth));
        let replaced: Vec<(BlockPointer, bool, bool)> = replaced.collect();
        let written = self.ctx.write_blocks(jobs);
        let outcomes = written.into_iter().zip(replaced);
        outcomes
            .map(|(written, (previous, is_clone, keeps_birth))| {
                let mut written = written?;
                if is_clone {
                    self.ctx.add_reference(&written.pointer);
                }
                if !written.keeps_space() {
                    if keeps_birth {
                        written.pointer = written.pointer.rewritten_from(previous.birth());
                    }
                    let space = self.ctx.space_of(&written.pointer);
                    self.state
                        .lock()
                        .0
                        .born(&self.facts, &written.pointer, space);
                    self.note_death(&previous);
                }
                Ok(written.pointer)
            })
            .collect()
    }

    fn kill(&self, pointer: &BlockPointer) -> Result<(), ObjectError> {
        self.note_death(pointer);
        Ok(())
    }

    fn leak(&self, leak: Leak) {
        self.ctx.note_leak(leak);
    }

    fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        self.ctx.deflated_bytes(pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::{Dva, VdevId};

    fn block(birth: u64) -> BlockPointer {
        let mut pointer = BlockPointer::default();
        let dva = Dva {
            vdev: VdevId(0),
            offset_bytes: 4096,
            asize_bytes: 4096,
            is_gang: false,
        };
        pointer.words[..2].copy_from_slice(&dva.to_words());
        pointer.words[10] = birth;
        pointer
    }
    const SPACE: SpaceChange = SpaceChange {
        used: 4096,
        compressed: 512,
        uncompressed: 1024,
    };

    fn facts() -> HeadFacts {
        HeadFacts {
            previous_txg: Txg(20),
            previous_interval_begin: Some(Txg(10)),
            origin_txg: Txg(5),
            has_livelist: false,
            bookmarks: vec![Txg(8), Txg(25)],
        }
    }

    #[test]
    fn blocks_born_before_the_snapshot_go_to_the_deadlist() {
        let mut tally = Tally::new(&facts());
        assert!(tally.died(&facts(), &block(21), SPACE));
        assert!(!tally.died(&facts(), &block(20), SPACE));
        assert!(!tally.died(&facts(), &block(10), SPACE));
        assert!(!tally.died(&facts(), &block(5), SPACE));
        assert_eq!(tally.dead.len(), 3);
        assert_eq!(tally.own, -SPACE);
        assert_eq!(tally.change.used, -4 * 4096);
        assert_eq!(
            tally.left_to_previous, 4096,
            "only what was born in its interval"
        );
        assert_eq!(tally.left_to_snapshots, 2 * 4096, "not the origin's");
    }

    #[test]
    fn a_bookmark_newer_than_the_snapshot_counts_freed_blocks() {
        let mut tally = Tally::new(&facts());
        for birth in [26, 25, 3] {
            tally.died(&facts(), &block(birth), SPACE);
        }
        assert_eq!(tally.freed_of_bookmarks[0], SpaceChange::default());
        assert_eq!(tally.freed_of_bookmarks[1].used, 2 * 4096);
    }

    #[test]
    fn livelists_hold_only_blocks_of_the_clone() {
        let facts = HeadFacts {
            has_livelist: true,
            ..facts()
        };
        let mut tally = Tally::new(&facts);
        assert!(!tally.died(&facts, &BlockPointer::default(), SPACE));
        tally.born(&facts, &block(30), SPACE);
        tally.died(&facts, &block(5), SPACE);
        tally.died(&facts, &block(6), SPACE);
        assert_eq!((tally.allocated.len(), tally.freed.len()), (1, 1));
        assert_eq!(tally.change.used, -4096);
    }
}
