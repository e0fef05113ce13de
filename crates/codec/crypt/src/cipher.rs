//! The six AEAD ciphers: AES with three key sizes in two modes, with a nonce of 12 bytes and a tag of 16
//! bytes.

use crate::fast_gcm::FastGcm;
use crate::{CryptError, CryptSuite, IV_BYTES, MAC_BYTES};
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::{
    AesGcm,
    aead::{
        AeadInOut, KeyInit,
        array::Array,
        consts::{U12, U16},
    },
};
use ccm::Ccm;

/// With a nonce of twelve bytes, CCM's length field has three.
const CCM_MESSAGE_BYTES_MAX: usize = (1 << 24) - 1;

/// A cipher with its expanded key. The key is wiped on drop.
pub(crate) enum Cipher {
    Ccm128(Box<Ccm<Aes128, U16, U12>>),
    Ccm192(Box<Ccm<Aes192, U16, U12>>),
    Ccm256(Box<Ccm<Aes256, U16, U12>>),
    Gcm128(Box<AesGcm<Aes128, U12>>),
    Gcm192(Box<AesGcm<Aes192, U12>>),
    Gcm256(Box<AesGcm<Aes256, U12>>),
    FastGcm(FastGcm),
}

impl Cipher {
    /// Expands a key. `key` must have [`CryptSuite::key_bytes`] bytes.
    pub(crate) fn new(suite: CryptSuite, key: &[u8]) -> Result<Self, CryptError> {
        let is_gcm = matches!(suite, CryptSuite::Aes128Gcm | CryptSuite::Aes256Gcm);
        if is_gcm
            && key.len() == suite.key_bytes()
            && let Some(fast) = FastGcm::new(key)
        {
            return Ok(Self::FastGcm(fast));
        }
        Self::portable(suite, key)
    }

    /// As [`Cipher::new`], for any processor.
    pub(crate) fn portable(suite: CryptSuite, key: &[u8]) -> Result<Self, CryptError> {
        fn keyed<C: KeyInit>(key: &[u8]) -> Result<Box<C>, CryptError> {
            let wrong_length = CryptError::Unsupported {
                what: "a key of another length than its suite's",
            };
            C::new_from_slice(key)
                .map(Box::new)
                .map_err(|_| wrong_length)
        }
        Ok(match suite {
            CryptSuite::Aes128Ccm => Self::Ccm128(keyed(key)?),
            CryptSuite::Aes192Ccm => Self::Ccm192(keyed(key)?),
            CryptSuite::Aes256Ccm => Self::Ccm256(keyed(key)?),
            CryptSuite::Aes128Gcm => Self::Gcm128(keyed(key)?),
            CryptSuite::Aes192Gcm => Self::Gcm192(keyed(key)?),
            CryptSuite::Aes256Gcm => Self::Gcm256(keyed(key)?),
        })
    }

    /// Encrypts `text` in place and returns the tag over `text` and `aad`.
    pub(crate) fn seal(
        &self,
        iv: [u8; IV_BYTES],
        aad: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; MAC_BYTES], CryptError> {
        self.check_length(text)?;
        let nonce = Array(iv);
        let sealed = match self {
            Self::Ccm128(c) => c.encrypt_inout_detached(&nonce, aad, text.into()),
            Self::Ccm192(c) => c.encrypt_inout_detached(&nonce, aad, text.into()),
            Self::Ccm256(c) => c.encrypt_inout_detached(&nonce, aad, text.into()),
            Self::Gcm128(c) => c.encrypt_inout_detached(&nonce, aad, text.into()),
            Self::Gcm192(c) => c.encrypt_inout_detached(&nonce, aad, text.into()),
            Self::Gcm256(c) => c.encrypt_inout_detached(&nonce, aad, text.into()),
            Self::FastGcm(c) => return Ok(c.seal(iv, aad, text)),
        };
        sealed
            .map(|tag| tag.0)
            .map_err(|_| CryptError::Unsupported {
                what: "a message longer than the mode can express",
            })
    }

    /// Decrypts `text` in place. Returns `None` if the tag does not match `text` and `aad`. The bytes are
    /// then unspecified, but never unauthenticated plaintext.
    pub(crate) fn open(
        &self,
        iv: [u8; IV_BYTES],
        aad: &[u8],
        text: &mut [u8],
        mac: [u8; MAC_BYTES],
    ) -> Result<Option<()>, CryptError> {
        self.check_length(text)?;
        let (nonce, tag) = (Array(iv), Array(mac));
        let opened = match self {
            Self::Ccm128(c) => c.decrypt_inout_detached(&nonce, aad, text.into(), &tag),
            Self::Ccm192(c) => c.decrypt_inout_detached(&nonce, aad, text.into(), &tag),
            Self::Ccm256(c) => c.decrypt_inout_detached(&nonce, aad, text.into(), &tag),
            Self::Gcm128(c) => c.decrypt_inout_detached(&nonce, aad, text.into(), &tag),
            Self::Gcm192(c) => c.decrypt_inout_detached(&nonce, aad, text.into(), &tag),
            Self::Gcm256(c) => c.decrypt_inout_detached(&nonce, aad, text.into(), &tag),
            Self::FastGcm(c) => return Ok(c.open(iv, aad, text, mac)),
        };
        Ok(opened.ok())
    }

    fn check_length(&self, text: &[u8]) -> Result<(), CryptError> {
        let is_ccm = matches!(self, Self::Ccm128(_) | Self::Ccm192(_) | Self::Ccm256(_));
        if is_ccm && text.len() > CCM_MESSAGE_BYTES_MAX {
            return Err(CryptError::Unsupported {
                what: "a CCM message of 16 MiB: its length does not fit the length field",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What one implementation seals, the other opens, and a changed bit it does not.
        #[test]
        fn both_implementations_of_gcm_agree(
            is_long in any::<bool>(),
            key in any::<[u8; 32]>(),
            iv in any::<[u8; IV_BYTES]>(),
            aad in prop::collection::vec(any::<u8>(), 0..600),
            text in prop::collection::vec(any::<u8>(), 0..3000),
            at in any::<prop::sample::Index>(),
        ) {
            let suite = match is_long {
                true => CryptSuite::Aes256Gcm,
                false => CryptSuite::Aes128Gcm,
            };
            let key = &key[..suite.key_bytes()];
            let portable = Cipher::portable(suite, key).unwrap();
            let chosen = Cipher::new(suite, key).unwrap();
            let mut sealed = text.clone();
            let mac = portable.seal(iv, &aad, &mut sealed).unwrap();
            let mut same = text.clone();
            prop_assert_eq!(chosen.seal(iv, &aad, &mut same).unwrap(), mac);
            prop_assert_eq!(&same, &sealed);
            prop_assert_eq!(chosen.open(iv, &aad, &mut same, mac).unwrap(), Some(()));
            prop_assert_eq!(&same, &text);
            let mut wrong = mac;
            wrong[at.index(MAC_BYTES)] ^= 1;
            prop_assert_eq!(chosen.open(iv, &aad, &mut sealed.clone(), wrong).unwrap(), None);
            if !sealed.is_empty() {
                let at = at.index(sealed.len());
                sealed[at] ^= 0x80;
                prop_assert_eq!(chosen.open(iv, &aad, &mut sealed.clone(), mac).unwrap(), None);
            }
        }
    }
}
