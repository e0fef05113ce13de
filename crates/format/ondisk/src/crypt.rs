//! The key object of an encrypted dataset, and the crypt fields of block pointers.
//!
//! Page `docs/format/encryption.md`.

use crate::{BlockPointer, DecodeError, Guid, ObjectId};

/// A dataset's encryption suite. Page `docs/format/encryption.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "the names are the documentation; the page has the table"
)]
pub enum CryptSuite {
    Aes128Ccm = 3,
    Aes192Ccm = 4,
    Aes256Ccm = 5,
    Aes128Gcm = 6,
    Aes192Gcm = 7,
    Aes256Gcm = 8,
}

impl CryptSuite {
    /// Every suite, in numerical order.
    pub const ALL: [CryptSuite; 6] = [
        Self::Aes128Ccm,
        Self::Aes192Ccm,
        Self::Aes256Ccm,
        Self::Aes128Gcm,
        Self::Aes192Gcm,
        Self::Aes256Gcm,
    ];
    /// The suite with this number; `None` for "inherit", "on" and "off" (0 to 2) and unknown numbers.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.number() == number)
    }
    /// The number stored on disk.
    #[must_use]
    pub fn number(self) -> u64 {
        self as u64
    }
    /// The value of the `encryption` property.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Ccm => "aes-128-ccm",
            Self::Aes192Ccm => "aes-192-ccm",
            Self::Aes256Ccm => "aes-256-ccm",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes192Gcm => "aes-192-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }
    /// The largest block that can be encrypted, in bytes. CCM cannot express a message of 16 MiB.
    #[must_use]
    pub fn block_bytes_max(self) -> u32 {
        match self {
            Self::Aes128Ccm | Self::Aes192Ccm | Self::Aes256Ccm => 8 << 20,
            Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm => 16 << 20,
        }
    }
    /// Length of the master key and of block keys in bytes.
    #[must_use]
    pub fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }
}

/// The format of the user's key. Page `docs/format/encryption.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyFormat {
    /// Not encrypted.
    None = 0,
    /// 32 bytes.
    Raw = 1,
    /// 64 hexadecimal digits.
    Hex = 2,
    /// A passphrase, from which the key is derived.
    Passphrase = 3,
}

impl KeyFormat {
    /// The format with this number; `None` if it is unknown.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::None, Self::Raw, Self::Hex, Self::Passphrase]
            .into_iter()
            .find(|format| format.number() == number)
    }
    /// The number stored on disk.
    #[must_use]
    pub fn number(self) -> u64 {
        self as u64
    }
    /// The value of the `keyformat` property.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Raw => "raw",
            Self::Hex => "hex",
            Self::Passphrase => "passphrase",
        }
    }
}

/// One value of a key object or of a raw stream's key list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CryptKeyValue {
    /// A single 64-bit integer.
    Number(u64),
    /// An array of bytes.
    Bytes(Vec<u8>),
}

/// A key object: the wrapped master and HMAC keys of a clone family.
///
/// In the MOS it is a ZAP. Raw send streams carry an nvlist with the same names. Page
/// `docs/format/encryption.md`, "Key object".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CryptKey {
    /// The suite of all blocks, and of the key wrapping.
    pub suite: CryptSuite,
    /// Identity of the master key; it never changes.
    pub guid: Guid,
    /// 1, or 0 in datasets of the first releases.
    pub version: u64,
    /// The wrapped master key; only the first [`CryptSuite::key_bytes`] bytes are used.
    pub wrapped_master: [u8; 32],
    /// The wrapped HMAC key.
    pub wrapped_hmac: [u8; 64],
    /// Nonce of the wrapping.
    pub iv: [u8; 12],
    /// Tag of the wrapping.
    pub mac: [u8; 16],
    /// The DSL directory of the encryption root; 0 in streams, which do not store it.
    pub root_directory: ObjectId,
    /// The number of DSL directories that share the object; 0 in streams, which do not store it.
    pub reference_count: u64,
    /// Format of the user's key. Only valid in the encryption root's own object.
    pub key_format: KeyFormat,
    /// Salt of the key derivation from a passphrase, 0 for other formats. Validity as for `key_format`.
    pub pbkdf2_salt: u64,
    /// Iterations of the key derivation from a passphrase, 0 for other formats. Validity as for `key_format`.
    pub pbkdf2_iterations: u64,
}

