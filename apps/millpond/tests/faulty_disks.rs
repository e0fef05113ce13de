//! The daemon as a process, on image files whose requests fail or hang on demand.
//!
//! The image files are on FUSE servers of this test. Data that was reported as stable survives, no pool is
//! lost, and other pools and their mounts keep working.
//!
//! Needs root and /dev/fuse.

#[path = "support/shell.rs"]
mod shell;

use millpond_engine::{NewDevice, NewLayout, NewPool, NewTop, NewVdevs, Pool};
use millpond_env::sync::{Condvar, Mutex};
use millpond_fuse::{FuseServer, Mount, MountOptions, MountTarget};
use millpond_posix::vfs::{InodeNumber, Vfs, VfsNode};
use millpond_posix::{CacheHint, Caller, FileError, FileSystem, TransactionError, WriteAt};
use millpond_sim::World;
use shell::Shell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How requests for an image are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mood {
    #[default]
    Good,
    FailsReads,
    FailsWrites,
    FailsFlushes,
    Hangs,
}

#[derive(Default)]
struct Faults {
    state: Mutex<(Mood, usize)>,
    changed: Condvar,
}

impl Faults {
    fn set(&self, mood: Mood) {
        self.state.lock().0 = mood;
        self.changed.notify_all();
    }
    /// Waits until a request hangs.
    fn await_hang(&self) {
        let mut state = self.state.lock();
        while state.1 == 0 {
            self.changed.wait(&mut state);
        }
    }
    /// Called at the start of each request. Requests fail in the mood `failing`.
    fn pass(&self, failing: Mood) -> Result<(), FileError> {
        let mut state = self.state.lock();
        state.1 += 1;
        while state.0 == Mood::Hangs {
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
        state.1 -= 1;
        if state.0 != failing {
            return Ok(());
        }
        let reason = "as told".to_owned();
        Err(TransactionError::Suspended { reason }.into())
    }
}

/// A file system whose requests can fail or hang.
struct Faulty {
    inner: Arc<dyn Vfs>,
    faults: Arc<Faults>,
}

impl Vfs for Faulty {
    fn file_system(&self) -> &FileSystem {
        self.inner.file_system()
    }
    fn reading<'n>(&'n self, node: &'n VfsNode) -> Result<&'n FileSystem, FileError> {
        self.inner.reading(node)
    }
    fn changing(&self, node: &VfsNode) -> Result<&FileSystem, FileError> {
        self.inner.changing(node)
    }
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError> {
        self.inner.node(number, generation)
    }
    fn read_with_hint(
        &self,
        node: &VfsNode,
        offset: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<usize, FileError> {
        self.faults.pass(Mood::FailsReads)?;
        self.inner.read_with_hint(node, offset, buffer, hint)
    }
    fn write(
        &self,
        caller: &Caller,
        node: &VfsNode,
        at: WriteAt,
        bytes: &[u8],
    ) -> Result<u64, FileError> {
        self.faults.pass(Mood::FailsWrites)?;
        self.inner.write(caller, node, at, bytes)
    }
    fn fsync(&self, node: &VfsNode) -> Result<(), FileError> {
        self.faults.pass(Mood::FailsFlushes)?;
        self.inner.fsync(node)
    }
}

/// A directory with one image, `disk`, on a FUSE server.
struct Disk {
    faults: Arc<Faults>,
    mount: Option<Mount>,
}

struct Stage {
    shell: Shell,
    disks: BTreeMap<&'static str, Disk>,
    /// Data reported as stable: file and content.
    kept: BTreeMap<PathBuf, Vec<u8>>,
    host: Option<Pool>,
    _server: Arc<FuseServer>,
}

impl std::ops::Deref for Stage {
    type Target = Shell;
    fn deref(&self) -> &Shell {
        &self.shell
    }
}

/// The pool in memory that holds the images.
fn host(world: &World) -> Pool {
    let disk = world.disk(2 << 30, 512);
    let device = NewDevice::file("/sim/0", disk as _);
    let top = NewTop::normal(NewLayout::Single, vec![device]);
    let new = NewPool {
        cache_bytes: Some(64 << 20),
        ..NewPool::new("host", NewVdevs::of(vec![top]))
    };
    Pool::create(&world.env(), &new).unwrap()
}

const DISKS: [&str; 3] = ["a", "b", "c"];

impl Stage {
    /// Returns `None`, with a message, if the test cannot run.
    fn new() -> Option<Self> {
        let mut shell = Shell::new()?;
        shell.deadline = Some(2);
        let world = World::without_journal(90);
        let host = host(&world);
        let server = FuseServer::start(8).unwrap();
        let disks = DISKS.map(|name| {
            let dataset = format!("host/{name}");
            host.datasets().create_filesystem(&dataset, &[]).unwrap();
            let faults = Arc::new(Faults::default());
            let files = Faulty {
                inner: host.served(&dataset).unwrap(),
                faults: Arc::clone(&faults),
            };
            let point = shell.path(name);
            fs::create_dir(&point).unwrap();
            let target = MountTarget {
                files: Arc::new(files),
                source: format!("faulty-{name}"),
                mountpoint: point.clone(),
                root: None,
            };
            let mount = server.mount(target, &MountOptions::default()).unwrap();
            let image = File::create(point.join("disk")).unwrap();
            image.set_len(128 << 20).unwrap();
            let mount = Some(mount);
            (name, Disk { faults, mount })
        });
        shell.image("calm", 128);
        let stage = Self {
            shell,
            disks: disks.into_iter().collect(),
            kept: BTreeMap::new(),
            host: Some(host),
            _server: server,
        };
        stage.done("zpool create -m HERE/mnt/tank tank mirror HERE/a/disk HERE/b/disk");
        stage.done("zpool create -m HERE/mnt/solo solo HERE/c/disk");
        stage.done("zpool create -m HERE/mnt/calm calm HERE/calm");
        Some(stage)
    }

