//! What a raw stream says of the keys of its dataset, and of the object set.
//!
//! Page `docs/format/send-stream.md`, "Raw streams".

use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::{
    CryptKey, CryptKeyValue, CryptSuite, DecodeError, DnodeArrayShape, KeyFormat, crypt_key_names,
};

/// The name of the list in that of a [`Begin`](crate::Begin).
const LIST: &str = "crypt_keydata";
const PORTABLE_MAC: &str = "portable_mac";
const TO_IV_SET: &str = "to_ivset_guid";
const FROM_IV_SET: &str = "from_ivset_guid";
const CHECKSUM: &str = "mdn_checksum";
const COMPRESSION: &str = "mdn_compress";
const LEVELS: &str = "mdn_nlevels";
const BLOCK_BYTES: &str = "mdn_blksz";
const INDIRECT_SHIFT: &str = "mdn_indblkshift";
const POINTERS: &str = "mdn_nblkptr";
const LAST_BLOCK: &str = "mdn_maxblkid";
/// Every dnode array has as many pointers.
const POINTER_COUNT: u64 = 3;
/// The block size of every dnode array, in bytes.
const ARRAY_BLOCK_BYTES: u64 = 16 << 10;
/// Trees have no more levels.
const LEVELS_MAX: u64 = 12;
/// No dnode array has more blocks: objects have at most 48 bits, 32 of them are in a block.
const LAST_BLOCK_MAX: u64 = (1 << 43) - 1;

/// The keys of an encrypted dataset as they are stored, wrapped, and what its blocks alone do not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawKeys {
    /// The wrapped keys. Directory and reference count are not sent.
    pub key: CryptKey,
    /// The authentication code of the object set.
    pub portable_mac: [u8; 32],
    /// The shape of the dnode array.
    pub array: DnodeArrayShape,
    /// The guid of the snapshot's IV set; 0 if it has none.
    pub to_iv_set: u64,
    /// The guid of the older snapshot's IV set; 0 if there is none.
    pub from_iv_set: u64,
}

/// What is wrong with the keys in a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RawKeysError {
    /// The stream has none, or they are not as a sender writes them.
    #[error("the keys in the raw stream are not valid: {0}")]
    Invalid(String),
    /// A suite of a later release.
    #[error("the encryption suite {0} is not known")]
    UnknownSuite(u64),
    /// The dataset is one of the first releases.
    #[error("the dataset has a key of an old version, which is not sent raw")]
    OldVersion,
}

impl From<DecodeError> for RawKeysError {
    fn from(error: DecodeError) -> Self {
        Self::Invalid(error.to_string())
    }
}

fn invalid(reason: &str) -> RawKeysError {
    RawKeysError::Invalid(reason.to_owned())
}

impl RawKeys {
    /// Adds them to the list at the beginning of a stream.
    pub fn put(&self, list: &mut NvList) {
        use crypt_key_names as names;
        let mut own = NvList::new();
        let key = &self.key;
        let bytes = |bytes: &[u8]| NvValue::Uint8Array(bytes.to_vec());
        own.push(names::SUITE, key.suite.number());
        own.push(names::GUID, key.guid.0);
        own.push(names::VERSION, key.version);
        own.push(names::MASTER_KEY, bytes(&key.wrapped_master));
        own.push(names::HMAC_KEY, bytes(&key.wrapped_hmac));
        own.push(names::IV, bytes(&key.iv));
        own.push(names::MAC, bytes(&key.mac));
        own.push(PORTABLE_MAC, bytes(&self.portable_mac));
        own.push(names::KEY_FORMAT, key.key_format.number());
        own.push(names::PBKDF2_ITERATIONS, key.pbkdf2_iterations);
        own.push(names::PBKDF2_SALT, key.pbkdf2_salt);
        own.push(CHECKSUM, u64::from(self.array.checksum));
        own.push(COMPRESSION, u64::from(self.array.compression));
        own.push(LEVELS, u64::from(self.array.levels));
        own.push(BLOCK_BYTES, ARRAY_BLOCK_BYTES);
        own.push(INDIRECT_SHIFT, u64::from(self.array.indirect_shift));
        own.push(POINTERS, POINTER_COUNT);
        own.push(LAST_BLOCK, self.array.last_block);
        own.push(TO_IV_SET, self.to_iv_set);
        own.push(FROM_IV_SET, self.from_iv_set);
        list.push(LIST, own);
    }

