//! Object set blocks contain two MACs: one over the data that a raw send preserves, one over the rest.

use crate::dnodes::{Core, authenticate};
use crate::key::{is_equal, truncated};
use crate::{CryptError, DatasetKey};
use millpond_ondisk::{DNODE_SLOT_BYTES, Endian};

const STRUCTURE: &str = "object set";
const KIND_OFFSET: usize = 704;
const FLAGS_OFFSET: usize = 712;
const PORTABLE_MAC_OFFSET: usize = 720;
const LOCAL_MAC_OFFSET: usize = 752;
const OBJECT_SET_MAC_BYTES: usize = 32;
/// Offsets of the accounting dnodes: user, group and project.
const ACCOUNTING_OFFSETS: [usize; 3] = [1024, 1536, 2048];
/// The flag for complete user accounting.
const USER_ACCOUNTING_COMPLETE: u64 = 1;

/// Both MACs of an object set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectSetMacs {
    /// Over the kind and the meta-dnode. A raw send includes it.
    pub portable: [u8; OBJECT_SET_MAC_BYTES],
    /// Over flags and accounting dnodes. Zero if user accounting is not complete.
    pub local: [u8; OBJECT_SET_MAC_BYTES],
}

/// The result of checking an object set's local MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalMac {
    /// The MAC matches.
    Verified,
    /// There is no local MAC, as after a raw receive. The accounting objects must not be trusted; the next
    /// writer rebuilds them.
    Absent,
}

impl DatasetKey {
    /// Verifies both MACs of an object set block of 1024, 2048 or 4096 bytes in its stored byte order.
    ///
    /// # Errors
    /// [`CryptError::MacMismatch`]; [`CryptError::Malformed`] if the block is too short or a dnode in it is
    /// not valid.
    pub fn verify_object_set(&self, block: &[u8], endian: Endian) -> Result<LocalMac, CryptError> {
        let macs = self.object_set_macs(block, endian)?;
        let mismatch = |structure| Err(CryptError::MacMismatch { structure });
        let portable = stored_mac(block, PORTABLE_MAC_OFFSET)?;
        if !self.reads_cut_object_sets && !is_equal(&macs.portable, portable) {
            return mismatch("object set (portable part)");
        }
        let local = stored_mac(block, LOCAL_MAC_OFFSET)?;
        if local.iter().all(|byte| *byte == 0) {
            return Ok(LocalMac::Absent);
        }
        if !is_equal(&macs.local, local) {
            return mismatch("object set (local part)");
        }
        Ok(LocalMac::Verified)
    }

    /// Computes both MACs of an object set block, regardless of the MACs stored in it.
    ///
    /// # Errors
    /// [`CryptError::Malformed`] if the block is too short or a dnode in it is not valid.
    pub fn object_set_macs(
        &self,
        block: &[u8],
        endian: Endian,
    ) -> Result<ObjectSetMacs, CryptError> {
        let kind = word(block, KIND_OFFSET, endian)?;
        let flags = word(block, FLAGS_OFFSET, endian)?;
        let meta = self.dnode_digest_input(block, 0, endian)?;
        // No flag is portable, so zero replaces the flags. The kind is indeed big-endian.
        let portable = self.hmac(&[&kind.to_be_bytes(), &[0; 8], &meta]);
        let mut accounting = Vec::new();
        for offset in ACCOUNTING_OFFSETS {
            // A free dnode, or one beyond the end of a smaller block, is not included.
            if block
                .get(offset)
                .is_some_and(|object_type| *object_type != 0)
            {
                accounting.extend(self.dnode_digest_input(block, offset, endian)?);
            }
        }
        let local = if flags & USER_ACCOUNTING_COMPLETE == 0 || accounting.is_empty() {
            [0; OBJECT_SET_MAC_BYTES]
        } else {
            truncated(self.hmac(&[&flags.to_le_bytes(), &accounting]))
        };
        Ok(ObjectSetMacs {
            portable: truncated(portable),
            local,
        })
    }

    /// Stores both MACs in the block.
    ///
    /// # Errors
    /// As [`DatasetKey::object_set_macs`].
    pub fn seal_object_set(&self, block: &mut [u8], endian: Endian) -> Result<(), CryptError> {
        let macs = self.object_set_macs(block, endian)?;
        for (offset, mac) in [
            (PORTABLE_MAC_OFFSET, macs.portable),
            (LOCAL_MAC_OFFSET, macs.local),
        ] {
            let end = offset.saturating_add(OBJECT_SET_MAC_BYTES);
            if let Some(place) = block.get_mut(offset..end) {
                place.copy_from_slice(&mac);
            }
        }
        Ok(())
    }

    fn dnode_digest_input(
        &self,
        block: &[u8],
        offset: usize,
        endian: Endian,
    ) -> Result<Vec<u8>, CryptError> {
        let fail = |reason| CryptError::malformed(STRUCTURE, reason, offset);
        let end = offset.saturating_add(DNODE_SLOT_BYTES);
        let dnode = block.get(offset..end).ok_or(fail("too short"))?;
        let mut core = Core::decode(dnode, endian).ok_or(fail("dnode cannot be"))?;
        if core.total_bytes != DNODE_SLOT_BYTES {
            return Err(fail("dnode of more than one slot"));
        }
        if endian == Endian::Big {
            swap_core(&mut core.masked);
        }
        let mut input = Vec::new();
        authenticate(dnode, &core, endian, self.version(), &mut input)
            .ok_or(fail("dnode cannot be"))?;
        Ok(input)
    }
}

/// Converts a big-endian core to little-endian form: two 16-bit fields, then words from byte 16 on.
fn swap_core(core: &mut [u8; 64]) {
    for (start, end) in [(8, 10), (10, 12)] {
        if let Some(field) = core.get_mut(start..end) {
            field.reverse();
        }
    }
    if let Some(words) = core.get_mut(16..) {
        words.chunks_exact_mut(8).for_each(<[u8]>::reverse);
    }
}

fn word(block: &[u8], offset: usize, endian: Endian) -> Result<u64, CryptError> {
    block
        .get(offset..)
        .and_then(<[u8]>::first_chunk::<8>)
        .map(|word| endian.u64(*word))
        .ok_or(CryptError::malformed(STRUCTURE, "too short", offset))
}

fn stored_mac(block: &[u8], offset: usize) -> Result<&[u8], CryptError> {
    block
        .get(offset..offset.saturating_add(OBJECT_SET_MAC_BYTES))
        .ok_or(CryptError::malformed(STRUCTURE, "too short", offset))
}
