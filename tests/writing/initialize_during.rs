//! What happens while a request of an initialization is under way: leaves leave the pool, the pool is exported, programs
//! need the space.

use crate::exhaustive::judge;
use crate::initialize::{
    ACTIVE, COMPLETE, INITIALIZE, PATTERN, START, change, finish, small, stored,
};
use crate::sim;
use millpond_alloc::{HeldSpace, Hold, HoldLimits};
use millpond_device::{Candidate, Device, DeviceError};
use millpond_engine::{
    Caller, NewDevice, NewHalf, NewLayout, NewPool, NewTop, NewVdevOptions, NewVdevs, OpenOptions,
    Pool, SliceLimits, View, WriteAt, WriteOptions,
};
use millpond_env::mark;
use millpond_ondisk::{Guid, VdevId};
use millpond_pool::import::{find_pools, scan_devices};
use millpond_sim::{SimDisk, World};
use millpond_tests::leaves;
use millpond_tests::workload::Life;
use millpond_vdev::AllocationClass::Normal;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long something that waits is watched for not waiting.
const WATCHED: Duration = Duration::from_millis(100);

/// Stops the first request of an initialization on its way to the device.
#[derive(Debug, Default)]
struct Barrier {
    is_armed: AtomicBool,
    /// Whether a request has come, and whether it may go on.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Barrier {
    fn pass(&self) {
        if !self.is_armed.swap(false, Ordering::SeqCst) {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1).unwrap());
    }
    fn wait_for_request(&self) {
        let state = self.state.lock().unwrap();
        let wait = Duration::from_secs(60);
        let has_not_come = |state: &mut (bool, bool)| !state.0;
        let waited = self
            .changed
            .wait_timeout_while(state, wait, has_not_come)
            .unwrap();
        assert!(waited.0.0, "no request came");
    }
    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

/// A disk that counts the requests of initializations.
#[derive(Debug)]
struct Counted {
    disk: Arc<SimDisk>,
    barrier: Barrier,
    requests: AtomicUsize,
}

impl Counted {
    fn path(&self) -> String {
        format!("/sim/d{}.img", self.disk.number())
    }
    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Device for Counted {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.disk.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.starts_with(&PATTERN) {
            self.barrier.pass();
            self.requests.fetch_add(1, Ordering::SeqCst);
        }
        self.disk.write(offset_bytes, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.disk.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.disk.discard(offset_bytes, length_bytes)
    }
}

/// A pool on such disks that has some files.
struct Stage {
    world: World,
    disks: Vec<Arc<Counted>>,
    pool: Pool,
    life: Life,
}

impl Stage {
    fn new(shape: &str, layout: NewLayout, count: usize) -> Self {
        let world = World::without_journal(99);
        let disks: Vec<Arc<Counted>> = (0..count)
            .map(|_| Counted {
                disk: world.disk(96 << 20, 512),
                barrier: Barrier::default(),
                requests: AtomicUsize::new(0),
            })
            .map(Arc::new)
            .collect();
        let top = NewTop {
            layout,
            class: Normal,
            devices: disks
                .iter()
                .map(|disk| NewDevice::file(&disk.path(), Arc::clone(disk) as _))
                .collect(),
        };
        let new = NewPool {
            vdev_options: NewVdevOptions {
                ashift: Some(9),
                force: true,
            },
            // Several threads write.
            writing: WriteOptions::default(),
            system: "sim".into(),
            cache_bytes: Some(16 << 20),
            ..NewPool::new("tank", NewVdevs::of(vec![top]))
        };
        let pool = Pool::create(&world.env(), &new).unwrap();
        let mut life = Life::new("tank", shape, 5);
        life.file_bytes_max = 40_000;
        life.steps(&pool, 40);
        life.close_file_systems();
        pool.sync().unwrap();
        Self {
            world,
            disks,
            pool,
            life,
        }
    }

