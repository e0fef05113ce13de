//! Changes ZAPs with arbitrary content.

use crate::ordered;
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{Block, BlockAddress, ObjectError};
use millpond_ondisk::{BlockId, Endian, Level, ObjectId};
use millpond_zap::{AtZero, ZapMut, ZapSource, ZapStore, ZapValue};
use std::collections::BTreeMap;

/// Blocks by id. Blocks of the input are in its byte order, written ones are little-endian.
#[derive(Clone)]
struct Blocks(Arc<Mutex<State>>);

struct State {
    block_bytes: usize,
    endian: Endian,
    blocks: BTreeMap<u64, (Vec<u8>, Endian)>,
    bytes_written: usize,
}

impl ZapSource for Blocks {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        let state = self.0.lock();
        let zeros = || (vec![0; state.block_bytes], state.endian);
        let (bytes, endian) = state.blocks.get(&id.0).cloned().unwrap_or_else(zeros);
        Ok(Arc::new(Block {
            bytes: Arc::new(bytes),
            endian,
            has_ciphertext: false,
        }))
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        BlockAddress {
            dataset: 0,
            object: ObjectId(1),
            level: Level(0),
            block: id,
        }
    }
}

impl ZapStore for Blocks {
    fn source(&self) -> Arc<dyn ZapSource> {
        Arc::new(self.clone())
    }
    fn block_bytes(&self) -> u32 {
        u32::try_from(self.0.lock().block_bytes).unwrap_or(u32::MAX)
    }
    fn set_block_bytes(&self, bytes: u32) -> Result<(), ObjectError> {
        self.0.lock().block_bytes = bytes as usize;
        Ok(())
    }
    fn write_block(&self, id: BlockId, content: Vec<u8>) -> Result<(), ObjectError> {
        let mut state = self.0.lock();
        assert_eq!(content.len(), state.block_bytes, "a block of another size");
        state.bytes_written += content.len();
        state.blocks.insert(id.0, (content, Endian::Little));
        Ok(())
    }
    fn free_blocks(&self, first: BlockId, count: u64) -> Result<(), ObjectError> {
        let end = first.0.saturating_add(count);
        let mut state = self.0.lock();
        state.blocks.retain(|id, _| !(first.0..end).contains(id));
        Ok(())
    }
}

/// A byte for the byte order, one for the block size, eight for one change each, then the blocks.
///
/// A ZAP that is consistent before a change is consistent afterwards.
pub fn zap_change(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Some((&[size, ref steps @ ..], rest)) = rest.split_first_chunk::<9>() else {
        return;
    };
    let block_bytes = 512 << (size % 6);
    let blocks = rest.chunks(block_bytes).map(|chunk| {
        let mut block = chunk.to_vec();
        block.resize(block_bytes, 0);
        (block, endian)
    });
    let blocks = Blocks(Arc::new(Mutex::new(State {
        block_bytes,
        endian,
        blocks: (0..).zip(blocks).collect(),
        bytes_written: 0,
    })));
    let zap = ZapMut::new(blocks);
    let Ok(view) = zap.view() else {
        return;
    };
    // For a growing table, a reader cannot know whether its blocks are also used elsewhere.
    let is_growing = view
        .header()
        .is_some_and(|header| header.next_table_block != 0);
    let was_whole = view.check().is_ok() && !is_growing;
    let has_word_keys = view.has_word_keys();
    let mut there = Vec::new();
    for entry in view.iter().take(64).flatten() {
        there.push((entry.words(), entry.name));
    }
    drop(view);
    for (at, &step) in (0_u64..).zip(steps) {
        let value = match step >> 5 & 3 {
            0 => ZapValue::from_bytes(&vec![step; usize::from(step) * 9]),
            1 => ZapValue::from_u16s(&[at as u16; 12]),
            _ => ZapValue::from_u64(at),
        };
        // Half of the changes are to existing entries.
        let chosen = there
            .get(usize::from(step & 31))
            .filter(|_| step & 128 != 0);
        let (words, name) = chosen
            .cloned()
            .unwrap_or_else(|| (vec![at << 60, 1], format!("new {at}").into_bytes()));
        let _ = match (has_word_keys, step % 3) {
            (true, 0) => zap.remove_words(&words).map(|_| ()),
            (true, _) => zap.update_words(&words, &value),
            (false, 0) => zap.remove(&name).map(|_| ()),
            (false, 1) => zap.update(&name, &value),
            (false, _) => zap
                .increment(&name, i64::from(step) - 64, AtZero::Remove)
                .map(|_| ()),
        };
        assert!(
            zap.store().0.lock().bytes_written <= (rest.len() + (64 << 10)) * 64,
            "a change without measure"
        );
    }
    if was_whole && let Ok(view) = zap.view() {
        let checked = view.check();
        assert!(checked.is_ok(), "was consistent before: {checked:?}");
    }
}
