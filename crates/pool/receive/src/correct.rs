//! Repairs a snapshot with the blocks in its stream (`zfs receive -c`). Nothing else of it changes.
//!
//! Page `docs/format/send-stream.md`, "Corrective receives".

use crate::decode::{ChangeKind, Decoder};
use crate::error::ReceiveError;
use millpond_block::{BlockAddress, BlockStore, Replaced};
use millpond_compress::{ZstdLevel, compress};
use millpond_env::sync::Arc;
use millpond_object::{EncodedContent, ObjectError, ObjectSetView, ObjectView};
use millpond_ondisk::{BlockId, BlockPointer, CompressionKind, Level, ObjectId};
use millpond_stream::{Begin, RecordSource, StreamFeatures};

/// Blocks that are read together.
const BATCH_BLOCKS: usize = 64;
/// Their most bytes in memory.
const BATCH_BYTES: u64 = 16 << 20;
/// The levels of zstd that are tried, after the default.
const ZSTD_LEVELS: std::ops::RangeInclusive<u8> = 1..=19;

/// What came of a corrective receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Corrected {
    /// Blocks of the stream that the snapshot has.
    pub blocks: u64,
    /// Blocks that were damaged and are right again.
    pub repaired: u64,
    /// Their stored bytes.
    pub repaired_bytes: u64,
    /// Blocks that are damaged and could not be repaired: the stream has other bytes, or devices failed.
    pub lost: u64,
    /// The length of the stream in bytes.
    pub length: u64,
}

/// A block of the stream.
struct Given {
    pointer: BlockPointer,
    address: BlockAddress,
    content: Content,
}

enum Content {
    Plain(Vec<u8>, Option<EncodedContent>),
    /// The bytes of an encrypted dataset as they are stored.
    Sealed(EncodedContent),
}

/// Reads every block of the snapshot `set` that the stream has, and repairs it where no copy is right. `begin` was taken
/// from `stream`, and is about this snapshot. The snapshot must stay meanwhile.
///
/// # Errors
/// [`ReceiveError`] if the stream is not sound. What was repaired until then stays so.
pub fn correct<S: RecordSource>(
    stream: &mut S,
    begin: &Begin,
    set: &Arc<ObjectSetView>,
) -> Result<Corrected, ReceiveError> {
    let decoder = Decoder {
        to_guid: begin.to_guid,
        flags: begin.flags,
        has_lz4: true,
        has_zstd: true,
        is_raw: begin.features.contains(StreamFeatures::RAW),
        is_redacted: begin.features.contains(StreamFeatures::REDACTED),
    };
    let mut correction = Correction {
        set: Arc::clone(set),
        object: None,
        joined: None,
        batch: vec![],
        batch_bytes: 0,
        level: ZstdLevel::default(),
        outcome: Corrected::default(),
    };
    loop {
        let taken = stream.take()?.ok_or_else(|| ReceiveError::Invalid {
            at: 0,
            reason: "the stream has no end".to_owned(),
        })?;
        let change = decoder.decode(taken)?;
        correction.outcome.length = change.end;
        match change.kind {
            ChangeKind::Write {
                object,
                offset,
                content,
                encoded,
            } => correction.take(object, offset, Content::Plain(content, encoded)),
            ChangeKind::SealedWrite {
                object,
                offset,
                stored,
                ..
            } => correction.take(object, offset, Content::Sealed(stored)),
            ChangeKind::End => break,
            _ => {}
        }
    }
    correction.finish_batch();
    Ok(correction.outcome)
}

/// The beginning of a large block that the stream has in parts.
struct Joined {
    object: u64,
    block: u64,
    content: Vec<u8>,
}

impl Joined {
    fn part(object: u64, block: u64, content: Vec<u8>) -> Self {
        Self {
            object,
            block,
            content,
        }
    }
}

struct Correction {
    set: Arc<ObjectSetView>,
    /// The last object.
    object: Option<ObjectView>,
    joined: Option<Joined>,
    batch: Vec<Given>,
    batch_bytes: u64,
    /// The level that yielded the bytes of the last repaired block.
    level: ZstdLevel,
    outcome: Corrected,
}

impl Correction {
    /// Takes a block of the stream, if it is a block here.
    fn take(&mut self, object: u64, offset: u64, content: Content) {
        let Some(found) = self.object(object) else {
            return;
        };
        let size = found.block_bytes();
        let block = offset.checked_div(size).unwrap_or(0);
        let content = match content {
            Content::Plain(part, None) if (part.len() as u64) < size => {
                let at = offset.checked_rem(size).unwrap_or(0);
                match self.join(Joined::part(object, block, part), at, size) {
                    Some(whole) => Content::Plain(whole, None),
                    None => return,
                }
            }
            Content::Plain(whole, _) if whole.len() as u64 != size => return,
            other => other,
        };
        let Some(found) = self.object(object) else {
            return;
        };
        let address = found.address(Level(0), BlockId(block));
        // What leads to the block cannot be repaired.
        let Ok(pointer) = found.pointer(Level(0), BlockId(block)) else {
            self.outcome.lost = self.outcome.lost.saturating_add(1);
            return;
        };
        if pointer.is_hole() || pointer.is_embedded() {
            return;
        }
        // More bytes than the block has cannot be its own.
        if matches!(&content, Content::Sealed(sealed) if sealed.bytes.len() as u64 > pointer.psize_bytes())
        {
            return;
        }
        self.outcome.blocks = self.outcome.blocks.saturating_add(1);
        self.batch_bytes = self.batch_bytes.saturating_add(size);
        self.batch.push(Given {
            pointer,
            address,
            content,
        });
        if self.batch.len() >= BATCH_BLOCKS || self.batch_bytes >= BATCH_BYTES {
            self.finish_batch();
        }
    }

