//! Writes changes to space maps during a txg sync.

use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::space_map::SpaceMapWriter as Entries;
use millpond_ondisk::{SpaceAction, SpaceMapPhys, Txg};

use super::PoolAllocator;
use super::condense::{self, Stamp};
use super::logs::LogMap;
pub(super) use super::logs::Writing;
use super::metaslab::MetaslabAllocator;
use super::port::{LogPolicy, MapName, SpaceMapForms, SpaceMapWriter};
use super::state::OwnMap;
use crate::{AllocError, MetaslabId, StoreError, UnflushedChanges};

/// The current sync pass.
struct Pass<'a> {
    stamp: Stamp,
    writer: &'a dyn SpaceMapWriter,
    forms: SpaceMapForms,
}

impl PoolAllocator {
    /// Writes the changes up to `txg` since the last call, in sync pass `pass` (from 1).
    ///
    /// With feature `log_spacemap` they go to the log of the txg, else to the metaslabs' own maps. Pass 1
    /// first flushes some changes of older logs to the metaslabs' own maps. Returns whether anything was
    /// written. Writing itself allocates and frees space, so call it in every pass until it returns false.
    ///
    /// Only the sync thread calls it, while nothing is allocated in `txg`.
    ///
    /// # Errors
    /// If the writer fails, or changes contradict the recorded free space. The maps may then be half
    /// written, and this allocator has lost the changes: the txg must not be committed.
    pub fn sync_pass(
        &self,
        txg: Txg,
        pass: u32,
        writer: &dyn SpaceMapWriter,
    ) -> Result<bool, AllocError> {
        let mut writing = self.writing.lock();
        let changed = self.take_changed(txg);
        let flush_all = pass == 1 && core::mem::take(&mut writing.is_flush_all_wanted);
        if changed.is_empty() && !(flush_all && writing.oldest(txg).is_some()) {
            return Ok(false);
        }
        let pass = Pass {
            stamp: Stamp {
                txg,
                pass: u16::try_from(pass).unwrap_or(u16::MAX),
            },
            writer,
            forms: writing.forms,
        };
        if pass.forms.has_logs {
            self.sync_into_log(&mut writing, &pass, &changed, flush_all)?;
        } else {
            for id in changed {
                self.sync_into_map(&pass, id)?;
            }
        }
        Ok(true)
    }
    /// Whether any change up to `txg` is not written yet.
    #[must_use]
    pub fn has_changes(&self, txg: Txg) -> bool {
        !self.dirty_metaslabs(txg).is_empty()
    }
    /// The metaslabs with changes up to `txg` that are in no map yet.
    #[must_use]
    pub fn dirty_metaslabs(&self, txg: Txg) -> Vec<MetaslabId> {
        let mut listed: Vec<_> = self.registry.lock().changed.iter().copied().collect();
        listed.retain(|id| {
            self.metaslab(*id)
                .is_some_and(|(_, metaslab)| metaslab.with(|state| state.has_changes(txg)))
        });
        listed
    }
    /// Makes the next synced txg flush all changes from logs, so that only its own log remains: for export.
    /// That txg is then not empty, if there is anything to flush.
    pub fn flush_all_in_next_txg(&self) {
        self.writing.lock().is_flush_all_wanted = true;
    }
    /// Sets the forms that the features allow, from the next txg on. Logs are never disabled once they
    /// exist.
    pub fn set_forms(&self, forms: SpaceMapForms) {
        let mut writing = self.writing.lock();
        let has_logs = forms.has_logs || !writing.logs.is_empty();
        writing.forms = SpaceMapForms {
            has_two_words: forms.has_two_words || has_logs,
            has_logs,
        };
    }
    /// Sets how long changes stay in logs.
    pub fn set_log_policy(&self, policy: LogPolicy) {
        self.writing.lock().policy = policy;
    }

    /// Takes the listed metaslabs that have changes up to `txg`. Those with later changes stay listed.
    fn take_changed(&self, txg: Txg) -> Vec<MetaslabId> {
        let listed = core::mem::take(&mut self.registry.lock().changed);
        let mut changed = Vec::new();
        for id in listed {
            let Some((_, metaslab)) = self.metaslab(id) else {
                continue;
            };
            metaslab.unlist();
            let (now, ever) =
                metaslab.with(|state| (state.has_changes(txg), state.has_changes(Txg(u64::MAX))));
            self.registry.lock().busy.insert(id);
            if now {
                changed.push(id);
            }
            if ever {
                // Listed again for a later txg, or because its changes are about to be taken; a later check
                // then finds none.
                self.note_change(&metaslab);
            }
        }
        changed
    }