/// Names of the entries.
pub mod crypt_key_names {
    /// Number of the suite.
    pub const SUITE: &str = "DSL_CRYPTO_SUITE";
    /// Identity of the master key.
    pub const GUID: &str = "DSL_CRYPTO_GUID";
    /// Key version; absent means 0.
    pub const VERSION: &str = "DSL_CRYPTO_VERSION";
    /// 32 bytes.
    pub const MASTER_KEY: &str = "DSL_CRYPTO_MASTER_KEY_1";
    /// 64 bytes.
    pub const HMAC_KEY: &str = "DSL_CRYPTO_HMAC_KEY_1";
    /// 12 bytes.
    pub const IV: &str = "DSL_CRYPTO_IV";
    /// 16 bytes.
    pub const MAC: &str = "DSL_CRYPTO_MAC";
    /// Object id of the encryption root's DSL directory.
    pub const ROOT_DIRECTORY: &str = "DSL_CRYPTO_ROOT_DDOBJ";
    /// The number of DSL directories that share the object.
    pub const REFERENCE_COUNT: &str = "DSL_CRYPTO_REFCOUNT";
    /// Number of the [`KeyFormat`](super::KeyFormat).
    pub const KEY_FORMAT: &str = "keyformat";
    /// Salt of a passphrase.
    pub const PBKDF2_SALT: &str = "pbkdf2salt";
    /// Iterations of a passphrase.
    pub const PBKDF2_ITERATIONS: &str = "pbkdf2iters";
}

impl CryptKey {
    /// Reads a key object through `entry`, which looks up a name.
    ///
    /// # Errors
    /// If an entry is missing, has another shape, or names an unknown suite or format.
    pub fn decode(
        mut entry: impl FnMut(&'static str) -> Option<CryptKeyValue>,
    ) -> Result<Self, DecodeError> {
        use crypt_key_names as names;
        let version = match entry(names::VERSION) {
            None => 0,
            Some(value) => number(Some(value))?,
        };
        if version > 1 {
            return fail("version above 1");
        }
        let optional = |value: Option<CryptKeyValue>| value.map_or(Ok(0), |v| number(Some(v)));
        let Some(suite) = CryptSuite::from_number(number(entry(names::SUITE))?) else {
            return fail("suite does not exist");
        };
        let Some(key_format) = KeyFormat::from_number(optional(entry(names::KEY_FORMAT))?) else {
            return fail("key format does not exist");
        };
        Ok(Self {
            suite,
            guid: Guid(number(entry(names::GUID))?),
            version,
            wrapped_master: bytes(entry(names::MASTER_KEY))?,
            wrapped_hmac: bytes(entry(names::HMAC_KEY))?,
            iv: bytes(entry(names::IV))?,
            mac: bytes(entry(names::MAC))?,
            root_directory: ObjectId(optional(entry(names::ROOT_DIRECTORY))?),
            reference_count: optional(entry(names::REFERENCE_COUNT))?,
            key_format,
            pbkdf2_salt: optional(entry(names::PBKDF2_SALT))?,
            pbkdf2_iterations: optional(entry(names::PBKDF2_ITERATIONS))?,
        })
    }

    /// Every entry of a key object in the MOS. For version 0, the version entry is absent.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, CryptKeyValue)> {
        use crypt_key_names as names;
        let number = CryptKeyValue::Number;
        let bytes = |bytes: &[u8]| CryptKeyValue::Bytes(bytes.to_vec());
        let mut entries = vec![
            (names::SUITE, number(self.suite.number())),
            (names::GUID, number(self.guid.0)),
            (names::MASTER_KEY, bytes(&self.wrapped_master)),
            (names::HMAC_KEY, bytes(&self.wrapped_hmac)),
            (names::IV, bytes(&self.iv)),
            (names::MAC, bytes(&self.mac)),
            (names::ROOT_DIRECTORY, number(self.root_directory.0)),
            (names::REFERENCE_COUNT, number(self.reference_count)),
            (names::KEY_FORMAT, number(self.key_format.number())),
            (names::PBKDF2_SALT, number(self.pbkdf2_salt)),
            (names::PBKDF2_ITERATIONS, number(self.pbkdf2_iterations)),
        ];
        if self.version > 0 {
            entries.push((names::VERSION, number(self.version)));
        }
        entries
    }
}

fn fail<T>(reason: &'static str) -> Result<T, DecodeError> {
    Err(DecodeError::new("key object", reason, 0))
}

fn number(value: Option<CryptKeyValue>) -> Result<u64, DecodeError> {
    match value {
        Some(CryptKeyValue::Number(number)) => Ok(number),
        Some(CryptKeyValue::Bytes(_)) => fail("entry is bytes, not a number"),
        None => fail("entry is missing"),
    }
}

fn bytes<const N: usize>(value: Option<CryptKeyValue>) -> Result<[u8; N], DecodeError> {
    match value {
        Some(CryptKeyValue::Bytes(bytes)) => bytes
            .try_into()
            .or_else(|_| fail("entry has the wrong length")),
        Some(CryptKeyValue::Number(_)) => fail("entry is a number, not bytes"),
        None => fail("entry is missing"),
    }
}

