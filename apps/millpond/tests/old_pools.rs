//! Pools of old versions by command: what a version cannot have is refused, and pools are raised, in the words that OpenZFS 2.3
//! printed for the same commands.

#[path = "support/stage.rs"]
mod stage;

use stage::Stage;

const HEAD: &str = "This system supports ZFS pool feature flags.\n\n";
const NEEDS_UPGRADE: &str = "pool and or dataset must be upgraded to set this property or value";

/// Runs a command. Returns its standard error followed by its standard output, and its status. `%a` stands for the image `a`.
fn run(stage: &Stage, line: &str) -> (String, i32) {
    let folder = stage.image("");
    let line = line.replace('%', &folder);
    let done = stage.command(&line, false).output().unwrap();
    let text = String::from_utf8([done.stderr, done.stdout].concat()).unwrap();
    (text.replace(&folder, "%"), done.status.code().unwrap())
}

fn answers(stage: &Stage, line: &str, text: &str, status: i32) {
    assert_eq!(run(stage, line), (text.to_owned(), status), "{line}");
}

fn quietly(stage: &Stage, line: &str) {
    answers(stage, line, "", 0);
}

fn refused(stage: &Stage, line: &str, words: &str) {
    answers(stage, line, &format!("{words}\n"), 1);
}

fn done(stage: &Stage, line: &str) -> String {
    let (text, status) = run(stage, line);
    assert_eq!(status, 0, "{line}: {text}");
    text
}

#[test]
fn what_a_new_pool_cannot_have_is_refused() {
    let stage = Stage::new(&["a", "b", "c", "d"], 128);
    let invalid = "invalid argument for this pool operation";
    let other = "operation not supported on this type of pool";
    for (options, words) in [
        ("version=2 tank raidz2 %a %b %c", invalid),
        ("version=16 tank raidz3 %a %b %c %d", invalid),
        ("version=6 tank %a log %b", other),
        ("version=9 tank %a cache %b", other),
        ("version=2 tank %a spare %b", other),
        ("version=28 tank %a special %b", other),
        ("version=4 -O compression=gzip tank %a", other),
        (
            "version=29 tank %a",
            "property 'version' number 29 is invalid.",
        ),
        (
            "version=0 tank %a",
            "property 'version' number 0 is invalid.",
        ),
    ] {
        let line = format!("zpool create -m none -o {options}");
        refused(&stage, &line, &format!("cannot create 'tank': {words}"));
    }
    for options in [
        "17 tank raidz3 %a %b %c %d",
        "7 tank %a log %b",
        "10 tank %a cache %b",
    ] {
        quietly(
            &stage,
            &format!("zpool create -f -m none -o version={options}"),
        );
        quietly(&stage, "zpool destroy tank");
    }
}

#[test]
fn what_an_old_pool_cannot_have_is_refused() {
    let stage = Stage::new(&["a", "b", "c", "d"], 128);
    quietly(&stage, "zpool create -m none -o version=1 tank %a");
    for (vdevs, words) in [
        ("log %b", "pool must be upgraded to add these vdevs"),
        ("cache %b", "pool must be upgraded to add cache devices"),
        ("spare %b", "pool must be upgraded to add hot spares"),
        (
            "-f raidz2 %b %c %d",
            "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs",
        ),
    ] {
        refused(
            &stage,
            &format!("zpool add tank {vdevs}"),
            &format!("cannot add to 'tank': {words}"),
        );
    }
    for property in [
        "copies=1",
        "copies=2",
        "compression=gzip",
        "compression=zle",
        "compression=lz4",
        "dedup=on",
        "refquota=10M",
        "refreservation=1M",
        "aclinherit=passthrough-x",
        "userquota@root=1M",
        "version=3",
    ] {
        let text = format!("cannot set property for 'tank': {NEEDS_UPGRADE}\n");
        answers(&stage, &format!("zfs set {property} tank"), &text, 255);
    }
    for property in ["version=5", "normalization=formD", "casesensitivity=mixed"] {
        let words = "pool must be upgraded to set this property or value";
        refused(
            &stage,
            &format!("zfs create -o {property} tank/new"),
            &format!("cannot create 'tank/new': {words}"),
        );
    }
    quietly(&stage, "zfs create tank/fs");
    quietly(&stage, "zfs create -V 10M tank/vol");
    let line = "zfs get -H -o value version,refreservation,reservation tank/fs";
    assert_eq!(done(&stage, line), "2\nnone\nnone\n");
    let line = "zfs get -H -o value,source refreservation,reservation tank/vol";
    assert_eq!(done(&stage, line), "none\tdefault\n12M\tlocal\n");
    quietly(&stage, "zfs snapshot tank/fs@a");
    let text = format!("cannot set property for 'tank/fs@a': {NEEDS_UPGRADE}\n");
    answers(&stage, "zfs set org:x=1 tank/fs@a", &text, 255);
    refused(
        &stage,
        "zfs hold h tank/fs@a",
        "cannot hold: pool must be upgraded",
    );
    refused(
        &stage,
        "zfs destroy -d tank/fs@a",
        "cannot destroy snapshot tank/fs@a: unsupported version or feature",
    );
    refused(
        &stage,
        "zfs allow everyone mount tank",
        "cannot set permissions on 'tank': pool must be upgraded",
    );
    refused(
        &stage,
        "zfs bookmark tank/fs@a tank/fs#b",
        "cannot create bookmark 'tank/fs#b': bookmark feature not enabled",
    );
    refused(
        &stage,
        "zpool set bootfs=tank/fs tank",
        "cannot set property for 'tank': pool must be upgraded to support 'bootfs' property",
    );
    refused(
        &stage,
        "zpool checkpoint tank",
        "cannot checkpoint 'tank': operation not supported on this type of pool",
    );
    quietly(&stage, "zpool destroy tank");
    quietly(
        &stage,
        "zpool create -f -m none -o version=18 tank mirror %a %b log %c",
    );
    refused(
        &stage,
        "zpool remove tank %c",
        "cannot remove %c: pool must be upgraded to support log removal",
    );
}