    fn sync_into_map(&self, pass: &Pass<'_>, id: MetaslabId) -> Result<(), AllocError> {
        let Some((_, metaslab)) = self.metaslab(id) else {
            return Ok(());
        };
        let access = metaslab.map_access.lock();
        ensure_map(&metaslab, pass)?;
        if pass.stamp.pass == 1 && metaslab.with(|state| condense::is_due(state)) {
            rewrite(&metaslab, pass)?;
        }
        let changes = metaslab.with(|state| state.take_changes(pass.stamp.txg))?;
        append(&metaslab, pass, &changes)?;
        put_header(&metaslab, pass)?;
        metaslab.with(|state| state.check_sum())?;
        drop(access);
        Ok(())
    }

    fn sync_into_log(
        &self,
        writing: &mut Writing,
        pass: &Pass<'_>,
        changed: &[MetaslabId],
        flush_all: bool,
    ) -> Result<(), AllocError> {
        let txg = pass.stamp.txg;
        let name = MapName::Log(txg);
        let mut log = match writing.logs.get(&txg) {
            Some(log) => *log,
            None => LogMap {
                shape: pass.writer.create(name).map_err(AllocError::Logs)?,
                length_bytes: 0,
                allocated_bytes: 0,
            },
        };
        writing.logs.insert(txg, log);
        match pass.stamp.pass {
            1 => self.flush(writing, pass, flush_all)?,
            // Tasks of this txg may have removed a vdev whose metaslabs were the last to need a log.
            _ => self.remove_obsolete_logs(writing, pass)?,
        }
        let mut entries = Entries::new(log.length_bytes, log.shape.block_bytes, true);
        for id in changed {
            if let Some((_, metaslab)) = self.metaslab(*id) {
                let access = metaslab.map_access.lock();
                let bytes = record(&metaslab, writing, pass, &mut entries)?;
                log.allocated_bytes = log.allocated_bytes.saturating_add(bytes);
                drop(access);
            }
        }
        let offset = log.length_bytes;
        log.length_bytes = offset.saturating_add(entries.length_bytes());
        let header = SpaceMapPhys {
            object: Some(log.shape.object),
            length_bytes: log.length_bytes,
            allocated_bytes: log.allocated_bytes,
            histogram: log.shape.has_histogram.then(Default::default),
        };
        let written = pass.writer.append(name, offset, &entries.finish());
        written.map_err(AllocError::Logs)?;
        let written = pass.writer.put_header(name, &header);
        written.map_err(AllocError::Logs)?;
        writing.logs.insert(txg, log);
        Ok(())
    }

    /// Flushes the changes of the least recently flushed metaslab, and of more metaslabs while the logs
    /// exceed their limits. Then removes obsolete logs.
    fn flush(
        &self,
        writing: &mut Writing,
        pass: &Pass<'_>,
        flush_all: bool,
    ) -> Result<(), AllocError> {
        let txg = pass.stamp.txg;
        let mut is_first = true;
        while let Some((since, id)) = writing.oldest(txg) {
            if !is_first && !flush_all && !writing.is_over_limit() {
                break;
            }
            is_first = false;
            match self.metaslab(id) {
                Some((_, metaslab)) => flush_one(&metaslab, writing, pass, since)?,
                None => writing.forget(|other| other == id),
            }
            self.remove_obsolete_logs(writing, pass)?;
        }
        self.remove_obsolete_logs(writing, pass)
    }
    fn remove_obsolete_logs(
        &self,
        writing: &mut Writing,
        pass: &Pass<'_>,
    ) -> Result<(), AllocError> {
        for txg in writing.obsolete_logs(pass.stamp.txg) {
            mark::hit("space-map-log-obsolete");
            pass.writer.remove_log(txg).map_err(AllocError::Logs)?;
            writing.logs.remove(&txg);
        }
        Ok(())
    }
}

/// Flushes a metaslab: appends its unflushed changes to its own map, which must not be in use.
fn flush_one(
    metaslab: &Arc<MetaslabAllocator>,
    writing: &mut Writing,
    pass: &Pass<'_>,
    since: Txg,
) -> Result<(), AllocError> {
    let id = metaslab.place.id;
    let access = metaslab.map_access.lock();
    ensure_map(metaslab, pass)?;
    let (is_due, unflushed) =
        metaslab.with(|state| (condense::is_due(state), state.unflushed.clone()));
    if is_due {
        rewrite(metaslab, pass)?;
    } else {
        append(metaslab, pass, &unflushed)?;
    }
    let disagreement = metaslab.with(|state| {
        state.unflushed = UnflushedChanges::default();
        state.unflushed_since = pass.stamp.txg;
        state.disagreement()
    });
    if let Some(error) = disagreement {
        return Err(error);
    }
    writing.changed(unflushed.ranges(), 0);
    writing.flushed(id, since, pass.stamp.txg);
    pass.writer
        .set_unflushed_txg(id, pass.stamp.txg)
        .map_err(|source| failed(id, source))?;
    put_header(metaslab, pass)?;
    drop(access);
    Ok(())
}

