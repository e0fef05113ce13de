//! The pool's checkpoint during a run.

use super::*;
use millpond_pool::{CheckpointRefusal, PoolView};

/// What a checkpoint keeps.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    txg: Txg,
    pub(super) model: Model,
}

fn kept_txg(read: &PoolView) -> Result<Option<Txg>, String> {
    let kept = read.checkpoint();
    let kept = kept.map_err(|error| failure_text("reading the checkpoint", &error))?;
    Ok(kept.map(|uberblock| uberblock.txg))
}

impl Lived<'_> {
    /// Takes a checkpoint if there is none, and discards it otherwise.
    pub(super) fn checkpoint(&mut self) -> Result<(), String> {
        self.note(None)?;
        let began = self.world.recorded();
        let pool = self.pool()?.inner().clone();
        let is_moving = pool.is_removing() || pool.is_expanding();
        match pool.checkpoint_refusal() {
            None if is_moving => {}
            None => {
                let taken = pool.take_checkpoint();
                taken.map_err(|error| failure_text("taking a checkpoint", &error))?;
                let read = pool.committed();
                let read = read.map_err(|error| failure_text("committed", &error))?;
                let txg = kept_txg(&read)?.ok_or("no checkpoint was taken")?;
                let model = self.life.model.clone();
                self.kept = Some(Kept { txg, model });
                self.stats.checkpoints += 1;
                self.life.log.push(format!("checkpoint of txg {txg}"));
            }
            Some(CheckpointRefusal::Exists) => {
                let begun = pool.discard_checkpoint();
                begun.map_err(|error| failure_text("discarding the checkpoint", &error))?;
                self.kept = None;
                self.life.log.push("checkpoint discarded".to_owned());
            }
            // It is being discarded.
            Some(_) => {}
        }
        drop(pool);
        self.take_deeds(began, true);
        self.note(None)
    }

    /// Discards the checkpoint to the end, because disks cannot be changed before.
    pub(super) fn end_checkpoint(&mut self) -> Result<(), String> {
        let refusal = self.pool()?.inner().checkpoint_refusal();
        if refusal == Some(CheckpointRefusal::Exists) {
            self.checkpoint()?;
        }
        while self.pool()?.inner().has_more_to_discard() {
            self.sync()?;
        }
        match self.pool()?.inner().checkpoint_refusal() {
            None => Ok(()),
            Some(refusal) => Err(format!("a discarded checkpoint stays: {refusal}")),
        }
    }

    /// Compares what the checkpoint keeps on disk with the model of then. `read` is the newest state.
    pub(super) fn look_at_checkpoint(
        &mut self,
        read: &View,
        candidate: &PoolCandidate,
    ) -> Result<(), String> {
        let found = kept_txg(read.inner())?;
        // After a power cut an older one may be there again, or none yet.
        self.kept = self.kept.take().filter(|kept| Some(kept.txg) == found);
        let Some(kept) = self.kept.clone() else {
            return Ok(());
        };
        let options = OpenOptions {
            at_checkpoint: true,
            ..OpenOptions::default()
        };
        let old = view(self.shape, candidate, &options);
        let old = old.map_err(|error| failure_text("opening the checkpoint", &error))?;
        self.demand(&old, &[(kept.model, 0)], false)
            .map_err(|text| format!("the checkpoint of txg {}: {text}", kept.txg))?;
        // Its logs go on in blocks that were used since.
        verified(&old, &self.may_be_wrong(&old), true)
            .map_err(|text| format!("the checkpoint of txg {}: {text}", kept.txg))
    }
}
