//! Creates a ZAP together with its entries.

use super::micro::{MICRO_NAMESAKES_MAX, micro_block_bytes};
use super::stage::Stage;
use super::{NewZap, UPGRADED_BLOCK_SHIFT, ZapMut, ZapStore, first_blocks};
use crate::{ZapError, ZapValue};
use millpond_ondisk::BlockId;
use millpond_ondisk::zap::{
    LeafInsertError, MICRO_NAME_BYTES_MAX, MicroZapEntry, ZapHashing, ZapHeader, ZapKey,
    ZapLeafBuilder, encode_micro_zap, leaf_entry_chunks,
};

/// An entry of the new ZAP.
struct Planned<'n> {
    hash: u64,
    cd: u32,
    name: &'n [u8],
    value: u64,
    /// The chunks that it takes in a leaf.
    chunks: u16,
}

/// The entries of a new ZAP in the order of the caller, and their places in the order of their hashes.
struct Plan<'n> {
    entries: Vec<Planned<'n>>,
    by_hash: Vec<usize>,
}

impl<S: ZapStore> ZapMut<S> {
    /// Turns an object without content into a ZAP without flags that has these entries, each a name and one
    /// 64-bit integer.
    ///
    /// Writes each block once, which takes a fraction of the time of inserting the entries one by one.
    ///
    /// # Errors
    /// As [`ZapMut::create`] and [`ZapMut::insert`].
    pub fn create_with<N: AsRef<[u8]>>(
        &self,
        new: &NewZap,
        entries: &[(N, u64)],
    ) -> Result<(), ZapError> {
        if entries.is_empty() || !new.flags.is_empty() {
            self.create(new)?;
            return entries
                .iter()
                .try_for_each(|(name, value)| self.insert_u64(name.as_ref(), *value));
        }
        let plan = self.plan(new, entries)?;
        match self.micro_bytes_for(&plan) {
            Some(bytes) => self.fill_micro(new, &plan, bytes),
            None => self.fill_fat(new, &plan),
        }
    }

    fn plan<'n, N: AsRef<[u8]>>(
        &self,
        new: &NewZap,
        entries: &'n [(N, u64)],
    ) -> Result<Plan<'n>, ZapError> {
        // Both forms of a ZAP without flags hash names alike.
        let hashing = ZapHashing::plain(new.salt);
        let mut planned = Vec::with_capacity(entries.len());
        let any_value = ZapValue::from_u64(0);
        for (name, value) in entries {
            let name = name.as_ref();
            let form = self.hash_form(new.normalisation, name)?;
            let chunks = leaf_entry_chunks(ZapKey::Name(name), &any_value)
                .map_err(|_| self.refused("entry needs more chunks than a leaf has"))?;
            planned.push(Planned {
                hash: hashing.name(&form),
                cd: 0,
                name,
                value: *value,
                chunks,
            });
        }
        let mut by_hash: Vec<usize> = (0..planned.len()).collect();
        by_hash.sort_unstable_by_key(|at| planned.get(*at).map(|entry| (entry.hash, entry.name)));
        let mut last: Option<(u64, u32, &[u8])> = None;
        for at in &by_hash {
            let Some(entry) = planned.get_mut(*at) else {
                continue;
            };
            if let Some((hash, cd, name)) = last
                && hash == entry.hash
            {
                if name == entry.name {
                    return Err(self.exists());
                }
                entry.cd = cd.saturating_add(1);
            }
            if entry.cd >= hashing.cd_limit() {
                return Err(self.full());
            }
            last = Some((entry.hash, entry.cd, entry.name));
        }
        Ok(Plan {
            entries: planned,
            by_hash,
        })
    }

    /// The size of the microzap's block; `None` if the entries need a fat ZAP.
    fn micro_bytes_for(&self, plan: &Plan<'_>) -> Option<u32> {
        let bytes = u32::try_from(micro_block_bytes(plan.entries.len())).ok()?;
        let bytes = bytes.max(self.store.block_bytes());
        let fits = |entry: &Planned<'_>| {
            (1..=MICRO_NAME_BYTES_MAX).contains(&entry.name.len())
                && (entry.cd as usize) < MICRO_NAMESAKES_MAX
        };
        (bytes <= self.micro_bytes_max && plan.entries.iter().all(fits)).then_some(bytes)
    }

    fn fill_micro(&self, new: &NewZap, plan: &Plan<'_>, bytes: u32) -> Result<(), ZapError> {
        let entries: Vec<MicroZapEntry<'_>> = plan
            .entries
            .iter()
            .map(|entry| MicroZapEntry {
                value: entry.value,
                cd: entry.cd,
                name: entry.name,
            })
            .collect();
        let normflags = new.normalisation.normflags();
        let block = encode_micro_zap(bytes as usize, new.salt, normflags, &entries)
            .map_err(|error| self.corrupt(error))?;
        if bytes != self.store.block_bytes() {
            self.store.set_block_bytes(bytes)?;
        }
        self.store.write_block(BlockId(0), block)?;
        Ok(())
    }

    fn fill_fat(&self, new: &NewZap, plan: &Plan<'_>) -> Result<(), ZapError> {
        let normflags = new.normalisation.normflags();
        let (header, blocks) = ZapHeader::new(UPGRADED_BLOCK_SHIFT, new.salt, normflags, new.flags)
            .and_then(|header| Ok((header, first_blocks(&header)?)))
            .map_err(|error| self.corrupt(error))?;
        let mut stage = Stage::made_of(&self.store, header, blocks);
        let entries = plan.by_hash.iter();
        let entries: Vec<&Planned<'_>> = entries.filter_map(|at| plan.entries.get(*at)).collect();
        let mut left = vec![];
        stage.plant(&entries, (0, 0), 1, &mut left)?;
        for entry in left {
            let value = ZapValue::from_u64(entry.value);
            stage.put_new(entry.hash, entry.cd, ZapKey::Name(entry.name), &value)?;
        }
        stage.resize_first(1 << UPGRADED_BLOCK_SHIFT);
        stage.finish()
    }
}

