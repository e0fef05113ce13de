//! Adds and removes entries of a microzap, and upgrades it to a fat ZAP.

use super::fat::Existing;
use super::stage::Stage;
use super::{UPGRADED_BLOCK_SHIFT, ZapMut, ZapStore, first_blocks, lowest_unused};
use crate::{MicroIndex, Zap, ZapError, ZapValue};
use millpond_env::mark;
use millpond_ondisk::zap::{
    MICRO_NAME_BYTES_MAX, MicroZapEntry, ZapFlags, ZapHeader, ZapKey, put_micro_zap_entry,
    zap_block_to_little,
};
use millpond_ondisk::{BlockId, DecodeError, Endian};

/// Bytes by which a microzap's block grows.
const GROWTH_BYTES: usize = 512;
/// Bytes of a slot, and of the header.
const SLOT_BYTES: usize = 64;
/// The maximum number of chunks of one entry. All names of one hash must fit into one leaf of 16 KiB.
const ENTRY_CHUNKS_MAX: usize = 5;
const LEAF_CHUNKS: usize = 638;
/// A microzap has fewer names of one hash than this.
pub(super) const MICRO_NAMESAKES_MAX: usize = LEAF_CHUNKS.div_ceil(ENTRY_CHUNKS_MAX) - 1;

/// The bytes of the block of a microzap with this number of slots.
pub(super) fn micro_block_bytes(slots: usize) -> usize {
    (slots.saturating_add(1) * SLOT_BYTES).next_multiple_of(GROWTH_BYTES)
}

/// The result of a search through all entries.
struct Found {
    existing: Option<(usize, u32)>,
    free_slot: Option<usize>,
    slots: usize,
    used: Vec<u32>,
}

impl<S: ZapStore> ZapMut<S> {
    pub(super) fn put_micro(
        &self,
        zap: Zap,
        name: &[u8],
        hash: u64,
        value: &ZapValue,
        existing: Existing,
        index: &mut Option<MicroIndex>,
    ) -> Result<(), ZapError> {
        let found = self.find_micro(&zap, name, hash, index.as_ref())?;
        if found.existing.is_some() && existing == Existing::Refuse {
            return Err(ZapError::Exists {
                address: zap.source.address(BlockId(0)),
            });
        }
        let integer = value.first().filter(|_| {
            value.integer_bytes == 8
                && value.bytes.len() == 8
                && (1..=MICRO_NAME_BYTES_MAX).contains(&name.len())
        });
        let Some(integer) = integer else {
            return self.upgrade_and_put(zap, name, hash, value, existing, index);
        };
        if let Some((slot, cd)) = found.existing {
            return self.put_slot(zap, slot, Some((name, integer, cd)));
        }
        if found.used.len() >= MICRO_NAMESAKES_MAX {
            return self.upgrade_and_put(zap, name, hash, value, existing, index);
        }
        let cd = lowest_unused(found.used, &zap.hashing).filter(|cd| *cd <= 0xffff);
        let cd = cd.ok_or_else(|| zap.invalid("differentiators are used up"))?;
        if let Some(slot) = found.free_slot {
            self.put_slot(zap, slot, Some((name, integer, cd)))?;
            index.take_if(|index| index.add(hash, cd, slot).is_none());
            return Ok(());
        }
        let bytes = (zap.first.bytes.len() + GROWTH_BYTES) / GROWTH_BYTES * GROWTH_BYTES;
        match u32::try_from(bytes) {
            Ok(bytes) if bytes <= self.micro_bytes_max => {
                let mut block = self.little(&zap)?;
                block.resize(bytes as usize, 0);
                let entry = MicroZapEntry {
                    value: integer,
                    cd,
                    name,
                };
                put_micro_zap_entry(&mut block, found.slots, Some(&entry))
                    .map_err(|error| self.corrupt(error))?;
                drop(zap);
                self.store.set_block_bytes(bytes)?;
                self.store.write_block(BlockId(0), block)?;
                let slots = (bytes as usize / SLOT_BYTES).saturating_sub(1);
                index.take_if(|index| {
                    let grown = index.grow(slots);
                    grown.is_none() || index.add(hash, cd, found.slots).is_none()
                });
                Ok(())
            }
            _ => self.upgrade_and_put(zap, name, hash, value, existing, index),
        }
    }

    pub(super) fn remove_micro(
        &self,
        zap: Zap,
        name: &[u8],
        hash: u64,
        index: &mut Option<MicroIndex>,
    ) -> Result<bool, ZapError> {
        let found = match index {
            Some(index) => index.find(&zap.micro()?, hash, |stored| stored == name),
            None => zap.micro()?.find(name),
        };
        let found = found.map_err(|error| zap.corrupt(BlockId(0), error))?;
        let Some((slot, cd)) = found.map(|(slot, entry)| (slot, entry.cd)) else {
            return Ok(false);
        };
        self.put_slot(zap, slot, None)?;
        if let Some(index) = index {
            index.remove(hash, cd, slot);
        }
        Ok(true)
    }

