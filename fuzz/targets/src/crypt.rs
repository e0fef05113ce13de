//! Encryption with arbitrary pointers, data and key objects.

use crate::ordered;
use millpond_crypt::{DatasetKey, WrappingKey, verify_indirect_block};
use millpond_ondisk::{
    BlockPointer, CryptKey, CryptKeyValue, CryptSuite, Endian, Guid, crypt_key_names as names,
};
use std::sync::LazyLock;

static KEY: LazyLock<DatasetKey> = LazyLock::new(|| {
    let master = [7; 32];
    DatasetKey::new(CryptSuite::Aes256Gcm, Guid(1), 1, &master, &[9; 64])
        .expect("a key of 32 bytes")
});

/// Decrypts and authenticates a block, given a block pointer and its bytes.
pub fn encrypted_block(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Some((pointer, stored)) = rest.split_at_checked(128) else {
        return;
    };
    let Ok(pointer) = BlockPointer::decode(pointer, endian) else {
        return;
    };
    let mut bytes = stored.to_vec();
    let _ = KEY.decrypt_block(&pointer, &mut bytes);
    assert_eq!(bytes.len(), stored.len());
    let _ = verify_indirect_block(&pointer, stored);
    for endian in [Endian::Little, Endian::Big] {
        let _ = KEY.object_set_macs(stored, endian);
        let _ = KEY.verify_object_set(stored, endian);
        let (salt, iv, mac) = (
            pointer.crypt_salt(),
            pointer.crypt_iv(),
            pointer.crypt_mac(),
        );
        let mut bytes = stored.to_vec();
        let _ = KEY.decrypt_dnodes(salt, iv, mac, &mut bytes, endian);
        let mut bytes = stored.to_vec();
        let _ = KEY.decrypt_log(salt, iv, &mut bytes, endian);
        // Encrypted data decrypts to the same plain text.
        let mut bytes = stored.to_vec();
        if let Ok(mac) = KEY.encrypt_dnodes(salt, iv, &mut bytes, endian) {
            let decrypted = KEY.decrypt_dnodes(salt, iv, mac, &mut bytes, endian);
            assert_eq!((decrypted, bytes.as_slice()), (Ok(()), stored));
        }
    }
}

/// The object with a dataset's wrapped keys: a word that selects the entries, then the entries.
pub fn crypt_key(data: &[u8]) {
    let Some(([present, numbers], mut rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let mut index = 0;
    let decoded = CryptKey::decode(|name| {
        let bit = index % 8;
        index += 1;
        if present >> bit & 1 == 0 && index > 8 {
            return None;
        }
        let is_number = match name {
            names::SUITE | names::VERSION | names::GUID => true,
            _ => numbers >> bit & 1 == 1,
        };
        let length = rest
            .first()
            .map_or(0, |byte| usize::from(*byte))
            .min(rest.len());
        if is_number {
            let (word, after) = rest.split_first_chunk::<8>()?;
            rest = after;
            return Some(CryptKeyValue::Number(u64::from_le_bytes(*word) & 0xff));
        }
        let (bytes, after) = rest.split_at_checked(length)?;
        rest = after;
        Some(CryptKeyValue::Bytes(bytes.to_vec()))
    });
    if let Ok(key) = decoded {
        let _ = DatasetKey::unwrap(&key, &WrappingKey::from_bytes(&[3; 32]));
        let entries = key.entries();
        let again = CryptKey::decode(|name| {
            let found = entries.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        });
        assert!(again.is_ok(), "our own entries");
    }
    let _ = WrappingKey::from_hex(rest);
    let _ = WrappingKey::from_raw(rest);
}
