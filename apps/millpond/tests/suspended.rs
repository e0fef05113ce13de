//! The output and effects of commands on a pool whose disk fails and returns.
//!
//! A daemon in this process imports the pool. Each command is a process of its own.

#[path = "support/served.rs"]
mod served;
#[path = "support/shell.rs"]
mod shell;

use millpond_engine::{
    Caller, LeafState, NewDevice, NewLayout, NewMode, NewPool, NewTop, NewVdevs, Pool, PoolSetting,
    SettingTime, WriteAt, WriteOptions,
};
use millpond_sim::{FaultPlan, Scope, SimDisk, World};
use served::Served;
use shell::link_programs;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A daemon with the pool `tank` on a disk controlled by the test.
struct Stage {
    /// Declared first, so that it is dropped before its directory.
    served: Served,
    folder: tempfile::TempDir,
    live: Pool,
    disk: Arc<SimDisk>,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Stage {
    fn new(seed: u64, failmode: &str) -> Self {
        let world = World::without_journal(seed);
        let disk = world.disk(96 << 20, 512);
        let device = NewDevice::file("/sim/0", Arc::clone(&disk) as _);
        let top = NewTop::normal(NewLayout::Single, vec![device]);
        let new = NewPool {
            settings: vec![
                PoolSetting::parse("failmode", failmode, SettingTime::Creation).unwrap(),
            ],
            writing: WriteOptions {
                can_be_resumed: true,
                ..WriteOptions::default()
            },
            cache_bytes: Some(64 << 20),
            ..NewPool::new("tank", NewVdevs::of(vec![top]))
        };
        let live = Pool::create(&world.env(), &new).unwrap();

        let folder = tempfile::tempdir().unwrap();
        link_programs(folder.path());
        let messages = Arc::new(Mutex::new(vec![]));
        let telling = Arc::clone(&messages);
        let complain = move |text: &str| telling.lock().unwrap().push(text.to_owned());
        let served = Served::start(&folder.path().join("state"), complain);
        served.daemon.pools().adopt(live.clone());
        Self {
            folder,
            served,
            live,
            disk,
            messages,
        }
    }

    /// Runs a command. Returns its standard error followed by its standard output, and its status.
    fn run(&self, line: &str) -> (String, Option<i32>) {
        let (program, rest) = line.split_once(' ').unwrap();
        let done = Command::new(self.folder.path().join(program))
            .args(rest.split(' '))
            .env("MILLPOND_DIR", self.folder.path().join("state"))
            .env("TZ", "UTC")
            .output()
            .unwrap();
        let text = [done.stderr, done.stdout].concat();
        (String::from_utf8(text).unwrap(), done.status.code())
    }

    /// Makes writes fail; with `also_reads`, reads too.
    fn fail(&self, also_reads: bool) {
        match also_reads {
            true => self.disk.set_absent(true),
            false => self
                .disk
                .set_faults(Some(FaultPlan::failing(Scope::Writes))),
        }
    }

    fn recover(&self) {
        self.disk.set_absent(false);
        self.disk.set_faults(None);
    }

    /// Creates a file without writing it to disk.
    fn write(&self, name: &str) {
        let files = self.live.file_system("tank").unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        let mode = NewMode::exactly(0o644);
        let (file, _) = files
            .create(&caller, &root, name.as_bytes(), mode, true)
            .unwrap();
        let bytes = vec![7; 100_000];
        files
            .write(&caller, &file, WriteAt::Offset(0), &bytes)
            .unwrap();
    }

    fn await_suspension(&self) {
        while self.live.inner().suspension().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Suspends the pool: a thread waits for dirty data that cannot be written.
    fn suspend(&self) -> std::thread::JoinHandle<bool> {
        let live = self.live.clone();
        let syncing = std::thread::spawn(move || live.sync().is_ok());
        self.await_suspension();
        syncing
    }

    /// The line of `zpool status` about the disk, with single blanks.
    fn disk_line(&self) -> String {
        let (status, _) = self.run("zpool status tank");
        let line = status.lines().find(|line| line.contains("/sim/0"));
        let words = line.unwrap_or_default().split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    }

    fn has(&self, name: &str) -> bool {
        let view = self.live.committed().unwrap();
        let files = view.dataset("tank").unwrap().file_system().unwrap();
        let found = files.resolve(name.as_bytes(), millpond_engine::Symlinks::Follow);
        found.is_ok_and(|file| file.size_bytes() == 100_000)
    }
}

#[test]
fn a_suspended_pool_refuses_changes_until_it_is_cleared() {
    for (failmode, id) in [("wait", "HC"), ("continue", "JQ")] {
        for also_reads in [true, false] {
            let stage = Stage::new(70, failmode);
            stage.write("a");
            stage.fail(also_reads);
            let syncing = stage.suspend();

            let (status, code) = stage.run("zpool status tank");
            assert_eq!(code, Some(0), "{status}");
            let head = format!(
                "  pool: tank\n state: SUSPENDED\n\
                 status: One or more devices are faulted in response to IO failures.\n\
                 action: Make sure the affected devices are connected, then run 'zpool clear'.\n   \
                 see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-{id}\n"
            );
            assert!(status.starts_with(&head), "{status}");
            assert_ne!(stage.disk_line(), "/sim/0 ONLINE 0 0 0");
            let (list, _) = stage.run("zpool list -H -o health tank");
            assert_eq!(list, "SUSPENDED\n");
            let refused = [
                ("zfs create tank/x", "cannot create 'tank/x'"),
                ("zpool sync tank", "cannot sync 'tank'"),
                ("zpool export tank", "cannot export 'tank'"),
            ];
            for (line, action) in refused {
                let words = format!("{action}: pool I/O is currently suspended\n");
                assert_eq!(stage.run(line), (words, Some(1)));
            }
            // The disk is still absent.
            let words = "cannot clear errors for tank: I/O error\n".to_owned();
            assert_eq!(stage.run("zpool clear tank"), (words, Some(1)));
            assert!(!syncing.is_finished());

            stage.recover();
            assert_eq!(
                stage.run("zpool clear -n -F tank"),
                (String::new(), Some(0))
            );
            assert!(stage.live.inner().suspension().is_some());
            assert_eq!(stage.run("zpool clear tank"), (String::new(), Some(0)));
            assert!(syncing.join().unwrap());
            assert!(stage.has("a"));
            let (status, _) = stage.run("zpool status -x tank");
            assert_eq!(status, "pool 'tank' is healthy\n");
            let (history, _) = stage.run("zpool history tank");
            assert_eq!(history.matches("zpool clear").count(), 1, "{history}");
            assert_eq!(stage.run("zfs create tank/x"), (String::new(), Some(0)));
        }
    }
}

#[test]
fn errors_are_cleared_of_the_device_that_is_named() {
    let stage = Stage::new(71, "wait");
    let words = "cannot clear errors for /sim/9: no such device in pool\n";
    let refused = (words.to_owned(), Some(1));
    assert_eq!(stage.run("zpool clear tank /sim/9"), refused);
    for line in ["zpool clear tank /sim/0", "zpool clear -F tank"] {
        let flushes = FaultPlan::failing(Scope::Flushes);
        stage.disk.set_faults(Some(flushes));
        stage.write(
            line.split(' ')
                .next_back()
                .unwrap_or_default()
                .trim_start_matches("/sim/"),
        );
        let syncing = stage.suspend();
        stage.recover();
        stage.live.inner().resume().unwrap();
        assert!(syncing.join().unwrap());
        assert_ne!(stage.disk_line(), "/sim/0 ONLINE 0 0 0");
        assert_eq!(stage.run(line), (String::new(), Some(0)));
        assert_eq!(stage.disk_line(), "/sim/0 ONLINE 0 0 0");
    }
}

#[test]
fn a_forced_export_of_a_suspended_pool_loses_unwritten_data() {
    for failmode in ["wait", "continue"] {
        let stage = Stage::new(72, failmode);
        stage.write("kept");
        stage.live.sync().unwrap();
        stage.write("lost");
        stage.fail(true);
        let syncing = stage.suspend();
        // This test has the pool, too, as a request that does not end would.
        let held = "cannot export 'tank': it is closed, but its devices stay in use by the daemon until the \
                    last requests to its file systems and the last queries are answered\n";
        assert_eq!(stage.run("zpool export -f tank"), (held.into(), Some(1)));
        assert!(!syncing.join().unwrap());
        assert_eq!(stage.run("zpool list -H").0, "");
        stage.recover();
        assert!(stage.has("kept") && !stage.has("lost"));
    }
}

#[test]
fn a_stopping_daemon_waits_for_no_disk() {
    // Suspended before the export, or only when the export writes the remaining changes.
    for is_suspended in [true, false] {
        let stage = Stage::new(73, "wait");
        stage.write("a");
        stage.fail(true);
        let syncing = is_suspended.then(|| stage.suspend());
        stage.served.daemon.stop();
        assert!(syncing.is_none_or(|syncing| !syncing.join().unwrap()));
        let messages = stage.messages.lock().unwrap().join("\n");
        assert!(messages.contains("error pool=tank: "), "{messages}");
    }
}

#[test]
fn the_log_names_pool_and_device_once_per_event() {
    let stage = Stage::new(79, "wait");
    let said = || {
        stage.served.daemon.look_out();
        std::mem::take(&mut *stage.messages.lock().unwrap())
    };
    assert_eq!(said(), [] as [String; 0]);
    stage.write("a");
    stage.fail(false);
    let syncing = stage.suspend();
    // The probe fails too. The pool cannot work without the disk.
    let topology = stage.live.inner().store().topology();
    let disk = topology.tree.leaves().next().unwrap().0;
    while topology.condition(disk).state != LeafState::Degraded {
        std::thread::sleep(Duration::from_millis(1));
    }
    let lines = said();
    let starts = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    let of_disk = "warning pool=tank device=/sim/0: ";
    assert_eq!(starts(&format!("{of_disk}is degraded: errors")), 1);
    assert_eq!(starts(of_disk), 2, "{lines:?}");
    assert_eq!(starts("error pool=tank: suspended: "), 1, "{lines:?}");
    assert_eq!(lines.len(), 3, "{lines:?}");
    stage.recover();
    stage.run("zpool clear tank");
    syncing.join().unwrap();
    let continues = [
        "notice pool=tank device=/sim/0: is in use",
        "notice pool=tank: resumed",
    ];
    assert_eq!(said(), continues);
    assert_eq!(said(), [] as [String; 0]);
}
