//! Damaged and forged key objects of encrypted datasets give typed errors.

use crate::cloning::{judged, make};
use crate::encryption::{KEY, prose, root, unlock};
use crate::sim;
use millpond_engine::{DestroyOptions, NewLayout::Single, Pool};
use millpond_ondisk::dsl::keys::CRYPTO_KEY_OBJECT;
use millpond_ondisk::{CryptKeyValue, ObjectId};
use millpond_sim::World;
use millpond_zap::{Zap, ZapMut, ZapValue};

/// Changes an entry of the key object of a dataset, as damage on the device would, but with a right checksum.
pub(crate) fn forge(pool: &Pool, name: &str, entry: &str, change: impl Fn(&mut ZapValue) + Send) {
    let view = pool.committed().unwrap();
    let directory = view.dataset(name).unwrap().inner().directory().clone();
    let words = directory.extension(CRYPTO_KEY_OBJECT).unwrap().unwrap();
    let id = ObjectId(words[0]);
    let changed = pool.inner().sync_task(|ctx| {
        let object = ctx.mos().object(id).unwrap();
        let zap = ZapMut::of(&object, ctx.tx());
        let mut value = (Zap::of_object(&object).unwrap())
            .lookup(entry.as_bytes())
            .unwrap()
            .unwrap();
        change(&mut value);
        zap.update(entry.as_bytes(), &value).unwrap();
        Ok(())
    });
    changed.unwrap();
}

#[test]
fn a_damaged_key_object_is_a_typed_error() {
    for entry in [
        "DSL_CRYPTO_SUITE",
        "DSL_CRYPTO_GUID",
        "DSL_CRYPTO_MASTER_KEY_1",
        "DSL_CRYPTO_HMAC_KEY_1",
        "DSL_CRYPTO_IV",
        "DSL_CRYPTO_MAC",
        "DSL_CRYPTO_VERSION",
        "DSL_CRYPTO_ROOT_DDOBJ",
    ] {
        let world = World::without_journal(605);
        let pool = sim::create(&world, &[(Single, 1)], 64);
        root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
        forge(&pool, "tank/e", entry, |value| value.bytes[0] ^= 0x40);
        pool.export().unwrap();
        let pool = sim::open(&world).unwrap();
        let view = pool.committed().unwrap();
        let refused = view.load_key("tank/e", KEY).unwrap_err();
        let words = refused.to_string();
        let is_plain = [
            "Incorrect key",
            "key object",
            "no longer exists",
            "is not",
            "dataset",
        ];
        assert!(
            is_plain.iter().any(|word| words.contains(word)),
            "{entry}: {words}"
        );
        assert!(pool.file_system("tank/e").is_err(), "{entry}");
        pool.datasets()
            .destroy("tank/e", DestroyOptions::default())
            .unwrap();
        pool.export().unwrap();
        judged(&world);
    }
}

#[test]
fn blocks_of_another_key_are_refused() {
    let world = World::without_journal(606);
    let pool = sim::create(&world, &[(Single, 1)], 64);
    for name in ["tank/a", "tank/b"] {
        root(&world, &pool, name, "aes-128-gcm", &[]);
        make(&pool.file_system(name).unwrap(), "f", &prose(1, 50_000));
    }
    pool.sync().unwrap();
    // The key object of the other dataset, with the root of this one: the key loads, and no block is authentic.
    let view = pool.committed().unwrap();
    let key_of = |name: &str| {
        let directory = view.dataset(name).unwrap().inner().directory().clone();
        directory.crypt_key().unwrap().unwrap()
    };
    let (own, other) = (key_of("tank/a"), key_of("tank/b"));
    drop(view);
    for (name, value) in other.entries() {
        if name == "DSL_CRYPTO_ROOT_DDOBJ" {
            continue;
        }
        forge(&pool, "tank/a", name, |entry| {
            *entry = match &value {
                CryptKeyValue::Number(number) => ZapValue::from_u64s(&[*number]),
                CryptKeyValue::Bytes(bytes) => ZapValue::from_bytes(bytes),
            };
        });
    }
    assert_ne!(own.guid, other.guid);
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    unlock(&pool, "tank/a", KEY);
    let refused = pool.file_system("tank/a").unwrap_err();
    let words = refused.to_string();
    assert!(
        words.contains("message authentication code does not match"),
        "{words}"
    );
    drop(pool);
}
