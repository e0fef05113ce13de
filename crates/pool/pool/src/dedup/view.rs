//! All entries of a committed state, for checks.

use super::table::{Entry, decode, key_of};
use super::{DedupTables, WHAT, invalid};
use crate::error::Reading;
use crate::space::deflated_address_bytes;
use crate::{PoolError, PoolView};
use millpond_ondisk::dedup::{DedupClass, DedupEntry, DedupHistogram, DedupKey};
use millpond_ondisk::{BlockId, ChecksumKind, Dva, Level};
use millpond_zap::Zap;

/// The most blocks of dedup tables that are looked up in the cache: every query of a pool asks.
const COUNTED_BLOCKS_MAX: u64 = 1 << 16;

impl PoolView {
    /// Calls `each` with every entry of the dedup tables in its newest state, in no order. Entries without blocks, which
    /// wait to be removed, are left out.
    ///
    /// # Errors
    /// If a table cannot be read, contradicts itself, or its statistics or classes are not those of its entries.
    pub fn each_dedup_entry(
        &self,
        each: &mut dyn FnMut(ChecksumKind, &DedupEntry) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        let tables = DedupTables::load(self)?;
        let deflated = deflating(self);
        for table in tables.tables.values() {
            let mut stored_logged = 0u64;
            for (class, own) in DedupClass::ALL.into_iter().zip(&table.classes) {
                let Some(id) = own.object else { continue };
                let zap = Zap::open(self.mos().object(id).reading(WHAT)?).reading(WHAT)?;
                let mut histogram = DedupHistogram::default();
                for found in zap.iter() {
                    let found = found.reading(WHAT)?;
                    let key = key_of(&found)?;
                    let entry = decode(key, &found.value, table.fast.is_some())?;
                    if let Some(newer) = table.logged(&key) {
                        if newer.stored != Some(class) {
                            return Err(invalid("a logged entry is in another class", 0));
                        }
                        stored_logged = stored_logged.saturating_add(1);
                        continue;
                    }
                    if entry.class() != Some(class) && class != DedupClass::Ditto {
                        return Err(invalid("an entry is in a wrong class", 48));
                    }
                    histogram.add(&entry, &deflated);
                    each(table.checksum, &entry)?;
                }
                if histogram != own.histogram {
                    return Err(invalid("its statistics are not those of its entries", 0));
                }
            }
            let logs = table.fast.iter().filter_map(|fast| fast.logs.as_ref());
            for log in logs.flat_map(|logs| &logs.both) {
                for logged in log.entries.values() {
                    if logged.stored.is_some() {
                        let left = stored_logged.checked_sub(1);
                        stored_logged =
                            left.ok_or_else(|| invalid("a logged entry is stored nowhere", 0))?;
                    }
                    if logged.entry.used_slots().next().is_some() {
                        each(table.checksum, &logged.entry)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the objects of the dedup tables, so that the cache has them. Returns their bytes.
    ///
    /// # Errors
    /// If a block of a table cannot be read.
    pub fn read_dedup_tables(&self) -> Result<u64, PoolError> {
        let (mut bytes, mut blocks) = (0u64, 0u64);
        let tables = DedupTables::load(self)?;
        let classes = tables.tables.values().flat_map(|table| &table.classes);
        for id in classes.filter_map(|class| class.object) {
            let object = self.mos().object(id).reading(WHAT)?;
            let mut next = BlockId(0);
            while let Some(at) = object.next_data_block(next).reading(WHAT)? {
                let block = object.read_block(at).reading(WHAT)?;
                bytes = bytes.saturating_add(block.bytes.len() as u64);
                next = BlockId(at.0.saturating_add(1));
                blocks += 1;
                if blocks > COUNTED_BLOCKS_MAX {
                    return Ok(0);
                }
            }
        }
        Ok(bytes)
    }

    /// The bytes of the blocks of the dedup tables that the cache has. 0 if the tables have more than 65,536 blocks, because
    /// each of them is looked up.
    ///
    /// # Errors
    /// If an indirect block of a table cannot be read.
    pub fn cached_dedup_bytes(&self) -> Result<u64, PoolError> {
        let mut bytes = 0u64;
        let tables = DedupTables::load(self)?;
        let classes = tables.tables.values().flat_map(|table| &table.classes);
        for id in classes.filter_map(|class| class.object) {
            let object = self.mos().object(id).reading(WHAT)?;
            let mut next = BlockId(0);
            while let Some(at) = object.next_data_block(next).reading(WHAT)? {
                let pointer = object.pointer(Level(0), at).reading(WHAT)?;
                if self.store().is_cached(&pointer, None) {
                    bytes = bytes.saturating_add(pointer.lsize_bytes());
                }
                next = BlockId(at.0.saturating_add(1));
            }
        }
        Ok(bytes)
    }
}

/// The deflated size of an address.
pub(super) fn deflating(read: &PoolView) -> impl Fn(Dva) -> u64 + use<> {
    let (topology, is_deflated) = (read.store().topology(), read.is_deflated());
    move |dva| deflated_address_bytes(&topology.tree, is_deflated, &dva)
}

impl super::table::Table {
    /// The state of an entry in a log.
    pub(super) fn logged(&self, key: &DedupKey) -> Option<&Entry> {
        let logs = self.fast.iter().filter_map(|fast| fast.logs.as_ref());
        let mut logs = logs.flat_map(|logs| &logs.both);
        logs.find_map(|log| log.entries.get(key))
    }
}