    /// Adds a part of a large block, which begins at byte `at` of it, to those before it. Returns the whole block when it
    /// is complete.
    fn join(&mut self, part: Joined, at: u64, size: u64) -> Option<Vec<u8>> {
        let before = self.joined.take().filter(|before| {
            let end = before.content.len() as u64;
            (before.object, before.block, end) == (part.object, part.block, at)
        });
        let joined = match before {
            Some(mut before) => {
                before.content.extend_from_slice(&part.content);
                before
            }
            None if at == 0 => part,
            None => return None,
        };
        if joined.content.len() as u64 == size {
            return Some(joined.content);
        }
        self.joined = Some(joined);
        None
    }

    fn object(&mut self, id: u64) -> Option<&ObjectView> {
        if self
            .object
            .as_ref()
            .is_none_or(|object| object.id().0 != id)
        {
            self.object = match self.set.object(ObjectId(id)) {
                Ok(object) => Some(object),
                Err(ObjectError::NotFound { .. }) => None,
                Err(_) => {
                    self.outcome.lost = self.outcome.lost.saturating_add(1);
                    None
                }
            };
        }
        self.object.as_ref()
    }

    /// Reads the blocks of a batch, all copies of each, and repairs them.
    fn finish_batch(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let wanted: Vec<_> = batch
            .iter()
            .map(|given| (given.pointer, given.address))
            .collect();
        let mut damaged = vec![];
        let store = Arc::clone(self.set.store());
        store.heal_batch(&wanted, |number, audit| {
            if !audit.is_ok_and(|audit| audit.is_readable) {
                damaged.push(number);
            }
        });
        for given in damaged.into_iter().filter_map(|number| batch.get(number)) {
            if self.repair(&store, given) {
                let bytes = given.pointer.psize_bytes();
                self.outcome.repaired = self.outcome.repaired.saturating_add(1);
                self.outcome.repaired_bytes = self.outcome.repaired_bytes.saturating_add(bytes);
            } else {
                self.outcome.lost = self.outcome.lost.saturating_add(1);
            }
        }
    }

    /// Writes the block with the bytes of the stream. Returns whether it is right then.
    fn repair(&mut self, store: &BlockStore, given: &Given) -> bool {
        let pointer = &given.pointer;
        let replaced = |stored: &[u8]| {
            let outcome = store.replace_lost(pointer, given.address, stored);
            outcome.unwrap_or(Replaced::Failed)
        };
        let (content, encoded) = match &given.content {
            Content::Sealed(stored) => {
                let Some(bytes) = padded(stored.bytes.to_vec(), pointer) else {
                    return false;
                };
                return matches!(replaced(&bytes), Replaced::Written | Replaced::Whole);
            }
            Content::Plain(content, encoded) => (content, encoded.as_ref()),
        };
        let kind = pointer.compression().unwrap_or(CompressionKind::Off);
        let as_sent = encoded.filter(|encoded| encoded.compression == kind);
        let mut levels = vec![None];
        if kind == CompressionKind::Zstd && as_sent.is_none() {
            levels.extend(ZSTD_LEVELS.filter_map(ZstdLevel::standard).map(Some));
        }
        for level in levels {
            let level = level.unwrap_or(self.level);
            let stored = match (as_sent, kind) {
                (Some(encoded), _) => Some(encoded.bytes.to_vec()),
                (None, CompressionKind::Off) => Some(content.clone()),
                (None, kind) => {
                    let most = usize::try_from(pointer.psize_bytes()).unwrap_or(usize::MAX);
                    compress(kind, level, content, most)
                }
            };
            let stored = stored.and_then(|stored| padded(stored, pointer));
            let Some(stored) = stored.and_then(|stored| self.sealed(stored, pointer)) else {
                continue;
            };
            match replaced(&stored) {
                Replaced::Written | Replaced::Whole => {
                    self.level = level;
                    return true;
                }
                Replaced::Different => {}
                Replaced::Failed => return false,
            }
        }
        false
    }

    /// The stored bytes with the salt and IV of the pointer, if it is that of an encrypted block; `None` without the key.
    fn sealed(&self, mut stored: Vec<u8>, pointer: &BlockPointer) -> Option<Vec<u8>> {
        if !pointer.is_encrypted() {
            return Some(stored);
        }
        let (salt, iv) = (pointer.crypt_salt(), pointer.crypt_iv());
        self.set.key()?.encrypt_data(salt, iv, &mut stored).ok()?;
        Some(stored)
    }
}

/// Zeros up to the physical size; `None` for more bytes than that.
fn padded(mut stored: Vec<u8>, pointer: &BlockPointer) -> Option<Vec<u8>> {
    let size = usize::try_from(pointer.psize_bytes()).ok()?;
    if stored.len() > size {
        return None;
    }
    stored.resize(size, 0);
    Some(stored)
}