/// Writes a metaslab's changes of this pass to the log; returns by how many bytes the allocation grew.
fn record(
    metaslab: &Arc<MetaslabAllocator>,
    writing: &mut Writing,
    pass: &Pass<'_>,
    entries: &mut Entries,
) -> Result<i64, AllocError> {
    let txg = pass.stamp.txg;
    let id = metaslab.place.id;
    ensure_map(metaslab, pass)?;
    let contradiction = |conflict| AllocError::Contradiction {
        metaslab: id,
        conflict,
    };
    let (changes, joins, before, now) = metaslab.with(|state| {
        let changes = state.take_changes(txg)?;
        let before = state.unflushed.ranges();
        state.unflushed.merge(&changes).map_err(contradiction)?;
        state.check_sum()?;
        let joins = state.unflushed_since == Txg(0);
        if joins {
            state.unflushed_since = txg;
        }
        Ok((changes, joins, before, state.unflushed.ranges()))
    })?;
    writing.changed(before, now);
    if joins {
        writing.joined(id, txg, 0);
        pass.writer
            .set_unflushed_txg(id, txg)
            .map_err(|source| failed(id, source))?;
    }
    for (action, ranges) in [
        (SpaceAction::Allocate, &changes.allocated),
        (SpaceAction::Free, &changes.freed),
    ] {
        condense::put_log_batch(entries, &metaslab.place, pass.stamp, action, ranges)?;
    }
    put_header(metaslab, pass)?;
    Ok(changes.allocated_bytes())
}

/// Creates the own map of a metaslab if it has none.
fn ensure_map(metaslab: &Arc<MetaslabAllocator>, pass: &Pass<'_>) -> Result<(), AllocError> {
    let id = metaslab.place.id;
    if metaslab.with(|state| state.map.is_some()) {
        return Ok(());
    }
    let shape = pass.writer.create(MapName::Metaslab(id));
    let shape = shape.map_err(|source| failed(id, source))?;
    metaslab.with(|state| {
        state.map = Some(OwnMap {
            shape,
            length_bytes: 0,
            allocated_bytes: 0,
        });
    });
    Ok(())
}

/// Appends changes to the own map.
fn append(
    metaslab: &Arc<MetaslabAllocator>,
    pass: &Pass<'_>,
    changes: &UnflushedChanges,
) -> Result<(), AllocError> {
    let id = metaslab.place.id;
    let Some(map) = metaslab.with(|state| state.map) else {
        return Ok(());
    };
    if changes.is_empty() {
        return Ok(());
    }
    let two_words = pass.forms.has_two_words;
    let (bytes, new) = condense::appended(&map, &metaslab.place, pass.stamp, two_words, changes)?;
    pass.writer
        .append(MapName::Metaslab(id), map.length_bytes, &bytes)
        .map_err(|source| failed(id, source))?;
    metaslab.with(|state| state.map = Some(new));
    Ok(())
}

/// Condenses the own map: rewrites it from the recorded free space.
fn rewrite(metaslab: &Arc<MetaslabAllocator>, pass: &Pass<'_>) -> Result<(), AllocError> {
    let id = metaslab.place.id;
    let Some(free) = metaslab.with(|state| state.recorded().cloned()) else {
        return Ok(());
    };
    mark::hit("space-map-condensed");
    let shape = pass.writer.truncate(id);
    let shape = shape.map_err(|source| failed(id, source))?;
    metaslab.with(|state| {
        state.map = Some(OwnMap {
            shape,
            length_bytes: 0,
            allocated_bytes: 0,
        });
    });
    append(metaslab, pass, &condense::whole(&metaslab.place, &free))
}

fn put_header(metaslab: &Arc<MetaslabAllocator>, pass: &Pass<'_>) -> Result<(), AllocError> {
    let id = metaslab.place.id;
    let header = metaslab.with(|state| {
        let map = state.map?;
        Some(SpaceMapPhys {
            object: Some(map.shape.object),
            length_bytes: map.length_bytes,
            allocated_bytes: map.allocated_bytes,
            histogram: map.shape.has_histogram.then_some(state.histogram),
        })
    });
    let Some(header) = header else {
        return Ok(());
    };
    let written = pass.writer.put_header(MapName::Metaslab(id), &header);
    written.map_err(|source| failed(id, source))
}

fn failed(metaslab: MetaslabId, source: StoreError) -> AllocError {
    AllocError::Store { metaslab, source }
}
