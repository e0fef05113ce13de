//! Delegated permissions: their tables against a model, as OpenZFS sees them, and after power cuts.

use crate::exhaustive::{State, each_state, is_all, judge};
use crate::expanded::with_case;
use crate::rig::Rig;
use crate::sim;
use millpond_check::{CheckOptions, Progress};
use millpond_dataset::{
    Creator, DatasetError, DestroyOptions, NewDataset, PermissionGrant, PermissionSubject, Refusal,
};
use millpond_engine::{NewLayout::Single, Pool, View};
use millpond_ondisk::dsl::{PermissionHolder, PermissionReach};
use millpond_ondisk::{ObjectSetKind, ObjectType};
use millpond_sim::{Seed, World};
use millpond_tests::oracle::zdb;
use std::collections::{BTreeMap, BTreeSet};

use PermissionHolder::{Everyone, Group, User};
use PermissionReach::{Descendant, Local, NotApplicable};

fn set(name: &str) -> PermissionHolder {
    PermissionHolder::Set(name.to_owned())
}

fn granted(view: &View, dataset: &str) -> Vec<PermissionGrant> {
    let dataset = view.dataset(dataset).unwrap();
    let table = dataset.inner().directory().permissions().unwrap();
    table.grants().collect()
}

/// The permissions of a user without groups.
fn has(pool: &Pool, dataset: &str, user: u32) -> Vec<String> {
    let view = pool.committed().unwrap();
    let dataset = view.dataset(dataset).unwrap();
    let chain = dataset.inner().directory().permission_chain().unwrap();
    let subject = PermissionSubject {
        user,
        groups: vec![],
    };
    chain.permissions_of(&subject).into_iter().collect()
}

/// The events of permissions in the history: event, dataset and text.
fn events(view: &View) -> Vec<String> {
    let records = view.inner().history().unwrap().unwrap();
    let text = |list: &millpond_nvlist::NvList, name: &str| list.string(name).map(str::to_owned);
    records
        .map(|record| record.unwrap())
        .filter_map(|list| {
            let event = text(&list, "internal_name").ok()?;
            let dataset = text(&list, "dsname").ok()?;
            let text = text(&list, "history internal str").ok()?;
            let is_meant = event.starts_with("permission");
            is_meant.then(|| format!("{event} {dataset} {text}"))
        })
        .collect()
}

