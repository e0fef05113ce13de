//! A pool on image files, changed through the dataset layer.

use millpond_dataset::DatasetError;
use millpond_dataset::{DatasetInitializer, Datasets, Estimate, HeadDataset, NewContents};
use millpond_device::{Candidate, FileDevice, OpenOptions as DeviceOptions};
use millpond_engine::FileSystemInitializer;
use millpond_env::Env;
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{NewObject, ObjectSet};
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_pool::import::{find_pools, scan_devices};
use millpond_pool::{
    FeatureChoice, NewDevice, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, Pool, SyncMode,
    WriteOptions,
};
use millpond_pool::{OpenOptions, PoolView};
use millpond_tests::recount;
use millpond_tests::{images, oracle};
use millpond_txg::Transaction;
use std::error::Error;
use std::path::PathBuf;

/// Leaves new datasets without objects.
struct Nothing;

impl DatasetInitializer for Nothing {
    fn create(
        &self,
        _: &Arc<ObjectSet>,
        _: &Transaction,
        _: &NewContents,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

/// A pool in a directory of its own, controlled by its test.
pub struct Bench {
    folder: tempfile::TempDir,
    env: Env,
    name: String,
    pool_name: String,
    /// Number of file systems and volumes at the start.
    pub heads_at_first: usize,
    open: Mutex<Option<(Arc<Pool>, Arc<Datasets>)>>,
}

const POOL: &str = "tank";
const IMAGE_BYTES: u64 = 256 << 20;

impl Bench {
    pub fn new(name: &str) -> Self {
        Self::with_features(name, FeatureChoice::Default)
    }

    /// Copies a pool created by OpenZFS from the golden set; `None` if the set is absent.
    pub fn of_golden(case: &str) -> Option<Self> {
        let set = images::golden_set().unwrap();
        let from = set.folder.join(case);
        let Ok(record) = std::fs::read(from.join("CASE.json")) else {
            eprintln!("{case}: not in the golden set ({})", set.description);
            return None;
        };
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let image = &record["images"][0];
        let packed = from.join(image["file"].as_str().unwrap());
        let sha256 = image["sha256"].as_str().unwrap();
        let image = images::unpacked(&packed, sha256, image["size"].as_u64().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        images::copy_sparse(&image, &folder.path().join("d0.img")).unwrap();
        let bench = Self {
            folder,
            env: Env::real(),
            name: case.to_owned(),
            pool_name: record["pool"].as_str().unwrap().to_owned(),
            heads_at_first: record["datasets"].as_array().map_or(0, Vec::len),
            open: Mutex::new(None),
        };
        bench.reopen();
        Some(bench)
    }

    /// The pool's name.
    pub fn root(&self) -> &str {
        &self.pool_name
    }

    pub fn with_features(name: &str, features: FeatureChoice) -> Self {
        Self::make(
            name,
            features,
            FileSystemInitializer::of(&Env::real(), &writing()),
        )
    }

    /// Creates a pool whose root file system has no objects, as `ztest` leaves it.
    pub fn of_empty_root(name: &str) -> Self {
        let bench = Self::make(name, FeatureChoice::Default, Arc::new(Nothing));
        bench.judge();
        bench.reopen();
        bench
    }

    fn make(name: &str, features: FeatureChoice, contents: Arc<dyn DatasetInitializer>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let env = Env::real();
        let path = folder.path().join("d0.img");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(IMAGE_BYTES)
            .unwrap();
        let device = FileDevice::open(&path, writable()).unwrap();
        // Recorded as a disk, because it is one in the machine with the kernel module.
        let device = NewDevice {
            is_block_device: true,
            ..NewDevice::file(path.to_str().unwrap(), Arc::new(device))
        };
        let top = NewTop::normal(NewLayout::Single, vec![device]);
        let new = NewPool {
            vdev_options: NewVdevOptions {
                ashift: Some(12),
                ..NewVdevOptions::default()
            },
            features,
            writing: writing(),
            system: "here 6.1 #1 x86_64".into(),
            cache_bytes: Some(32 << 20),
            ..NewPool::new(POOL, NewVdevs::of(vec![top]))
        };
        let datasets = Datasets::new(contents);
        let port = Arc::clone(&datasets);
        let pool = Pool::create(&env, &new, &|_| false, port).unwrap();
        Self {
            folder,
            env,
            name: name.to_owned(),
            pool_name: POOL.to_owned(),
            heads_at_first: 1,
            open: Mutex::new(Some((pool, datasets))),
        }
    }

    pub fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.open.lock().as_ref().unwrap().0)
    }
    pub fn datasets(&self) -> Arc<Datasets> {
        Arc::clone(&self.open.lock().as_ref().unwrap().1)
    }

    pub fn open_head(&self, name: &str) -> Arc<HeadDataset> {
        self.datasets().open_head(name).unwrap()
    }

    /// Writes `blocks` blocks of 16 KiB to an object created for `seed`, in one transaction.
    pub fn write(&self, name: &str, seed: u64, blocks: u64) {
        self.try_write(name, seed, blocks).unwrap();
    }

    /// Like [`Bench::write`], but returns an error if the write is refused.
    pub fn try_write(&self, name: &str, seed: u64, blocks: u64) -> Result<(), DatasetError> {
        let head = self.open_head(name);
        let tx = head.begin(Estimate {
            bytes: blocks << 14,
            ..Estimate::default()
        })?;
        let set = head.set();
        let id = ObjectId(1000 + seed % 5);
        let object = match set.object(id) {
            Ok(object) => object,
            Err(_) => set
                .allocate_at(
                    &tx,
                    id,
                    NewObject::new(ObjectType::PLAIN_FILE).with_block_bytes(16 << 10),
                )
                .unwrap(),
        };
        for block in 0..blocks {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (block << 32) ^ 1;
            // Half of each block is compressible.
            let content: Vec<u8> = (0..16u32 << 10)
                .map(|at| {
                    if at % 4096 < 2048 {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        state as u8
                    } else {
                        seed as u8
                    }
                })
                .collect();
            let at = (seed.wrapping_mul(7) + block * 3) % 64;
            object.write(&tx, at << 14, &content).unwrap();
        }
        Ok(())
    }

    /// Writes `blocks` blocks of 512 bytes that are embedded in their block pointers.
    pub fn write_embedded(&self, name: &str, blocks: u64) {
        let head = self.open_head(name);
        let tx = head
            .begin(Estimate {
                bytes: blocks << 9,
                ..Estimate::default()
            })
            .unwrap();
        let new = NewObject::new(ObjectType::PLAIN_FILE).with_block_bytes(512);
        let object = head.set().allocate(&tx, new).unwrap();
        for number in 0..blocks {
            let block = [number as u8 + 1; 512];
            object.write(&tx, number << 9, &block).unwrap();
        }
    }

    pub fn free(&self, name: &str, seed: u64) {
        let head = self.open_head(name);
        let tx = head
            .begin(Estimate {
                bytes: 64 << 10,
                is_freeing: true,
                ..Estimate::default()
            })
            .unwrap();
        let set = head.set();
        let id = ObjectId(1000 + seed % 5);
        if let Ok(object) = set.object(id) {
            if seed.is_multiple_of(3) {
                set.free(&tx, id).unwrap();
            } else {
                let from = (seed % 64) << 14;
                object.free_range(&tx, from, 20 << 14).unwrap();
            }
        }
    }

    /// Whether a dataset of this name exists.
    pub fn exists(&self, name: &str) -> bool {
        millpond_dataset::Dataset::find(&self.read_back(), name).is_ok()
    }

    /// Lets the background free everything.
    pub fn settle(&self) {
        for _ in 0..6 {
            self.pool().sync().unwrap();
        }
    }

    /// The committed state, as a reader of the images sees it.
    pub fn read_back(&self) -> Arc<PoolView> {
        self.pool().committed().unwrap()
    }

    /// Recomputes and compares all space counters of every dataset.
    pub fn check(&self) {
        let faults = recount::faults_of(&self.read_back());
        assert!(faults.is_empty(), "{}:\n{}", self.name, faults.join("\n"));
    }

    /// Exports the pool and judges it with `zdb`.
    pub fn judge(&self) {
        if let Some((pool, datasets)) = self.open.lock().take() {
            pool.export().unwrap();
            drop(datasets);
        }
        let verdict = oracle::zdb::judge(self.folder.path(), &self.pool_name).unwrap();
        if std::env::var_os("MILLPOND_KEEP_IMAGES").is_some() && !verdict.is_clean() {
            let kept = std::env::temp_dir().join(format!("kept-{}", self.name));
            std::fs::create_dir_all(&kept).unwrap();
            std::fs::copy(self.folder.path().join("d0.img"), kept.join("d0.img")).unwrap();
        }
        verdict.require(&self.name);
        if std::env::var_os("MILLPOND_KERNEL").is_some() {
            self.ask_kernel();
        }
    }

    /// Lets the kernel module import, scrub and read the pool, then change it. `zdb` judges it again.
    fn ask_kernel(&self) {
        use oracle::kernel::{Release, judge, judge_and_change};
        let images = [self.folder.path().join("d0.img")];
        let pool = &self.pool_name;
        let verdict = judge(Release::V2_3, &images, pool, None).unwrap();
        verdict.require(&format!("{}: kernel", self.name));
        let share = tempfile::tempdir().unwrap();
        let changed = judge_and_change(Release::V2_3, &images, pool, share.path(), "one");
        let verdict = changed.unwrap();
        verdict.require(&format!("{}: changed by the kernel", self.name));
        let verdict = oracle::zdb::judge(self.folder.path(), pool).unwrap();
        verdict.require(&format!("{}: after the kernel", self.name));
    }

    /// Opens the pool again after [`Bench::judge`].
    pub fn reopen(&self) {
        self.reopen_with(u64::MAX);
    }

    /// Like [`Bench::reopen`], with at most `background` blocks freed in the background per txg.
    pub fn reopen_with(&self, background: u64) {
        let path = self.folder.path().join("d0.img");
        let device = FileDevice::open(&path, writable()).unwrap();
        let found = scan_devices(vec![Candidate {
            path: PathBuf::from(&path),
            aliases: vec![],
            partition: None,
            device: Arc::new(device),
            is_live: false,
        }]);
        let candidate = find_pools(&found, 7).remove(0);
        let datasets = Datasets::new(FileSystemInitializer::of(&self.env, &writing()));
        datasets.limit_background(background);
        let port = Arc::clone(&datasets);
        let options = OpenOptions::default();
        let pool = Pool::open(&self.env, &candidate, &options, &writing(), port).unwrap();
        *self.open.lock() = Some((pool, datasets));
    }
}

fn writable() -> DeviceOptions {
    DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    }
}

fn writing() -> WriteOptions {
    WriteOptions {
        hostid: 7,
        hostname: Some("here".into()),
        sync_mode: SyncMode::Caller,
        ..WriteOptions::default()
    }
}