#[test]
fn pools_are_raised_by_commands() {
    let stage = Stage::new(&["a"], 128);
    quietly(&stage, "zpool create -m none -o version=1 tank %a");
    let set = "cannot set property for 'tank': ";
    quietly(&stage, "zpool set version=5 tank");
    quietly(&stage, "zpool set version=5 tank");
    refused(
        &stage,
        "zpool set version=4 tank",
        &format!("{set}property 'version' number 4 is invalid."),
    );
    refused(
        &stage,
        "zpool set version=5000 tank",
        &format!("{set}invalid argument for this pool operation"),
    );
    assert_eq!(
        done(&stage, "zpool get -H -o value,source version tank"),
        "5\tlocal\n"
    );
    let text = format!("{HEAD}Pool 'tank' is already formatted using version 5.\n\n");
    answers(&stage, "zpool upgrade -V 5 tank", &text, 0);
    let text =
        format!("{HEAD}Pool 'tank' is already formatted using more current version '5'.\n\n");
    answers(&stage, "zpool upgrade -V 4 tank", &text, 0);
    let text = format!("{HEAD}Successfully upgraded 'tank' from version 5 to version 20.\n\n");
    answers(&stage, "zpool upgrade -V 20 -a", &text, 0);
    let text = format!("{HEAD}All pools are already formatted with version 20 or higher.\n");
    answers(&stage, "zpool upgrade -V 20 -a", &text, 0);
    assert!(
        stage
            .done("zpool status tank")
            .contains("legacy on-disk format")
    );
    assert!(done(&stage, "zpool upgrade").contains("\n20   tank\n"));
    let text = "tank: can not be upgraded; the pool version needs to first be upgraded\nto version 24\n\n\
                0 filesystems upgraded\n";
    answers(&stage, "zfs upgrade tank", text, 1);
    answers(
        &stage,
        "zfs upgrade -V 4 tank",
        "1 filesystems upgraded\n",
        0,
    );
    let text = done(&stage, "zpool upgrade -a");
    let first = "Successfully upgraded 'tank' from version 20 to feature flags.\n\
                 Enabled the following features on 'tank':\n  async_destroy\n";
    assert!(text.starts_with(&format!("{HEAD}{first}")), "{text}");
    assert_eq!(
        done(&stage, "zpool get -H -o value,source version tank"),
        "-\tdefault\n"
    );
    answers(&stage, "zfs upgrade tank", "1 filesystems upgraded\n", 0);
    let history = done(&stage, "zpool history -i tank");
    assert!(history.contains("] set version=5\n"), "{history}");
    assert!(
        history.contains("] upgrade pool version 5000;"),
        "{history}"
    );
    quietly(&stage, "zpool destroy tank");
    // A feature brings the version that has features.
    quietly(&stage, "zpool create -m none -o version=28 tank %a");
    quietly(&stage, "zpool set feature@lz4_compress=enabled tank");
    assert_eq!(
        done(&stage, "zpool get -H -o value,source version tank"),
        "-\tdefault\n"
    );
}

