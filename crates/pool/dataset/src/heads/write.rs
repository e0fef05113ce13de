//! Writes the dirty heads of a txg, and accounts for the blocks born and freed in them.
//!
//! Page `docs/format/space-accounting.md`, "How the values change".

use crate::heads::features;
use crate::heads::head::HeadDataset;
use crate::heads::sink::{DatasetSink, HeadFacts, Tally};
use crate::heads::space::{Use, changed, head_rise};
use crate::mos::{During, required};
use crate::tasks::context::SyncTaskContext;
use millpond_env::sync::Arc;
use millpond_object::{Accounting, AccountingChange, FeatureUse, ObjectSet};
use millpond_ondisk::{BlockPointer, ChecksumKind, DslDatasetFlags, ObjectId};
use millpond_pool::PoolError;
use millpond_zap::{AtZero, ZapMut};

const WHAT: &str = "writing a dataset";
const ACCOUNTING: &str = "user and group accounting";

impl SyncTaskContext<'_> {
    /// Writes the dirty data of a head. Returns whether there was any.
    pub(crate) fn write_head(&self, head: &HeadDataset) -> Result<bool, PoolError> {
        let set = head.set();
        let txg = self.txg();
        if !set.is_dirty(txg) {
            return Ok(false);
        }
        let _span = tracing::debug_span!("dataset", dataset = head.id().0).entered();
        let facts = self.head_facts(head.id())?;
        let sink = DatasetSink::new(self.ctx, facts.clone());
        let pass = self.ctx.pass();
        let mut synced = set.sync(txg, pass, &sink).during(WHAT)?;
        if synced.restarts_projects {
            self.empty_project_accounting(&set)?;
        }
        if !synced.accounting.is_empty() || synced.restarts_projects {
            self.account_owners(&set, &synced.accounting)?;
            // Sync once more, before snapshots of this txg are taken; only the accounting objects differ.
            let again = set.sync(txg, pass + 1, &sink).during(WHAT)?;
            synced.root = again.root;
            synced.seen.large_blocks |= again.seen.large_blocks;
            synced.seen.large_dnodes |= again.seen.large_dnodes;
            synced.seen.zstd |= again.seen.zstd;
            synced.seen.checksums.extend(again.seen.checksums);
        }
        let tally = sink.finish()?;
        tracing::trace!(bytes = tally.change.used, "wrote dirty data");
        self.settle_head(head.id(), synced.root, &facts, &tally)?;
        self.note_features(head.id(), &synced.seen)?;
        if let Some(point) = head.received_in(txg) {
            self.put_resume_point(head.id(), point)?;
        }
        for guid in head.needed_features() {
            self.activate_feature(head.id(), guid, &[0])?;
        }
        Ok(true)
    }

    /// The facts that decide how freed blocks of a head are accounted for.
    pub(crate) fn head_facts(&self, head: ObjectId) -> Result<HeadFacts, PoolError> {
        let phys = self.dataset(head)?;
        let directory = self.directory(phys.directory)?;
        let mut facts = HeadFacts {
            previous_txg: phys.previous_snapshot_txg,
            has_livelist: self.livelist_of(phys.directory)?.is_some(),
            bookmarks: self.counting_bookmarks(head, phys.previous_snapshot_txg)?,
            ..HeadFacts::default()
        };
        if let Some(previous) = phys.previous_snapshot {
            let before = self.dataset(previous)?;
            if before.next_snapshot == Some(head) {
                facts.previous_interval_begin = Some(before.previous_snapshot_txg);
            }
        }
        if let Some(origin) = directory.origin {
            facts.origin_txg = self.dataset(origin)?.creation_txg;
        }
        Ok(facts)
    }

    pub(crate) fn settle_head(
        &self,
        head: ObjectId,
        root: BlockPointer,
        facts: &HeadFacts,
        tally: &Tally,
    ) -> Result<(), PoolError> {
        let mut phys = self.dataset(head)?;
        let directory = phys.directory;
        if !tally.dead.is_empty() {
            let deadlist = required(phys.deadlist, "a head without a deadlist")?;
            self.insert_dead(deadlist, &tally.dead)?;
        }
        if tally.left_to_previous != 0 {
            let previous = required(phys.previous_snapshot, "no snapshot before")?;
            let mut before = self.dataset(previous)?;
            before.unique_bytes = changed(
                before.unique_bytes,
                tally.left_to_previous,
                "a snapshot's unique bytes below 0",
            )
            .during(WHAT)?;
            self.put_dataset(previous, &before)?;
        }
        if !phys.flags.contains(DslDatasetFlags::UNIQUE_ACCURATE) {
            // Software before version 9 did not keep this number exact.
            let least = tally.own.used.min(0).unsigned_abs();
            phys.unique_bytes = phys.unique_bytes.max(least);
        }
        let unique = phys.unique_bytes;
        phys.block_pointer = root;
        for (stored, change) in [
            (&mut phys.referenced_bytes, tally.change.used),
            (&mut phys.compressed_bytes, tally.change.compressed),
            (&mut phys.uncompressed_bytes, tally.change.uncompressed),
            (&mut phys.unique_bytes, tally.own.used),
        ] {
            *stored = changed(*stored, change, "a head's sizes below 0").during(WHAT)?;
        }
        self.put_dataset(head, &phys)?;
        let reserved = self.ref_reservation(directory)?;
        let (data, unused) = head_rise(unique, phys.unique_bytes, reserved);
        let uses = [
            (Use::Head, data.saturating_sub(tally.left_to_snapshots)),
            (Use::Snapshots, tally.left_to_snapshots),
            (Use::RefReserved, unused),
        ];
        self.charge(
            directory,
            &uses,
            tally.own.compressed,
            tally.own.uncompressed,
        )?;
        self.count_freed_of_bookmarks(head, &facts.bookmarks, &tally.freed_of_bookmarks)?;
        if facts.has_livelist {
            self.append_to_livelist(directory, &tally.allocated, &tally.freed)?;
            self.drop_livelist_if_useless(head)?;
        }
        Ok(())
    }

    /// Removes all entries from the accounting of projects.
    fn empty_project_accounting(&self, set: &Arc<ObjectSet>) -> Result<(), PoolError> {
        let Some(object) = set.special_if_any(Accounting::Project) else {
            return Ok(());
        };
        let table = ZapMut::of(&object, self.ctx.tx());
        let entries = table.view().during(ACCOUNTING)?;
        for entry in entries.iter() {
            let name = entry.during(ACCOUNTING)?.name;
            table.remove(&name).during(ACCOUNTING)?;
        }
        Ok(())
    }

    /// Applies changes of the space and objects charged to owners.
    fn account_owners(
        &self,
        set: &Arc<ObjectSet>,
        changes: &[AccountingChange],
    ) -> Result<(), PoolError> {
        let tx = self.ctx.tx();
        let counts_objects = set.policy().accounts_objects;
        for change in changes {
            let is_new = set.special_if_any(change.which).is_none();
            let object = set.special(change.which, tx).during(ACCOUNTING)?;
            let table = ZapMut::of(&object, tx);
            if is_new {
                table.create(&self.new_zap(0)).during(ACCOUNTING)?;
            }
            if change.bytes != 0 {
                table
                    .increment_number(change.owner, change.bytes, AtZero::Remove)
                    .during(ACCOUNTING)?;
            }
            if counts_objects && change.objects != 0 {
                let key = format!("obj-{:x}", change.owner);
                table
                    .increment(key.as_bytes(), change.objects, AtZero::Remove)
                    .during(ACCOUNTING)?;
            }
        }
        Ok(())
    }

    /// Marks a dataset as using the features that its new blocks need.
    fn note_features(&self, dataset: ObjectId, seen: &FeatureUse) -> Result<(), PoolError> {
        let mut needed = vec![];
        for (is_seen, guid) in [
            (seen.large_blocks, features::LARGE_BLOCKS),
            (seen.large_dnodes, features::LARGE_DNODE),
            (seen.zstd, features::ZSTD_COMPRESS),
            (seen.kept_births, features::PHYSICAL_REWRITE),
        ] {
            if is_seen {
                needed.push(guid);
            }
        }
        needed.extend(seen.checksums.iter().filter_map(|kind| match kind {
            ChecksumKind::Sha512 => Some(features::SHA512),
            ChecksumKind::Skein => Some(features::SKEIN),
            ChecksumKind::Edonr => Some(features::EDONR),
            ChecksumKind::Blake3 => Some(features::BLAKE3),
            _ => None,
        }));
        for guid in needed {
            self.activate_feature(dataset, guid, &[0])?;
        }
        Ok(())
    }
}
