//! Blocks that are partly encrypted. The encrypted areas form one message, in order; everything else that
//! matters is authenticated with it.

use crate::cipher::Cipher;
use crate::key::BlockMac;
use crate::{CryptError, IV_BYTES};
use core::ops::Range;
use zeroize::Zeroizing;

/// The encrypted and the authenticated parts of a block. Takes at most as much memory as the block.
#[derive(Default)]
pub(crate) struct Message {
    /// Data authenticated together with the encrypted areas.
    pub aad: Vec<u8>,
    /// Encrypted byte ranges of the block, in ascending order.
    pub areas: Vec<Range<usize>>,
}

impl Message {
    pub(crate) fn seal(
        &self,
        cipher: &Cipher,
        iv: [u8; IV_BYTES],
        block: &mut [u8],
    ) -> Result<BlockMac, CryptError> {
        let mut text = self.gather(block);
        let mac = cipher.seal(iv, &self.aad, &mut text)?;
        self.scatter(&text, block);
        Ok(mac)
    }

    /// Decrypts the areas. Returns `None` if the MAC does not match; the block is then unchanged.
    pub(crate) fn open(
        &self,
        cipher: &Cipher,
        iv: [u8; IV_BYTES],
        mac: BlockMac,
        block: &mut [u8],
    ) -> Result<Option<()>, CryptError> {
        let mut text = self.gather(block);
        let opened = cipher.open(iv, &self.aad, &mut text, mac)?;
        if opened.is_some() {
            self.scatter(&text, block);
        }
        Ok(opened)
    }

    fn gather(&self, block: &[u8]) -> Zeroizing<Vec<u8>> {
        let areas = self.areas.iter().filter_map(|area| block.get(area.clone()));
        let mut text = Zeroizing::new(Vec::with_capacity(self.areas.iter().map(Range::len).sum()));
        areas.for_each(|area| text.extend_from_slice(area));
        text
    }

    fn scatter(&self, text: &[u8], block: &mut [u8]) {
        let mut rest = text;
        for area in &self.areas {
            if let (Some(to), Some((from, after))) = (
                block.get_mut(area.clone()),
                rest.split_at_checked(area.len()),
            ) {
                to.copy_from_slice(from);
                rest = after;
            }
        }
    }
}
