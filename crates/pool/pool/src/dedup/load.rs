//! Loads the dedup tables when a pool is opened for changes: histograms, and the entries of the logs.

use super::create::VERSION;
use super::filter::Filter;
use super::log::{Log, Logs};
use super::table::{Entry, Fast, Table, is_flat};
use super::view::deflating;
use super::{CHECKSUMS, DedupTables, FAST_DEDUP, WHAT, invalid};
use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_ondisk::dedup::{
    DedupClass, DedupHistogram, DedupKey, DedupLogFlags, DedupLogPhys, DedupLogRecord,
    DedupLogRecords, DedupTableFlags,
};
use millpond_ondisk::pool_directory::{dedup_directory_key, dedup_log_key, dedup_table_key, key};
use millpond_ondisk::{BlockId, ChecksumKind, ObjectId, ObjectType};
use millpond_zap::Zap;
use std::collections::BTreeMap;

/// The most entries in the logs of one table that are accepted: about 600 MiB in memory. Writers keep fewer.
const LOGGED_MAX: usize = 2 << 20;

impl DedupTables {
    /// Loads the tables of a committed state.
    ///
    /// # Errors
    /// If a table cannot be read, has a version or flags that are not known, or contradicts itself. Blocks could then be
    /// freed that are still in use.
    pub(crate) fn load(read: &PoolView) -> Result<Self, PoolError> {
        let statistics = read.find_directory_object(key::DEDUP_STATISTICS)?;
        let histograms = statistics.map(|id| open(read, id)).transpose()?;
        let mut all = Self {
            statistics,
            ..Self::default()
        };
        let mut fast_tables = 0;
        for checksum in CHECKSUMS {
            let directory = read.find_directory_object(&dedup_directory_key(checksum))?;
            let loader = Loader {
                read,
                histograms: histograms.as_ref(),
                checksum,
            };
            let legacy = loader.legacy_objects()?;
            let table = match directory {
                Some(_) if legacy.iter().any(Option::is_some) => {
                    return Err(invalid("it has two forms", 0));
                }
                Some(directory) => {
                    fast_tables += 1;
                    loader.fast(directory)?
                }
                None if legacy.iter().all(Option::is_none) => continue,
                None => loader.classes(Table::new(checksum, None), legacy)?,
            };
            all.tables.insert(checksum.number(), table);
        }
        match read.features().count(FAST_DEDUP).unwrap_or(0) == fast_tables {
            true => Ok(all),
            false => Err(invalid("the feature counts another number of tables", 0)),
        }
    }
}

fn open(read: &PoolView, id: ObjectId) -> Result<Zap, PoolError> {
    Zap::open(read.mos().object(id).reading(WHAT)?).reading(WHAT)
}

/// Loads the table of one checksum function.
struct Loader<'a> {
    read: &'a PoolView,
    histograms: Option<&'a Zap>,
    checksum: ChecksumKind,
}

