//! Keys, blocks and MACs compared with recorded values, in both byte orders and with damage to every part.

mod blocks;
mod dnodes;
mod keys;
mod logs;
mod object_sets;

use super::*;
use millpond_ondisk::{BlockPointer, Endian, Guid, ObjectId, ObjectType};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| u8::try_from((byte as char).to_digit(16).unwrap()).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] * 16 + pair[1])
        .collect()
}

fn array<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().unwrap()
}

const GCM_MASTER: &str = "91380e2592a2fc040b8e9e72b74d3bbd6bc9163668171ec662dbd782419bbf82";
const GCM_HMAC: &str = "21d30b228809368566a3098a7b1dadd9e49078c0957649e41d5b55eeb5a0cb7c
     5ee10d8cf1c90be853829d9a39c24ebdc1481c3d8e26b6dff7428ef3bde99d52";
const CCM_MASTER: &str = "837ef351b12208f52f02f9e0bf39d23bb73a7faa701bba152e11abb7cd09c054";
const CCM_HMAC: &str = "518fa4e5ce57337371d86d36ebf228f3693948fdcd552a029e173fc53099fa28
     a9605d60fcfd8d3ec7a95eb8e01ed94f36c9b2689421fe2b098091e6cd421d18";

fn gcm_object() -> CryptKey {
    CryptKey {
        suite: CryptSuite::Aes256Gcm,
        guid: Guid(0x10c6_9667_0f89_8e2b),
        version: 1,
        wrapped_master: array("8849d995acc37708c3d6a6607624d2592f99e91e0167729526bf3dafa0c7efd9"),
        wrapped_hmac: array(
            "622409cb8b0c552cc7dfd1b3f94a99238fc44610a3946237f6539a15de42e7ce
             38c93b953b87a7f6b472ff4b45f15948f39c79099b50833cb111445735d30826",
        ),
        iv: array("74fdb673c973b025e799108a"),
        mac: array("256bf546a77c7d5d33ff5dcd5efe63c4"),
        root_directory: ObjectId(0),
        reference_count: 1,
        key_format: KeyFormat::Passphrase,
        pbkdf2_salt: 0xaf55_4793_1e4b_f5d2,
        pbkdf2_iterations: 350_000,
    }
}

fn ccm_object() -> CryptKey {
    CryptKey {
        suite: CryptSuite::Aes256Ccm,
        guid: Guid(0xfdc5_48d8_cbe8_47e9),
        version: 1,
        wrapped_master: array("a3fa4ced67d46f123ae409f3a6560aad85e948ab110f5b8236587687ce331c87"),
        wrapped_hmac: array(
            "b411e8a80b594f07a59d06fc533591649cbb96d2a4facd02df9c5d8924c9822a
             eea94c0dfd6488f61f578fbcde1ade1b5768459afaba405d6cb2d9aaef13dd02",
        ),
        iv: array("297c9adb387bcb1982bd80ef"),
        mac: array("d022f87f2128d1911b62a5b326e3a0ea"),
        pbkdf2_salt: 0x360c_f7fa_1979_4138,
        ..gcm_object()
    }
}

fn gcm_key() -> DatasetKey {
    let guid = gcm_object().guid;
    DatasetKey::new(
        CryptSuite::Aes256Gcm,
        guid,
        1,
        &hex(GCM_MASTER),
        &array(GCM_HMAC),
    )
    .unwrap()
}

fn ccm_key() -> DatasetKey {
    let guid = ccm_object().guid;
    DatasetKey::new(
        CryptSuite::Aes256Ccm,
        guid,
        1,
        &hex(CCM_MASTER),
        &array(CCM_HMAC),
    )
    .unwrap()
}

fn assert_same_secrets(left: &DatasetKey, right: &DatasetKey) {
    assert_eq!(left.plain_mac(b"x"), right.plain_mac(b"x"));
    let (mut a, mut b) = ([0; 32], [0; 32]);
    let macs = [(left, &mut a), (right, &mut b)]
        .map(|(key, block)| key.encrypt_data([3; 8], [4; 12], block).unwrap());
    assert_eq!((macs[0], a), (macs[1], b));
}

/// A pointer to a block of this object type, written in `endian` order.
fn pointer(endian: Endian, object_type: ObjectType, level: u64) -> BlockPointer {
    let mut bp = BlockPointer::default();
    (bp.words[0], bp.words[1], bp.words[10], bp.words[11]) = (8, 8, 5, 1);
    let order = u64::from(endian == Endian::Little) << 63;
    bp.words[6] = order | 1 << 61 | level << 56 | u64::from(object_type.0) << 48 | 7 << 40;
    bp.set_crypt_salt_and_iv([1, 2, 3, 4, 5, 6, 7, 8], [21; 12]);
    bp
}

fn stored_pointer(bp: &BlockPointer, endian: Endian) -> Vec<u8> {
    bp.words
        .iter()
        .flat_map(|word| match endian {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        })
        .collect()
}

/// The same block with every field in the other byte order.
fn swapped_words(block: &[u8]) -> Vec<u8> {
    let mut swapped = block.to_vec();
    swapped.chunks_exact_mut(8).for_each(<[u8]>::reverse);
    swapped
}

fn indirect_pointer() -> Vec<u8> {
    hex(
        "02000000 00000000 30010000 00000000 02000000 00000000 30810000 00000000
         00000000 00000000 00000000 00000000 ff000100 0f070aa5 00000000 00000000
         00000000 00000000 00000000 00000000 08000000 00000000 06000000 00000000 b4ddb684 f49e1f00
         da1c4b2d b6f5dd07 4ff47521 08c5cd5a 36633756 6b5590ca",
    )
}
