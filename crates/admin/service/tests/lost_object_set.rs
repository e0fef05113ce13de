//! Pools in which the object set of one dataset is lost.

use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{
    DatasetQuery, ImportRequest, NewDevices, NewPoolRequest, SearchPaths, TopRequest, Wanted,
};
use millpond_engine::{
    AllocationClass, Caller, DestroyOptions, FeatureChoice, HistoryCommand, NewLayout, NewMode,
    Pool, WriteAt,
};
use millpond_env::{Env, Tunable, mark};
use millpond_service::ImportedPools;
use std::os::unix::fs::FileExt;

/// Where the space of a device begins.
const SPACE_START_BYTES: u64 = 4 << 20;

fn command() -> HistoryCommand {
    HistoryCommand {
        command: "test".into(),
        user: 0,
    }
}

fn pools() -> ImportedPools {
    let env = Env::real();
    assert!(env.tunables.set(Tunable::AllowFreeze, 1));
    ImportedPools::new(&env, 0, None)
}

/// Writes a file and puts it on stable storage.
fn write(pool: &Pool, dataset: &str, name: &str) {
    let files = pool.file_system(dataset).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let created = files.create(&caller, &root, name.as_bytes(), mode, true);
    let node = created.unwrap().0;
    let content = name.as_bytes();
    files
        .write(&caller, &node, WriteAt::Offset(0), content)
        .unwrap();
    files.fsync(&node).unwrap();
}

fn has(pool: &Pool, dataset: &str, name: &str) -> bool {
    let files = pool.file_system(dataset).unwrap();
    files.root().unwrap().lookup(name.as_bytes()).is_ok()
}

/// A pool of a mirror as after a crash. The logs of both children have records, and all copies of one's object set are lost.
fn damaged(folder: &tempfile::TempDir) {
    let image = |name: &str| folder.path().join(name);
    for name in ["a", "b"] {
        let file = std::fs::File::create(image(name)).unwrap();
        file.set_len(96 << 20).unwrap();
    }
    let pools = pools();
    let paths = ["a", "b"].map(|name| image(name).to_string_lossy().into_owned());
    let request = NewPoolRequest {
        name: "tank".into(),
        temporary_name: None,
        devices: NewDevices {
            tops: vec![TopRequest {
                class: AllocationClass::Normal,
                layout: NewLayout::Mirror,
                paths: paths.to_vec(),
            }],
            ..NewDevices::default()
        },
        features: FeatureChoice::Default,
        properties: vec![],
        root_properties: vec![],
        root_quotas: vec![],
        root_key: None,
        only_check: false,
    };
    pools.create(&request, &command()).unwrap();
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
    for path in paths {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        for dva in root.dvas() {
            let junk = vec![0xa5; usize::try_from(dva.asize_bytes).unwrap()];
            file.write_all_at(&junk, dva.offset_bytes + SPACE_START_BYTES)
                .unwrap();
        }
    }
}

fn import(folder: &tempfile::TempDir) -> Result<ImportedPools, String> {
    let pools = pools();
    let request = ImportRequest {
        pool: "tank".into(),
        search: SearchPaths {
            paths: vec![folder.path().to_string_lossy().into_owned()],
            cache_file: None,
        },
        force: true,
        ..ImportRequest::default()
    };
    let imported = pools.import(&request, Some(&command()));
    let imported = imported.map_err(|error| format!("{error:?}"))?;
    assert_eq!(imported.read_only_because, None);
    Ok(pools)
}

/// The file systems that a mount of everything finds.
fn listed(pools: &ImportedPools, root: &str) -> Result<Vec<String>, String> {
    let query = DatasetQuery {
        root: root.into(),
        depth: DatasetQuery::WHOLE_TREE,
        kinds: Kinds::only(&[DatasetKind::Filesystem]),
        wanted: Wanted::All,
    };
    let mut names = vec![];
    let outcome = pools.datasets(&query, &mut |info| {
        names.push(info.name);
        Ok(())
    });
    outcome.map(|()| names).map_err(|error| error.to_string())
}

#[test]
fn the_rest_of_a_pool_is_written_although_an_object_set_is_lost() {
    let _mark = mark::expect("head-without-object-set");
    let folder = tempfile::tempdir().unwrap();
    damaged(&folder);
    let pools = import(&folder).unwrap();
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
    let error = listed(&pools, "tank/lost").unwrap_err();
    assert!(error.contains("no good copy"), "{error}");
    drop(pool);
    pools.leave("tank", false, None).unwrap();

    // The error is still known, and the dataset can go.
    let pools = import(&folder).unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    damaged(&folder);
    let (from, to) = (folder.path().join("b"), tempfile::tempdir().unwrap());
    std::fs::copy(&from, to.path().join("b")).unwrap();
    std::fs::remove_file(&from).unwrap();
    let refused = import(&folder).err().unwrap();
    assert!(refused.contains("no good copy"), "{refused}");
    std::fs::copy(to.path().join("b"), &from).unwrap();
    import(&folder).unwrap();
}