    fn set(&self, disk: &str, mood: Mood) {
        self.disks[disk].faults.set(mood);
    }

    /// Writes a file and syncs it. From then on its content must survive.
    fn promise(&mut self, path: &str) {
        let path = self.path(path);
        let content = put(&path);
        self.kept.insert(path, content);
    }
    /// Checks that all synced files are intact.
    fn check(&self, what: &str) {
        for (path, content) in &self.kept {
            let found = fs::read(path).unwrap_or_else(|error| panic!("{what}: {path:?}: {error}"));
            assert!(
                found == *content,
                "{what}: {path:?} is not what was written"
            );
        }
    }
    /// Kills the daemon and waits until it has ended.
    fn kill(&self) {
        self.done("kill -KILL $(cat HERE/state/lock); while kill -0 $(cat HERE/state/lock) 2>/dev/null; do sleep 0.05; done");
    }
    /// Makes the disk work again and clears the pool.
    fn clear(&self, disk: &str, pool: &str) {
        self.set(disk, Mood::Good);
        self.run(&format!("zpool clear {pool}"));
    }
}

fn put(path: &Path) -> Vec<u8> {
    let name = path.to_string_lossy().into_owned();
    let content = name.as_bytes().repeat(3000);
    let mut file = File::create(path).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    content
}

impl Drop for Stage {
    fn drop(&mut self) {
        DISKS.iter().for_each(|disk| self.set(disk, Mood::Good));
        self.run("zpool export -a; kill -TERM $(cat HERE/state/lock); while kill -0 $(cat HERE/state/lock) 2>/dev/null; do sleep 0.05; done");
        self.run("umount -l HERE/mnt/* 2>/dev/null");
        for disk in self.disks.values_mut() {
            if let Some(mount) = disk.mount.take() {
                let _ = mount.unmount(true);
            }
        }
        if let Some(host) = self.host.take() {
            let _ = host.export();
        }
    }
}

/// Runs a sequence of operations on a pool, each with the expected result of a command or program.
fn steps(stage: &mut Stage, pool: &str, tag: &str) {
    stage.promise(&format!("mnt/{pool}/{tag}"));
    stage.done(&format!("zfs snapshot {pool}@{tag}"));
    stage.done(&format!("zfs create {pool}/in-{tag}"));
    stage.promise(&format!("mnt/{pool}/in-{tag}/file"));
    stage.done(&format!("zfs destroy {pool}@{tag}"));
}

#[test]
fn a_mirror_works_while_one_disk_fails_or_hangs() {
    let Some(mut stage) = Stage::new() else {
        return;
    };
    steps(&mut stage, "tank", "before");
    let moods = [
        Mood::FailsFlushes,
        Mood::FailsWrites,
        Mood::FailsReads,
        Mood::Hangs,
    ];
    for mood in moods {
        stage.set("a", mood);
        let tag = format!("{mood:?}").to_lowercase();
        steps(&mut stage, "tank", &tag);
        steps(&mut stage, "calm", &tag);
        stage.check(&tag);
        if mood == Mood::Hangs {
            let status = stage.done("zpool status tank");
            assert!(status.contains("DEGRADED"), "{status}");
            // The pool is exported and imported again without the disk.
            stage.done("zpool export tank");
            stage.set("a", Mood::Good);
            stage.done("zpool import -d HERE/a -d HERE/b tank");
        }
        stage.clear("a", "tank");
        stage.check(&tag);
    }
    stage.kill();
    stage.done("zpool list tank calm solo");
    stage.check("killed");
}

#[test]
fn a_failing_single_disk_is_retried_and_stalls_no_other_pool() {
    let Some(mut stage) = Stage::new() else {
        return;
    };
    steps(&mut stage, "solo", "before");
    for mood in [Mood::FailsFlushes, Mood::FailsWrites, Mood::Hangs] {
        stage.set("c", mood);
        let tag = format!("{mood:?}").to_lowercase();
        let path = stage.path("mnt/solo").join(&tag);
        let content = std::thread::scope(|scope| {
            let writing = scope.spawn(|| put(&path));
            if mood == Mood::Hangs {
                stage.disks["c"].faults.await_hang();
            }
            // The status reports that the pool is suspended, and why.
            while !stage.done("zpool status solo").contains("SUSPENDED") {}
            put(&stage.path("mnt/calm").join(&tag));
            stage.done(&format!("zfs snapshot calm@{tag}"));
            assert!(!writing.is_finished());
            stage.clear("c", "solo");
            writing.join().unwrap()
        });
        stage.kept.insert(path, content);
        steps(&mut stage, "solo", &format!("after-{tag}"));
        stage.check(&tag);
    }
    stage.kill();
    stage.done("zpool list tank calm solo");
    stage.check("killed");
}

/// Takes minutes: every search for devices waits for a while for the hanging disk.
#[test]
#[ignore = "takes a minute or two"]
fn an_import_works_while_an_unneeded_disk_hangs() {
    let Some(mut stage) = Stage::new() else {
        return;
    };
    steps(&mut stage, "tank", "before");
    stage.done("zpool export tank");
    stage.set("a", Mood::Hangs);
    stage.done("zpool import -d HERE/a -d HERE/b tank");
    let status = stage.done("zpool status tank");
    assert!(status.contains("DEGRADED"), "{status}");
    steps(&mut stage, "tank", "without");
    steps(&mut stage, "calm", "without");
    stage.check("without");
    stage.set("a", Mood::Good);
    stage.clear("a", "tank");
    stage.check("with");
}
