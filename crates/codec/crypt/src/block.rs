//! Encryption and authentication of level-0 blocks, by type.

use crate::key::{BlockMac, is_equal, truncated};
use crate::{CryptError, DatasetKey, IV_BYTES, MAC_BYTES, SALT_BYTES, dnodes, log};
use millpond_ondisk::{BlockPointer, Endian, Level, ObjectType};

impl DatasetKey {
    /// Decrypts or only authenticates a level-0 block as stored (before decompression), in place.
    ///
    /// `block` has exactly the physical size. For an intent log block, the used part rounded up to 4096 bytes
    /// is enough. Intent log blocks and object sets contain their MACs; the MAC of any other block is in `bp`.
    /// Embedded pointers and holes are left unchanged, because the block that contains them was
    /// authenticated.
    ///
    /// # Errors
    /// - [`CryptError::Unprotected`] if the pointer has no crypt bit.
    /// - [`CryptError::MacMismatch`] if the block is not authentic. No other copy will be better.
    /// - [`CryptError::Malformed`] if its plain parts are not valid.
    /// - [`CryptError::Unsupported`] for an indirect block (see
    ///   [`verify_indirect_block`](crate::verify_indirect_block)) or a CCM block of 16 MiB.
    ///
    /// After an error the block's bytes are unspecified.
    pub fn decrypt_block(&self, bp: &BlockPointer, block: &mut [u8]) -> Result<(), CryptError> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        if !bp.has_crypt_bit() {
            // Without this check, an attacker who can write to the disk could replace blocks with plain ones.
            return Err(CryptError::Unprotected);
        }
        if bp.level() > Level(0) {
            return Err(CryptError::Unsupported {
                what: "decryption of an indirect block, which is never encrypted",
            });
        }
        let (salt, iv) = (bp.crypt_salt(), bp.crypt_iv());
        match bp.object_type() {
            ObjectType::OBJECT_SET => self.verify_object_set(block, bp.endian()).map(|_| ()),
            ObjectType::DNODE => self.decrypt_dnodes(salt, iv, bp.crypt_mac(), block, bp.endian()),
            ObjectType::INTENT_LOG => self.decrypt_log(salt, iv, block, bp.endian()),
            encrypted if encrypted.is_encrypted() => {
                self.decrypt_data(salt, iv, bp.crypt_mac(), block)
            }
            _ => self.verify_plain(bp.crypt_mac(), block),
        }
    }

    /// Decrypts a whole block in place.
    ///
    /// # Errors
    /// As [`DatasetKey::decrypt_block`].
    pub fn decrypt_data(
        &self,
        salt: [u8; SALT_BYTES],
        iv: [u8; IV_BYTES],
        mac: BlockMac,
        block: &mut [u8],
    ) -> Result<(), CryptError> {
        self.block_cipher(salt)?
            .open(iv, &[], block, mac)?
            .ok_or(mismatch("encrypted block"))
    }

    /// Encrypts a whole block (compressed and padded to its physical size) in place and returns its MAC. `iv`
    /// must be random and never reused, or come from [`DatasetKey::dedup_salt_and_iv`].
    ///
    /// # Errors
    /// [`CryptError::Unsupported`] for a CCM block of 16 MiB.
    pub fn encrypt_data(
        &self,
        salt: [u8; SALT_BYTES],
        iv: [u8; IV_BYTES],
        block: &mut [u8],
    ) -> Result<BlockMac, CryptError> {
        self.block_cipher(salt)?.seal(iv, &[], block)
    }

    /// Decrypts the bonus areas of a block of dnodes and authenticates the whole block.
    ///
    /// # Errors
    /// As [`DatasetKey::decrypt_block`].
    pub fn decrypt_dnodes(
        &self,
        salt: [u8; SALT_BYTES],
        iv: [u8; IV_BYTES],
        mac: BlockMac,
        block: &mut [u8],
        endian: Endian,
    ) -> Result<(), CryptError> {
        dnodes::message(block, endian, self.version())?
            .open(&self.block_cipher(salt)?, iv, mac, block)?
            .ok_or(mismatch("dnode block"))
    }

    /// Encrypts the bonus areas of a block of dnodes in place and returns the MAC of the whole block. The
    /// block pointers of the dnodes must be final.
    ///
    /// # Errors
    /// [`CryptError::Malformed`] if the block is not a sequence of dnodes.
    pub fn encrypt_dnodes(
        &self,
        salt: [u8; SALT_BYTES],
        iv: [u8; IV_BYTES],
        block: &mut [u8],
        endian: Endian,
    ) -> Result<BlockMac, CryptError> {
        dnodes::message(block, endian, self.version())?.seal(&self.block_cipher(salt)?, iv, block)
    }

    /// Decrypts the records of an intent log block. Salt and IV come from the pointer to it; the MAC is in
    /// the block.
    ///
    /// # Errors
    /// As [`DatasetKey::decrypt_block`].
    pub fn decrypt_log(
        &self,
        salt: [u8; SALT_BYTES],
        iv: [u8; IV_BYTES],
        block: &mut [u8],
        endian: Endian,
    ) -> Result<(), CryptError> {
        let message = log::message(block, endian)?;
        let mac = block
            .get(log::MAC_OFFSET..)
            .and_then(<[u8]>::first_chunk::<MAC_BYTES>)
            .copied()
            .unwrap_or_default();
        message
            .open(&self.block_cipher(salt)?, iv, mac, block)?
            .ok_or(mismatch("intent log block"))
    }

    /// Encrypts the records of an intent log block in place and stores the MAC in the block. The caller then
    /// computes the first half of the embedded checksum.
    ///
    /// # Errors
    /// [`CryptError::Malformed`] if header or records are not valid.
    pub fn encrypt_log(
        &self,
        salt: [u8; SALT_BYTES],
        iv: [u8; IV_BYTES],
        block: &mut [u8],
        endian: Endian,
    ) -> Result<BlockMac, CryptError> {
        let mac = log::message(block, endian)?.seal(&self.block_cipher(salt)?, iv, block)?;
        let place = block.get_mut(log::MAC_OFFSET..);
        if let Some(place) = place.and_then(<[u8]>::first_chunk_mut::<MAC_BYTES>) {
            *place = mac;
        }
        Ok(mac)
    }

    /// Verifies a block of a type that is not encrypted.
    ///
    /// # Errors
    /// [`CryptError::MacMismatch`].
    pub fn verify_plain(&self, mac: BlockMac, block: &[u8]) -> Result<(), CryptError> {
        if is_equal(&self.plain_mac(block), &mac) {
            Ok(())
        } else {
            Err(mismatch("authenticated block"))
        }
    }

    /// The MAC of a block of a type that is not encrypted, over its stored bytes (compressed and padded).
    #[must_use]
    pub fn plain_mac(&self, block: &[u8]) -> BlockMac {
        truncated(self.hmac(&[block]))
    }
}

fn mismatch(structure: &'static str) -> CryptError {
    CryptError::MacMismatch { structure }
}
