//! Encrypts and authenticates the blocks of encrypted datasets.
//!
//! Page `docs/format/encryption.md`, "Writing".

use super::{BlockWrite, Seal};
use crate::buffer_pool::BufferPool;
use millpond_crypt::{CryptError, DatasetKey, IV_BYTES, MAC_BYTES, SALT_BYTES, indirect_block_mac};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Entropy, Env};
use millpond_ondisk::{BlockPointer, Endian, Level, ObjectType};

/// The number of blocks that share a salt. Far fewer than the IVs of one block key may be, so that no IV repeats.
const BLOCKS_PER_SALT: u64 = 400_000_000;

/// The key of a dataset that is open for change, with the salt of the blocks that are written next.
///
/// The salt is random, as is the IV of each block. Page `docs/format/encryption.md`, "Writing".
pub struct WriteKey {
    key: Arc<DatasetKey>,
    entropy: Arc<dyn Entropy>,
    salt: Mutex<Salt, rank::Leaf>,
}

#[derive(Default)]
struct Salt {
    bytes: [u8; SALT_BYTES],
    /// The number of further blocks that use it.
    blocks_left: u64,
}

impl std::fmt::Debug for WriteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WriteKey").field(&self.key).finish()
    }
}

impl WriteKey {
    /// Begins to write with a key. Salts and IVs come from `env`.
    #[must_use]
    pub fn new(key: Arc<DatasetKey>, env: &Env) -> Arc<Self> {
        Arc::new(Self {
            key,
            entropy: Arc::clone(&env.entropy),
            salt: Mutex::default(),
        })
    }

    /// The key itself.
    #[must_use]
    pub fn key(&self) -> &Arc<DatasetKey> {
        &self.key
    }

    /// Salt and IV for one more block. They are never returned again.
    #[must_use]
    pub fn salt_and_iv(&self) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let mut iv = [0; IV_BYTES];
        self.entropy.fill(&mut iv);
        let mut salt = self.salt.lock();
        if salt.blocks_left == 0 {
            self.entropy.fill(&mut salt.bytes);
            salt.blocks_left = BLOCKS_PER_SALT;
        }
        salt.blocks_left -= 1;
        (salt.bytes, iv)
    }
}

/// The fields that encryption adds to a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Protection {
    salt_and_iv: Option<([u8; SALT_BYTES], [u8; IV_BYTES])>,
    mac: Option<[u8; MAC_BYTES]>,
}

impl Protection {
    /// That of a block which came with its codes.
    pub(super) fn given(job: &BlockWrite, seal: Seal) -> Self {
        let is_encrypted = job.level == Level(0) && job.object_type.is_encrypted();
        Self {
            salt_and_iv: is_encrypted.then_some((seal.salt, seal.iv)),
            mac: Some(seal.mac),
        }
    }

    pub(super) fn mark(&self, pointer: &mut BlockPointer) {
        pointer.set_crypt_bit();
        if let Some((salt, iv)) = self.salt_and_iv {
            pointer.set_crypt_salt_and_iv(salt, iv);
        }
        if let Some(mac) = self.mac {
            pointer.set_crypt_mac(mac);
        }
    }
}

/// Authenticates what needs no key: indirect blocks, and object set blocks, which have their codes inside.
pub(super) fn protect_raw(job: &BlockWrite) -> Result<Protection, String> {
    /// Raw streams have keys of this version only.
    const KEY_VERSION: u64 = 1;
    let mac = match job.level {
        Level(0) if job.object_type == ObjectType::OBJECT_SET => None,
        Level(0) => return Err("its key is not known, and its codes are missing".into()),
        _ => {
            let mac = indirect_block_mac(&job.content, Endian::Little, KEY_VERSION);
            Some(mac.map_err(|error| error.to_string())?)
        }
    };
    Ok(Protection {
        salt_and_iv: None,
        mac,
    })
}

/// Encrypts or authenticates a block of an encrypted dataset. Returns the bytes to store: `stored` itself where
/// nothing in it is encrypted.
///
/// An object set block already contains its MACs ([`DatasetKey::seal_object_set`]), because the owner of the block
/// keeps them.
pub(super) fn protect(
    job: &BlockWrite,
    key: &WriteKey,
    stored: Arc<Vec<u8>>,
    buffers: &BufferPool,
) -> Result<(Arc<Vec<u8>>, Protection), CryptError> {
    let only = |stored, mac| {
        let protection = Protection {
            salt_and_iv: None,
            mac,
        };
        Ok((stored, protection))
    };
    let own = key.key();
    if job.level > Level(0) {
        let mac = indirect_block_mac(&job.content, Endian::Little, own.version())?;
        return only(stored, Some(mac));
    }
    match job.object_type {
        ObjectType::OBJECT_SET => only(stored, None),
        object_type if !object_type.is_encrypted() => {
            let mac = own.plain_mac(&stored);
            only(stored, Some(mac))
        }
        object_type => {
            let (salt, iv) = match job.dedup {
                Some(_) => own.dedup_salt_and_iv(&stored),
                None => key.salt_and_iv(),
            };
            // The content of a block that does not compress is shared with its readers.
            let mut bytes = Arc::try_unwrap(stored).unwrap_or_else(|shared| buffers.copy(&shared));
            let mac = match object_type {
                ObjectType::DNODE => own.encrypt_dnodes(salt, iv, &mut bytes, Endian::Little)?,
                _ => own.encrypt_data(salt, iv, &mut bytes)?,
            };
            let protection = Protection {
                salt_and_iv: Some((salt, iv)),
                mac: Some(mac),
            };
            Ok((Arc::new(bytes), protection))
        }
    }
}