impl BlockPointer {
    /// Marks the block as one of an encrypted dataset: encrypted, or only authenticated.
    pub fn set_crypt_bit(&mut self) {
        if let Some(properties) = self.words.get_mut(6) {
            *properties |= 1 << 61;
        }
    }
    /// Sets salt (word 4) and IV (word 5, upper half of word 11) of an encrypted block.
    ///
    /// These are stored in the byte order of the block, so set that first (bit 63 of word 6).
    pub fn set_crypt_salt_and_iv(&mut self, salt: [u8; 8], iv: [u8; 12]) {
        let endian = self.endian();
        let [a, b, c, d, e, f, g, h, i, j, k, l] = iv;
        let tail = u64::from(endian.u32([i, j, k, l]));
        for (index, word) in self.words.iter_mut().enumerate() {
            match index {
                4 => *word = endian.u64(salt),
                5 => *word = endian.u64([a, b, c, d, e, f, g, h]),
                11 => *word = (*word & 0xffff_ffff) | (tail << 32),
                _ => {}
            }
        }
    }
    /// Sets the MAC of an X block other than an object set (words 14 and 15). The byte order is as in
    /// [`BlockPointer::set_crypt_salt_and_iv`].
    pub fn set_crypt_mac(&mut self, mac: [u8; 16]) {
        let endian = self.endian();
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = mac;
        let [.., first, second] = &mut self.words;
        *first = endian.u64([a, b, c, d, e, f, g, h]);
        *second = endian.u64([i, j, k, l, m, n, o, p]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endian;

    #[test]
    fn a_key_object_needs_each_of_its_entries() {
        let key = CryptKey {
            suite: CryptSuite::Aes192Gcm,
            guid: Guid(77),
            version: 1,
            wrapped_master: [1; 32],
            wrapped_hmac: [2; 64],
            iv: [3; 12],
            mac: [4; 16],
            root_directory: ObjectId(5),
            reference_count: 6,
            key_format: KeyFormat::Passphrase,
            pbkdf2_salt: 7,
            pbkdf2_iterations: 8,
        };
        let entries = key.entries();
        let find = |entries: &[(&str, CryptKeyValue)], name: &str| {
            let found = entries.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        };
        assert_eq!(
            CryptKey::decode(|name| find(&entries, name)),
            Ok(key.clone())
        );
        for needed in ["SUITE", "GUID", "MASTER_KEY_1", "HMAC_KEY_1", "IV", "MAC"] {
            let lacking = format!("DSL_CRYPTO_{needed}");
            let decoded = CryptKey::decode(|name| find(&entries, name).filter(|_| name != lacking));
            assert!(decoded.is_err(), "{needed}");
            let misshapen = CryptKey::decode(|name| match find(&entries, name) {
                Some(_) if name == lacking => Some(CryptKeyValue::Bytes(vec![0; 5])),
                other => other,
            });
            assert!(misshapen.is_err(), "{needed}");
        }
        let old = CryptKey { version: 0, ..key };
        let entries = old.entries();
        assert_eq!(find(&entries, "DSL_CRYPTO_VERSION"), None);
        assert_eq!(CryptKey::decode(|name| find(&entries, name)), Ok(old));
    }

    #[test]
    fn crypt_strings_follow_the_byte_order_of_the_block() {
        let salt = [1, 2, 3, 4, 5, 6, 7, 8];
        let iv = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22];
        let mac = core::array::from_fn(|index| 100 + index as u8);
        for property in [1 << 63, 0] {
            let mut bp = BlockPointer::default();
            bp.words[6] = property;
            bp.words[11] = 5;
            bp.set_crypt_salt_and_iv(salt, iv);
            bp.set_crypt_mac(mac);
            assert_eq!(
                (bp.crypt_salt(), bp.crypt_iv(), bp.crypt_mac()),
                (salt, iv, mac)
            );
            assert_eq!(bp.words[11] & 0xffff_ffff, 5);
            let mut stored = bp.encode();
            if bp.endian() == Endian::Big {
                stored.chunks_mut(8).for_each(<[u8]>::reverse);
            }
            assert_eq!(stored[32..40], salt);
            assert_eq!(stored[112..128], mac);
            assert_eq!(stored[40..48], iv[..8]);
            let tail = if property == 0 { 88..92 } else { 92..96 };
            assert_eq!(stored[tail], iv[8..]);
        }
    }

    #[test]
    fn each_suite_and_format_has_its_number_word_and_length() {
        let suites = [
            (3, "aes-128-ccm", 16),
            (4, "aes-192-ccm", 24),
            (5, "aes-256-ccm", 32),
            (6, "aes-128-gcm", 16),
            (7, "aes-192-gcm", 24),
            (8, "aes-256-gcm", 32),
        ];
        for (number, word, bytes) in suites {
            let suite = CryptSuite::from_number(number).unwrap();
            assert_eq!(
                (suite.number(), suite.name(), suite.key_bytes()),
                (number, word, bytes)
            );
        }
        for number in [0, 1, 2, 9, u64::MAX] {
            assert_eq!(CryptSuite::from_number(number), None);
        }
        for (number, word) in (0..).zip(["none", "raw", "hex", "passphrase"]) {
            let format = KeyFormat::from_number(number).unwrap();
            assert_eq!((format.number(), format.name()), (number, word));
        }
        assert_eq!(KeyFormat::from_number(4), None);
    }
}
