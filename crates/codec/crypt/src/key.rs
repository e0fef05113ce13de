//! The unwrapped keys of a dataset, and the two primitives based on them.

use crate::cipher::Cipher;
use crate::locked::LockedBytes;
use crate::{CryptError, CryptKey, CryptSuite, IV_BYTES, MAC_BYTES, SALT_BYTES, WrappingKey};
use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use millpond_ondisk::Guid;
use sha2::Sha512;
use zeroize::{Zeroize, Zeroizing};

const HMAC_KEY_BYTES: usize = 64;
/// The version of new keys.
const KEY_VERSION: u64 = 1;
const PSEUDO_RANDOM_KEY_BYTES: usize = 64;
/// Offset of the master key in the secret bytes.
const MASTER_KEY_AT: usize = HMAC_KEY_BYTES + PSEUDO_RANDOM_KEY_BYTES;
/// Key length of the longest suite.
const MASTER_KEY_BYTES_MAX: usize = 32;

/// The unwrapped keys of one clone family of datasets.
///
/// All secrets are wiped on drop. They are in memory that is not swapped where the system permits that.
///
/// Each block is encrypted with a key derived from the master key and the block's salt. The derivation costs
/// one HMAC-SHA-512 over a few bytes, about 1.5 microseconds including the key schedule, and is repeated for
/// every block. This is little compared with the block's AES, and avoids a shared key cache.
///
/// Page `docs/format/encryption.md`, "Keys".
pub struct DatasetKey {
    suite: CryptSuite,
    guid: Guid,
    version: u64,
    /// The HMAC key, the first half of HKDF (which does not depend on the salt), and the master key.
    secret: LockedBytes,
    /// Whether object sets are read of which objects are missing.
    pub(crate) reads_cut_object_sets: bool,
}

impl DatasetKey {
    /// Takes plain keys. `master` must have [`CryptSuite::key_bytes`] bytes. `version` is 1 except for
    /// datasets of the first releases.
    ///
    /// # Errors
    /// [`CryptError::Unsupported`] for any other length or version.
    pub fn new(
        suite: CryptSuite,
        guid: Guid,
        version: u64,
        master: &[u8],
        hmac: &[u8; HMAC_KEY_BYTES],
    ) -> Result<Self, CryptError> {
        if master.len() != suite.key_bytes() {
            return Err(CryptError::Unsupported {
                what: "a master key of another length than its suite's",
            });
        }
        if version > 1 {
            return Err(CryptError::Unsupported {
                what: "a key version above 1",
            });
        }
        let (mut extracted, _) = Hkdf::<Sha512>::extract(None, master);
        let secret = LockedBytes::concat(&[hmac, &extracted.0, master]);
        extracted.0.zeroize();
        Ok(Self {
            suite,
            guid,
            version,
            secret,
            reads_cut_object_sets: false,
        })
    }

    /// A key for object sets that a raw stream brought, and that lack the objects after the place where it was cut. Their
    /// portable MAC covers all objects together, so it is not verified. Each block is, and so are the pointers to it.
    #[must_use]
    pub fn for_cut_object_sets(mut self) -> Self {
        self.reads_cut_object_sets = true;
        self
    }

    /// Makes new keys of the present version. `fill` supplies unpredictable bytes.
    ///
    /// # Errors
    /// None at present.
    pub fn generate(
        suite: CryptSuite,
        guid: Guid,
        fill: impl Fn(&mut [u8]),
    ) -> Result<Self, CryptError> {
        let mut master = Zeroizing::new(vec![0; suite.key_bytes()]);
        let mut hmac = Zeroizing::new([0; HMAC_KEY_BYTES]);
        fill(&mut master);
        fill(&mut *hmac);
        Self::new(suite, guid, KEY_VERSION, &master, &hmac)
    }

    fn hmac_key(&self) -> &[u8] {
        let bytes = self.secret.as_slice();
        bytes.get(..HMAC_KEY_BYTES).unwrap_or_default()
    }
    fn pseudo_random_key(&self) -> &[u8] {
        let bytes = self.secret.as_slice();
        bytes.get(HMAC_KEY_BYTES..MASTER_KEY_AT).unwrap_or_default()
    }
    fn master_key(&self) -> &[u8] {
        let bytes = self.secret.as_slice();
        bytes.get(MASTER_KEY_AT..).unwrap_or_default()
    }

    /// Unwraps the keys in a dataset's key object.
    ///
    /// # Errors
    /// [`CryptError::WrongKey`] if the wrapping key is wrong or the object is damaged. These two cases cannot
    /// be distinguished.
    pub fn unwrap(object: &CryptKey, wrapping: &WrappingKey) -> Result<Self, CryptError> {
        let (master, _) = object
            .wrapped_master
            .split_at_checked(object.suite.key_bytes())
            .ok_or(CryptError::WrongKey)?;
        let mut text = Zeroizing::new([master, &object.wrapped_hmac].concat());
        let aad = wrapping_aad(object.guid, object.suite, object.version);
        wrapping_cipher(object.suite, wrapping)?
            .open(object.iv, &aad, &mut text, object.mac)?
            .ok_or(CryptError::WrongKey)?;
        let (master, hmac) = text
            .split_last_chunk::<HMAC_KEY_BYTES>()
            .ok_or(CryptError::WrongKey)?;
        Self::new(object.suite, object.guid, object.version, master, hmac)
    }

