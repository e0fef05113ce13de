//! Creates a pool.
//!
//! Devices first get labels that belong to no pool, so that an unfinished pool is never found. The first
//! txg then creates all objects of the pool. Its commit writes the final labels and the first uberblock.
//!
//! Pages `docs/format/pool-directory.md` ("A new pool"), `docs/format/label.md` ("Writing").

use crate::PoolError;
use crate::checkpoint::Checkpoint;
use crate::clones::CloneTables;
use crate::config::PoolConfig;
use crate::dedup::DedupTables;
use crate::error::Reading;
use crate::failure::FailMode;
use crate::features::counts::{FeatureChoice, FeatureCounts, FeatureError, features_of_new_pool};
use crate::history::append::{HistoryEvent, pool_event_text};
use crate::import::LeafState;
use crate::labels::{LabelError, write_auxiliary_labels, write_initial_labels};
use crate::open_for_writing::{WriteOptions, mos_policy};
use crate::pool::{Pool, PoolParts, PoolState};
use crate::port::DatasetPort;
use crate::properties::set::PoolSetting;
use crate::removal::RemovalControl;
use crate::space::CloneTotals;
use crate::space::maps::{self, SpaceMapObjects};
use crate::space::store::geometry_of;
use crate::sync::context::SyncContext;
use crate::sync::tasks::TaskTime;
use crate::vdevs::leaf_monitor::LeafWatch;
use crate::vdevs::new_vdev::{
    BuiltVdevs, NewVdevError, NewVdevOptions, NewVdevs, build_vdevs, random_u64,
};
use millpond_alloc::{PoolAllocator, VdevSpace};
use millpond_block::{BlockCache, BlockStore, IoClock, Topology};
use millpond_checksum::Salt;
use millpond_device::Device;
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_object::{NewObject, NewObjectSet, ObjectSet};
use millpond_ondisk::dedup::DedupStatistics;
use millpond_ondisk::pool_directory::{self, key};
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{
    BlockPointer, Feature, Guid, ObjectSetKind, ObjectType, PoolVersion, Txg, Uberblock, VdevId,
};
use millpond_txg::TxgGroups;
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevConfig, VdevTree};
use millpond_zap::{NewZap, ZapMut, new_salt};
use std::collections::{BTreeMap, BTreeSet};

/// The first txg of a new pool.
pub const FIRST_TXG: Txg = Txg(4);
/// The longest pool name in bytes: `NAME/$ORIGIN@$ORIGIN` must still be a valid name.
pub const POOL_NAME_BYTES_MAX: usize = 239;
/// A pool to create.
#[derive(Debug, Clone)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// Its devices.
    pub vdevs: NewVdevs,
    /// Options for the devices.
    pub vdev_options: NewVdevOptions,
    /// The features to enable.
    pub features: FeatureChoice,
    /// Its properties, including `feature@NAME` and `version`.
    pub settings: Vec<PoolSetting>,
    /// Properties of its root file system, validated by the rules for datasets.
    pub root_properties: BTreeMap<String, String>,
    /// The host's identity and how to open the pool.
    pub writing: WriteOptions,
    /// The running system as recorded in the history: node, release, version, machine.
    pub system: String,
    /// The size of a block cache of its own, in bytes. Without it the pool uses the cache that the pools of
    /// the process share.
    pub cache_bytes: Option<u64>,
}

impl NewPool {
    /// A pool of these devices with the default features and without settings.
    #[must_use]
    pub fn new(name: &str, vdevs: NewVdevs) -> Self {
        Self {
            name: name.to_owned(),
            vdevs,
            vdev_options: NewVdevOptions::default(),
            features: FeatureChoice::Default,
            settings: vec![],
            root_properties: BTreeMap::new(),
            writing: WriteOptions::default(),
            system: "millpond".to_owned(),
            cache_bytes: None,
        }
    }

    /// Its version: the property, or 5000. Pools before 5000 have no features.
    #[must_use]
    pub fn version(&self) -> u64 {
        let set = self.settings.iter().find_map(|setting| match setting {
            PoolSetting::Number {
                name: "version",
                value,
                ..
            } => Some(*value),
            _ => None,
        });
        set.unwrap_or(PoolVersion::FEATURES.0)
    }
}

