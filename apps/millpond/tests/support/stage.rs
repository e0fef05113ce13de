//! Commands that are processes of their own, and a daemon in this process, on real image files.
#![allow(dead_code)] // each test program uses its part of this

#[path = "served.rs"]
mod served;
#[path = "shell.rs"]
mod shell;

use served::Served;
use shell::link_programs;
use std::process::Command;

pub struct Stage {
    /// Declared first, so that it is dropped before its directory.
    pub served: Served,
    /// A directory for the images alone.
    pub folder: tempfile::TempDir,
    pub tools: tempfile::TempDir,
}

impl Stage {
    /// Images of these names, each `mib` MiB large.
    pub fn new(images: &[&str], mib: u64) -> Self {
        let [folder, tools] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        link_programs(tools.path());
        let served = Served::start(&tools.path().join("state"), |text| println!("{text}"));
        let stage = Self {
            served,
            folder,
            tools,
        };
        for name in images {
            stage.resize(name, mib);
        }
        stage
    }

    /// Makes an image this large, as `truncate -s` does.
    pub fn resize(&self, name: &str, mib: u64) {
        let mut open = std::fs::OpenOptions::new();
        let open = open.create(true).truncate(false).write(true);
        open.open(self.image(name))
            .unwrap()
            .set_len(mib << 20)
            .unwrap();
    }

    pub fn image(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Runs a command. Returns its standard error followed by its standard output, and its status. `@a` stands for
    /// the image `a`.
    pub fn run(&self, line: &str) -> (String, i32) {
        self.run_with(line, false)
    }

    /// Like [`Stage::run`], without the daemon.
    pub fn run_alone(&self, line: &str) -> (String, i32) {
        self.run_with(line, true)
    }

    fn run_with(&self, line: &str, is_alone: bool) -> (String, i32) {
        let folder = format!("{}/", self.folder.path().display());
        let line = line.replace('@', &folder);
        let done = self.command(&line, is_alone).output().unwrap();
        let text = String::from_utf8([done.stderr, done.stdout].concat()).unwrap();
        (text.replace(&folder, "@"), done.status.code().unwrap())
    }

    /// A command that is not running yet. `@` is no image here.
    pub fn command(&self, line: &str, is_alone: bool) -> Command {
        let (program, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut command = Command::new(self.tools.path().join(program));
        if is_alone {
            command.env("MILLPOND_SEARCH", self.folder.path());
        }
        command
            .args(rest.split(' ').filter(|word| !word.is_empty()))
            .env("MILLPOND_DIR", self.tools.path().join("state"))
            .env("ZPOOL_IMPORT_PATH", self.folder.path())
            .env("TZ", "UTC");
        command
    }

    /// Runs a command that succeeds, and returns what it prints.
    pub fn done(&self, line: &str) -> String {
        let (text, status) = self.run(line);
        assert_eq!(status, 0, "{line}: {text}");
        text
    }

    /// Runs a command that succeeds and prints nothing.
    pub fn quietly(&self, line: &str) {
        assert_eq!(self.run(line), (String::new(), 0), "{line}");
    }

    /// Runs a command that fails, and returns what it prints.
    pub fn failed(&self, line: &str) -> String {
        let (text, status) = self.run(line);
        assert_ne!(status, 0, "{line}: {text}");
        text
    }

    /// Runs a command that fails with status 1 and prints only this line.
    pub fn refused(&self, line: &str, words: &str) {
        assert_eq!(self.run(line), (format!("{words}\n"), 1), "{line}");
    }
}