#[test]
fn tables_are_stored_as_openzfs_stores_them() {
    let rig = Rig::new(1, 128);
    let pool = rig.stripe("tank").create().unwrap();
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    let grants = [
        PermissionGrant::new(User(1001), Local, &["send", "@ops"]),
        PermissionGrant::new(User(1001), Descendant, &["send"]),
        PermissionGrant::new(Group(50), Descendant, &["hold"]),
        PermissionGrant::new(Everyone, Local, &["diff"]),
        PermissionGrant::new(PermissionHolder::Creator, NotApplicable, &["destroy"]),
        PermissionGrant::new(set("@ops"), NotApplicable, &["compression", "atime"]),
    ];
    datasets.allow("tank/a", &grants).unwrap();
    pool.export().unwrap();
    rig.judge("tank");
    let view = rig.read("tank");
    let phys = view.dataset("tank/a").unwrap();
    let outer = phys.inner().directory().phys().delegation.unwrap();
    if zdb::absent().is_none() {
        let text = zdb::print(rig.folder(), &["-dddd", "tank", &outer.0.to_string()]).unwrap();
        assert!(text.contains("DSL permissions"), "{text}");
        let mut inner = BTreeMap::new();
        for key in [
            "ul$1001", "Ul$1001", "ud$1001", "gd$50", "el$", "c-$", "s-$@ops",
        ] {
            let lines = text.lines().map(str::trim);
            let line = lines
                .filter_map(|line| line.strip_prefix(&format!("{key} = ")))
                .next();
            inner.insert(
                key,
                line.unwrap_or_else(|| panic!("{key}: {text}")).to_owned(),
            );
        }
        let text = zdb::print(rig.folder(), &["-dddd", "tank", &inner["s-$@ops"]]).unwrap();
        assert!(
            text.contains("compression = 0") && text.contains("atime = 0"),
            "{text}"
        );
    }
    let told = events(&view);
    assert_eq!(
        told[..3],
        [
            "permission update tank/a Ul$1001 @ops",
            "permission update tank/a ul$1001 send",
            "permission update tank/a ud$1001 send"
        ]
    );
    drop((view, phys));

    let pool = rig.open("tank");
    let tables = |pool: &Pool| {
        let view = pool.committed().unwrap();
        let objects = view.inner().mos().objects();
        let kinds = objects.map(|object| object.unwrap().dnode().object_type);
        kinds
            .filter(|kind| *kind == ObjectType::DSL_PERMISSIONS)
            .count()
    };
    assert_eq!(tables(&pool), 8);
    let removals = [
        PermissionGrant::new(User(1001), Local, &["send"]),
        PermissionGrant::new(Group(50), Descendant, &[]),
        PermissionGrant::new(Everyone, Local, &["snapshot"]),
        PermissionGrant::new(User(9), Local, &[]),
    ];
    pool.datasets().unallow("tank", true, &removals).unwrap();
    // Two inner tables are empty.
    assert_eq!(tables(&pool), 6);
    let left = granted(&pool.committed().unwrap(), "tank/a");
    assert_eq!(left.len(), 5);
    assert!(left.contains(&PermissionGrant::new(User(1001), Local, &["@ops"])));
    let told = events(&pool.committed().unwrap());
    assert_eq!(
        told[told.len() - 2..],
        [
            "permission remove tank/a ul$1001 send",
            "permission who remove tank/a gd$50"
        ]
    );
    for grant in &left {
        let mut all = grant.clone();
        all.permissions.clear();
        pool.datasets().unallow("tank/a", false, &[all]).unwrap();
    }
    let view = pool.committed().unwrap();
    assert!(granted(&view, "tank/a").is_empty());
    // The outer table stays.
    let phys = view.dataset("tank/a").unwrap();
    assert_eq!(phys.inner().directory().phys().delegation, Some(outer));
    drop((view, phys));
    pool.datasets().allow("tank/a", &grants).unwrap();
    pool.datasets()
        .destroy("tank/a", DestroyOptions::default())
        .unwrap();
    pool.export().unwrap();
    rig.judge("tank");
}

/// Made by OpenZFS, with permissions at two file systems.
#[test]
fn tables_of_openzfs_are_read_and_changed() {
    let world = World::new(63);
    if !with_case(&world, "quotas") {
        return;
    }
    let (both, made) = ([Local, Descendant], ["create", "mount", "snapshot"]);
    let at_root = vec![
        PermissionGrant::new(Group(1002), Local, &["destroy"]),
        PermissionGrant::new(Group(1002), Descendant, &["destroy"]),
        PermissionGrant::new(Everyone, Local, &["@set"]),
        PermissionGrant::new(Everyone, Descendant, &["@set"]),
        PermissionGrant::new(PermissionHolder::Creator, NotApplicable, &["userquota"]),
        PermissionGrant::new(set("@set"), NotApplicable, &["hold", "send"]),
    ];
    let at_users = both
        .map(|reach| PermissionGrant::new(User(1001), reach, &made))
        .to_vec();
    let pool = sim::open(&world).unwrap();
    let view = pool.committed().unwrap();
    assert_eq!(granted(&view, "quotas"), at_root);
    assert_eq!(granted(&view, "quotas/users"), at_users);
    assert_eq!(has(&pool, "quotas", 7), ["@set", "hold", "send"]);
    let of_user = ["@set", "create", "hold", "mount", "send", "snapshot"];
    assert_eq!(has(&pool, "quotas/users", 1001), of_user);
    drop(view);
    let datasets = pool.datasets();
    let more = PermissionGrant::new(User(1001), Local, &["destroy"]);
    datasets.allow("quotas/users", &[more]).unwrap();
    let gone = [
        PermissionGrant::new(Everyone, Local, &["@set"]),
        PermissionGrant::new(Group(1002), Local, &[]),
    ];
    datasets.unallow("quotas", true, &gone).unwrap();
    assert_eq!(granted(&pool.committed().unwrap(), "quotas").len(), 4);
    let told = events(&pool.committed().unwrap());
    assert_eq!(
        told[..2],
        [
            "permission update quotas/users ul$1001 snapshot",
            "permission update quotas/users ul$1001 mount"
        ]
    );
    pool.export().unwrap();
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(&world, folder.path());
    zdb::judge(folder.path(), "quotas")
        .unwrap()
        .require("quotas");
}

