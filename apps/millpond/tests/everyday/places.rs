//! Messages about missing, empty and too small files and folders.

use crate::stage::Stage;

#[test]
fn a_missing_pool_a_missing_folder_and_empty_places_are_told_apart() {
    let stage = Stage::new(&["a"], 128);
    std::fs::create_dir(stage.image("hollow")).unwrap();
    std::fs::create_dir(stage.image("pools")).unwrap();
    stage.file("nothing", b"");
    stage.file("zeros", &vec![0; 1 << 20]);
    stage.done("zpool create -O mountpoint=none tank @a");
    stage.done("zpool export tank");
    std::fs::rename(stage.image("a"), stage.image("pools/a")).unwrap();
    let hint = "-d DIR says where to look";
    for (place, problem) in [
        ("nosuch", "@nosuch: No such file or directory"),
        ("hollow", "@hollow is an empty folder"),
        ("nothing", "@nothing is an empty file"),
        ("zeros", "there is no pool where it was looked for"),
        ("pools", "the pools there: tank"),
    ] {
        let words = format!("millpond: cannot open 'foo': no such pool\n{problem}\n{hint}\n");
        let line = format!("millpond -d @{place} ls foo");
        assert_eq!(stage.run(&line), (words, 1));
        let is_bad = matches!(place, "nosuch" | "hollow" | "nothing");
        let note = match is_bad {
            true => format!("millpond: {problem}\n"),
            false => String::new(),
        };
        if place != "pools" {
            let words = format!("no pools available to import\n{note}");
            assert_eq!(stage.run(&format!("zpool import -d @{place}")), (words, 0));
            let words = format!("{note}no pools available\n");
            let (text, status) = stage.run(&format!("millpond -d @{place} zpool list"));
            let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
            lines.sort_by_key(|line| *line == "no pools available\n");
            assert_eq!((lines.concat(), status), (words, 0));
        }
        let words = format!("cannot import 'foo': no such pool available\n{note}");
        let line = format!("zpool import -d @{place} foo");
        assert_eq!(stage.run(&line), (words, 1));
    }
}

#[test]
fn an_empty_cache_file_lists_no_pools() {
    let stage = Stage::new(&["a"], 128);
    stage.file("empty.cache", b"");
    let note = "the cache file @empty.cache is empty: it lists no pools\n";
    for line in [
        "zpool import -c @empty.cache",
        "zpool import -a -c @empty.cache",
    ] {
        let words = format!("no pools available to import\nmillpond: {note}");
        assert_eq!(stage.run(line), (words, 0), "{line}");
    }
    let (text, status) = stage.run("millpond -c @empty.cache ls foo");
    assert!(
        text.contains("no such pool") && text.contains(note),
        "{text}"
    );
    assert_eq!(status, 1);
    // So is the file that the daemon leaves.
    stage.done("zpool create -o cachefile=@own.cache -O mountpoint=none tank @a");
    stage.done("zpool export tank");
    let shown = stage.done("zpool import -c @own.cache");
    assert!(shown.contains("it lists no pools"), "{shown}");
    stage.file("damaged.cache", b"x");
    let text = stage.failed("zpool import -c @damaged.cache");
    assert!(text.contains("the cache file is damaged"), "{text}");
}

#[test]
fn a_dry_run_refuses_devices_that_are_too_small() {
    let stage = Stage::new(&["a", "b", "c", "d"], 128);
    stage.file("nothing", b"");
    stage.resize("small", 1);
    stage.done("zpool create -O mountpoint=none tank mirror @a @b");
    let words = "cannot add to 'tank': device is less than the minimum size (64M)";
    for what in [
        "mirror @small @nothing",
        "mirror @c @small",
        "spare @small",
        "log mirror @c @small",
    ] {
        stage.refused(&format!("zpool add -n tank {what}"), words);
        stage.refused(&format!("zpool add -n -f tank {what}"), words);
        stage.refused(&format!("zpool add -f tank {what}"), words);
    }
    let words = "cannot create 'x': one or more devices is less than the minimum size (64M)";
    for line in ["zpool create -n x @small", "zpool create x @small"] {
        stage.refused(line, words);
    }
    let shown = stage.done("zpool add -n tank mirror @c @d");
    assert!(shown.starts_with("would update 'tank'"), "{shown}");
    stage.done("zpool export tank");
    let (text, status) = stage.run_alone("zpool add -n tank mirror @c @small");
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("minimum size"), "{text}");
}

#[test]
fn output_and_errors_come_in_order_if_both_go_to_one_place() {
    let stage = Stage::new(&["a"], 128);
    stage.done("zpool create -O mountpoint=none tank @a");
    stage.done_as_it_is("zfs snapshot tank@s");
    stage.done_as_it_is("zfs hold keep tank@s");
    let both = stage.image("both");
    let file = std::fs::File::create(&both).unwrap();
    let errors = file.try_clone().unwrap();
    let mut command = stage.command("zfs destroy -v tank@s", false);
    let status = command.stdout(file).stderr(errors).status().unwrap();
    assert!(!status.success());
    let said = std::fs::read_to_string(&both).unwrap();
    let at = |words: &str| {
        said.find(words)
            .unwrap_or_else(|| panic!("{words}: {said}"))
    };
    assert!(at("will destroy tank@s") < at("cannot destroy"), "{said}");
    stage.done("zpool destroy tank");
}

#[test]
fn places_in_messages_are_named_once() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create -O mountpoint=none tank @a");
    stage.done("zpool export tank");
    // All that is behind the labels is lost.
    let mut bytes = std::fs::read(stage.image("a")).unwrap();
    bytes[4 << 20..][..100 << 20].fill(0xa5);
    stage.file("a", &bytes);
    let text = stage.failed("zpool import tank");
    assert!(
        text.contains("pool metadata, object set: no good copy"),
        "{text}"
    );
    assert!(!text.contains("pool metadata: pool metadata"), "{text}");
    // That it was imported so needs no reason.
    stage.done("zpool create -O mountpoint=none other @b");
    stage.done("zpool export other");
    stage.done("zpool import -o readonly=on other");
    stage.refused(
        "zpool set comment=x other",
        "cannot set property for 'other': pool is read-only",
    );
    stage.done("zpool export other");
}