impl<S: ZapStore> Stage<'_, S> {
    /// Makes the leaves for all entries whose hashes begin with a prefix of `bits` bits, the first of them in block
    /// `id`. The prefixes are those to which splitting full leaves leads. What would need a larger pointer table is
    /// added to `left`.
    fn plant<'p, 'n>(
        &mut self,
        entries: &[&'p Planned<'n>],
        (prefix, bits): (u64, u32),
        id: u64,
        left: &mut Vec<&'p Planned<'n>>,
    ) -> Result<(), ZapError> {
        let is_cd_sorted = self.header.normflags != 0;
        let leaf = ZapLeafBuilder::new(self.header.block_shift, prefix, bits, is_cd_sorted);
        let mut leaf = leaf.map_err(|error| self.corrupt(id, error))?;
        let chunks: u64 = entries.iter().map(|entry| u64::from(entry.chunks)).sum();
        if chunks > leaf.free_chunks().into() && bits < self.header.table_shift {
            let upper_begins = |entry: &&Planned<'_>| (entry.hash >> (63 - bits)) & 1 == 0;
            let at = entries.partition_point(upper_begins);
            let (lower, upper) = entries.split_at(at);
            let upper_id = self.allocate(1)?;
            let count = self.header.leaf_count.checked_add(1);
            self.header.leaf_count = count.ok_or_else(|| self.full())?;
            self.plant(lower, (prefix * 2, bits + 1), id, left)?;
            return self.plant(upper, (prefix * 2 + 1, bits + 1), upper_id, left);
        }
        for entry in entries {
            let value = ZapValue::from_u64(entry.value);
            let key = ZapKey::Name(entry.name);
            match leaf.insert(entry.hash, entry.cd, key, &value) {
                Ok(()) => {}
                Err(LeafInsertError::Full) => left.push(entry),
                Err(error) => return Err(self.leaf_error(id, error)),
            }
        }
        let count = u64::from(leaf.entry_count());
        self.header.entry_count = self.header.entry_count.saturating_add(count);
        let shift = self.header.table_shift - bits;
        self.point_to(prefix << shift, 1 << shift, id)?;
        self.put_block(id, leaf.finish());
        Ok(())
    }
}
