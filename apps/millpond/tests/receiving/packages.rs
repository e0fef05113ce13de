//! Packages of datasets that were promoted, renamed and moved at the sender.

use super::{fill, given, plain, sent};
use crate::stage::Stage;

/// Two pools, and commands that were run in them.
fn staged(lines: &[&str]) -> Stage {
    let stage = Stage::new(&["a", "b"], 256);
    stage.done("zpool create -m none tank @a");
    stage.done("zpool create -m none back @b");
    for line in lines {
        plain(&stage, line);
    }
    stage
}

/// The names below a dataset, and all their snapshots.
fn names(stage: &Stage, root: &str) -> String {
    stage.done(&format!("zfs list -H -r -t all -o name -s name {root}"))
}

fn received(stage: &Stage, send: &str, receive: &str) -> String {
    let stream = sent(stage, send);
    let (error, text, status) = given(stage, receive, &stream);
    assert_eq!((error.as_str(), status), ("", 0), "{receive}: {text}");
    text
}

#[test]
fn a_promoted_clone_does_not_destroy_what_the_next_stream_begins_from() {
    let stage = staged(&["zfs create tank/P", "zfs create tank/P/a"]);
    fill(&stage, "tank/P/a", "old", 100 << 10);
    plain(&stage, "zfs snapshot -r tank/P@0");
    fill(&stage, "tank/P/a", "new", 100 << 10);
    plain(&stage, "zfs snapshot -r tank/P@1");
    received(&stage, "zfs send -R tank/P@1", "zfs receive -u back/P");
    plain(&stage, "zfs clone tank/P/a@0 tank/P/b");
    plain(&stage, "zfs promote tank/P/b");
    plain(&stage, "zfs snapshot -r tank/P@2");
    let line = "zfs receive -uvF back/P";
    let text = received(&stage, "zfs send -R -I @1 tank/P@2", line);
    assert!(!text.contains("attempting"), "{text}");
    let kept = names(&stage, "back/P");
    for name in ["a@0", "a@1", "a@2", "b@0", "b@2"] {
        assert!(kept.contains(&format!("back/P/{name}\n")), "{kept}");
    }
    // The clone below its origin.
    plain(&stage, "zfs create tank/T");
    plain(&stage, "zfs snapshot tank/T@0");
    plain(&stage, "zfs snapshot tank/T@1");
    received(&stage, "zfs send -R tank/T@1", "zfs receive -u back/T");
    plain(&stage, "zfs clone tank/T@0 tank/T/c");
    plain(&stage, "zfs promote tank/T/c");
    plain(&stage, "zfs snapshot -r tank/T@2");
    received(
        &stage,
        "zfs send -R -I @1 tank/T@2",
        "zfs receive -uF back/T",
    );
    let kept = names(&stage, "back/T");
    for name in ["T@1", "T@2", "T/c@0", "T/c@2"] {
        assert!(kept.contains(&format!("back/{name}\n")), "{kept}");
    }
    // Both are replicated further.
    for tree in ["P", "T"] {
        plain(&stage, &format!("zfs snapshot -r tank/{tree}@3"));
        received(
            &stage,
            &format!("zfs send -R -I @2 tank/{tree}@3"),
            &format!("zfs receive -uF back/{tree}"),
        );
    }
}

#[test]
fn exchanged_names_are_exchanged_here() {
    let stage = staged(&[
        "zfs create tank/k",
        "zfs create tank/k/a",
        "zfs create tank/k/b",
        "zfs create tank/k/b/below",
    ]);
    plain(&stage, "zfs snapshot -r tank/k@1");
    received(&stage, "zfs send -R tank/k@1", "zfs receive -u back/k");
    let guid = |name: &str| sent(&stage, &format!("zfs get -Hpo value guid {name}"));
    let (a, b) = (guid("back/k/a@1"), guid("back/k/b@1"));
    for line in [
        "zfs rename tank/k/a tank/k/x",
        "zfs rename tank/k/b tank/k/a",
        "zfs rename tank/k/x tank/k/b",
        "zfs snapshot -r tank/k@2",
    ] {
        plain(&stage, line);
    }
    let line = "zfs receive -uvF back/k";
    let text = received(&stage, "zfs send -R -i @1 tank/k@2", line);
    assert!(text.contains(" to back/k/recv-"), "{text}");
    assert_eq!((guid("back/k/b@1"), guid("back/k/a@1")), (a, b));
    let all = "back/k back/k@1 back/k@2 back/k/a back/k/a@1 back/k/a@2 back/k/a/below \
               back/k/a/below@1 back/k/a/below@2 back/k/b back/k/b@1 back/k/b@2";
    let mut kept: Vec<String> = names(&stage, "back/k").lines().map(str::to_owned).collect();
    kept.sort();
    let mut all: Vec<&str> = all.split_whitespace().collect();
    all.sort_unstable();
    assert_eq!(kept, all);
}

#[test]
fn a_new_dataset_below_one_that_is_moved_goes_with_it() {
    let stage = staged(&["zfs create tank/X", "zfs create tank/X/c"]);
    plain(&stage, "zfs snapshot -r tank/X@1");
    received(&stage, "zfs send -R tank/X@1", "zfs receive -u back/X");
    for line in [
        "zfs create tank/X/m",
        "zfs create tank/X/c/k",
        "zfs rename tank/X/c tank/X/m/c",
        "zfs snapshot -r tank/X@2",
    ] {
        plain(&stage, line);
    }
    let line = "zfs receive -uvF back/X";
    received(&stage, "zfs send -R -I @1 tank/X@2", line);
    for name in ["m/c@1", "m/c@2", "m/c/k@2"] {
        plain(&stage, &format!("zfs list back/X/{name}"));
    }
    stage.failed("zfs list back/X/c");
    plain(&stage, "zfs snapshot -r tank/X@3");
    received(&stage, "zfs send -R -I @2 tank/X@3", line);
    plain(&stage, "zfs list back/X/m/c/k@3");
}

#[test]
fn properties_of_snapshots_that_are_here_already_come_with_later_packages() {
    let stage = staged(&["zfs create tank/P", "zfs create tank/P/a"]);
    plain(&stage, "zfs snapshot -r tank/P@1");
    received(&stage, "zfs send -R tank/P@1", "zfs receive -u back/P");
    plain(&stage, "zfs set my:note=first tank/P/a@1");
    plain(&stage, "zfs snapshot -r tank/P@2");
    let receive = "zfs receive -uF back/P";
    received(&stage, "zfs send -R -I @1 tank/P@2", receive);
    let note = "zfs get -H -o value,source my:note back/P/a@1";
    assert_eq!(sent(&stage, note), b"first\treceived\n");
    plain(&stage, "zfs set my:note=second tank/P/a@1");
    plain(&stage, "zfs snapshot -r tank/P@3");
    received(&stage, "zfs send -R -I @1 tank/P@3", receive);
    assert_eq!(sent(&stage, note), b"second\treceived\n");
}
