//! Pools in which the object set of one dataset is lost.

use super::*;
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{ControlError, DatasetQuery, Wanted};
use millpond_engine::DestroyOptions;
use millpond_env::mark;
use millpond_ondisk::{BlockId, BlockPointer, Level, VDEV_DATA_START_BYTES};
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
    lose(&stage, &root);
    stage
}

/// Overwrites all copies of a block.
fn lose(stage: &Stage, pointer: &BlockPointer) {
    for image in ["a", "b"] {
        let file = std::fs::File::options()
            .write(true)
            .open(stage.image(image))
            .unwrap();
        for dva in pointer.dvas() {
            let junk = vec![0xa5; usize::try_from(dva.asize_bytes).unwrap()];
            file.write_all_at(&junk, dva.offset_bytes + VDEV_DATA_START_BYTES)
                .unwrap();
        }
    }
}

/// A block of the MOS is lost that holds nothing but one snapshot.
#[test]
fn a_lost_snapshot_hides_no_others() {
    let stage = Stage::new(&["a", "b"]);
    let mirror = stage.top(AllocationClass::Normal, NewLayout::Mirror, &["a", "b"]);
    let pools = stage.create(of_tops(vec![mirror]));
    let pool = pools.writable("tank").unwrap();
    let mut names = vec![];
    for number in 0..41 {
        let name = format!("tank/n{number}");
        pool.datasets().create_filesystem(&name, &[]).unwrap();
        names.push(format!("{name}@s"));
    }
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    pool.datasets().snapshot(&names, &[]).unwrap();
    let kept = names.remove(20);
    let destroyed = pool
        .datasets()
        .destroy_snapshots(&names, Default::default());
    destroyed.unwrap();
    pool.datasets().snapshot(&["tank/n3@t"], &[]).unwrap();
    pool.sync().unwrap();
    let view = pool.committed().unwrap();
    let id = view.dataset(kept).unwrap().inner().id();
    let objects = view.inner().mos().meta_object();
    let pointer = objects.pointer(Level(0), BlockId(id.0 / 32)).unwrap();
    drop((objects, view, pool));
    pools.leave("tank", false, None).unwrap();
    drop(pools);
    lose(&stage, &pointer);

    let pools = stage.import(false).unwrap();
    let query = DatasetQuery {
        root: "tank".into(),
        depth: DatasetQuery::WHOLE_TREE,
        kinds: Kinds::ALL,
        wanted: Wanted::All,
        names_damaged: true,
    };
    let mut listed = vec![];
    let outcome = pools.datasets(&query, &mut |info| {
        listed.push(info.name);
        Ok(())
    });
    let Err(ControlError::Damaged(damaged)) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(damaged.contains(&kept.to_owned()), "{damaged:?}");
    assert!(listed.contains(&"tank/n3@t".to_owned()), "{listed:?}");
    assert!(listed.len() + damaged.len() >= 44, "{listed:?} {damaged:?}");
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
