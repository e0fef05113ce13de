//! One dedup table in memory, and how entries are taken out of it.

use super::filter::Filter;
use super::log::Logs;
use super::{Counting, WHAT, invalid};
use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_compress::decompress;
use millpond_ondisk::dedup::{
    DEDUP_FLAT_BODY_BYTES, DEDUP_LEGACY_BODY_BYTES, DedupClass, DedupEntry, DedupHistogram,
    DedupKey, DedupSlots, DedupValue,
};
use millpond_ondisk::{ChecksumKind, ObjectId};
use millpond_zap::{ZapEntry, ZapValue};
use std::collections::BTreeMap;

/// An entry that differs from the objects of its table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) entry: DedupEntry,
    /// The class whose object has the entry in an older state.
    pub(super) stored: Option<DedupClass>,
    /// Whether a log has the entry.
    pub(super) is_logged: bool,
}

impl Entry {
    /// How many keys more the objects have when it is stored: 0 or 1.
    pub(super) fn new_keys(&self) -> u64 {
        let is_live = self.entry.used_slots().next().is_some();
        u64::from(self.stored.is_none() && is_live)
    }
}

/// The object with the entries of one class.
#[derive(Debug, Default)]
pub(super) struct ClassTable {
    pub(super) object: Option<ObjectId>,
    /// The number of entries in the object.
    pub(super) entries: u64,
    /// Counts the entries of the object, without those that are pending or logged.
    pub(super) histogram: DedupHistogram,
    pub(super) is_changed: bool,
}

/// What makes a fast table.
#[derive(Debug)]
pub(super) struct Fast {
    pub(super) directory: ObjectId,
    pub(super) logs: Option<Logs>,
}

/// The dedup table of one checksum function.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) checksum: ChecksumKind,
    /// `None` for a legacy table.
    pub(super) fast: Option<Fast>,
    /// In the order of [`DedupClass::ALL`].
    pub(super) classes: [ClassTable; 3],
    /// Entries that changed in this pass.
    pub(super) pending: BTreeMap<DedupKey, Entry>,
    /// Counts the entries that are pending or logged.
    pub(super) unstored: DedupHistogram,
    /// How many of these are not in the objects and will be.
    pub(super) unstored_new: u64,
    /// The keys that the objects may have.
    pub(super) filter: Filter,
}

impl Table {
    pub(super) fn new(checksum: ChecksumKind, fast: Option<Fast>) -> Self {
        Self {
            checksum,
            fast,
            classes: Default::default(),
            pending: BTreeMap::new(),
            unstored: DedupHistogram::default(),
            unstored_new: 0,
            filter: Filter::new(0),
        }
    }

    pub(super) fn class_mut(&mut self, class: DedupClass) -> &mut ClassTable {
        let [ditto, duplicate, unique] = &mut self.classes;
        match class {
            DedupClass::Ditto => ditto,
            DedupClass::Duplicate => duplicate,
            DedupClass::Unique => unique,
        }
    }

    /// The histograms of all entries, wherever they are.
    pub(super) fn histograms(&self) -> impl Iterator<Item = &DedupHistogram> {
        let classes = self.classes.iter().map(|class| &class.histogram);
        classes.chain([&self.unstored])
    }

    /// Whether an entry with references is left, as far as the histograms tell.
    pub(super) fn has_live_entries(&self) -> bool {
        let mut histograms = self.histograms();
        histograms.any(|histogram| histogram.total().blocks > 0)
    }

    pub(super) fn has_logged(&self) -> bool {
        let logs = self.fast.as_ref().and_then(|fast| fast.logs.as_ref());
        logs.is_some_and(|logs| !logs.is_empty())
    }

    /// An entry for a new key.
    pub(super) fn new_entry(&self, key: DedupKey, now_s: u64) -> Entry {
        let entry = match self.fast {
            Some(_) => DedupEntry::flat(key, now_s),
            None => DedupEntry::legacy(key),
        };
        Entry {
            entry,
            stored: None,
            is_logged: false,
        }
    }