#[test]
fn unknown_permissions_and_holders_are_refused_and_nothing_is_stored() {
    let rig = Rig::new(1, 128);
    let pool = rig.stripe("tank").create().unwrap();
    for wrong in [
        PermissionGrant::new(User(7), Local, &["send", "boguspriv"]),
        PermissionGrant::new(User(7), Local, &["used"]),
        PermissionGrant::new(User(7), NotApplicable, &["send"]),
        PermissionGrant::new(PermissionHolder::Creator, Local, &["send"]),
        PermissionGrant::new(set("ops"), NotApplicable, &["send"]),
        PermissionGrant::new(set("@ops"), Descendant, &["send"]),
        PermissionGrant::new(User(7), Local, &[]),
    ] {
        let grants = [PermissionGrant::new(Everyone, Local, &["send"]), wrong];
        let refused = pool.datasets().allow("tank", &grants).unwrap_err();
        let why = matches!(
            &refused,
            DatasetError::Refused {
                why: Refusal::NoSuchPermission,
                ..
            }
        );
        assert!(why, "{refused}");
    }
    let missing = pool.datasets().allow("tank/x", &[]).unwrap_err();
    assert!(
        matches!(missing, DatasetError::NotFound { .. }),
        "{missing}"
    );
    assert!(granted(&pool.committed().unwrap(), "tank").is_empty());
}

#[test]
fn who_creates_a_dataset_gets_the_create_time_permissions() {
    let rig = Rig::new(1, 128);
    let pool = rig.stripe("tank").create().unwrap();
    let datasets = pool.datasets();
    let creators =
        |names: &[&str]| PermissionGrant::new(PermissionHolder::Creator, NotApplicable, names);
    datasets
        .allow("tank", &[creators(&["destroy", "@ops"])])
        .unwrap();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    datasets
        .allow("tank/a", &[creators(&["snapshot"])])
        .unwrap();
    let creator = &user(1000, 100);
    let new = |name, kind, properties| NewDataset {
        name,
        kind,
        properties,
        root_key: None,
        creator: Some(creator),
    };
    datasets
        .create_dataset(&new("tank/a/files", ObjectSetKind::FileSystem, &[]))
        .unwrap();
    let size = [(
        "volsize".to_owned(),
        millpond_engine::PropertyValue::Number(1 << 20),
    )];
    datasets
        .create_dataset(&new("tank/volume", ObjectSetKind::Volume, &size))
        .unwrap();
    datasets.snapshot(&["tank/a@1"], &[]).unwrap();
    datasets
        .clone_snapshot_by("tank/a@1", "tank/a/clone", &[], Some(creator))
        .unwrap();
    assert_eq!(
        has(&pool, "tank/a/files", 1000),
        ["@ops", "destroy", "snapshot"]
    );
    assert_eq!(has(&pool, "tank/volume", 1000), ["@ops", "destroy"]);
    assert_eq!(
        has(&pool, "tank/a/clone", 1000),
        ["@ops", "destroy", "snapshot"]
    );
    assert!(has(&pool, "tank/a/files", 1001).is_empty());
    // The superuser needs none.
    assert!(granted(&pool.committed().unwrap(), "tank/a").len() == 1);
    let files = pool.file_system("tank/a/files").unwrap();
    let root = files.root().unwrap();
    let stat = root.stat().unwrap();
    assert_eq!((stat.uid, stat.gid), (1000, 100));
    drop((root, files));
    pool.export().unwrap();
    rig.judge("tank");
}

/// A user without supplementary groups.
fn user(user: u32, group: u32) -> Creator {
    let groups = vec![group];
    let subject = PermissionSubject { user, groups };
    Creator { subject, group }
}