    /// Wraps the keys into `object` with a new random `iv`. Sets suite, guid, version, wrapped keys, IV and
    /// MAC, and leaves the rest unchanged.
    ///
    /// # Errors
    /// A valid key causes none.
    pub fn wrap(
        &self,
        wrapping: &WrappingKey,
        iv: [u8; IV_BYTES],
        object: &mut CryptKey,
    ) -> Result<(), CryptError> {
        let mut text = Zeroizing::new([self.master_key(), self.hmac_key()].concat());
        let aad = wrapping_aad(self.guid, self.suite, self.version);
        let mac = wrapping_cipher(self.suite, wrapping)?.seal(iv, &aad, &mut text)?;
        let (master, hmac) = text
            .split_last_chunk::<HMAC_KEY_BYTES>()
            .ok_or(CryptError::WrongKey)?;
        object.wrapped_master = [0; MASTER_KEY_BYTES_MAX];
        for (to, from) in object.wrapped_master.iter_mut().zip(master) {
            *to = *from;
        }
        object.wrapped_hmac = *hmac;
        (object.suite, object.guid, object.version) = (self.suite, self.guid, self.version);
        (object.iv, object.mac) = (iv, mac);
        Ok(())
    }

    /// The suite of all blocks.
    #[must_use]
    pub fn suite(&self) -> CryptSuite {
        self.suite
    }
    /// Identity of the master key. Equal in all datasets of a clone family.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.guid
    }
    /// The key version: 1, or 0 in datasets of the first releases, which are read-only.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Salt and IV of a block that takes part in dedup. They make equal content within the clone family
    /// encrypt to equal ciphertext. `stored` is the compressed and padded block.
    #[must_use]
    pub fn dedup_salt_and_iv(&self, stored: &[u8]) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let digest = self.hmac(&[stored]);
        let (mut salt, mut iv) = ([0; SALT_BYTES], [0; IV_BYTES]);
        let targets = salt.iter_mut().chain(&mut iv);
        targets.zip(digest).for_each(|(to, from)| *to = from);
        (salt, iv)
    }

    /// The cipher for blocks with this salt.
    pub(crate) fn block_cipher(&self, salt: [u8; SALT_BYTES]) -> Result<Cipher, CryptError> {
        let impossible = CryptError::Unsupported {
            what: "a block key of this length",
        };
        let mut key = Zeroizing::new([0; MASTER_KEY_BYTES_MAX]);
        let key = key.get_mut(..self.suite.key_bytes()).ok_or(impossible)?;
        Hkdf::<Sha512>::from_prk(self.pseudo_random_key())
            .map_err(|_| impossible)?
            .expand(&salt, key)
            .map_err(|_| impossible)?;
        Cipher::new(self.suite, key)
    }

    /// HMAC-SHA-512 over the concatenated parts with the dataset's HMAC key.
    pub(crate) fn hmac(&self, parts: &[&[u8]]) -> [u8; 64] {
        // HMAC accepts keys of any length.
        let Ok(mut hmac) = Hmac::<Sha512>::new_from_slice(self.hmac_key()) else {
            return [0; 64];
        };
        for part in parts {
            hmac.update(part);
        }
        hmac.finalize().into_bytes().0
    }
}

impl core::fmt::Debug for DatasetKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DatasetKey")
            .field("suite", &self.suite)
            .field("guid", &self.guid)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The wrapping key is always an AES-256 key, regardless of the suite's own key size.
fn wrapping_cipher(suite: CryptSuite, wrapping: &WrappingKey) -> Result<Cipher, CryptError> {
    let suite = match suite {
        CryptSuite::Aes128Ccm | CryptSuite::Aes192Ccm | CryptSuite::Aes256Ccm => {
            CryptSuite::Aes256Ccm
        }
        CryptSuite::Aes128Gcm | CryptSuite::Aes192Gcm | CryptSuite::Aes256Gcm => {
            CryptSuite::Aes256Gcm
        }
    };
    Cipher::new(suite, wrapping.as_bytes())
}

fn wrapping_aad(guid: Guid, suite: CryptSuite, version: u64) -> Vec<u8> {
    let mut aad = guid.0.to_le_bytes().to_vec();
    if version > 0 {
        aad.extend(suite.number().to_le_bytes());
        aad.extend(version.to_le_bytes());
    }
    aad
}

/// Returns the first bytes of a digest.
pub(crate) fn truncated<const N: usize>(digest: [u8; 64]) -> [u8; N] {
    digest.first_chunk::<N>().copied().unwrap_or([0; N])
}

/// Whether two MACs are equal, in constant time.
pub(crate) fn is_equal(left: &[u8], right: &[u8]) -> bool {
    subtle::ConstantTimeEq::ct_eq(left, right).into()
}

pub(crate) type BlockMac = [u8; MAC_BYTES];
