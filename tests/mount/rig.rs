//! A mounted pool on sparse images. At the end it is unmounted, exported and judged.

use millpond_engine::{
    OpenOptions, Pool, PoolBuilder, PropertyValue, Search, WriteOptions, ZfsCtlDir,
};
use millpond_fuse::{FuseError, FuseServer, Mount, MountOptions, MountTarget, SuspendedMount};
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::oracle::zdb;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// Whether the full, long tests were requested.
pub fn is_full() -> bool {
    std::env::var("MILLPOND_MOUNT").is_ok_and(|value| value == "full")
}

/// The pool layout in `MILLPOND_MOUNT_LAYOUT`, by default `single`.
pub fn layout() -> String {
    std::env::var("MILLPOND_MOUNT_LAYOUT").unwrap_or_else(|_| "single".to_owned())
}

/// Why nothing can be mounted here; `None` if mounting works.
pub fn absent() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    if !rustix::process::geteuid().is_root() {
        return Some("only the superuser mounts here");
    }
    None
}

/// The location of the images.
enum Images {
    Own(TempDir),
    /// Named by `MILLPOND_MOUNT_IMAGES` and kept.
    ///
    /// Each test has its own file system in one pool, so a single check covers all tests.
    Shared(PathBuf),
}

impl Images {
    fn path(&self) -> &Path {
        match self {
            Self::Own(folder) => folder.path(),
            Self::Shared(folder) => folder,
        }
    }
}

pub struct Rig {
    pub mount: Mount,
    pub pool: Pool,
    served: Option<Arc<ZfsCtlDir>>,
    /// The mounted dataset.
    pub dataset: String,
    images: Images,
    point: TempDir,
}

impl Rig {
    /// Mounts a file system with these properties.
    ///
    /// Prints the reason and returns `None` if nothing can be mounted.
    pub fn new(properties: &[(&str, &str)]) -> Option<Self> {
        if let Some(why) = absent() {
            eprintln!("not tried: {why}");
            return None;
        }
        let shared = std::env::var_os("MILLPOND_MOUNT_IMAGES");
        let images = match &shared {
            Some(folder) => Images::Shared(Path::new(folder).join(layout())),
            None => Images::Own(tempfile::tempdir().unwrap()),
        };
        std::fs::create_dir_all(images.path()).unwrap();
        let is_there = images.path().join("disk0.img").exists();
        let (pool, dataset) = if is_there {
            let search = Search::new([images.path()]);
            let pool = Pool::open(
                &search,
                "tank",
                &OpenOptions::default(),
                &WriteOptions::default(),
            );
            (pool.unwrap(), own_dataset())
        } else if shared.is_some() {
            (create(images.path(), &[]), own_dataset())
        } else {
            (create(images.path(), properties), "tank".to_owned())
        };
        if dataset != "tank" {
            let properties: Vec<_> = properties
                .iter()
                .map(|(name, value)| ((*name).to_owned(), PropertyValue::Text((*value).to_owned())))
                .collect();
            let datasets = pool.datasets();
            datasets.create_filesystem(&dataset, &properties).unwrap();
        }
        let files = pool.served(&dataset).unwrap();
        let server = FuseServer::start(4).unwrap();
        let point = tempfile::tempdir().unwrap();
        let target = MountTarget {
            files: Arc::clone(&files) as _,
            source: dataset.clone(),
            mountpoint: point.path().to_owned(),
            root: None,
        };
        let mount = server.mount(target, &MountOptions::default()).unwrap();
        Some(Self {
            mount,
            pool,
            served: Some(files),
            dataset,
            images,
            point,
        })
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    /// What is mounted.
    pub fn files(&self) -> &Arc<ZfsCtlDir> {
        self.served.as_ref().unwrap()
    }

    /// Changes the dataset while its files are closed, and lets programs continue with the files that it has then.
    pub fn replace_files(&mut self, change: impl FnOnce(&Pool)) {
        self.reopen_files(true, change);
    }

    /// The same, where `is_replaced` says whether the change was made.
    pub fn reopen_files(&mut self, is_replaced: bool, change: impl FnOnce(&Pool)) {
        let suspended = self.mount.suspend().unwrap().unwrap();
        self.served = None;
        change(&self.pool);
        self.resume(suspended, is_replaced);
    }

    /// Lets programs continue with the files that the dataset has now.
    pub fn resume(&mut self, suspended: SuspendedMount, is_replaced: bool) {
        let files = self.pool.served(&self.dataset).unwrap();
        self.served = Some(Arc::clone(&files));
        suspended.resume(files, is_replaced).unwrap();
    }

    /// Unmounts and exports the pool, and judges it.
    pub fn finish(self) {
        unmount(&self.mount);
        assert!(!self.mount.is_alive());
        drop((self.mount, self.served));
        self.pool.export().unwrap();
        zdb::judge(self.images.path(), "tank")
            .unwrap()
            .require("after it was mounted");
        let is_alone = matches!(self.images, Images::Own(_));
        if is_alone && std::env::var_os("MILLPOND_KERNEL").is_some() {
            let read = kernel::compare(Release::V2_3, self.images.path(), "tank");
            let (verdict, count) = read.unwrap();
            verdict.require("after it was mounted, OpenZFS's module");
            println!("{count} lines compared with the module's");
        }
    }
}

/// Unmounts a file system that this test does not use any more.
///
/// A process that another test starts has copies of all descriptors until it runs its program. Meanwhile the mount is busy.
pub fn unmount(mount: &Mount) {
    let tries = (0..50).find(|_| match mount.unmount(false) {
        Ok(()) => true,
        Err(FuseError::Busy(_)) => {
            std::thread::sleep(std::time::Duration::from_millis(100));
            false
        }
        Err(error) => panic!("{error}"),
    });
    assert!(tries.is_some(), "the mount stays busy");
}

/// A unique name: the test's name and a counter.
fn own_dataset() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test").replace("::", "-");
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("tank/{name}-{}-{number}", std::process::id())
}

fn create(folder: &Path, properties: &[(&str, &str)]) -> Pool {
    // The machine with the module copies whole images.
    let is_large = is_full() && std::env::var_os("MILLPOND_KERNEL").is_none();
    let bytes = if is_large { 4 << 30 } else { 512 << 20 };
    let image = |number: u32| {
        let image = folder.join(format!("disk{number}.img"));
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(bytes).unwrap();
        image
    };
    let plan = PoolBuilder::new("tank");
    let mut plan = match layout().as_str() {
        "single" => plan.single(image(0)),
        "mirror" => plan.mirror([image(0), image(1)]),
        "raidz2" => plan.raidz(2, (0..4).map(image)),
        other => panic!("MILLPOND_MOUNT_LAYOUT={other}? single, mirror or raidz2"),
    };
    for (name, value) in properties {
        plan = plan.root_property(name, value);
    }
    plan.create().unwrap()
}

/// The seed in `MILLPOND_MOUNT_SEED`, or one from the clock.
///
/// It is printed, so that a failure can be reproduced.
pub fn seed() -> u64 {
    let asked = std::env::var("MILLPOND_MOUNT_SEED").ok();
    let seed = asked.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::from(now.subsec_nanos()) ^ now.as_secs()
    });
    println!("MILLPOND_MOUNT_SEED={seed}");
    seed
}
