use crate::rig::Rig;
use crate::{Steps, size};
use millpond_control::{DatasetQuery, Wanted};
use millpond_dataset::DestroyOptions;
use millpond_dataset::properties::{Kinds, by_name};
use millpond_engine::{DatasetKind, PropertyValue, Search};
use millpond_service::LocalPools;

/// Lists everything, like `zfs list -r -t all tank` and `zfs get -r all tank`.
fn list_all(rig: &Rig, steps: &mut Steps, expected: u64) {
    let engine = LocalPools::search(&Search::new([rig.folder()]));
    let columns = ["name", "used", "available", "referenced", "mountpoint"];
    let columns: Vec<_> = columns.iter().filter_map(|name| by_name(name)).collect();
    assert_eq!(columns.len(), 5);
    let wholes = [
        ("list -r -t all", Wanted::Named(columns)),
        ("get -r all", Wanted::All),
    ];
    for (what, wanted) in wholes {
        let query = DatasetQuery {
            root: "tank".into(),
            depth: DatasetQuery::WHOLE_TREE,
            kinds: Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Snapshot]),
            wanted,
            names_damaged: false,
        };
        let mut seen = 0;
        engine
            .datasets(&query, &mut |info| {
                seen += u64::from(!info.properties.is_empty());
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, expected, "{what}");
        steps.done(what);
    }
}

#[test]
fn very_many_datasets_are_made_listed_and_snapshotted() {
    let count = size(300, 10_000);
    let rig = Rig::new(1, size(256, 3072));
    let mut steps = Steps::new(&format!("{count} datasets"));
    let pool = rig.stripe("tank").create().unwrap();
    let names: Vec<String> = (0..count)
        .map(|number| match number % 100 {
            // Groups, and the datasets in them.
            0 => format!("tank/g{number}"),
            _ => format!("tank/g{}/d{number}", number / 100 * 100),
        })
        .collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    for (quarter, names) in (1..).zip(all.chunks(all.len().div_ceil(4))) {
        pool.datasets().create_filesystems(names, &[]).unwrap();
        steps.done(&format!("create, quarter {quarter}"));
    }
    let refused = pool
        .datasets()
        .create_filesystems(&["tank/more", "tank/g0"], &[]);
    assert!(refused.is_err());
    assert_eq!(
        pool.datasets().names_below("tank").unwrap().len() as u64,
        count + 2
    );
    steps.done("list");
    pool.datasets().snapshot_recursively("tank@all").unwrap();
    steps.done("snapshot -r");
    // The cost of a single change next to all other datasets.
    for number in 0..10 {
        let name = format!("tank/single{number}");
        pool.datasets().create_filesystem(&name, &[]).unwrap();
    }
    steps.done("10 more, one by one");
    let noted = [("some:thing".to_owned(), PropertyValue::Text("x".into()))];
    for name in &all[..10] {
        pool.datasets().set_properties(name, &noted).unwrap();
    }
    steps.done("10 properties set");
    pool.export().unwrap();
    steps.done("export");
    let pool = rig.open("tank");
    steps.done("open");
    drop(pool.file_system(names.last().unwrap()).unwrap());
    let snapshot = format!("{}@all", names[count as usize / 2]);
    pool.datasets()
        .destroy(&snapshot, Default::default())
        .unwrap();
    steps.done("use one, destroy a snapshot");
    for name in &names {
        // Each keeps a head and an intent log in memory while the pool is open.
        drop(pool.file_system(name).unwrap());
    }
    steps.done("use each");
    pool.export().unwrap();
    rig.judge("tank");
    // Includes the root and ten more datasets. One snapshot is destroyed, and the ten datasets have none.
    let mut steps = Steps::new(&format!("{count} datasets and their snapshots"));
    list_all(&rig, &mut steps, 2 * (count + 2) + 10 - 1);

    let pool = rig.open("tank");
    steps.done("open again");
    let snapshots: Vec<String> = pool
        .datasets()
        .names_below("tank")
        .unwrap()
        .iter()
        .map(|name| format!("{name}@all"))
        .filter(|name| *name != snapshot && !name.starts_with("tank/single"))
        .collect();
    let snapshots: Vec<&str> = snapshots.iter().map(String::as_str).collect();
    let now = DestroyOptions::default();
    pool.datasets().destroy_snapshots(&snapshots, now).unwrap();
    steps.done("destroy all snapshots");
    let below: Vec<String> = pool.datasets().names_below("tank").unwrap();
    let below: Vec<&str> = below.iter().skip(1).rev().map(String::as_str).collect();
    pool.datasets().destroy_datasets(&below).unwrap();
    steps.done("destroy all datasets");
    assert_eq!(pool.datasets().names_below("tank").unwrap(), ["tank"]);
    pool.export().unwrap();
    rig.judge("tank");
}