#[test]
fn the_version_that_a_file_system_has_completes_its_accounting() {
    let stage = Stage::new(&["a"], 128);
    quietly(&stage, "zpool create -d -m none tank %a");
    quietly(&stage, "zfs create tank/fs");
    done(&stage, "zpool upgrade tank");
    let count = "zfs projectspace -H -o name,objused tank/fs";
    assert_eq!(done(&stage, count), "");
    quietly(&stage, "zfs set version=current tank/fs");
    assert_ne!(done(&stage, count), "");
    let text = "cannot set property for 'tank/fs': Can not downgrade; already at version 5\n";
    answers(&stage, "zfs set version=4 tank/fs", text, 255);
}

#[test]
fn a_stream_with_system_attributes_needs_version_24() {
    let stage = Stage::new(&["a", "b"], 128);
    quietly(&stage, "zpool create -m none new %a");
    quietly(&stage, "zfs create new/fs");
    quietly(&stage, "zfs snapshot new/fs@1");
    let stream = stage.command("zfs send new/fs@1", false).output().unwrap();
    for (version, is_taken) in [(20, false), (24, true)] {
        quietly(
            &stage,
            &format!("zpool create -m none -o version={version} old %b"),
        );
        let file = stage.image("stream");
        std::fs::write(&file, &stream.stdout).unwrap();
        let mut receive = stage.command("zfs receive old/fs", false);
        receive.stdin(std::fs::File::open(&file).unwrap());
        let received = receive.output().unwrap();
        let text = String::from_utf8_lossy(&received.stderr).into_owned();
        let refusal = "cannot receive new filesystem stream: \
                       pool must be upgraded to receive this stream.\n";
        assert_eq!(
            text,
            if is_taken { "" } else { refusal },
            "version {version}"
        );
        assert_eq!(run(&stage, "zfs list old/fs").1 == 0, is_taken);
        quietly(&stage, "zpool destroy old");
    }
}

/// Left out where OpenZFS's suite was not fetched.
#[test]
fn a_pool_whose_encrypted_snapshots_lack_iv_sets_says_so() {
    let Some(folder) = millpond_tests::old_pools::folder() else {
        return;
    };
    let packed = folder.join("missing_ivset.dat.bz2");
    let unpacked = millpond_tests::images::unpacked_bzip2(&packed).unwrap();
    let stage = Stage::new(&[], 0);
    std::fs::copy(unpacked, stage.image("disk")).unwrap();
    run(&stage, "zpool import -N -d % missing_ivset");
    let status = done(&stage, "zpool status missing_ivset");
    for words in ["status: Errata #4 detected.", "bookmark_v2", "ZFS-8000-ER"] {
        assert!(status.contains(words), "{words}: {status}");
    }
    quietly(
        &stage,
        "zpool set feature@bookmark_v2=enabled missing_ivset",
    );
    let status = done(&stage, "zpool status missing_ivset");
    assert!(!status.contains("Errata"), "{status}");
    // The way out: they are received once more, into new datasets.
    quietly(&stage, "zfs create -o mountpoint=none missing_ivset/fixed");
    let copy = |send: &str| {
        let sent = stage.command(send, false).output().unwrap();
        let file = stage.image("stream");
        std::fs::write(&file, &sent.stdout).unwrap();
        let mut receive = stage.command("zfs receive -u missing_ivset/fixed/testfs", false);
        receive.stdin(std::fs::File::open(&file).unwrap());
        let received = receive.output().unwrap();
        String::from_utf8_lossy(&received.stderr).into_owned()
    };
    let first = "zfs send -w missing_ivset/testfs@snap1";
    let second = "zfs send -w -i @snap1 missing_ivset/testfs@snap2";
    assert_eq!(copy(first), "");
    assert!(copy(second).contains("IV set guid missing"));
    quietly(&stage, "zfs destroy -r missing_ivset/fixed/testfs");
    quietly(&stage, "millpond tunable zfs_disable_ivset_guid_check 1");
    let third = "zfs send -w -i missing_ivset/testfs#snap2 missing_ivset/testfs@snap3";
    for send in [first, second, third] {
        assert_eq!(copy(send), "", "{send}");
    }
    quietly(&stage, "millpond tunable zfs_disable_ivset_guid_check 0");
    for snapshot in ["snap1", "snap2", "snap3"] {
        let get = format!("zfs get -H -o value ivsetguid missing_ivset/fixed/testfs@{snapshot}");
        let guid = done(&stage, &get);
        assert!(
            guid.trim().parse::<u64>().is_ok_and(|guid| guid != 0),
            "{guid}"
        );
    }
}