#[test]
fn limits_hold_for_users_where_the_superuser_is_exempt() {
    let rig = Rig::new(1, 128);
    let pool = rig.stripe("tank").create().unwrap();
    let datasets = pool.datasets();
    datasets.enforce_limits(false);
    datasets.create_filesystem("tank/a", &[]).unwrap();
    let one = |name: &str| (name.to_owned(), millpond_engine::PropertyValue::Number(1));
    let limits = [one("filesystem_limit"), one("snapshot_limit")];
    datasets.set_properties("tank/a", &limits).unwrap();
    let user = user(7, 50);
    let creator = Some(&user);
    let new = |name| NewDataset {
        name,
        kind: ObjectSetKind::FileSystem,
        properties: &[],
        root_key: None,
        creator,
    };
    datasets.create_dataset(&new("tank/a/1")).unwrap();
    datasets.snapshot_by(&["tank/a@1"], &[], creator).unwrap();
    datasets.create_dataset(&new("tank/b")).unwrap();
    let is_limited = |outcome: Result<(), DatasetError>| {
        let error = outcome.unwrap_err();
        let why = matches!(
            &error,
            DatasetError::Refused {
                why: Refusal::LimitReached,
                ..
            }
        );
        assert!(why, "{error}");
    };
    is_limited(datasets.create_dataset(&new("tank/a/2")));
    is_limited(datasets.snapshot_by(&["tank/a/1@2"], &[], creator));
    is_limited(datasets.clone_snapshot_by("tank/a@1", "tank/a/2", &[], creator));
    is_limited(datasets.rename_by("tank/b", "tank/a/b", creator));
    datasets.create_filesystem("tank/a/2", &[]).unwrap();
    datasets.snapshot(&["tank/a/1@2"], &[]).unwrap();
    // A user who may change a limit is not held by it, but by those above and below.
    let grant = |names: &[&str]| [PermissionGrant::new(Group(50), Local, names)];
    let allow = |dataset, names: &[&str]| datasets.allow(dataset, &grant(names)).unwrap();
    allow("tank/a", &["snapshot_limit"]);
    datasets.snapshot_by(&["tank/a/1@3"], &[], creator).unwrap();
    is_limited(datasets.create_dataset(&new("tank/a/3")));
    datasets
        .set_properties("tank/a/1", &[one("snapshot_limit")])
        .unwrap();
    is_limited(datasets.snapshot_by(&["tank/a/1@4"], &[], creator));
    allow("tank/a/1", &["snapshot_limit"]);
    datasets
        .unallow("tank/a", false, &grant(&["snapshot_limit"]))
        .unwrap();
    is_limited(datasets.snapshot_by(&["tank/a/1@4"], &[], creator));
    allow("tank/a", &["snapshot_limit"]);
    datasets.snapshot_by(&["tank/a/1@4"], &[], creator).unwrap();
    datasets
        .unallow("tank/a", false, &grant(&["snapshot_limit"]))
        .unwrap();
    allow("tank/a", &["filesystem_limit"]);
    datasets.create_dataset(&new("tank/a/3")).unwrap();
    is_limited(datasets.snapshot_by(&["tank/a@4"], &[], creator));
    allow("tank/a", &["snapshot_limit"]);
    datasets.rename_by("tank/b", "tank/a/b", creator).unwrap();
    pool.export().unwrap();
    rig.judge("tank");
}

/// All grants of one dataset: key and permission.
type Granted = BTreeSet<(PermissionHolder, PermissionReach, String)>;

