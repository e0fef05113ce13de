//! Blocks of dnodes: bonus buffers are encrypted, all other parts are authenticated.

use crate::CryptError;
use crate::auth::entry;
use crate::message::Message;
use millpond_ondisk::{
    BLOCK_POINTER_BYTES, BlockPointer, DNODE_SLOT_BYTES, DnodeFlags, Endian, ObjectType,
};

const STRUCTURE: &str = "dnode block";
const CORE_BYTES: usize = 64;

/// Separates the encrypted and authenticated bytes of a dnode block. `version` is the key's version.
pub(crate) fn message(block: &[u8], endian: Endian, version: u64) -> Result<Message, CryptError> {
    let mut message = Message::default();
    let mut start = 0usize;
    while start < block.len() {
        let fail = |reason| CryptError::malformed(STRUCTURE, reason, start);
        let rest = block.get(start..).unwrap_or(&[]);
        let core = Core::decode(rest, endian).ok_or(fail("no whole dnode"))?;
        let dnode = rest
            .get(..core.total_bytes)
            .ok_or(fail("dnode goes past the block"))?;
        authenticate(dnode, &core, endian, version, &mut message.aad)
            .ok_or(fail("block pointers do not fit the dnode"))?;
        let bonus = core.bonus_start..core.bonus_end;
        if core.has_encrypted_bonus {
            let from_block = |offset: usize| start.saturating_add(offset);
            message
                .areas
                .push(from_block(bonus.start)..from_block(bonus.end));
        } else {
            message.aad.extend_from_slice(
                dnode
                    .get(bonus)
                    .ok_or(fail("block pointers do not fit the dnode"))?,
            );
        }
        start = start.saturating_add(core.total_bytes);
    }
    Ok(message)
}

/// Appends a dnode's core and the entries of its pointers to the authenticated data, but not its bonus.
///
/// In object sets the core is authenticated in little-endian form, in dnode blocks as stored. The caller
/// passes `dnode` accordingly. `endian` is the byte order of its pointers.
pub(crate) fn authenticate(
    dnode: &[u8],
    core: &Core,
    endian: Endian,
    version: u64,
    aad: &mut Vec<u8>,
) -> Option<()> {
    aad.extend_from_slice(&core.masked);
    let pointers_end = core.bonus_start;
    let pointers = dnode.get(CORE_BYTES..pointers_end)?;
    let spill = dnode.get(core.bonus_end..core.total_bytes)?;
    for stored in pointers
        .as_chunks::<BLOCK_POINTER_BYTES>()
        .0
        .iter()
        .chain(spill.as_chunks::<BLOCK_POINTER_BYTES>().0)
    {
        let bp = BlockPointer::decode(stored, endian).ok()?;
        aad.extend_from_slice(entry(&bp, version).as_bytes());
    }
    Some(())
}

/// The values in the first 64 bytes of a dnode.
pub(crate) struct Core {
    /// The stored core. Fields that may differ between copies of a dataset are zeroed.
    pub masked: [u8; CORE_BYTES],
    /// Length of the whole dnode in bytes.
    pub total_bytes: usize,
    /// End of the block pointers.
    pub bonus_start: usize,
    /// Start of the spill pointer, or end of the dnode.
    pub bonus_end: usize,
    /// Whether the bonus area is encrypted.
    pub has_encrypted_bonus: bool,
}

impl Core {
    /// Returns `None` if `dnode` is shorter than a slot, or if pointers and spill pointer overlap.
    pub(crate) fn decode(dnode: &[u8], endian: Endian) -> Option<Self> {
        let stored = dnode.get(..DNODE_SLOT_BYTES)?.first_chunk::<CORE_BYTES>()?;
        #[rustfmt::skip]
        let [object_type, _, _, pointers, bonus_type, _, _, flags, _, _, b0, b1, extra, ..] = *stored;
        let flags = DnodeFlags::from_bits_retain(flags) & DnodeFlags::SPILL_POINTER;
        let mut masked = *stored;
        *masked.get_mut(7)? = flags.bits();
        masked.get_mut(24..32)?.fill(0);
        let total_bytes = usize::from(extra)
            .checked_add(1)?
            .checked_mul(DNODE_SLOT_BYTES)?;
        let bonus_start = usize::from(pointers)
            .checked_mul(BLOCK_POINTER_BYTES)?
            .checked_add(CORE_BYTES)?;
        let spill_bytes = if flags.is_empty() {
            0
        } else {
            BLOCK_POINTER_BYTES
        };
        let bonus_end = total_bytes.checked_sub(spill_bytes)?;
        if bonus_start > bonus_end {
            return None;
        }
        Some(Self {
            masked,
            total_bytes,
            bonus_start,
            bonus_end,
            has_encrypted_bonus: object_type != 0
                && ObjectType(bonus_type).is_encrypted()
                && endian.u16([b0, b1]) != 0,
        })
    }
}