/// Why a pool cannot be created.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The name is not a valid pool name.
    #[error("'{name}': {reason}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The devices cannot form these vdevs.
    #[error(transparent)]
    Vdevs(#[from] NewVdevError),
    /// A feature cannot be enabled.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// A device's labels could not be written.
    #[error("{path}: {error}")]
    Label {
        /// The device.
        path: String,
        /// The underlying error.
        error: LabelError,
    },
    /// A write failed. The devices hold no pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The pool has a vdev that was removed, or is being removed.
    #[error(transparent)]
    BesideRemoved(#[from] crate::vdevs::add::BesideRemoved),
}

/// Checks whether a name is a valid pool name.
///
/// # Errors
/// The reason it is not, as text for the user.
pub fn check_pool_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > POOL_NAME_BYTES_MAX {
        return Err("name is too long or empty");
    }
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte);
    if !name.bytes().all(is_fit) {
        return Err("invalid character in pool name");
    }
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err("name must begin with a letter");
    }
    if name.ends_with(' ') {
        return Err("name must not end with a blank");
    }
    let is_reserved = ["mirror", "raidz", "draid", "spare"]
        .iter()
        .any(|word| name.starts_with(word));
    if is_reserved || name == "log" {
        return Err("name is reserved");
    }
    Ok(())
}

impl Pool {
    /// Creates a pool and opens it for changes. Its first txg is committed when this returns.
    ///
    /// `is_open_here` returns whether a guid (of a pool, spare or cache device) is open in this program.
    /// Devices that are open are never used.
    ///
    /// # Errors
    /// [`CreateError`]. Before [`CreateError::Label`] nothing is written. From there on the devices hold
    /// neither the new pool nor their previous one.
    pub fn create(
        env: &Env,
        new: &NewPool,
        is_open_here: &dyn Fn(Guid) -> bool,
        port: Arc<dyn DatasetPort>,
    ) -> Result<Arc<Self>, CreateError> {
        for name in [Some(&new.name), new.writing.stored_name.as_ref()] {
            let Some(name) = name else { continue };
            check_pool_name(name).map_err(|reason| CreateError::Name {
                name: name.clone(),
                reason,
            })?;
        }
        let features = chosen_features(new)?;
        let has_feature = |guid: &str| features.iter().any(|feature| feature.guid == guid);
        new.vdevs.check_version(PoolVersion(new.version()))?;
        new.vdevs.check_features(has_feature)?;
        let pool_guid = Guid(random_u64(env).max(1));
        let taken = BTreeSet::from([pool_guid.0]);
        let built = build_vdevs(
            env,
            &new.vdevs,
            vdev_options(new),
            FIRST_TXG,
            &[],
            &taken,
            is_open_here,
        )?;
        let config = first_config(new, pool_guid, &built);
        let first = first_parts(env, new, config.clone(), &built, &features, port)?;
        let pool = Self::from_parts(first.parts);
        let mut labelled = Ok(());
        let outcome = pool.sync_with(TaskTime::First, |ctx| {
            ctx.make_first_objects(new, &built, &features, first.salt)?;
            // Every check has passed, and no device has been written to yet.
            labelled = label_devices(&config, &built, FIRST_TXG, None);
            labelled.is_ok().then_some(()).ok_or(PoolError::NotReady)
        });
        labelled?;
        outcome?;
        pool.start()?;
        pool.port.attach(&pool)?;
        pool.wait_for_devices(&new.writing);
        Ok(pool)
    }
}

fn chosen_features(new: &NewPool) -> Result<Vec<&'static Feature>, FeatureError> {
    if !PoolVersion(new.version()).has_features() {
        return Ok(vec![]);
    }
    let named: Vec<(String, bool)> = new
        .settings
        .iter()
        .filter_map(|setting| match setting {
            PoolSetting::EnableFeature(name) => Some(((*name).to_owned(), true)),
            PoolSetting::DisableFeature(name) => Some(((*name).to_owned(), false)),
            _ => None,
        })
        .collect();
    features_of_new_pool(&new.features, &named)
}

/// Options for new vdevs; the property `ashift` is the default for vdevs without an explicit ashift.
fn vdev_options(new: &NewPool) -> NewVdevOptions {
    let property = new.settings.iter().find_map(|setting| match setting {
        PoolSetting::Number {
            name: "ashift",
            value,
            ..
        } => u8::try_from(*value).ok().filter(|ashift| *ashift != 0),
        _ => None,
    });
    NewVdevOptions {
        ashift: new.vdev_options.ashift.or(property),
        ..new.vdev_options
    }
}

fn first_config(new: &NewPool, guid: Guid, built: &BuiltVdevs) -> PoolConfig {
    let root = VdevConfig {
        id: Some(0),
        create_txg: Some(FIRST_TXG),
        ..VdevConfig::root(
            guid,
            built.tops.iter().map(|(top, _)| top.clone()).collect(),
        )
    };
    let text = |of: fn(&PoolSetting) -> Option<&String>| new.settings.iter().find_map(of).cloned();
    PoolConfig {
        stored_name: new.writing.stored_name.clone(),
        txg: FIRST_TXG,
        comment: text(|setting| match setting {
            PoolSetting::Comment(text) => Some(text),
            _ => None,
        }),
        compatibility: text(|setting| match setting {
            PoolSetting::Compatibility(text) => Some(text),
            _ => None,
        })
        .filter(|text| !matches!(text.as_str(), "off" | "")),
        hostid: new.writing.hostid,
        hostname: new.writing.hostname.clone(),
        version: new.version(),
        ..PoolConfig::new(&new.name, root)
    }
}