impl Loader<'_> {
    fn legacy_objects(&self) -> Result<[Option<ObjectId>; 3], PoolError> {
        let mut objects = [None; 3];
        for (class, object) in DedupClass::ALL.into_iter().zip(&mut objects) {
            let name = dedup_table_key(self.checksum, class.name());
            *object = self.read.find_directory_object(&name)?;
        }
        Ok(objects)
    }

    fn fast(&self, directory: ObjectId) -> Result<Table, PoolError> {
        let names = open(self.read, directory)?;
        let number = |name: &str| names.lookup_u64(name.as_bytes()).reading(WHAT);
        let known = DedupTableFlags::FLAT | DedupTableFlags::LOG;
        if number("version")? != Some(VERSION) || number("flags")? != Some(known.bits()) {
            return Err(invalid("its version or its flags are unknown", 0));
        }
        let find = |name: String| -> Result<Option<ObjectId>, PoolError> {
            Ok(number(&name)?.and_then(|id| ObjectId(id).some()))
        };
        let mut objects = [None; 3];
        for (class, object) in DedupClass::ALL.into_iter().zip(&mut objects) {
            *object = find(dedup_table_key(self.checksum, class.name()))?;
        }
        let logs = [
            find(dedup_log_key(self.checksum, 0))?,
            find(dedup_log_key(self.checksum, 1))?,
        ];
        let fast = Fast {
            directory,
            logs: None,
        };
        let table = Table::new(self.checksum, Some(fast));
        let mut table = self.classes(table, objects)?;
        match logs {
            [None, None] => {}
            [Some(first), Some(second)] => self.logs(&mut table, first, second)?,
            _ => return Err(invalid("one of its logs is missing", 0)),
        }
        Ok(table)
    }

    fn classes(
        &self,
        mut table: Table,
        objects: [Option<ObjectId>; 3],
    ) -> Result<Table, PoolError> {
        for (class, object) in DedupClass::ALL.into_iter().zip(objects) {
            let Some(id) = object else { continue };
            let object = self.read.mos().object(id).reading(WHAT)?;
            if object.dnode().object_type != ObjectType::DDT_ZAP {
                return Err(invalid("an object of another type", 0));
            }
            let zap = Zap::open(object).reading(WHAT)?;
            if !zap.has_word_keys() {
                return Err(invalid("its entries have names", 0));
            }
            let own = table.class_mut(class);
            own.object = Some(id);
            own.entries = zap.entry_count().reading(WHAT)?;
            let name = dedup_table_key(self.checksum, class.name());
            let value = match self.histograms {
                Some(histograms) => histograms.lookup(name.as_bytes()).reading(WHAT)?,
                None => None,
            };
            match value {
                Some(value) => {
                    let words: Vec<u64> = value.integers().collect();
                    own.histogram = DedupHistogram::from_words(&words).reading(WHAT)?;
                }
                None if own.entries == 0 => {}
                None => return Err(invalid("a class without statistics", 0)),
            }
        }
        let entries = table.classes.iter().map(|class| class.entries);
        table.filter = Filter::new(entries.fold(0, u64::saturating_add));
        Ok(table)
    }

    fn logs(&self, table: &mut Table, first: ObjectId, second: ObjectId) -> Result<(), PoolError> {
        let both = [self.log(first)?, self.log(second)?];
        let [first, second] = &both;
        let is_flushing = |log: &Log| log.phys.flags.contains(DedupLogFlags::FLUSHING);
        let is_second_active = match (is_flushing(first), is_flushing(second)) {
            (true, false) => true,
            (false, true) => false,
            _ => return Err(invalid("not one of its logs is being flushed", 0)),
        };
        let [mut first, mut second] = both;
        let (active, flushing) = match is_second_active {
            true => (&second, &mut first),
            false => (&first, &mut second),
        };
        if active.phys.flags.contains(DedupLogFlags::CHECKPOINT) {
            return Err(invalid("the log that receives entries has a checkpoint", 0));
        }
        for key in active.entries.keys() {
            flushing.entries.remove(key);
        }
        let deflated = deflating(self.read);
        for entry in first.entries.values().chain(second.entries.values()) {
            if let Some(class) = entry.stored
                && table.class_mut(class).object.is_none()
            {
                return Err(invalid("a logged entry is stored nowhere", 0));
            }
            table.unstored.add(&entry.entry, &deflated);
            table.unstored_new = table.unstored_new.saturating_add(entry.new_keys());
        }
        if let Some(fast) = &mut table.fast {
            fast.logs = Some(Logs {
                both: [first, second],
                is_second_active,
            });
        }
        Ok(())
    }

    fn log(&self, id: ObjectId) -> Result<Log, PoolError> {
        let object = self.read.mos().object(id).reading(WHAT)?;
        let bonus = object.bonus().reading(WHAT)?;
        let phys = DedupLogPhys::decode(bonus, object.dnode().endian).reading(WHAT)?;
        let mut entries: BTreeMap<DedupKey, Entry> = BTreeMap::new();
        let size = object.block_bytes().max(1);
        if !phys.length_bytes.is_multiple_of(size) {
            return Err(invalid("a log whose length is not one of blocks", 8));
        }
        let mut next = BlockId(0);
        while let Some(id) = object.next_data_block(next).reading(WHAT)? {
            if id.0.saturating_mul(size) >= phys.length_bytes {
                break;
            }
            let block = object.read_block(id).reading(WHAT)?;
            for record in DedupLogRecords::new(&block.bytes, block.endian) {
                let DedupLogRecord { entry, stored } = record.reading(WHAT)?;
                if !is_flat(&entry) {
                    return Err(invalid("a logged entry of another format", 0));
                }
                if !phys.is_pending(&entry.key) {
                    continue;
                }
                let is_logged = true;
                let new = Entry {
                    entry,
                    stored,
                    is_logged,
                };
                entries.insert(entry.key, new);
                if entries.len() > LOGGED_MAX {
                    return Err(invalid("more logged entries than any writer keeps", 0));
                }
            }
            next = BlockId(id.0.saturating_add(1));
        }
        Ok(Log {
            object: id,
            phys,
            entries,
        })
    }
}
