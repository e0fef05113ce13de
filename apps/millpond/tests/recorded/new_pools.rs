//! `zpool create`.

use super::*;

#[test]
fn a_version_excludes_features() {
    let stage = Stage::new(&["a"], 128);
    let words = "'feature@' and 'version' properties cannot be specified together";
    for options in [
        "-o version=28 -o feature@lz4_compress=enabled",
        "-o feature@lz4_compress=enabled -o version=28",
    ] {
        let line = format!("zpool create {options} tank {}", stage.image("a"));
        assert_eq!(plain(&stage, &line), (format!("{words}\n"), 1));
    }
    let newer = stage.run("zpool create -o version=5001 tank @a");
    assert_eq!(newer, (format!("{words}\n"), 2));
    stage.quietly("zpool create -m none -o version=5000 tank @a");
}

#[test]
fn limits_that_the_new_pool_cannot_have_leave_no_pool() {
    let stage = Stage::new(&["a"], 128);
    for limit in [
        "quota=1K",
        "refquota=1K",
        "reservation=1T",
        "refreservation=1T",
    ] {
        stage.refused(
            &format!("zpool create -m none -O {limit} tank @a"),
            "cannot create 'tank': one or more devices is out of space",
        );
        assert_eq!(stage.run("zpool list"), ("no pools available\n".into(), 0));
    }
    stage.quietly("zpool create -m none -O quota=100T -O reservation=1M tank @a");
    let set = stage.done("zfs get -Hp -o value,source quota,reservation tank");
    assert_eq!(set, "109951162777600\tlocal\n1048576\tlocal\n");
}

#[test]
fn a_feature_outside_the_compatibility_set_is_warned_of() {
    let stage = Stage::new(&["a"], 128);
    let line = format!(
        "zpool create -m none -o compatibility=openzfs-2.1-linux \
         -o feature@block_cloning=enabled -o feature@bookmarks=enabled tank {}",
        stage.image("a")
    );
    let words = "Warning: feature \"block_cloning\" enabled but is not in specified \
                 'compatibility' feature set.\n";
    assert_eq!(plain(&stage, &line), (words.into(), 0));
    let line = "zpool get -H -o value feature@block_cloning tank";
    assert_eq!(plain(&stage, line), ("enabled\n".into(), 0));
}