#[test]
fn random_changes_leave_what_a_model_says() {
    let rig = Rig::new(1, 128);
    let pool = rig.stripe("tank").create().unwrap();
    let names = ["tank", "tank/a", "tank/a/b", "tank/c"];
    let datasets = pool.datasets();
    datasets.create_filesystems(&names[1..], &[]).unwrap();
    let mut model: BTreeMap<&str, Granted> = BTreeMap::new();
    let mut seed = Seed::new(77);
    let holders = [
        User(7),
        User(8),
        Group(7),
        Everyone,
        set("@s"),
        PermissionHolder::Creator,
    ];
    let permissions = ["send", "hold", "@s", "@t", "quota"];
    for _ in 0..120 {
        let name = names[seed.below(4) as usize];
        let holder = holders[seed.below(6) as usize].clone();
        let reach = match holder {
            PermissionHolder::Set(_) | PermissionHolder::Creator => NotApplicable,
            _ if seed.below(2) == 0 => Local,
            _ => Descendant,
        };
        let (first, second) = (seed.below(5) as usize, seed.below(5) as usize);
        let chosen = [permissions[first], permissions[second]];
        let one = PermissionGrant::new(holder.clone(), reach, &chosen);
        let own = |name: &str| (holder.clone(), reach, name.to_owned());
        match seed.below(4) {
            0 | 1 => {
                datasets.allow(name, &[one]).unwrap();
                model.entry(name).or_default().extend(chosen.map(own));
            }
            kind => {
                let recursively = seed.below(2) == 0;
                let removal = match kind {
                    2 => one,
                    _ => PermissionGrant::new(holder.clone(), reach, &[]),
                };
                datasets
                    .unallow(name, recursively, std::slice::from_ref(&removal))
                    .unwrap();
                for (dataset, granted) in &mut model {
                    let is_below = recursively && dataset.starts_with(&format!("{name}/"));
                    if *dataset != name && !is_below {
                        continue;
                    }
                    granted.retain(|(own, at, permission)| {
                        let is_meant = *own == holder && *at == reach;
                        let is_named = removal.permissions.contains(permission);
                        !(is_meant && (is_named || removal.permissions.is_empty()))
                    });
                }
            }
        }
    }
    pool.export().unwrap();
    rig.judge("tank");
    let view = rig.read("tank");
    let mut count = 0;
    for name in names {
        let mut stored = Granted::new();
        for grant in granted(&view, name) {
            for permission in grant.permissions {
                stored.insert((grant.holder.clone(), grant.reach, permission));
            }
        }
        count += stored.len();
        assert_eq!(stored, model.remove(name).unwrap_or_default(), "{name}");
    }
    assert!(count > 5, "{count} permissions are left");
}

#[test]
fn a_cut_leaves_all_of_a_request_or_nothing() {
    let world = World::new(61);
    let pool = sim::create(&world, &[(Single, 1)], 64);
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    let old = [
        PermissionGrant::new(User(7), Local, &["hold"]),
        PermissionGrant::new(User(8), Descendant, &["hold", "@s"]),
    ];
    datasets.allow("tank", &old).unwrap();
    datasets.allow("tank/a", &old).unwrap();
    pool.sync().unwrap();
    world.forget();
    let all = |view: &View| [granted(view, "tank"), granted(view, "tank/a")];
    let mut states = vec![all(&pool.committed().unwrap())];
    let mut promised = vec![0];
    let mut done = || {
        states.push(all(&pool.committed().unwrap()));
        promised.push(world.recorded());
    };
    let new = [
        PermissionGrant::new(Group(9), Local, &["send", "@t"]),
        PermissionGrant::new(Everyone, Descendant, &["diff"]),
    ];
    datasets.allow("tank/a", &new).unwrap();
    done();
    let gone = [
        PermissionGrant::new(User(8), Descendant, &[]),
        PermissionGrant::new(User(7), Local, &["hold"]),
    ];
    datasets.unallow("tank", true, &gone).unwrap();
    done();
    drop(pool);
    assert!(states[0] != states[1] && states[1] != states[2]);
    let (mut met, mut judged) = ([0; 3], 0);
    let mut visit = |state: State<'_>| {
        let what = state.what;
        let read = sim::read(state.after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = all(&read);
        let which = states.iter().position(|known| *known == found);
        let which = which.unwrap_or_else(|| panic!("{what}: half of a request: {found:?}"));
        let least = promised.iter().rposition(|count| *count <= state.count);
        assert!(
            Some(which) >= least,
            "{what}: an acknowledged change is gone"
        );
        met[which] += 1;
        let pool = sim::open(state.after).unwrap_or_else(|error| panic!("{what}: {error}"));
        pool.export().unwrap();
        let view = sim::read(state.after).unwrap();
        let report = view.check(&CheckOptions::default(), &Progress::default(), &|_| {});
        let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(report.is_clean(), "{what}: {:#?}", report.findings);
        judged += 1;
        if judged % 10 == 1 {
            judge(state.after, what);
        }
    };
    each_state("permissions", &world, &mut Seed::new(62), &mut visit);
    // A sample may lack one of them.
    assert!(met.iter().sum::<u32>() > 0, "{met:?}");
    assert!(!is_all() || met.iter().all(|count| *count > 0), "{met:?}");
}