    /// Finds them in the list at the beginning of a stream, and checks them.
    ///
    /// # Errors
    /// [`RawKeysError`].
    pub fn find(list: &NvList) -> Result<Self, RawKeysError> {
        let Some(NvValue::List(own)) = list.get(LIST) else {
            return Err(invalid("there are none"));
        };
        let number = |name: &str| own.u64(name).map_err(|_| invalid(name));
        let suite = number(crypt_key_names::SUITE)?;
        if suite > CryptSuite::Aes256Gcm.number() {
            return Err(RawKeysError::UnknownSuite(suite));
        }
        if own.u64(crypt_key_names::VERSION) != Ok(1) {
            return Err(RawKeysError::OldVersion);
        }
        let key = CryptKey::decode(|name| match own.get(name)? {
            NvValue::Uint64(number) => Some(CryptKeyValue::Number(*number)),
            NvValue::Uint8Array(bytes) => Some(CryptKeyValue::Bytes(bytes.clone())),
            _ => None,
        })?;
        let is_passphrase = key.key_format == KeyFormat::Passphrase;
        let has_derivation = key.pbkdf2_salt != 0 && key.pbkdf2_iterations != 0;
        let has_none = key.pbkdf2_salt == 0 && key.pbkdf2_iterations == 0;
        let is_derived_right = if is_passphrase {
            has_derivation
        } else {
            has_none
        };
        if key.key_format == KeyFormat::None || !is_derived_right {
            return Err(invalid("the format of the user's key"));
        }
        let Some(NvValue::Uint8Array(mac)) = own.get(PORTABLE_MAC) else {
            return Err(invalid(PORTABLE_MAC));
        };
        let small = |name: &str, range: core::ops::RangeInclusive<u64>| {
            let found = number(name)?;
            let small = u8::try_from(found).ok().filter(|_| range.contains(&found));
            small.ok_or_else(|| invalid(name))
        };
        let array = DnodeArrayShape {
            checksum: small(CHECKSUM, 0..=8)?,
            compression: small(COMPRESSION, 0..=14)?,
            levels: small(LEVELS, 1..=LEVELS_MAX)?,
            indirect_shift: small(INDIRECT_SHIFT, 12..=17)?,
            last_block: number(LAST_BLOCK)?,
        };
        let is_usual =
            number(BLOCK_BYTES)? == ARRAY_BLOCK_BYTES && number(POINTERS)? == POINTER_COUNT;
        if !is_usual || array.last_block > LAST_BLOCK_MAX || !reaches_last_block(&array) {
            return Err(invalid("the array of dnodes"));
        }
        Ok(Self {
            key,
            portable_mac: mac
                .as_slice()
                .try_into()
                .map_err(|_| invalid(PORTABLE_MAC))?,
            array,
            to_iv_set: number(TO_IV_SET)?,
            from_iv_set: own.opt_u64(FROM_IV_SET).ok().flatten().unwrap_or(0),
        })
    }
}

/// Whether a tree of this shape has a place for the last block.
fn reaches_last_block(array: &DnodeArrayShape) -> bool {
    let shift = u32::from(array.indirect_shift)
        .saturating_sub(7)
        .saturating_mul(u32::from(array.levels).saturating_sub(1));
    let blocks = u128::from(POINTER_COUNT)
        .checked_shl(shift)
        .unwrap_or(u128::MAX);
    u128::from(array.last_block) < blocks
}
