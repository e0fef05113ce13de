//! What is created has the values that OpenZFS gives it.

use super::Stage;

#[test]
fn what_is_created_has_the_values_that_openzfs_gives_it() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m none tank HERE/disk && zfs create -o normalization=formC tank/n");
    stage.done("zfs create -o utf8only=off tank/n/any && zfs create tank/n/same");
    let forms = stage.done("zfs get -rHo value normalization,utf8only tank/n");
    assert_eq!(
        forms.split_whitespace().collect::<Vec<_>>(),
        ["formC", "on", "none", "off", "formC", "on"]
    );
    let message = stage.refused("zfs create -o utf8only=off -o normalization=formD tank/n/both");
    assert!(
        message.contains("'utf8only' must be set 'on' if normalization chosen"),
        "{message}"
    );
    let shown = stage.done("zfs create -P -b 4k -V 10m tank/v");
    assert!(shown.contains("property\tvolblocksize\t4096\n"), "{shown}");
    assert!(shown.contains("property\tvolsize\t10485760\n"), "{shown}");
    // A clone of a sparse volume can reserve all of its space.
    stage.done("zfs create -s -V 10m -b 4k tank/thin && zfs snapshot tank/thin@1");
    stage.done("zfs clone -o refreservation=auto tank/thin@1 tank/thick");
    let reserved = stage.done("zfs get -Hpo value refreservation tank/v tank/thin tank/thick");
    let reserved: Vec<&str> = reserved.lines().collect();
    assert_eq!((reserved[1], reserved[2]), ("0", reserved[0]));
    // Quotas of owners are set with it.
    stage.done("zfs create -o userquota@65534=10M -o groupobjquota@65534=7 tank/q");
    stage.done("zfs snapshot tank/q@1 && zfs clone -o userquota@65534=5M tank/q@1 tank/c");
    let quotas = "zfs get -Hpo value userquota@65534,groupobjquota@65534";
    assert_eq!(stage.done(&format!("{quotas} tank/q")), "10485760\n7\n");
    assert_eq!(stage.done(&format!("{quotas} tank/c")), "5242880\n7\n");
    let made = "truncate -s 128M HERE/more && zpool create -m none";
    stage.done(&format!(
        "{made} -O userquota@65534=3M -O groupobjquota@65534=5 more HERE/more"
    ));
    assert_eq!(stage.done(&format!("{quotas} more")), "3145728\n5\n");
    stage.done("zpool destroy more");
    let message = stage.refused("zpool create -O userquota@no-such-user=1M more HERE/more");
    assert!(message.contains("invalid user/group name"), "{message}");
    let message =
        stage.refused("zpool create -f -o version=14 -O userquota@65534=1M more HERE/more");
    assert!(message.contains("must be upgraded to set"), "{message}");
    // It was not left half made.
    stage.refused("zpool list more");
    let message = stage.refused("zfs create -n -o userquota@no-such-user=1M tank/none");
    let why = "'userquota@no-such-user' has an invalid user/group name";
    assert!(message.contains(why), "{message}");
    // The name of a folder has at most 255 bytes.
    let name = "n".repeat(256);
    for (command, to) in [("set", "q"), ("set -u", "q"), ("create -o", "long")] {
        let line = format!("zfs {command} mountpoint=/a/{name} tank/{to}");
        let message = stage.refused(&line);
        let why = "component of 'mountpoint' is too long";
        assert!(message.contains(why), "{command}: {message}");
    }
    stage.done(&format!("zfs set -u mountpoint=/a/{} tank/q", &name[1..]));
    let upgraded = stage.done("zfs upgrade -V current tank/q");
    assert!(
        upgraded.contains("1 filesystems already at this version"),
        "{upgraded}"
    );
    // A command asked to dump core does so when it is done.
    use std::os::unix::process::ExitStatusExt;
    let dumped = stage.run("ulimit -c 0; export ZFS_ABORT=1; exec zfs list -H -o name tank/q");
    assert_eq!(dumped.stdout, b"tank/q\n");
    assert_eq!(dumped.status.signal(), Some(6), "{dumped:?}");
}
