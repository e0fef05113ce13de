//! A pool on a sparse image, mounted; at the end unmounted, exported and judged.

use millpond::live::{LivePool, PoolPlan, WithSnapshots};
use millpond::{OpenOptions, Pool, Search};
use millpond_fuse::{FuseServer, Mount, MountOptions, MountTarget};
use millpond_tests::oracle::kernel::{self, Release, only_one_has, written};
use millpond_tests::oracle::zdb;
use millpond_tests::workload::manifest;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Whether everything is to be tried, and at length.
pub fn is_full() -> bool {
    std::env::var("MILLPOND_MOUNT").is_ok_and(|value| value == "full")
}

/// The pool's layout, asked for with `MILLPOND_MOUNT_LAYOUT`.
pub fn layout() -> String {
    std::env::var("MILLPOND_MOUNT_LAYOUT").unwrap_or_else(|_| "single".to_owned())
}

/// Why nothing can be mounted here; `None` if it can.
pub fn absent() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    if !rustix::process::geteuid().is_root() {
        return Some("only the superuser mounts here");
    }
    None
}

pub struct Rig {
    pub mount: Mount,
    pub pool: LivePool,
    pub files: Arc<WithSnapshots>,
    images: TempDir,
    point: TempDir,
}

impl Rig {
    /// A mounted pool with these properties on its root; `None`, with the reason printed, where nothing can be
    /// mounted.
    pub fn new(properties: &[(&str, &str)]) -> Option<Self> {
        if let Some(why) = absent() {
            eprintln!("not tried: {why}");
            return None;
        }
        let images = tempfile::tempdir().unwrap();
        // The module's machine copies the images whole.
        let is_large = is_full() && std::env::var_os("MILLPOND_KERNEL").is_none();
        let bytes = if is_large { 4 << 30 } else { 512 << 20 };
        let image = |number: u32| {
            let image = images.path().join(format!("disk{number}.img"));
            std::fs::File::create(&image)
                .unwrap()
                .set_len(bytes)
                .unwrap();
            image
        };
        let plan = PoolPlan::new("tank");
        let mut plan = match layout().as_str() {
            "single" => plan.single(image(0)),
            "mirror" => plan.mirror([image(0), image(1)]),
            "raidz2" => plan.raidz(2, (0..4).map(image)),
            other => panic!("MILLPOND_MOUNT_LAYOUT={other}? single, mirror or raidz2"),
        };
        for (name, value) in properties {
            plan = plan.root_property(name, value);
        }
        let pool = plan.create().unwrap();
        let files = pool.served("tank").unwrap();
        let server = FuseServer::start(4).unwrap();
        let point = tempfile::tempdir().unwrap();
        let target = MountTarget {
            files: Arc::clone(&files) as _,
            source: "tank".to_owned(),
            mountpoint: point.path().to_owned(),
        };
        let mount = server.mount(target, &MountOptions::default()).unwrap();
        Some(Self {
            mount,
            pool,
            files,
            images,
            point,
        })
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    /// Unmounts, exports, and has the pool judged.
    pub fn finish(self) {
        self.mount.unmount(false).unwrap();
        assert!(!self.mount.is_alive());
        drop((self.mount, self.files));
        self.pool.export().unwrap();
        zdb::judge(self.images.path(), "tank")
            .unwrap()
            .require("after it was mounted");
        if std::env::var_os("MILLPOND_KERNEL").is_some() {
            judge_by_module(self.images.path());
        }
    }
}

/// The kernel module imports and scrubs the pool, and reads what we read.
fn judge_by_module(folder: &Path) {
    let pool = Pool::open(&Search::new([folder]), "tank", &OpenOptions::default()).unwrap();
    let ours = manifest(&pool).unwrap();
    drop(pool);
    let mut images: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    images.sort();
    let share = tempfile::tempdir().unwrap();
    let verdict = kernel::judge(Release::V2_3, &images, "tank", Some(share.path())).unwrap();
    let is_read = verdict.is_clean();
    verdict.require("after it was mounted, OpenZFS's module");
    if is_read {
        let count = ours.len();
        let differences = only_one_has(ours, written(share.path(), "manifest.txt"));
        println!("{count} lines compared with the module's");
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }
}

/// Numbers that follow from a seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides.max(1)
    }
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll(256) as u8).collect()
    }
}

/// The seed asked for with `MILLPOND_MOUNT_SEED`, or one of the clock; printed, so that a failure can be had again.
pub fn seed() -> u64 {
    let asked = std::env::var("MILLPOND_MOUNT_SEED").ok();
    let seed = asked.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::from(now.subsec_nanos()) ^ now.as_secs()
    });
    println!("MILLPOND_MOUNT_SEED={seed}");
    seed
}
