//! Forged tables of delegated permissions are refused, and nothing else is changed.

use crate::cloning::{judged, judged_by_zdb};
use crate::sim;
use millpond_dataset::{Creator, NewDataset, PermissionGrant, PermissionSubject};
use millpond_engine::{NewLayout::Single, Pool};
use millpond_ondisk::dsl::{PermissionHolder, PermissionReach};
use millpond_ondisk::{ObjectId, ObjectSetKind};
use millpond_sim::World;
use millpond_zap::ZapMut;

fn grant(permissions: &[&str]) -> PermissionGrant {
    PermissionGrant::new(
        PermissionHolder::User(7),
        PermissionReach::Local,
        permissions,
    )
}

/// Adds an entry to the outer table of a dataset, with a right checksum. Returns the previous number of the key.
fn forge(pool: &Pool, name: &str, key: &str, inner: ObjectId) -> Option<u64> {
    let view = pool.committed().unwrap();
    let dataset = view.dataset(name).unwrap();
    let outer = dataset.inner().directory().phys().delegation.unwrap();
    let changed = pool.inner().sync_task(|ctx| {
        let object = ctx.mos().object(outer).unwrap();
        let zap = ZapMut::of(&object, ctx.tx());
        let before = zap.lookup_u64(key.as_bytes()).unwrap();
        zap.update_u64(key.as_bytes(), inner.0).unwrap();
        Ok(before)
    });
    changed.unwrap()
}

/// Objects of the pool that are no tables of permissions: its directory, the directory of `tank/a`, none at all.
fn others(pool: &Pool) -> [ObjectId; 3] {
    let view = pool.committed().unwrap();
    let dataset = view.dataset("tank/a").unwrap();
    [
        ObjectId(1),
        dataset.inner().directory().id(),
        ObjectId(1 << 40),
    ]
}

#[test]
fn other_objects_are_neither_changed_nor_freed() {
    let world = World::without_journal(760);
    let pool = sim::create(&world, &[(Single, 1)], 64);
    let datasets = pool.datasets();
    for name in ["tank/a", "tank/a/b"] {
        datasets.create_filesystem(name, &[]).unwrap();
    }
    datasets.allow("tank/a", &[grant(&["send"])]).unwrap();
    for other in others(&pool) {
        for key in ["ul$7", "ul$8"] {
            let before = forge(&pool, "tank/a", key, other);
            assert!(datasets.allow("tank/a", &[grant(&["hold"])]).is_err());
            for (removed, recursively) in [(grant(&[]), false), (grant(&["send"]), true)] {
                let refused = datasets.unallow("tank", recursively, std::slice::from_ref(&removed));
                assert_eq!(refused.is_err(), recursively, "{key} {other:?}");
                assert!(datasets.unallow("tank/a", false, &[removed]).is_err());
            }
            // As it was.
            let inner = before.map_or(ObjectId(0), ObjectId);
            forge(&pool, "tank/a", key, inner);
        }
    }
    // One table under two keys would be freed twice.
    let inner = forge(&pool, "tank/a", "ul$7", ObjectId(0))
        .map(ObjectId)
        .unwrap();
    forge(&pool, "tank/a", "ul$7", inner);
    forge(&pool, "tank/a", "ul$8", inner);
    assert!(datasets.unallow("tank/a", false, &[grant(&[])]).is_err());
    forge(&pool, "tank/a", "ul$8", ObjectId(0));
    // The pool was not suspended, and has all that it had.
    datasets.unallow("tank/a", false, &[grant(&[])]).unwrap();
    datasets.create_filesystem("tank/a/c", &[]).unwrap();
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "forged permissions");
}

#[test]
fn a_user_who_creates_below_forged_tables_is_refused() {
    let world = World::without_journal(761);
    let pool = sim::create(&world, &[(Single, 1)], 64);
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    datasets.allow("tank/a", &[grant(&["send"])]).unwrap();
    let create = |name, creator| {
        datasets.create_dataset(&NewDataset {
            name,
            kind: ObjectSetKind::FileSystem,
            properties: &[],
            root_key: None,
            creator,
        })
    };
    let user = Creator {
        subject: PermissionSubject {
            user: 7,
            groups: vec![7],
        },
        group: 7,
    };
    forge(&pool, "tank/a", "c-$", ObjectId(1 << 40));
    assert!(create("tank/a/x", Some(&user)).is_err());
    // The superuser needs no permissions.
    create("tank/a/y", None).unwrap();
    forge(&pool, "tank/a", "c-$", ObjectId(0));
    create("tank/a/z", Some(&user)).unwrap();
    pool.export().unwrap();
    judged(&world);
}
