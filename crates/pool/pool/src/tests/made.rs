//! Creates pools without datasets for the tests, and reopens them.

use crate::config::PoolConfig;
use crate::error::Reading;
use crate::failure::FailMode;
use crate::features::counts::{FeatureChoice, FeatureCounts, features_of_new_pool};
use crate::import::{PoolCandidate, find_pools, scan_devices};
use crate::labels::{next_uberblock, write_initial_labels};
use crate::open_for_writing::mos_policy;
use crate::pool::{PoolParts, PoolState};
use crate::removal::RemovalControl;
use crate::space::maps::SpaceMapObjects;
use crate::{DatasetPort, Pool, SpaceChange, SyncContext, SyncMode, WriteOptions};
use crate::{OpenError, OpenOptions, PoolError, PoolView};
use millpond_alloc::{PoolAllocator, VdevGeometry, VdevSpace};
use millpond_block::{BlockCache, BlockStore, Topology};
use millpond_device::{Candidate, Device};
use millpond_env::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{NewObject, NewObjectSet, ObjectSet};
use millpond_ondisk::pool_directory::{OBJECT_DIRECTORY, key};
use millpond_ondisk::{
    Ashift, BlockPointer, Guid, LeafLayout, ObjectSetKind, ObjectType, Txg, Uberblock, VdevId,
};
use millpond_sim::{PowerCut, Seed, SimDisk, World};
use millpond_txg::{DirtyLimits, TxgGroups};
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};
use millpond_zap::{NewZap, ZapMut};
use std::collections::{BTreeMap, BTreeSet};

/// A port without datasets that only sums up the charges to `$MOS`.
#[derive(Default)]
pub(crate) struct NoDatasets {
    pub(crate) charged: AtomicI64,
    pub(crate) calls: Mutex<Vec<(&'static str, u64, u32)>>,
    /// Whether `sync_datasets` fails.
    pub(crate) fails: AtomicBool,
    /// Whether `sync_datasets` panics.
    pub(crate) panics: AtomicBool,
}

impl DatasetPort for NoDatasets {
    fn create_root(
        &self,
        _: &SyncContext<'_>,
        _: &BTreeMap<String, String>,
    ) -> Result<(), PoolError> {
        Ok(())
    }
    fn attach(&self, _: &Arc<Pool>) -> Result<(), PoolError> {
        Ok(())
    }
    fn claim_logs(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        self.calls.lock().push(("claim", ctx.txg().0, ctx.pass()));
        Ok(())
    }
    fn sync_datasets(&self, ctx: &SyncContext<'_>) -> Result<bool, PoolError> {
        self.calls
            .lock()
            .push(("datasets", ctx.txg().0, ctx.pass()));
        assert!(!self.panics.load(Ordering::Relaxed), "as told");
        if self.fails.load(Ordering::Relaxed) {
            return Err(PoolError::Unsupported { what: "luck" });
        }
        Ok(false)
    }
    fn background(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        self.calls
            .lock()
            .push(("background", ctx.txg().0, ctx.pass()));
        Ok(())
    }
    /// Stores the sum in the MOS like `$MOS` does, so that charging dirties the MOS as in production.
    fn charge_mos(&self, ctx: &SyncContext<'_>, change: SpaceChange) -> Result<(), PoolError> {
        let sum = ctx
            .table_number(OBJECT_DIRECTORY, CHARGED)?
            .unwrap_or(0)
            .wrapping_add_signed(change.used);
        self.charged.fetch_add(change.used, Ordering::Relaxed);
        ctx.set_directory_number(CHARGED, sum)
    }
}

/// The entry of the object directory that replaces `$MOS`.
pub(crate) const CHARGED: &str = "test:charged";

/// The layout of a test's pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) disks: usize,
    pub(crate) is_mirror: bool,
    pub(crate) ashift: u8,
    pub(crate) has_features: bool,
}

impl Shape {
    pub(crate) const ONE: Self = Self {
        disks: 1,
        is_mirror: false,
        ashift: 12,
        has_features: true,
    };
    pub(crate) const MIRROR: Self = Self {
        disks: 2,
        is_mirror: true,
        ..Self::ONE
    };
}

const DISK_BYTES: u64 = 64 << 20;
const FIRST: Txg = Txg(4);

