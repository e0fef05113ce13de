//! `zpool initialize` through the commands: what they print, and their records in the history.
//!
//! Each command is a process of its own. The daemon runs in this process, on real image files.

#[path = "support/served.rs"]
mod served;
#[path = "support/shell.rs"]
mod shell;

use served::Served;
use shell::link_programs;
use std::process::Command;

struct Stage {
    /// Declared first, so that it is dropped before its directory.
    _served: Served,
    folder: tempfile::TempDir,
    tools: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let [folder, tools] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        link_programs(tools.path());
        for name in ["a", "b"] {
            let image = std::fs::File::create(folder.path().join(name)).unwrap();
            image.set_len(64 << 20).unwrap();
        }
        let served = Served::start(&tools.path().join("state"), |text| println!("{text}"));
        Self {
            _served: served,
            folder,
            tools,
        }
    }

    /// Runs a command, and returns its status and what it prints. `@a` stands for the image `a`.
    fn run(&self, line: &str) -> (i32, String) {
        self.run_with(line, false)
    }

    /// Like [`Stage::run`], or without the daemon.
    fn run_with(&self, line: &str, is_local: bool) -> (i32, String) {
        let folder = format!("{}/", self.folder.path().display());
        let line = line.replace('@', &folder);
        let (program, rest) = line.split_once(' ').unwrap();
        let mut command = Command::new(self.tools.path().join(program));
        if is_local {
            command.env("MILLPOND_SEARCH", self.folder.path());
        }
        let done = command
            .args(rest.split(' '))
            .env("MILLPOND_DIR", self.tools.path().join("state"))
            .env("ZPOOL_IMPORT_PATH", self.folder.path())
            .env("TZ", "UTC")
            .output()
            .unwrap();
        let text = String::from_utf8([done.stderr, done.stdout].concat()).unwrap();
        (done.status.code().unwrap(), text.replace(&folder, "@"))
    }

    fn done(&self, line: &str) -> String {
        let (status, text) = self.run(line);
        assert_eq!(status, 0, "{line}: {text}");
        text
    }
}

#[test]
fn the_texts_are_those_of_openzfs() {
    let stage = Stage::new();
    stage.done("zpool create tank mirror @a @b");
    let none = "cannot initialize '@a': there is no active initialization\n\
                cannot initialize '@b': there is no active initialization\n";
    assert_eq!(stage.run("zpool initialize -s tank"), (255, none.into()));
    assert_eq!(stage.run("zpool initialize -c tank"), (255, none.into()));
    let missing = "cannot initialize '@none': no such device in pool\n";
    let found = stage.run("zpool initialize tank @none");
    assert_eq!(found, (255, missing.into()));
    assert_eq!(stage.run("zpool initialize -c -s tank").0, 2);
    assert_eq!(stage.run("zpool initialize nosuch").0, 255);
    assert!(
        stage
            .done("zpool status -i tank")
            .contains("@a  ONLINE       0     0     0  (uninitialized)")
    );
    assert_eq!(stage.done("zpool initialize -w tank @a"), "");
    let status = stage.done("zpool status -i tank");
    assert!(
        status.contains("  (100% initialized, completed at "),
        "{status}"
    );
    assert!(status.contains("  (uninitialized)"), "{status}");
    assert_eq!(stage.done("zpool initialize tank @b"), "");
    assert_eq!(stage.done("zpool wait -t initialize tank"), "");
    let image = std::fs::read(stage.folder.path().join("b")).unwrap();
    let pattern = 0xdead_beef_dead_beee_u64.to_le_bytes();
    let words = image.chunks_exact(8).filter(|word| *word == pattern);
    assert!(words.count() * 8 > 40 << 20);
    assert_eq!(stage.done("zpool initialize -u tank"), "");
    let status = stage.done("zpool status -i tank");
    assert_eq!(status.matches("(uninitialized)").count(), 2, "{status}");
    let history = stage.done("zpool history -i tank");
    for (name, text) in [
        ("initialize", "@a activated"),
        ("initialize", "@b complete"),
        ("uninitialize", "@a"),
    ] {
        let record = format!("{name} vdev={text}");
        assert!(history.contains(&record), "{record} in {history}");
    }
}

#[test]
fn it_continues_after_an_import() {
    let stage = Stage::new();
    stage.done("zpool create tank @a");
    stage.done("zpool initialize tank");
    stage.done("zpool export tank");
    stage.done("zpool import tank");
    stage.done("zpool wait -t initialize tank");
    let status = stage.done("zpool status -i tank");
    assert!(
        status.contains("  (100% initialized, completed at "),
        "{status}"
    );
}

#[test]
fn without_the_daemon_the_command_does_it_itself() {
    let stage = Stage::new();
    stage.done("zpool create tank @a");
    stage.done("zpool export tank");
    let found = stage.run_with("zpool initialize -w tank", true);
    assert_eq!(found, (0, String::new()));
    let (_, status) = stage.run_with("zpool status -i tank", true);
    assert!(
        status.contains("  (100% initialized, completed at "),
        "{status}"
    );
}
