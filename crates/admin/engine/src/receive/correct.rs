//! Repairs a snapshot with its stream.

use super::Run;
use super::one::skip;
use super::problem::{of_dataset, of_engine, of_receive};
use super::target::{found, name_of};
use crate::Error;
use millpond_dataset::Dataset;
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_receive::{Corrected, ReceiveProblem, ReceiveStep, correct};
use millpond_stream::{Begin, RecordSource, StreamFeatures};

impl Run<'_> {
    /// Repairs the snapshot that the stream is about, to the end of the stream.
    pub(super) fn correct_one<S: RecordSource>(
        &mut self,
        stream: &mut S,
        begin: &Begin,
        top: &str,
    ) -> Result<(), ReceiveProblem> {
        let sent_name = String::from_utf8_lossy(&begin.to_name).into_owned();
        let name = name_of(self.request, top, &sent_name)?;
        let step = self.steps.len();
        self.steps.push(ReceiveStep::Stream {
            is_full: begin.from_guid == 0,
            sent_name,
            name: name.clone(),
            bytes: None,
            time_ns: 0,
        });
        let clock = Arc::clone(&self.pool.inner().env().clock);
        let before_ns = clock.monotonic_ns();
        let corrected = self.corrected(stream, begin, &name);
        if corrected.is_err() {
            // It is not said that it was begun.
            self.steps.truncate(step);
        }
        let corrected = corrected?;
        let took_ns = clock.monotonic_ns().saturating_sub(before_ns);
        if let (Some(corrected), Some(ReceiveStep::Stream { bytes, time_ns, .. })) =
            (corrected, self.steps.get_mut(step))
        {
            (*bytes, *time_ns) = (Some(corrected.length), took_ns);
        }
        let corrected = corrected.unwrap_or_default();
        if corrected.repaired > 0 {
            self.steps.push(ReceiveStep::Repaired {
                name: name.clone(),
                blocks: corrected.repaired,
                bytes: corrected.repaired_bytes,
            });
        }
        match corrected.lost {
            0 => Ok(()),
            blocks => Err(ReceiveProblem::NotRepaired { name, blocks }),
        }
    }

    /// `None` if nothing is to be changed.
    fn corrected<S: RecordSource>(
        &self,
        stream: &mut S,
        begin: &Begin,
        name: &str,
    ) -> Result<Option<Corrected>, ReceiveProblem> {
        let view = self.pool.committed();
        let view = view.map_err(|error| of_engine(error, name))?;
        let snapshot = found(&view, name).map_err(|error| of_engine(error, name))?;
        let Some(snapshot) = snapshot.filter(|found| found.is_snapshot()) else {
            return Err(ReceiveProblem::NoSnapshotToRepair(name.to_owned()));
        };
        if snapshot.phys().guid.0 != begin.to_guid {
            return Err(ReceiveProblem::OtherSnapshot);
        }
        if self.request.is_dry {
            skip(stream)?;
            return Ok(None);
        }
        let used = self.pool.datasets().use_snapshot(snapshot.id());
        let used = used.map_err(|error| of_dataset(error, name))?;
        let Some(_in_use) = used else {
            return Err(ReceiveProblem::NoSnapshotToRepair(name.to_owned()));
        };
        // From here on it stays. Another may have got its name or number meanwhile.
        let view = self.pool.committed();
        let view = view.map_err(|error| of_engine(error, name))?;
        let now = found(&view, name).map_err(|error| of_engine(error, name))?;
        let is_same = |now: &Dataset| {
            let (now, then) = (now.phys(), snapshot.phys());
            (now.guid, now.block_pointer) == (then.guid, then.block_pointer)
        };
        let Some(snapshot) = now.filter(|now| now.id() == snapshot.id() && is_same(now)) else {
            return Err(ReceiveProblem::NoSnapshotToRepair(name.to_owned()));
        };
        let key = match begin.features.contains(StreamFeatures::RAW) {
            true => None,
            false => (view.key_of(snapshot.directory()))
                .map_err(|error: Error| of_engine(error, name))?,
        };
        // The view may expire. The blocks of a snapshot in use stay.
        let store = Arc::clone(self.pool.inner().store());
        let root = snapshot.phys().block_pointer;
        let set = ObjectSetView::open(store, snapshot.id().0, root, key);
        let set = set.map_err(|error| ReceiveProblem::Failed(error.to_string()))?;
        let corrected = correct(stream, begin, &set).map_err(|error| of_receive(error, name))?;
        if corrected.repaired > 0 {
            // A txg makes the repairs durable with everything else.
            let committed = self.pool.inner().sync_task(|ctx| {
                ctx.mark_config_dirty();
                Ok(())
            });
            committed.map_err(|error| ReceiveProblem::Failed(error.to_string()))?;
        }
        Ok(Some(corrected))
    }
}