/// Creates a pool on new disks of `world`, in caller-driven sync mode.
pub(crate) fn make(world: &World, shape: Shape, port: Arc<dyn DatasetPort>) -> Arc<Pool> {
    let env = world.env();
    let disks: Vec<Arc<SimDisk>> = (0..shape.disks)
        .map(|_| world.disk(DISK_BYTES, 512))
        .collect();
    let root = tree(shape);
    let tree = VdevTree::new(root.clone(), Reflow::default()).unwrap();
    let devices: Vec<Option<Arc<dyn Device>>> = disks
        .iter()
        .map(|disk| Some(Arc::clone(disk) as Arc<dyn Device>))
        .collect();
    let health = LeafTable::all_good(tree.leaf_count());
    let mut counts = FeatureCounts::default();
    let choice = if shape.has_features {
        FeatureChoice::Default
    } else {
        FeatureChoice::OnlyNamed
    };
    let mut changes = vec![];
    for feature in features_of_new_pool(&choice, &[]).unwrap() {
        changes.push(counts.enable(feature, FIRST).unwrap());
    }
    let config = PoolConfig {
        hostname: Some("sim".into()),
        features_for_read: Some(counts.label_features()),
        ..PoolConfig::new("sim", root)
    };
    for (disk, (_, node)) in disks.iter().zip(tree.leaves()) {
        let list = config.initial_label_list(node.config.guid, FIRST).unwrap();
        write_initial_labels(disk.as_ref(), &list, None).unwrap();
    }
    let shared = Arc::new(tree.clone());
    let topology = Topology::new(tree, devices, health, IndirectTables::default());
    let store = Arc::new(BlockStore::new(topology, BlockCache::new(16 << 20)));
    let groups = TxgGroups::new(&env, FIRST, DirtyLimits::default());
    let policy = mos_policy(5000, counts.features());
    let tx = groups.begin(0).unwrap();
    let mos = ObjectSet::create(
        Arc::clone(&store),
        0,
        ObjectSetKind::Meta,
        NewObjectSet::default(),
        policy,
        &tx,
    );
    drop(tx);
    let geometries: Vec<VdevGeometry> = config
        .root
        .children
        .iter()
        .map(|top| {
            let shift = u8::try_from(top.metaslab_shift).unwrap();
            let ashift = Ashift(shape.ashift);
            let id = VdevId(u32::try_from(top.id.unwrap()).unwrap());
            VdevGeometry::new(id, top.asize_bytes, ashift, shift, None).unwrap()
        })
        .collect();
    let maps = SpaceMapObjects::new(Arc::clone(&mos), geometries.clone());
    let spaces = geometries
        .into_iter()
        .map(|geometry| VdevSpace::from_tree(&shared, geometry))
        .collect();
    let forms = crate::space::maps::forms(counts.features());
    let allocator = PoolAllocator::new(spaces, Arc::new(maps.clone()), forms).unwrap();
    let pool = Pool::from_parts(PoolParts {
        env,
        store,
        allocator,
        maps,
        mos,
        groups,
        port,
        state: PoolState {
            config,
            config_generation: 0,
            config_written: 0,
            config_committed: 0,
            is_topology_stale: false,
            uberblock: Uberblock {
                mmp_magic: 0,
                ..next_uberblock(None, 5000, Txg(3), BlockPointer::default(), 0, 0)
            },
            committing: None,
            features: counts,
            assembly: None,
            multihost: false,
            failmode: FailMode::Wait,
            missed: BTreeMap::new(),
            refilled: BTreeMap::new(),
            diverged: BTreeSet::new(),
            label_failures: BTreeSet::new(),
            deferred_free_bytes: 0,
            clones: crate::CloneTotals::default(),
            dedup: millpond_ondisk::dedup::DedupStatistics::default(),
        },
        clones: crate::clones::CloneTables::default(),
        checkpoint: crate::checkpoint::Checkpoint::default(),
        removal: RemovalControl::default(),
        dedup: crate::dedup::DedupTables::default(),
        sync_mode: SyncMode::Caller,
        leaf_watch: crate::vdevs::leaf_monitor::LeafWatch::default(),
        is_deflated: true,
        system: "test".to_owned(),
    });
    pool.sync_with(crate::sync::tasks::TaskTime::First, |ctx| {
        let new = NewObject::new(ObjectType::OBJECT_DIRECTORY);
        let directory = ctx.mos().allocate_at(ctx.tx(), OBJECT_DIRECTORY, new);
        ZapMut::of(&directory.unwrap(), ctx.tx())
            .create(&NewZap::plain(1))
            .unwrap();
        for table in [
            key::FEATURES_FOR_READ,
            key::FEATURES_FOR_WRITE,
            key::FEATURE_DESCRIPTIONS,
        ] {
            let id = ctx.create_table(ObjectType::METADATA_ZAP)?;
            ctx.set_directory_number(table, id.0)?;
        }
        for change in &changes {
            ctx.store_features(change)?;
        }
        ctx.set_directory_number(key::DEFLATE, 1)?;
        let tops = ctx.pool.state.read().config.root.children.len();
        for top in (0u32..).map(VdevId).take(tops) {
            let zap = ctx.create_table(ObjectType::METADATA_ZAP)?;
            ctx.pool.change_top(top, |top| top.zap_top = Some(zap));
        }
        ctx.mark_config_dirty();
        Ok(())
    })
    .unwrap();
    pool
}

