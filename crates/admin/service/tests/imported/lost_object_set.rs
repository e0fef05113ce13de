//! Pools in which the object set of one dataset is lost.

use super::*;
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{ControlError, DatasetQuery, Wanted};
use millpond_engine::DestroyOptions;
use millpond_env::mark;
use millpond_ondisk::VDEV_DATA_START_BYTES;
use std::os::unix::fs::FileExt;

/// A pool of a mirror as after a crash. The logs of both children have records, and all copies of one's object set are lost.
fn damaged() -> Stage {
    let stage = Stage::new(&["a", "b"]);
    let mirror = stage.top(AllocationClass::Normal, NewLayout::Mirror, &["a", "b"]);
    let pools = stage.create(of_tops(vec![mirror]));
    let pool = pools.writable("tank").unwrap();
    for dataset in ["tank/lost", "tank/sound"] {
        pool.datasets().create_filesystem(dataset, &[]).unwrap();
        write(&pool, dataset, "synced");
    }
    pool.inner().freeze().unwrap();
    // As it is found again: nothing that comes after the freeze is committed.
    let view = pool.committed().unwrap();
    let lost = view.dataset("tank/lost").unwrap();
    let root = lost.inner().phys().block_pointer;
    drop((lost, view));
    for dataset in ["tank/lost", "tank/sound"] {
        write(&pool, dataset, "logged");
    }
    drop(pool);
    pools.leave("tank", false, None).unwrap();
    drop(pools);
    for image in ["a", "b"] {
        let file = std::fs::File::options()
            .write(true)
            .open(stage.image(image))
            .unwrap();
        for dva in root.dvas() {
            let junk = vec![0xa5; usize::try_from(dva.asize_bytes).unwrap()];
            file.write_all_at(&junk, dva.offset_bytes + VDEV_DATA_START_BYTES)
                .unwrap();
        }
    }
    stage
}

/// The file systems that a mount of everything finds.
fn listed(pools: &ImportedPools, root: &str) -> Result<Vec<String>, String> {
    let query = DatasetQuery {
        root: root.into(),
        depth: DatasetQuery::WHOLE_TREE,
        kinds: Kinds::only(&[DatasetKind::Filesystem]),
        wanted: Wanted::All,
        names_damaged: false,
    };
    let mut names = vec![];
    let outcome = pools.datasets(&query, &mut |info| {
        names.push(info.name);
        Ok(())
    });
    outcome.map(|()| names).map_err(|error| error.to_string())
}

/// What a list names although nothing can be told about it.
fn named_damaged(pools: &ImportedPools) -> Vec<String> {
    let query = DatasetQuery {
        root: "tank".into(),
        depth: DatasetQuery::WHOLE_TREE,
        kinds: Kinds::only(&[DatasetKind::Filesystem]),
        wanted: Wanted::All,
        names_damaged: true,
    };
    match pools.datasets(&query, &mut |_| Ok(())) {
        Err(ControlError::Damaged(names)) => names,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_rest_of_a_pool_is_written_although_an_object_set_is_lost() {
    let _mark = mark::expect("head-without-object-set");
    let stage = damaged();
    let pools = stage.import(false).unwrap();
    let pool = pools.writable("tank").unwrap();
    for name in ["synced", "logged"] {
        assert!(has(&pool, "tank/sound", name), "{name}");
    }
    write(&pool, "tank/sound", "later");
    let error = pool.file_system("tank/lost").err().unwrap().to_string();
    assert!(error.contains("no good copy"), "{error}");
    assert!(pool.inner().suspension().is_none());
    let errors = pools.pool("tank").unwrap().errors;
    let is_named = errors.iter().any(|error| error.name == "tank/lost:<0x0>");
    assert!(is_named, "{errors:?}");
    assert_eq!(listed(&pools, "tank").unwrap(), ["tank", "tank/sound"]);
    assert_eq!(named_damaged(&pools), ["tank/lost"]);
    let error = listed(&pools, "tank/lost").unwrap_err();
    assert!(error.contains("I/O error"), "{error}");
    drop(pool);
    pools.leave("tank", false, None).unwrap();

    // The error is still known, and the dataset can go.
    let pools = stage.import(false).unwrap();
    let pool = pools.writable("tank").unwrap();
    let errors = pools.pool("tank").unwrap().errors;
    assert!(!errors.is_empty());
    let gone = pool
        .datasets()
        .destroy("tank/lost", DestroyOptions::default());
    gone.unwrap();
    for _ in 0..3 {
        write(
            &pool,
            "tank/sound",
            &format!("after {:?}", pool.inner().uberblock().txg),
        );
        pool.sync().unwrap();
    }
    assert!(pool.inner().suspension().is_none());
    assert!(has(&pool, "tank/sound", "later"));
    drop(pool);
    pools.leave("tank", false, None).unwrap();
}

#[test]
fn a_lost_object_set_may_be_on_a_missing_device() {
    let stage = damaged();
    stage.hide("b");
    let refused = format!("{:?}", stage.import(false).err().unwrap());
    assert!(refused.contains("no good copy"), "{refused}");
    stage.show("b");
    stage.import(false).unwrap();
}