/// Writes labels that belong to no pool to every device, which destroys any previous pool on it. The pool
/// `config` adds the devices in `txg`.
pub(crate) fn label_devices(
    config: &PoolConfig,
    built: &BuiltVdevs,
    txg: Txg,
    current: Option<&Uberblock>,
) -> Result<(), CreateError> {
    for (guid, device) in &built.devices {
        let auxiliary = |list: &[VdevConfig]| list.iter().find(|vdev| vdev.guid == *guid).cloned();
        let (path, outcome) = if let Some(vdev) = auxiliary(&built.spares) {
            let outcome = write_auxiliary_labels(
                device.as_ref(),
                &vdev,
                LeafState::Spare,
                config.version,
                current,
            );
            (vdev.path, outcome)
        } else if let Some(vdev) = auxiliary(&built.caches) {
            let outcome = write_auxiliary_labels(
                device.as_ref(),
                &vdev,
                LeafState::Cache,
                config.version,
                current,
            );
            (vdev.path, outcome)
        } else {
            let outcome = match config.initial_label_list(*guid, txg) {
                Some(list) => write_initial_labels(device.as_ref(), &list, current),
                None => Err(LabelError::UnknownLeaf(*guid)),
            };
            (path_of(&config.root, *guid), outcome)
        };
        outcome.map_err(|error| CreateError::Label {
            path: path.unwrap_or_default(),
            error,
        })?;
    }
    Ok(())
}

fn path_of(vdev: &VdevConfig, guid: Guid) -> Option<String> {
    if vdev.guid == guid {
        return vdev.path.clone();
    }
    vdev.children.iter().find_map(|child| path_of(child, guid))
}

struct FirstParts {
    parts: PoolParts,
    salt: [u8; 32],
}