fn tree(shape: Shape) -> VdevConfig {
    let layout = LeafLayout::new(DISK_BYTES).unwrap();
    let leaf = |number: usize| VdevConfig {
        id: Some(number as u64),
        path: Some(format!("/sim/{number}")),
        create_txg: Some(FIRST),
        ..VdevConfig::new(VdevType::File, Guid(100 + number as u64))
    };
    let as_top = |vdev: VdevConfig| VdevConfig {
        metaslab_shift: 24,
        ashift: u64::from(shape.ashift),
        asize_bytes: layout.asize_bytes(),
        ..vdev
    };
    let tops = if shape.is_mirror {
        vec![as_top(VdevConfig {
            id: Some(0),
            create_txg: Some(FIRST),
            children: (0..shape.disks).map(leaf).collect(),
            ..VdevConfig::new(VdevType::Mirror, Guid(50))
        })]
    } else {
        (0..shape.disks)
            .map(|number| as_top(leaf(number)))
            .collect()
    };
    VdevConfig {
        create_txg: Some(FIRST),
        ..VdevConfig::root(Guid(7), tops)
    }
}

/// The candidate that an import finds on these disks.
pub(crate) fn candidate(disks: &[Arc<SimDisk>]) -> Option<PoolCandidate> {
    let found = scan_devices(
        disks
            .iter()
            .enumerate()
            .map(|(number, disk)| Candidate {
                path: format!("/sim/{number}").into(),
                aliases: vec![],
                partition: None,
                device: Arc::clone(disk) as Arc<dyn Device>,
                is_live: false,
            })
            .collect(),
    );
    find_pools(&found, 0).into_iter().next()
}

pub(crate) fn open_read_only(world: &World) -> Result<Arc<PoolView>, OpenError> {
    let candidate = candidate(&world.disks()).expect("no pool is found");
    PoolView::open(&world.env(), &candidate, &OpenOptions::default())
}

pub(crate) fn open(world: &World, port: Arc<dyn DatasetPort>) -> Result<Arc<Pool>, OpenError> {
    open_with(world, &OpenOptions::default(), port)
}

/// Opens the pool with only some of its disks.
pub(crate) fn open_some(
    world: &World,
    disks: &[Arc<SimDisk>],
    sync_mode: SyncMode,
) -> Result<Arc<Pool>, OpenError> {
    let candidate = candidate(disks).expect("no pool is found");
    let writing = WriteOptions {
        sync_mode,
        ..WriteOptions::default()
    };
    let port = Arc::new(NoDatasets::default());
    Pool::open(
        &world.env(),
        &candidate,
        &OpenOptions::default(),
        &writing,
        port,
    )
}

pub(crate) fn open_with(
    world: &World,
    options: &OpenOptions,
    port: Arc<dyn DatasetPort>,
) -> Result<Arc<Pool>, OpenError> {
    let candidate = candidate(&world.disks()).expect("no pool is found");
    let writing = WriteOptions {
        sync_mode: SyncMode::Caller,
        ..WriteOptions::default()
    };
    Pool::open(&world.env(), &candidate, options, &writing, port)
}

/// The entry that tests use as a counter.
const COUNT: &str = "test:count";

/// A sync task that increments the counter and changes an object, so that blocks are freed and allocated.
pub(crate) fn count_up(pool: &Pool) -> Result<u64, PoolError> {
    pool.sync_task(|ctx| {
        let count = ctx.table_number(OBJECT_DIRECTORY, COUNT)?.unwrap_or(0) + 1;
        ctx.set_directory_number(COUNT, count)?;
        let object = match ctx.directory_object("test:object")? {
            Some(id) => ctx.mos().object(id).reading("test")?,
            None => {
                let new = NewObject::new(ObjectType::METADATA_U64).with_block_bytes(16 << 10);
                let object = ctx.mos().allocate(ctx.tx(), new).reading("test")?;
                ctx.set_directory_number("test:object", object.id().0)?;
                object
            }
        };
        for block in 0..4u64 {
            let offset = ((count * 3 + block) % 12) * (16 << 10);
            object
                .write(
                    ctx.tx(),
                    offset,
                    &millpond_sim::noise(count * 1000 + block, 9000),
                )
                .reading("test")?;
        }
        if count.is_multiple_of(3) {
            object.free_range(ctx.tx(), 0, 32 << 10).reading("test")?;
        }
        Ok(count)
    })
}

pub(crate) fn counted(pool: &PoolView) -> u64 {
    pool.directory_number(COUNT).unwrap().unwrap_or(0)
}

/// Cuts the power after every `step`th request, in several ways, and calls `visit` for each state that `states` knows by its
/// txg: with the number of requests, the disks, and what is known. Returns how many they were.
pub(crate) fn after_each_cut<M>(
    world: &World,
    step: usize,
    states: &BTreeMap<Txg, M>,
    mut visit: impl FnMut(usize, &World, &M),
) -> usize {
    let mut met = 0;
    for count in (0..=world.journal().len()).step_by(step) {
        for cut in [
            PowerCut::EverythingWritten,
            PowerCut::NothingUnflushed,
            PowerCut::Torn(Seed::new(count as u64)),
        ] {
            let after = world.reborn(count, &cut);
            let txg = open_read_only(&after).unwrap().uberblock().txg;
            // A txg in between, inside a round, is not in the map.
            if let Some(known) = states.get(&txg) {
                met += 1;
                visit(count, &after, known);
            }
        }
    }
    met
}
