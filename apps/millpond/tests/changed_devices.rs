//! Pools whose devices grow, through the commands.
//!
//! Each command is a process of its own. The daemon runs in this process, on real image files.

#[path = "support/served.rs"]
mod served;
#[path = "support/shell.rs"]
mod shell;

use millpond_tests::oracle::zdb;
use served::Served;
use shell::link_programs;
use std::process::Command;

struct Stage {
    /// Declared first, so that it is dropped before its directory.
    served: Served,
    /// A directory for the images alone.
    folder: tempfile::TempDir,
    tools: tempfile::TempDir,
}

impl Stage {
    fn new(images: &[&str]) -> Self {
        let [folder, tools] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        link_programs(tools.path());
        let served = Served::start(&tools.path().join("state"), |text| println!("{text}"));
        let stage = Self {
            served,
            folder,
            tools,
        };
        for name in images {
            stage.resize(name, 128);
        }
        stage
    }

    /// Makes an image this large, as `truncate -s` does.
    fn resize(&self, name: &str, mib: u64) {
        let mut open = std::fs::OpenOptions::new();
        let path = self.folder.path().join(name);
        let open = open.create(true).truncate(false).write(true);
        open.open(path).unwrap().set_len(mib << 20).unwrap();
    }

    /// Runs a command. Returns its standard error followed by its standard output, and its status. `@a` stands for
    /// the image `a`.
    fn run(&self, line: &str) -> (String, i32) {
        let folder = format!("{}/", self.folder.path().display());
        let line = line.replace('@', &folder);
        let (program, rest) = line.split_once(' ').unwrap();
        let done = Command::new(self.tools.path().join(program))
            .args(rest.split(' '))
            .env("MILLPOND_DIR", self.tools.path().join("state"))
            .env("ZPOOL_IMPORT_PATH", self.folder.path())
            .env("TZ", "UTC")
            .output()
            .unwrap();
        let text = [done.stderr, done.stdout].concat();
        let text = String::from_utf8(text).unwrap().replace(&folder, "@");
        (text, done.status.code().unwrap())
    }

    fn quietly(&self, line: &str) {
        assert_eq!(self.run(line), (String::new(), 0), "{line}");
    }

    fn refused(&self, line: &str, words: &str) {
        assert_eq!(self.run(line), (format!("{words}\n"), 1), "{line}");
    }

    /// Size and space to expand into.
    fn sizes(&self) -> String {
        let (text, _) = self.run("zpool list -H -o size,expandsize tank");
        text.trim().to_owned()
    }

    fn judge(&self, pool: &str) {
        let verdict = zdb::judge(self.folder.path(), pool).unwrap();
        verdict.require(pool);
    }
}

#[test]
fn a_pool_grows_with_online_e_and_shows_what_it_could() {
    let stage = Stage::new(&["a", "b", "c", "l"]);
    stage.quietly("zpool create tank mirror @a @b cache @l spare @c");
    assert_eq!(stage.sizes(), "112M\t-");
    for name in ["a", "b"] {
        stage.resize(name, 256);
    }
    assert_eq!(stage.sizes(), "112M\t-");
    // As soon as the devices are measured, the space is shown; it is not taken.
    stage.quietly("zpool online tank @a");
    assert_eq!(stage.sizes(), "112M\t128M");
    let (list, _) = stage.run("zpool list -v tank");
    let of = |name: &str| {
        let line = list.lines().find(|line| line.trim().starts_with(name));
        let words = line.unwrap_or_default().split_whitespace();
        words.take(6).collect::<Vec<_>>().join(" ")
    };
    assert!(of("mirror-0").ends_with("- 128M"), "{list}");
    assert!(of("@a").contains(" 256M - - "), "{list}");
    stage.quietly("zpool online -e tank @b");
    assert_eq!(stage.sizes(), "240M\t-");
    let (history, _) = stage.run("zpool history -i tank");
    let grown = "vdev online pool 'tank' size: 251658240(+134217728)";
    assert!(history.contains(grown), "{history}");
    assert!(history.contains("zpool online -e tank"), "{history}");
    for (line, words) in [
        (
            "zpool online -e tank @l",
            "cannot expand @l: cannot expand cache devices",
        ),
        (
            "zpool online -e tank @c",
            "cannot expand @c: device is reserved as a hot spare",
        ),
        (
            "zpool online -e tank mirror-0",
            "cannot expand mirror-0: operation not supported on this type of pool",
        ),
        (
            "zpool online -e tank @z",
            "couldn't find device \"@z\" in pool \"tank\"",
        ),
    ] {
        stage.refused(line, words);
    }
    stage.quietly("zpool export tank");
    stage.judge("tank");
    // The same without the daemon, with autoexpand.
    for name in ["a", "b"] {
        stage.resize(name, 512);
    }
    stage.quietly("zpool import tank");
    assert_eq!(stage.sizes(), "240M\t256M");
    stage.quietly("zpool set autoexpand=on tank");
    stage.quietly("zpool export tank");
    stage.quietly("zpool import tank");
    assert_eq!(stage.sizes(), "496M\t-");
    stage.quietly("zpool export tank");
    stage.judge("tank");
    drop(stage.served);
}

#[test]
fn a_device_that_shrank_is_refused_and_its_vdev_keeps_its_size() {
    let stage = Stage::new(&["a", "b"]);
    stage.quietly("zpool create tank mirror @a @b");
    stage.resize("b", 80);
    let shrank = "cannot expand @b: @b: the device has shrunk from 134217728 to 83886080 bytes; \
                  use 'zpool replace' to replace it";
    stage.refused("zpool online -e tank @b", shrank);
    assert_eq!(stage.sizes(), "112M\t-");
    let (status, _) = stage.run("zpool status tank");
    assert!(status.contains("state: DEGRADED"), "{status}");
    stage.resize("b", 128);
    let (text, code) = stage.run("zpool online tank @b");
    assert_eq!((text.as_str(), code), ("", 0));
}
