//! Writes the intent log header of an encrypted head whose key is not loaded.
//!
//! No authentication code covers the header. The object set block can therefore be rewritten with another
//! header, without any other change to block and pointer. Page `docs/format/intent-log.md`, "Claiming".

use crate::heads::sink::{HeadFacts, Tally};
use crate::mos::contradiction;
use crate::tasks::context::SyncTaskContext;
use millpond_block::{BlockAddress, BlockWrite};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockId, BlockPointer, CompressionKind, Endian, IntentLogHeader, Level, ObjectId, ObjectType,
};
use millpond_pool::PoolError;

/// Offset of the header in an object set block, in bytes.
const HEADER_AT: usize = 512;
/// Index of a pointer's fill word.
const FILL: usize = 11;
const WHAT: &str = "object set of an encrypted dataset";

impl SyncTaskContext<'_> {
    /// Rewrites a head's object set block with another header and no other change.
    pub(crate) fn write_raw_header(
        &self,
        head: ObjectId,
        header: &IntentLogHeader,
    ) -> Result<(), PoolError> {
        let failed = |error| PoolError::Block { what: WHAT, error };
        let old = self.dataset(head)?.block_pointer;
        let is_plain = old.compression() == Some(CompressionKind::Off)
            && old.lsize_bytes() == old.psize_bytes()
            && old.endian() == Endian::Little
            && old.object_type() == ObjectType::OBJECT_SET;
        let Some(checksum) = old.checksum_kind().filter(|_| is_plain) else {
            return Err(contradiction(WHAT, "not as object sets are stored"));
        };
        let address = BlockAddress {
            dataset: head.0,
            object: ObjectId(0),
            level: Level(0),
            block: BlockId(0),
        };
        let pool = self.ctx.pool();
        let mut content = pool.store().read_stored(&old, address).map_err(failed)?;
        let bytes = header.encode();
        match content.get_mut(HEADER_AT..HEADER_AT.saturating_add(bytes.len())) {
            Some(place) => place.copy_from_slice(&bytes),
            None => return Err(contradiction(WHAT, "too short")),
        }
        let mut job = BlockWrite::new(address, ObjectType::OBJECT_SET, Arc::new(content));
        job.checksum = checksum;
        job.compression = CompressionKind::Off;
        job.copies = u8::try_from(old.dvas().count()).unwrap_or(1).clamp(1, 3);
        job.may_embed = false;
        let written = pool.store().write(self.txg(), pool.allocator(), vec![job]);
        let Some(written) = written.into_iter().next() else {
            return Err(contradiction(WHAT, "not written"));
        };
        let new = with_codes_of(&old, written.map_err(failed)?.pointer);
        let facts = self.head_facts(head)?;
        let mut tally = Tally::new(&facts);
        tally.born(&facts, &new, self.ctx.space_of(&new));
        self.bury(&facts, &mut tally, &old)?;
        self.settle_head(head, new, &facts, &tally)
    }

    fn bury(
        &self,
        facts: &HeadFacts,
        tally: &mut Tally,
        old: &BlockPointer,
    ) -> Result<(), PoolError> {
        if tally.died(facts, old, self.ctx.space_of(old)) {
            self.ctx.free_block(old)?;
        }
        Ok(())
    }
}

/// Copies the encryption bit and the fill word to the new pointer. Object set pointers have a full
/// checksum, so it needs no merging.
fn with_codes_of(old: &BlockPointer, mut new: BlockPointer) -> BlockPointer {
    new.set_crypt_bit();
    if let (Some(word), Some(fill)) = (new.words.get_mut(FILL), old.words.get(FILL)) {
        *word = *fill;
    }
    new
}