    /// Initializes all leaves, and does something else while a request is on its way to a disk. That must not be over
    /// before the request is.
    fn during_a_request(&self, disk: usize, other: impl FnOnce(&Pool) + Send) {
        let counted = &self.disks[disk];
        change(&self.pool, &leaves::all(&self.pool), START);
        counted.barrier.is_armed.store(true, Ordering::SeqCst);
        let pool = &self.pool;
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                counted.barrier.wait_for_request();
                std::thread::scope(|scope| {
                    let done = scope.spawn(|| other(pool));
                    std::thread::sleep(WATCHED);
                    let is_early = done.is_finished();
                    counted.barrier.open();
                    done.join().unwrap();
                    assert!(!is_early, "it did not wait for the request");
                });
            });
            // As in the thread that does it: an error ends a slice only.
            let batch = SliceLimits {
                batches: 1,
                ..SliceLimits::default()
            };
            let _ = pool.inner().leaf_activity_slice(&batch);
            let _ = pool.inner().leaf_activity_slice(&small(1));
            other.join().unwrap();
        });
        assert!(counted.requests() >= 1);
    }

    fn guid(&self, disk: usize) -> Guid {
        crate::attach::leaf_at(&self.pool, &self.disks[disk].path())
    }

    fn check(self, shape: &str) {
        let view = sim::read(&self.world).unwrap();
        sim::verify(&view).unwrap();
        self.life.compare(&view, shape);
        drop(view);
        judge(&self.world, shape);
    }
}

#[test]
fn a_detached_leaf_gets_no_more_requests() {
    let stage = Stage::new("detach", NewLayout::Mirror, 3);
    let leaf = stage.guid(1);
    stage.during_a_request(1, |pool| pool.inner().detach_leaf(leaf).unwrap());
    // No request follows the one that was under way.
    let requests = stage.disks[1].requests();
    finish(&stage.pool);
    assert_eq!(stage.disks[1].requests(), requests);
    for disk in [0, 2] {
        assert_eq!(stored(&stage.pool, stage.guid(disk)).0, COMPLETE);
    }
    stage.pool.inner().export().unwrap();
    stage.check("detach");
}

#[test]
fn an_offline_leaf_gets_no_more_requests_and_continues_when_it_is_back() {
    let stage = Stage::new("offline", NewLayout::Mirror, 2);
    let leaf = stage.guid(1);
    stage.during_a_request(1, |pool| {
        pool.inner().offline_leaf(leaf, Default::default()).unwrap();
    });
    let requests = stage.disks[1].requests();
    finish(&stage.pool);
    assert_eq!(stage.disks[1].requests(), requests);
    assert_eq!(stored(&stage.pool, stage.guid(0)).0, COMPLETE);
    // It is still to be done.
    let (state, before) = stored(&stage.pool, leaf);
    assert_eq!(state, ACTIVE);
    assert!(stage.pool.inner().is_leaf_active(INITIALIZE));
    let device = Arc::clone(&stage.disks[1]) as Arc<dyn Device>;
    (stage.pool.inner().online_leaf(leaf, Some(&device))).unwrap();
    finish(&stage.pool);
    let (state, after) = stored(&stage.pool, leaf);
    assert!(state == COMPLETE && after > before, "{state} {after}");
    stage.pool.inner().start_resilver().unwrap();
    crate::scan::finish(&stage.pool);
    stage.pool.inner().export().unwrap();
    let view = sim::read(&stage.world).unwrap();
    sim::verify(&view).unwrap();
    stage.life.compare(&view, "offline");
}

#[test]
fn an_exported_pool_gets_no_more_requests_and_continues_when_it_is_imported() {
    let stage = Stage::new("export", NewLayout::Raidz(1), 3);
    stage.during_a_request(1, |pool| pool.inner().export().unwrap());
    let count = |stage: &Stage| -> usize { stage.disks.iter().map(|disk| disk.requests()).sum() };
    let requests = count(&stage);
    let _ = stage.pool.inner().leaf_activity_slice(&small(1));
    assert!(!stage.pool.inner().is_leaf_active(INITIALIZE));
    assert_eq!(count(&stage), requests);
    let Stage { world, disks, .. } = stage;
    let filled = disks[1].requests();
    let pool = sim::open(&world).unwrap();
    assert!(pool.inner().is_leaf_active(INITIALIZE));
    for leaf in leaves::all(&pool) {
        assert_eq!(stored(&pool, leaf).0, ACTIVE);
    }
    finish(&pool);
    for leaf in leaves::all(&pool) {
        assert_eq!(stored(&pool, leaf).0, COMPLETE);
    }
    assert!(filled > 0);
    pool.export().unwrap();
    judge(&world, "export");
}