fn first_parts(
    env: &Env,
    new: &NewPool,
    config: PoolConfig,
    built: &BuiltVdevs,
    features: &[&'static Feature],
    port: Arc<dyn DatasetPort>,
) -> Result<FirstParts, PoolError> {
    let mut topology = first_topology(&config.root, built)?;
    topology.clock = IoClock::of(env);
    topology.deadline = new.writing.deadline.0;
    let tree = Arc::new(topology.tree.clone());
    let store = Arc::new(BlockStore::new(
        topology,
        BlockCache::of_size(new.cache_bytes),
    ));
    let mut salt = [0; 32];
    env.entropy.fill(&mut salt);
    store.set_salt(Salt(salt));
    // The feature counts that the pool will have. They select on-disk forms now and are stored once their
    // tables exist.
    let mut counts = FeatureCounts::default();
    for feature in features {
        counts.enable(feature, FIRST_TXG)?;
    }
    let chosen = counts.features();
    let groups = TxgGroups::new(env, FIRST_TXG, new.writing.limits);
    let tx = groups.begin(0)?;
    let mos = ObjectSet::create(
        Arc::clone(&store),
        0,
        ObjectSetKind::Meta,
        NewObjectSet::default(),
        mos_policy(new.version(), chosen),
        &tx,
    );
    drop(tx);
    let mut vdevs = vec![];
    let mut geometries = vec![];
    for (id, top) in tree.tops() {
        let geometry = geometry_of(id, top)?;
        vdevs.push(VdevSpace::from_tree(&tree, geometry));
        geometries.push(geometry);
    }
    let maps = SpaceMapObjects::new(Arc::clone(&mos), geometries);
    let allocator = PoolAllocator::new(vdevs, Arc::new(maps.clone()), maps::forms(chosen))?;
    let uberblock = crate::labels::next_uberblock(
        None,
        new.version(),
        Txg(FIRST_TXG.0 - 1),
        BlockPointer::default(),
        config.guid_sum(),
        0,
    );
    let failmode = new.settings.iter().find_map(|setting| match setting {
        PoolSetting::Number {
            name: "failmode",
            value,
            ..
        } => Some(FailMode::from_number(*value)),
        _ => None,
    });
    let state = PoolState {
        config,
        // Counts as clean until its object can be created.
        config_generation: 0,
        config_written: 0,
        config_committed: 0,
        is_topology_stale: false,
        uberblock,
        committing: None,
        features: FeatureCounts::default(),
        assembly: None,
        multihost: false,
        failmode: failmode.unwrap_or_default(),
        missed: BTreeMap::new(),
        refilled: BTreeMap::new(),
        diverged: BTreeSet::new(),
        label_failures: BTreeSet::new(),
        deferred_free_bytes: 0,
        clones: CloneTotals::default(),
        dedup: DedupStatistics::default(),
    };
    let parts = PoolParts {
        env: env.clone(),
        store,
        allocator,
        maps,
        mos,
        groups,
        port,
        state,
        clones: CloneTables::default(),
        checkpoint: Checkpoint::default(),
        removal: RemovalControl::default(),
        dedup: DedupTables::default(),
        sync_mode: new.writing.sync_mode,
        system: new.system.clone(),
        is_deflated: PoolVersion(new.version()).has_deflation(),
        leaf_watch: LeafWatch::default(),
    };
    Ok(FirstParts { parts, salt })
}

fn first_topology(root: &VdevConfig, built: &BuiltVdevs) -> Result<Topology, PoolError> {
    let invalid = |error: millpond_vdev::TreeError| PoolError::Suspended {
        reason: error.to_string(),
    };
    let mut tree = VdevTree::new(root.clone(), Reflow::default()).map_err(invalid)?;
    for (id, (_, class)) in (0u32..).map(VdevId).zip(&built.tops) {
        tree.set_class(id, *class);
    }
    let devices: Vec<Option<Arc<dyn Device>>> = tree
        .leaves()
        .map(|(_, node)| built.devices.get(&node.config.guid).cloned())
        .collect();
    let health = LeafTable::all_good(tree.leaf_count());
    Ok(Topology::new(
        tree,
        devices,
        health,
        IndirectTables::default(),
    ))
}

impl SyncContext<'_> {
    /// Creates all objects that a pool needs before its first dataset is used.
    fn make_first_objects(
        &self,
        new: &NewPool,
        built: &BuiltVdevs,
        features: &[&'static Feature],
        salt: [u8; 32],
    ) -> Result<(), PoolError> {
        self.make_directory()?;
        self.set_directory_number(key::CREATION_VERSION, new.version())?;
        if PoolVersion(new.version()).has_deflation() {
            self.set_directory_number(key::DEFLATE, 1)?;
        }
        if PoolVersion(new.version()).has_features() {
            self.make_feature_tables()?;
        }
        self.table(pool_directory::OBJECT_DIRECTORY)?
            .update(key::CHECKSUM_SALT.as_bytes(), &ZapValue::from_bytes(&salt))
            .reading("checksum salt")?;
        let version = pool_event_text(new.version(), &new.system);
        self.history(&HistoryEvent::of_pool("create", version))?;
        for setting in &new.settings {
            if !matches!(
                setting,
                PoolSetting::EnableFeature(_) | PoolSetting::DisableFeature(_)
            ) {
                self.set_pool_property(setting)?;
            }
        }
        for feature in features {
            self.enable_in_list(feature, true)?;
        }
        let list = crate::bpobj::BpObject::create_sync_list(self)?;
        self.set_directory_number(key::SYNC_BPLIST, list.id().0)?;
        self.make_vdev_objects(&built.tops, VdevId(0))?;
        self.write_device_list(key::SPARES, &built.spares)?;
        self.write_device_list(key::L2CACHE, &built.caches)?;
        self.pool.port.create_root(self, &new.root_properties)?;
        self.mark_config_dirty();
        Ok(())
    }

    /// Creates the tables of features, all empty.
    pub(crate) fn make_feature_tables(&self) -> Result<(), PoolError> {
        for table in [
            key::FEATURES_FOR_READ,
            key::FEATURES_FOR_WRITE,
            key::FEATURE_DESCRIPTIONS,
        ] {
            let id = self.create_table(ObjectType::METADATA_ZAP)?;
            self.set_directory_number(table, id.0)?;
        }
        Ok(())
    }

    fn make_directory(&self) -> Result<(), PoolError> {
        let what = "object directory";
        let new = NewObject::new(ObjectType::OBJECT_DIRECTORY);
        let object = self
            .mos()
            .allocate_at(self.tx(), pool_directory::OBJECT_DIRECTORY, new)
            .reading(what)?;
        let zap = NewZap::plain(new_salt(self.pool.env()));
        ZapMut::of(&object, self.tx()).create(&zap).reading(what)
    }

    /// Stores the list of hot spares or cache devices. An empty list is stored only if a list already
    /// exists.
    pub(crate) fn write_device_list(
        &self,
        key: &'static str,
        vdevs: &[VdevConfig],
    ) -> Result<(), PoolError> {
        if vdevs.is_empty() && self.directory_object(key)?.is_none() {
            return Ok(());
        }
        let entries: Vec<NvList> = vdevs.iter().map(VdevConfig::to_auxiliary_nvlist).collect();
        let mut list = NvList::new();
        list.insert(key, entries);
        self.write_packed_list(key, &list)
    }
}

#[cfg(test)]
mod tests;
