//! `zpool status -c` and `zpool iostat -c`. What is expected is what OpenZFS 2.3 printed for the same scripts.

#[path = "support/stage.rs"]
mod stage;

use stage::Stage;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const SCRIPTS: [(&str, &str); 4] = [
    (
        "one",
        "[ \"$1\" = -h ] && echo 'Show one thing.' && exit\n\
         echo \"col=val $VDEV_PATH\"; echo \"up=$VDEV_UPATH\"; echo empty=",
    ),
    (
        "two",
        "[ \"$1\" = -h ] && echo 'Show two.' && exit\necho 'a plain line'; echo later=1",
    ),
    (
        "three",
        "case $VDEV_PATH in *a) echo x=1; echo only1=yes;; *) echo 'x=longer value'; exit 3;; esac",
    ),
    ("none", "exit 0"),
];

/// Runs a command with these variables. Returns its standard error followed by its output, and its status.
fn run(stage: &Stage, line: &str, variables: &[(&str, &str)]) -> (String, i32) {
    let scripts = stage.tools.path().join("scripts");
    let mut command = stage.command(line, false);
    command
        .env(
            "ZPOOL_SCRIPTS_PATH",
            format!("/nowhere:{}", scripts.display()),
        )
        .envs(variables.iter().copied());
    let done = command.output().unwrap();
    let text = String::from_utf8([done.stderr, done.stdout].concat()).unwrap();
    let folder = format!("{}/", stage.folder.path().display());
    (text.replace(&folder, "@"), done.status.code().unwrap())
}

/// What follows the columns that each table has.
fn after_counters(line: &str) -> &str {
    for before in ["CKSUM", "     0     0     0"] {
        if let Some((_, after)) = line.split_once(before) {
            return after;
        }
    }
    line
}

#[test]
fn what_scripts_print_becomes_columns() {
    let stage = Stage::new(&["a", "b"], 128);
    let scripts = stage.tools.path().join("scripts");
    fs::create_dir(&scripts).unwrap();
    for (name, text) in SCRIPTS {
        let path = scripts.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(scripts.join("plain"), "is no program").unwrap();
    stage.done("zpool create -O mountpoint=none tank mirror @a @b");

    let root = [("ZPOOL_SCRIPTS_AS_ROOT", "1")];
    if rustix::process::geteuid().is_root() {
        let words = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.\n";
        assert_eq!(
            run(&stage, "zpool status -c one tank", &[]),
            (words.into(), 1)
        );
    }
    for command in ["status", "iostat"] {
        let off = [root[0], ("ZPOOL_SCRIPTS_ENABLED", "0")];
        let refused = run(&stage, &format!("zpool {command} -c one tank"), &off);
        let words = "Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.\n";
        assert_eq!(refused, (words.into(), 1));
        let listed = format!(
            "Available 'zpool {command} -c' commands:\n  none            \n  one             Show one thing.\n\
             \u{20} three           \n  two             Show two.\n"
        );
        let found = run(&stage, &format!("zpool {command} -c"), &root);
        assert_eq!(
            (found.0.replace("x=longer value", ""), found.1),
            (listed, 0)
        );
    }

    let done = |line: &str| {
        let (text, status) = run(&stage, line, &root);
        assert_eq!(status, 0, "{line}: {text}");
        text
    };
    // The titles and the lines of the devices, without what is before the columns.
    let table = |scripts: &str| -> Vec<String> {
        let text = done(&format!("zpool status -P -c {scripts} tank"));
        let lines = text.lines().filter(|line| line.starts_with('\t'));
        lines.map(|line| after_counters(line).to_owned()).collect()
    };
    let cells = |lines: Vec<String>| -> Vec<Vec<String>> {
        let words = |line: &String| {
            line.split("  ")
                .map(|cell| cell.trim().to_owned())
                .filter(|cell| !cell.is_empty())
                .collect()
        };
        lines.iter().map(words).collect()
    };
    assert_eq!(
        cells(table("three,one")),
        [
            vec!["x", "only1", "col", "up", "empty"],
            vec![],
            vec![],
            vec!["1", "yes", "val @a", "@a", "-"],
            vec!["-", "-", "val @b", "@b", "-"],
        ]
    );
    assert_eq!(
        table("two"),
        ["", "", "", "  a plain line", "  a plain line"]
    );
    for nothing in ["none", "missing", "plain", "a/b", "tank"] {
        assert_eq!(table(nothing), ["", "", "", "  ", "  "], "{nothing}");
    }
    assert_eq!(cells(table("one,,missing")), cells(table("one")));
    let noted = done("zpool status -i -t -c two tank");
    assert!(
        noted.contains("  a plain line  (uninitialized)  (untrimmed)\n"),
        "{noted}"
    );

    let json: serde_json::Value =
        serde_json::from_str(&done("zpool status -j -c one,two tank")).unwrap();
    let leaf = &json["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"]["@a"];
    assert_eq!(
        (&leaf["col"], &leaf["empty"]),
        (&"val @a".into(), &"-".into())
    );

    let text = done("zpool iostat -c three tank");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].ends_with("   read  write  x  only1"), "{text}");
    assert!(lines[2].ends_with("  -----  -----  -  -----"), "{text}");
    assert!(
        lines[5].trim_start().starts_with("@a") && lines[5].ends_with("  1    yes"),
        "{text}"
    );
    assert!(lines[6].ends_with("  -      -"), "{text}");
    assert_eq!(lines[7], lines[2]);
    let (refused, status) = run(&stage, "zpool iostat -w -c one tank", &root);
    assert!(
        refused.starts_with("[-r|-w] isn't allowed with [-c|-l|-q]\nusage:\n"),
        "{refused}"
    );
    assert_eq!(status, 2);
    stage.done("zpool destroy tank");
}