    fn find_micro(
        &self,
        zap: &Zap,
        name: &[u8],
        hash: u64,
        index: Option<&MicroIndex>,
    ) -> Result<Found, ZapError> {
        let corrupt = |error| zap.corrupt(BlockId(0), error);
        let normalisation = zap.normalisation()?;
        let micro = zap.micro()?;
        if let Some(index) = index {
            let existing = index.find(&micro, hash, |stored| stored == name);
            let (free_slot, used) = index.room_for(hash);
            return Ok(Found {
                existing: existing
                    .map_err(corrupt)?
                    .map(|(slot, entry)| (slot, entry.cd)),
                free_slot,
                slots: micro.slots(),
                used,
            });
        }
        if normalisation.is_identity() {
            let existing = micro.find(name).map_err(corrupt)?;
            let (free_slot, used) = micro.room_for(&zap.hashing, hash).map_err(corrupt)?;
            return Ok(Found {
                existing: existing.map(|(slot, entry)| (slot, entry.cd)),
                free_slot,
                slots: micro.slots(),
                used,
            });
        }
        let mut found = Found {
            existing: None,
            free_slot: None,
            slots: micro.slots(),
            used: Vec::new(),
        };
        for slot in 0..found.slots {
            let Some(entry) = micro.entry(slot).map_err(corrupt)? else {
                found.free_slot = found.free_slot.or(Some(slot));
                continue;
            };
            if entry.name == name {
                found.existing = Some((slot, entry.cd));
            }
            let form = normalisation.apply(entry.name).ok_or_else(|| {
                corrupt(DecodeError::new("microzap", "name has no hash form", 64))
            })?;
            if zap.hashing.name(&form) == hash {
                found.used.push(entry.cd);
            }
        }
        Ok(found)
    }

    /// Fills or clears a slot.
    fn put_slot(
        &self,
        zap: Zap,
        slot: usize,
        entry: Option<(&[u8], u64, u32)>,
    ) -> Result<(), ZapError> {
        let entry = entry.map(|(name, value, cd)| MicroZapEntry { value, cd, name });
        if zap.first.endian != Endian::Little {
            let mut block = self.little(&zap)?;
            put_micro_zap_entry(&mut block, slot, entry.as_ref())
                .map_err(|error| self.corrupt(error))?;
            self.store.write_block(BlockId(0), block)?;
            return Ok(());
        }
        // If it were still held, the edit would have to copy the block.
        drop(zap);
        let mut outcome = Ok(());
        self.store.edit_block(BlockId(0), &mut |bytes| {
            outcome = put_micro_zap_entry(bytes, slot, entry.as_ref());
        })?;
        outcome.map_err(|error| self.corrupt(error))
    }

    fn little(&self, zap: &Zap) -> Result<Vec<u8>, ZapError> {
        zap_block_to_little(&zap.first.bytes, zap.first.endian).map_err(|error| self.corrupt(error))
    }

    /// Upgrades the ZAP to a fat ZAP with the same content and puts the entry there.
    fn upgrade_and_put(
        &self,
        zap: Zap,
        name: &[u8],
        hash: u64,
        value: &ZapValue,
        existing: Existing,
        index: &mut Option<MicroIndex>,
    ) -> Result<(), ZapError> {
        *index = None;
        mark::hit("microzap-becomes-fat");
        let normalisation = zap.normalisation()?;
        let micro = zap.micro()?;
        let header = ZapHeader::new(
            UPGRADED_BLOCK_SHIFT,
            micro.salt,
            micro.normflags,
            ZapFlags::empty(),
        );
        let header = header.map_err(|error| self.corrupt(error))?;
        let blocks = first_blocks(&header).map_err(|error| self.corrupt(error))?;
        let mut stage = Stage::made_of(&self.store, header, blocks);
        for entry in micro.entries() {
            let corrupt = |error| zap.corrupt(BlockId(0), error);
            let (_, entry) = entry.map_err(corrupt)?;
            let form = normalisation.apply(entry.name).ok_or_else(|| {
                corrupt(DecodeError::new("microzap", "name has no hash form", 64))
            })?;
            let entry_hash = zap.hashing.name(&form);
            let integer = ZapValue::from_u64(entry.value);
            stage.put_new(entry_hash, entry.cd, ZapKey::Name(entry.name), &integer)?;
        }
        drop(zap);
        stage.resize_first(1 << UPGRADED_BLOCK_SHIFT);
        stage.put(hash, ZapKey::Name(name), value, existing)
    }
}
