//! Entries of fast dedup tables that are only in the logs, or that differ from the stored tables.
//!
//! The stored histograms omit entries that a log supersedes, so the sum of both is exact.

use crate::error::Reading;
use crate::space::dedup::DedupTotals;
use crate::space::vdevs::ratio_of;
use crate::{PoolError, PoolView};
use millpond_alloc::deflated_bytes;
use millpond_object::ObjectView;
use millpond_ondisk::{BlockId, DecodeError, Dva, Endian, VdevId, WordArray};
use std::collections::BTreeMap;

/// The most entries in the logs of one table that are accepted. Writers flush long before that.
///
/// At about 150 bytes per entry this bounds memory to about 600 MiB.
const ENTRIES_MAX: usize = 4 << 20;
/// Number of words in the header of a log.
const HEADER_WORDS: usize = 8;
/// Number of words in a record of a flat table: head, key, body.
const RECORD_WORDS: usize = 15;
const FLAG_FLUSHING: u64 = 1;
const FLAG_CHECKPOINT: u64 = 2;

type Key = [u64; 5];
type Body = [u64; 9];

/// Adds the entries in the logs of one table.
pub(super) fn add(
    pool: &PoolView,
    logs: &[ObjectView],
    totals: &mut DedupTotals,
) -> Result<(), PoolError> {
    let what = "dedup log";
    let mut headers = vec![];
    for log in logs {
        let bonus = log.bonus().reading(what)?;
        let words: [u64; HEADER_WORDS] = log.dnode().endian.words(what, bonus).reading(what)?;
        headers.push((log, words));
    }
    // The active log overrides the log being flushed, so it is read last.
    headers.sort_by_key(|(_, words)| ((words[0] >> 8) & FLAG_FLUSHING) == 0);
    let mut entries: BTreeMap<Key, Body> = BTreeMap::new();
    for (log, [info, length, _, checkpoint @ ..]) in headers {
        let stored_up_to = ((info >> 8) & FLAG_CHECKPOINT != 0).then_some(checkpoint);
        read(log, length, &mut |key, body| {
            if stored_up_to.is_some_and(|last| key <= last) {
                return Ok(());
            }
            entries.insert(key, body);
            if entries.len() > ENTRIES_MAX {
                let error = DecodeError::new(what, "more entries than any writer keeps", 0);
                return Err(error).reading(what);
            }
            Ok(())
        })?;
    }
    let topology = pool.store().topology();
    let ratio = |vdev: VdevId| ratio_of(&topology.tree, vdev);
    for (key, body) in entries {
        count(key, body, &ratio, totals);
    }
    Ok(())
}

fn read(
    log: &ObjectView,
    length: u64,
    each: &mut dyn FnMut(Key, Body) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    let what = "dedup log";
    let size = log.block_bytes().max(1);
    let mut next = BlockId(0);
    while let Some(id) = log.next_data_block(next).reading(what)? {
        if id.0.saturating_mul(size) >= length {
            break;
        }
        let block = log.read_block(id).reading(what)?;
        each_record(&block.bytes, block.endian, each)?;
        next = BlockId(id.0.saturating_add(1));
    }
    Ok(())
}

/// Calls `each` for the records of one block. Stops at the first incomplete entry.
fn each_record(
    bytes: &[u8],
    endian: Endian,
    each: &mut dyn FnMut(Key, Body) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    let words: Vec<u64> = WordArray::new(bytes, endian).iter().collect();
    let mut rest = words.as_slice();
    while let [head, ..] = rest {
        let length = ((head >> 8) & 0xffff) as usize / 8;
        if head & 0xff != 1 || length < RECORD_WORDS {
            break;
        }
        let (Some(record), Some(after)) = (rest.get(1..RECORD_WORDS), rest.get(length..)) else {
            break;
        };
        let (key, body) = record.split_at(5);
        if let (Ok(key), Ok(body)) = (key.try_into(), body.try_into()) {
            each(key, body)?;
        }
        rest = after;
    }
    Ok(())
}

fn count(key: Key, body: Body, ratio: &dyn Fn(VdevId) -> u64, totals: &mut DedupTotals) {
    let references = body[6];
    let Some(row) = references.checked_ilog2() else {
        return; // about to be removed
    };
    let sectors = |shift: u32| (((key[4] >> shift) & 0xffff) + 1) << 9;
    let (logical, physical) = (sectors(0), sectors(16));
    // The third address of an encrypted block is its salt and IV.
    let addresses = if key[4] >> 39 & 1 == 1 { 2 } else { 3 };
    let allocated = body
        .chunks_exact(2)
        .take(addresses)
        .filter_map(|words| Dva::from_words([words[0], words[1]]))
        .map(|dva| deflated_bytes(dva.asize_bytes, ratio(dva.vdev)))
        .fold(0, u64::saturating_add);
    totals.add(
        row as usize,
        [
            1,
            logical,
            physical,
            allocated,
            references,
            logical.saturating_mul(references),
            physical.saturating_mul(references),
            allocated.saturating_mul(references),
        ],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: Key, body: Body) -> Vec<u64> {
        let mut words = vec![1 | (120 << 8)];
        words.extend(key);
        words.extend(body);
        words
    }

    fn bytes_of(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn records_are_read_up_to_the_end_mark_of_their_block() {
        let mut words = record([1, 2, 3, 4, 5], [6; 9]);
        words.extend(record([7; 5], [8; 9]));
        words.extend([0, 1 | (120 << 8), 0]);
        let mut seen = vec![];
        each_record(&bytes_of(&words), Endian::Little, &mut |key, body| {
            seen.push((key, body));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [([1, 2, 3, 4, 5], [6; 9]), ([7; 5], [8; 9])]);
    }

    #[test]
    fn cut_and_impossible_records_end_the_block() {
        for words in [
            vec![1],
            vec![1 | (8 << 8); 20],
            vec![1 | (0xffff << 8); 20],
            record([1; 5], [1; 9])[..14].to_vec(),
        ] {
            let mut seen = 0;
            each_record(&bytes_of(&words), Endian::Little, &mut |_, _| {
                seen += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, 0, "{words:x?}");
        }
    }

    #[test]
    fn an_entry_counts_its_sizes_once_and_times_its_references() {
        let mut totals = DedupTotals::default();
        // 16 KiB logical, 8 KiB physical; one address of 8 KiB; 5 references.
        let key = [0, 0, 0, 0, 31 | 15 << 16];
        let mut body = [0; 9];
        body[0] = 16;
        body[1] = 100;
        body[6] = 5;
        count(key, body, &|_| 512, &mut totals);
        count(key, [0; 9], &|_| 512, &mut totals);
        let bucket = totals.buckets[2];
        assert_eq!(totals.total(), bucket);
        assert_eq!((bucket.blocks, bucket.referenced_blocks), (1, 5));
        assert_eq!((bucket.logical_bytes, bucket.physical_bytes), (16384, 8192));
        assert_eq!(bucket.referenced_allocated_bytes, 5 * 8192);
    }
}
