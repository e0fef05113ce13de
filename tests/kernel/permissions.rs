//! Delegated permissions: granted here, read and changed by the module, read and removed here.

use crate::{Rig, run_script};
use millpond_dataset::PermissionGrant;
use millpond_engine::Pool;
use millpond_ondisk::dsl::{PermissionHolder, PermissionReach};
use millpond_tests::oracle::kernel::{self, Release, written};

use PermissionHolder::{Creator, Everyone, Group, User};
use PermissionReach::{Descendant, Local, NotApplicable};

const NAME: &str = "granted";

fn ops(names: &[&str]) -> PermissionGrant {
    PermissionGrant::new(PermissionHolder::Set("@ops".into()), NotApplicable, names)
}

fn granted(pool: &Pool, dataset: &str) -> Vec<PermissionGrant> {
    let view = pool.committed().unwrap();
    let dataset = view.dataset(&format!("{NAME}/{dataset}")).unwrap();
    let table = dataset.inner().directory().permissions().unwrap();
    table.grants().collect()
}

/// What the module reads, without the names that its machine has for users and groups.
fn read_by_module(lines: Vec<String>) -> Vec<String> {
    let shortened = lines.into_iter().map(|line| {
        let words = line.split_whitespace();
        match line.starts_with(['-', '\t']) {
            true => words.last().unwrap_or_default().to_owned(),
            false => words.collect::<Vec<_>>().join(" "),
        }
    });
    shortened.filter(|line| !line.starts_with("---")).collect()
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(1, 256);
    let pool = rig.stripe(NAME).create().unwrap();
    let (a, b) = (format!("{NAME}/a"), format!("{NAME}/a/b"));
    for name in [&a, &b] {
        pool.datasets().create_filesystem(name, &[]).unwrap();
    }
    let both = |holder: PermissionHolder, names: &[&str]| {
        [Local, Descendant].map(|reach| PermissionGrant::new(holder.clone(), reach, names))
    };
    let mut grants = vec![
        ops(&["hold", "send"]),
        PermissionGrant::new(Creator, NotApplicable, &["@ops", "mount"]),
        PermissionGrant::new(User(1001), Local, &["destroy"]),
        PermissionGrant::new(Group(0), Descendant, &["compression"]),
    ];
    grants.extend(both(User(1001), &["@ops", "snapshot"]));
    grants.extend(both(Everyone, &["diff"]));
    pool.datasets().allow(&a, &grants).unwrap();
    pool.export().unwrap();
    rig.judge(NAME);
    let share = tempfile::tempdir().unwrap();
    run_script(release, &rig, "permissions", Some(share.path()), &[NAME]);
    let before = [
        "Permission sets:",
        "hold,send",
        "Create time permissions:",
        "@ops,mount",
        "Local permissions:",
        "destroy",
        "Descendent permissions:",
        "compression",
        "Local+Descendent permissions:",
        "@ops,snapshot",
        "diff",
    ];
    assert_eq!(read_by_module(written(share.path(), "before.txt")), before);
    rig.judge(NAME);
    let pool = rig.open(NAME);
    let left = [
        PermissionGrant::new(User(1001), Local, &["@ops", "destroy"]),
        PermissionGrant::new(User(1001), Descendant, &["@ops"]),
        PermissionGrant::new(Creator, NotApplicable, &["@ops", "destroy", "mount"]),
        ops(&["hold", "release", "send"]),
    ];
    assert_eq!(granted(&pool, "a"), left);
    assert_eq!(granted(&pool, "a/b"), both(User(1003), &["@ops", "rename"]));
    // What the module stored is removed here, and the module finds nothing left.
    let everything = |grants: Vec<PermissionGrant>| -> Vec<PermissionGrant> {
        let bare = grants.into_iter();
        bare.map(|one| PermissionGrant::new(one.holder, one.reach, &[]))
            .collect()
    };
    for (name, dataset) in [(&a, "a"), (&b, "a/b")] {
        let all = everything(granted(&pool, dataset));
        pool.datasets().unallow(name, false, &all).unwrap();
        assert_eq!(granted(&pool, dataset), []);
    }
    pool.export().unwrap();
    rig.judge(NAME);
    run_script(release, &rig, "permissions", Some(share.path()), &[NAME]);
    assert_eq!(written(share.path(), "before.txt"), Vec::<String>::new());
    rig.judge(NAME);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn permissions_are_changed_by_2_3_and_here() {
    to_and_fro(Release::V2_3);
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn permissions_are_changed_by_2_4_and_here() {
    to_and_fro(Release::V2_4);
}