#[test]
fn a_split_waits_and_both_pools_continue() {
    let stage = Stage::new("split", NewLayout::Mirror, 2);
    let sides = vec![stage.guid(1)];
    stage.during_a_request(1, |pool| {
        let half = NewHalf {
            name: "half",
            sides,
            settings: &[],
            writing: sim::by_caller(),
        };
        pool.split(&half).unwrap();
    });
    let requests = stage.disks[1].requests();
    finish(&stage.pool);
    assert_eq!(stage.disks[1].requests(), requests);
    assert_eq!(stored(&stage.pool, stage.guid(0)).0, COMPLETE);
    stage.pool.inner().export().unwrap();
    let candidates: Vec<Candidate> = sim::candidates(&stage.world);
    let mut found = find_pools(&scan_devices(candidates), 0);
    found.retain(|pool| pool.name == "half");
    let half = sim::open_candidate(&stage.world, &found[0]).unwrap();
    finish(&half);
    for leaf in leaves::all(&half) {
        assert_eq!(stored(&half, leaf).0, COMPLETE);
    }
    half.inner().export().unwrap();
    for name in ["tank", "half"] {
        let mut found = find_pools(&scan_devices(sim::candidates(&stage.world)), 0);
        found.retain(|pool| pool.name == name);
        let view = View::open_candidate(&found[0], &OpenOptions::default()).unwrap();
        sim::verify(&view).unwrap();
        drop(view);
        let folder = tempfile::tempdir().unwrap();
        sim::to_files(&stage.world, folder.path());
        let judged = millpond_tests::oracle::zdb::judge(folder.path(), name).unwrap();
        judged.require(name);
    }
}

#[test]
fn who_needs_the_space_waits_for_one_request() {
    let _mark = mark::expect("leaf-activity-gives-way");
    let stage = Stage::new("wanted", NewLayout::Single, 1);
    let files = stage.pool.file_system("tank").unwrap();
    let node = crate::full::create(&files, "wanted").unwrap();
    let content = millpond_sim::noise(7, 1 << 20);
    let held: Mutex<Vec<HeldSpace>> = Mutex::default();
    stage.during_a_request(0, |pool| {
        // All space but that of the initialization.
        let all = HoldLimits {
            bytes: u64::MAX,
            ranges: usize::MAX,
            least_bytes: 0,
        };
        let allocator = pool.inner().allocator();
        let mut from = 0;
        while let Hold::Space(space) = allocator.hold_free(VdevId(0), from, &all) {
            from = space.end_bytes();
            held.lock().unwrap().push(space);
        }
        assert!(held.lock().unwrap().len() > 2);
        // Not in the model, which does not look at what it did not write.
        let at = WriteAt::Offset(0);
        files.write(&Caller::root(), &node, at, &content).unwrap();
        std::thread::scope(|scope| {
            let synced = scope.spawn(|| pool.sync().unwrap());
            let is_wanted = || held.lock().unwrap().iter().any(HeldSpace::is_wanted);
            while !is_wanted() {
                assert!(!synced.is_finished(), "it found other space");
                std::thread::yield_now();
            }
            held.lock().unwrap().clear();
            synced.join().unwrap();
        });
    });
    // The rest of what the initialization held was not written then.
    finish(&stage.pool);
    assert_eq!(stored(&stage.pool, stage.guid(0)).0, COMPLETE);
    let mut found = vec![0; content.len()];
    assert_eq!(node.read(0, &mut found).unwrap(), content.len());
    assert!(found == content);
    drop((node, files));
    stage.pool.inner().export().unwrap();
    sim::verify(&sim::read(&stage.world).unwrap()).unwrap();
    judge(&stage.world, "wanted");
}
