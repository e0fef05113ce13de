//! Snapshots that were received under another name than the sender's.

use super::*;

/// A copy that has the sender's snapshot 2 under the name `x`, and was changed since.
fn changed() -> (Stage, Vec<u8>) {
    let stage = staged();
    let s1 = sent(&stage, "zfs send src/fs@1");
    let s2 = sent(&stage, "zfs send -i @1 src/fs@2");
    quiet(&stage, "zfs receive dst/t", &s1);
    quiet(&stage, "zfs receive dst/t@x", &s2);
    fill(&stage, "dst/t", "changed", 1000);
    (stage, s2)
}

fn snapshots(stage: &Stage) -> String {
    stage.done("zfs list -H -o name -t snapshot -r dst/t")
}

#[test]
fn a_single_stream_brings_its_own_name() {
    let (stage, s2) = changed();
    let modified = "cannot receive incremental stream: destination dst/t has been modified\n\
        since most recent snapshot";
    refused(&stage, "zfs receive dst/t", &s2, modified);
    refused(&stage, "zfs receive -n dst/t", &s2, modified);
    assert_eq!(snapshots(&stage), "dst/t@1\ndst/t@x\n");
    quiet(&stage, "zfs receive -F dst/t", &s2);
    assert_eq!(snapshots(&stage), "dst/t@1\ndst/t@2\n");
    // The change is gone: the file can be made again. Under its own name the snapshot is there, and nothing is done.
    fill(&stage, "dst/t", "changed", 1000);
    quiet(&stage, "zfs receive dst/t", &s2);
    assert_eq!(snapshots(&stage), "dst/t@1\ndst/t@2\n");
}

#[test]
fn a_package_passes_over_what_is_there_under_any_name() {
    let (stage, _) = changed();
    let package = sent(&stage, "zfs send -I @1 src/fs@2");
    shown(
        &stage,
        "zfs receive -v dst/t",
        &package,
        "snap dst/t@2 already exists; ignoring",
    );
    assert_eq!(snapshots(&stage), "dst/t@1\ndst/t@x\n");
}

#[test]
fn a_recursive_rename_leaves_datasets_alone_that_lack_the_old_name() {
    let stage = staged();
    plain(&stage, "zfs snapshot src@old");
    plain(&stage, "zfs snapshot src/fs@new");
    plain(&stage, "zfs rename -r src@old src@new");
    plain(&stage, "zfs snapshot -r src@old");
    let taken = stage
        .command("zfs rename -r src@old src@new", false)
        .output();
    let text = String::from_utf8(taken.unwrap().stderr).unwrap();
    let expected =
        "cannot rename 'src@old': a child dataset already has a snapshot with the new name\n";
    assert_eq!(text, expected);
}
