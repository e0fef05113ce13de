//! The pointer table: reads, writes and enlarges it.
//!
//! A table in separate blocks grows over many changes. Each change copies one block into a table of twice the
//! size, which replaces the old one once all blocks are copied. Until then, every store into the old table
//! also goes into the new one. An unfinished growth, even by other software, is continued by the next
//! insertion.

use super::ZapStore;
use super::stage::Stage;
use crate::ZapError;
use millpond_env::mark;
use millpond_ondisk::Endian;
use millpond_ondisk::zap::{ZapFlags, pointer_table_entry, put_pointer_table_entry};

/// log2 of the maximum number of table entries per leaf. Hashes that are as good as random stay far below.
/// Without this limit, names made to collide would get a table of half a gigabyte.
const ENTRIES_PER_LEAF_SHIFT: u32 = 14;

/// Selects one of the two tables.
#[derive(Clone, Copy)]
enum Table {
    Present,
    Next,
}

impl<S: ZapStore> Stage<'_, S> {
    /// Returns the block of the leaf for a hash.
    pub(super) fn leaf_block(&self, hash: u64) -> Result<u64, ZapError> {
        let index = hash.checked_shr(64 - self.header.table_shift).unwrap_or(0);
        self.table_entry(index)
    }
    /// Returns the leaf that entry `index` of the present table points to.
    pub(super) fn table_entry(&self, index: u64) -> Result<u64, ZapError> {
        let (block, word) = self.table_place(Table::Present, index);
        let bytes = self.read(block)?;
        let entry = pointer_table_entry(bytes.bytes(), bytes.endian(), word)
            .map_err(|error| self.corrupt(block, error))?;
        if entry == 0 || entry >= self.header.free_block {
            return Err(self.fail(block, "pointer table points outside the zap", word * 8));
        }
        Ok(entry)
    }

    /// Makes the `count` entries from `first` on point to another leaf, in both tables while the table grows.
    pub(super) fn point_to(&mut self, first: u64, count: u64, leaf: u64) -> Result<(), ZapError> {
        self.store_range(Table::Present, first, count, leaf)?;
        if self.header.next_table_block != 0 {
            self.check_growth()?;
            self.store_range(Table::Next, first * 2, count * 2, leaf)?;
        }
        Ok(())
    }

    fn store_range(
        &mut self,
        table: Table,
        first: u64,
        count: u64,
        leaf: u64,
    ) -> Result<(), ZapError> {
        let mut index = first;
        let end = first + count;
        let words_per_block = self.words_per_block();
        while index < end {
            let (block, word) = self.table_place(table, index);
            // Up to the end of the range or of the block. The embedded table is within one block.
            let in_block = match (table, self.header.table_block) {
                (Table::Present, 0) => end - index,
                _ => (end - index).min(words_per_block - word as u64),
            };
            self.edit(block, |bytes| {
                (word..word + in_block as usize)
                    .try_for_each(|word| put_pointer_table_entry(bytes, word, leaf))
            })?
            .map_err(|error| self.corrupt(block, error))?;
            index += in_block;
        }
        Ok(())
    }

    /// The prefix length up to which the table can grow.
    pub(super) fn table_shift_max(&self) -> u32 {
        let hash_bits = if self.header.flags.contains(ZapFlags::HASH64) {
            48
        } else {
            28
        };
        let by_leaves = self.header.leaf_count.max(1).ilog2() + ENTRIES_PER_LEAF_SHIFT;
        (hash_bits - 2).min(by_leaves)
    }

    /// Makes one step towards a larger table, if the table may grow.
    pub(super) fn grow_ahead(&mut self) -> Result<(), ZapError> {
        if self.header.next_table_block == 0 && self.header.table_shift >= self.table_shift_max() {
            return Ok(());
        }
        self.grow_step()
    }

    /// Doubles the table in all the steps that this needs. Holds both tables in memory.
    pub(super) fn grow_whole(&mut self) -> Result<(), ZapError> {
        let before = self.header.table_shift;
        if self.header.next_table_block == 0 && before >= self.table_shift_max() {
            return Err(self.full());
        }
        while self.header.table_shift == before {
            self.grow_step()?;
        }
        Ok(())
    }

    fn grow_step(&mut self) -> Result<(), ZapError> {
        if self.header.table_block == 0 {
            return self.leave_header();
        }
        if self.header.next_table_block == 0 {
            let count = self.header.table_blocks * 2;
            self.header.next_table_block = self.allocate(count)?;
            self.header.table_blocks_copied = 0;
        }
        self.check_growth()?;
        let copied = self.header.table_blocks_copied;
        let old = self.table_words(self.header.table_block + copied, 0)?;
        let halves = old.split_at(old.len() / 2);
        let next = self.header.next_table_block + copied * 2;
        self.put_block(next, doubled(halves.0));
        self.put_block(next + 1, doubled(halves.1));
        self.header.table_blocks_copied += 1;
        if self.header.table_blocks_copied == self.header.table_blocks {
            mark::hit("zap-table-doubled");
            self.free(self.header.table_block, self.header.table_blocks);
            self.header.table_block = self.header.next_table_block;
            self.header.table_blocks *= 2;
            self.header.table_shift += 1;
            self.header.next_table_block = 0;
            self.header.table_blocks_copied = 0;
        }
        Ok(())
    }

    /// Moves the table out of the header block into a separate block.
    fn leave_header(&mut self) -> Result<(), ZapError> {
        if self.header.next_table_block != 0 {
            return Err(self.fail(0, "embedded pointer table grows in blocks", 40));
        }
        mark::hit("zap-table-leaves-header");
        let words = self.words_per_block() / 2;
        let old = self.table_words(0, words as usize)?;
        let block = self.allocate(1)?;
        self.put_block(block, doubled(&old));
        self.header.table_block = block;
        self.header.table_blocks = 1;
        self.header.table_shift += 1;
        Ok(())
    }

    /// Validates the state of an unfinished growth in a header from disk.
    fn check_growth(&self) -> Result<(), ZapError> {
        let header = &self.header;
        let count = header.table_blocks.checked_mul(2);
        let end = count.and_then(|count| header.next_table_block.checked_add(count));
        let is_sane = header.table_block != 0
            && header.table_blocks_copied < header.table_blocks
            && end.is_some_and(|end| {
                end <= header.free_block
                    && (end <= header.table_block
                        || header.next_table_block >= header.table_block + header.table_blocks)
            });
        if is_sane {
            Ok(())
        } else {
            Err(self.fail(0, "growing pointer table makes no sense", 40))
        }
    }

    /// Returns the words of a table block from `first` on.
    pub(super) fn table_words(&self, block: u64, first: usize) -> Result<Vec<u64>, ZapError> {
        let bytes = self.read(block)?;
        let endian = bytes.endian();
        if Some(bytes.bytes().len()) != 1usize.checked_shl(self.header.block_shift) {
            return Err(self.fail(block, "pointer table of another size", 0));
        }
        let words = bytes.bytes().chunks_exact(8).skip(first);
        Ok(words
            .map(|word| {
                let word = word.try_into().unwrap_or_default();
                match endian {
                    Endian::Little => u64::from_le_bytes(word),
                    Endian::Big => u64::from_be_bytes(word),
                }
            })
            .collect())
    }

    fn table_place(&self, table: Table, index: u64) -> (u64, usize) {
        let words_per_block = self.words_per_block();
        let first = match (table, self.header.table_block) {
            (Table::Present, 0) => return (0, (words_per_block / 2 + index) as usize),
            (Table::Present, first) => first,
            (Table::Next, _) => self.header.next_table_block,
        };
        (
            first + index / words_per_block,
            (index % words_per_block) as usize,
        )
    }
    fn words_per_block(&self) -> u64 {
        1 << (self.header.block_shift - 3)
    }
}

/// Returns each word twice, little-endian.
fn doubled(words: &[u64]) -> Vec<u8> {
    words
        .iter()
        .flat_map(|word| [*word, *word])
        .flat_map(u64::to_le_bytes)
        .collect()
}