    /// Takes an entry out, to change it. [`Table::put`] must follow.
    pub(super) fn take(
        &mut self,
        ctx: &SyncContext<'_>,
        key: &DedupKey,
    ) -> Result<Option<Entry>, PoolError> {
        let logs = self.fast.as_mut().and_then(|fast| fast.logs.as_mut());
        let logged = logs.and_then(|logs| logs.take(key));
        // What is pending was taken out of the logs before.
        if let Some(found) = self.pending.remove(key).or(logged) {
            self.uncount_unstored(ctx, &found);
            return Ok(Some(found));
        }
        if !self.filter.may_have(key) {
            return Ok(None);
        }
        for class in [DedupClass::Unique, DedupClass::Duplicate, DedupClass::Ditto] {
            let is_flat = self.fast.is_some();
            let table = self.class_mut(class);
            let Some(object) = table.object.filter(|_| table.entries > 0) else {
                continue;
            };
            let zap = ctx.table(object)?;
            let Some(value) = zap.lookup_words(&key.to_words()).reading(WHAT)? else {
                continue;
            };
            let entry = decode(*key, &value, is_flat)?;
            Counting { ctx }.remove(&mut table.histogram, &entry);
            table.is_changed = true;
            return Ok(Some(Entry {
                entry,
                stored: Some(class),
                is_logged: false,
            }));
        }
        Ok(None)
    }

    /// Puts an entry back that was taken out, or a new one.
    pub(super) fn put(&mut self, ctx: &SyncContext<'_>, entry: Entry) {
        let is_on_disk = entry.stored.is_some() || entry.is_logged;
        if entry.entry.used_slots().next().is_none() && !is_on_disk {
            return;
        }
        Counting { ctx }.add(&mut self.unstored, &entry.entry);
        self.unstored_new = self.unstored_new.saturating_add(entry.new_keys());
        self.pending.insert(entry.entry.key, entry);
    }

    /// Counts an entry no longer that was pending or logged.
    pub(super) fn uncount_unstored(&mut self, ctx: &SyncContext<'_>, entry: &Entry) {
        Counting { ctx }.remove(&mut self.unstored, &entry.entry);
        self.unstored_new = self.unstored_new.saturating_sub(entry.new_keys());
    }
}

/// The key of a stored entry.
pub(super) fn key_of(stored: &ZapEntry) -> Result<DedupKey, PoolError> {
    let words: Result<[u64; 5], _> = stored.words().try_into();
    let words = words.map_err(|_| invalid("a key of another length", 0))?;
    Ok(DedupKey::from_words(words))
}

/// Decodes the value of a stored entry.
pub(super) fn decode(
    key: DedupKey,
    value: &ZapValue,
    is_flat: bool,
) -> Result<DedupEntry, PoolError> {
    if value.integer_bytes != 1 {
        return Err(invalid("a value of other integers", 0));
    }
    let value = DedupValue::parse(&value.bytes).reading(WHAT)?;
    let length = match is_flat {
        true => DEDUP_FLAT_BODY_BYTES,
        false => DEDUP_LEGACY_BODY_BYTES,
    };
    let mut body = [0; DEDUP_LEGACY_BODY_BYTES];
    let body = body.get_mut(..length).unwrap_or_default();
    decompress(value.compression, value.body, body)
        .map_err(|_| invalid("a value cannot be decompressed", 1))?;
    let entry = DedupEntry::decode(key, body, value.endian).reading(WHAT)?;
    let mut references = entry.used_slots().map(|slot| slot.reference_count);
    match references.try_fold(0u64, |sum, count| sum.checked_add(count)) {
        Some(1..) => Ok(entry),
        _ => Err(invalid("an entry without references, or with too many", 48)),
    }
}

/// Whether a body has the format of a fast table.
pub(super) fn is_flat(entry: &DedupEntry) -> bool {
    matches!(entry.slots, DedupSlots::Flat { .. })
}
