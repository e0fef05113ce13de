//! Opens a pool for reading: from the labels to the trusted configuration.
//!
//! The configuration in the labels is good enough to read the MOS. The configuration stored in the MOS then
//! replaces it. After that the pool loads the mappings of removed vdevs, the feature tables, the dirty time
//! logs and the checksum salt, in an order in which each step makes the next one readable. Opening writes
//! nothing.
//!
//! Page `docs/format/import.md`.

use crate::error::Reading;
use crate::features::UnsupportedFeature;
use crate::import::{Assembly, ConfigError, PoolCandidate, Rewind, RewindError, TXGS_KEPT, Trust};
use crate::object_directory::ObjectDirectory;
use crate::vdevs::leaf_states::{found_condition, judge};
use crate::vdevs::objects::{load_allocation_class, load_dirty_time_log, load_indirect_mapping};
use crate::{PoolError, PoolView};
use millpond_block::{BlockCache, BlockStore, IoClock, RequestDeadline, Topology};
use millpond_env::Env;
use millpond_env::sync::{Arc, OnceLock};
use millpond_object::ObjectSetView;
use millpond_ondisk::pool_directory::{self, key};
use millpond_ondisk::{PoolVersion, Txg, Uberblock, VdevId};
use millpond_vdev::{IndirectTables, LeafTable, Reflow, TreeError, VdevKind, VdevTree};

/// Options for opening a pool.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// How far to rewind if the newest state cannot be read.
    pub rewind: Rewind,
    /// Whether to open the state that `zpool checkpoint` kept instead of the newest one.
    pub at_checkpoint: bool,
    /// Whether to open the pool even if whole top-level vdevs are unusable, for rescue: data on them is
    /// lost, the rest is readable. Only for reading. A log vdev may always be missing.
    pub allow_missing_tops: bool,
    /// The size of a block cache of its own, in bytes. Without it the pool uses the cache that the pools of
    /// the process share.
    pub cache_bytes: Option<u64>,
    /// Whether threads of the pool prefetch for sequential readers. A pool in sync mode `SyncMode::Caller`
    /// never prefetches.
    pub prefetch: bool,
    /// How long a device may take to answer before the pool continues without it. The default is no limit,
    /// which needs no threads per device. A pool opened for changes uses the deadline of its
    /// [`WriteOptions`](crate::WriteOptions).
    pub deadline: RequestDeadline,
}

impl Default for OpenOptions {
    /// The newest state with all top-level vdevs, and the cache that the pools of the process share.
    fn default() -> Self {
        Self {
            rewind: Rewind::Never,
            at_checkpoint: false,
            allow_missing_tops: false,
            cache_bytes: None,
            prefetch: true,
            deadline: RequestDeadline(None),
        }
    }
}

/// Why a pool cannot be opened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no uberblock to try.
    #[error(transparent)]
    Rewind(#[from] RewindError),
    /// The configuration is malformed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The vdev tree is invalid for a pool.
    #[error("the pool's configuration is damaged: {0}")]
    Tree(#[from] TreeError),
    /// The pool's version does not exist or is newer than this program supports.
    #[error("the pool is formatted using an unsupported ZFS version ({version})")]
    Version {
        /// The version.
        version: u64,
    },
    /// A state of the pool is unreadable.
    #[error("txg {txg}: {error}")]
    State {
        /// The txg of the state's uberblock.
        txg: Txg,
        /// What went wrong.
        error: PoolError,
    },
    /// Too few devices are available.
    #[error("one or more devices are missing and there are insufficient replicas to go on")]
    Devices {
        /// The vdev tree with the state of each device.
        assembly: Box<Assembly>,
    },
    /// The sum of the guids in the configuration differs from the sum in the uberblock.
    #[error("one or more devices are missing from the configuration (guid sum does not match)")]
    GuidSum,
    /// The pool uses unsupported features that are required to read it.
    #[error("the pool uses features that are not supported: {}", list(features))]
    Features {
        /// The unsupported features.
        features: Vec<UnsupportedFeature>,
    },
    /// The pool cannot be opened for writing.
    #[error(transparent)]
    ReadOnly(#[from] crate::WhyReadOnly),
    /// The pool has multihost on, and another system is using it.
    #[error("the pool is imported on {} (hostid: {hostid:#x})", hostname.as_deref().unwrap_or("<unknown>"))]
    InUseElsewhere {
        /// The host id of that system.
        hostid: u64,
        /// Its name.
        hostname: Option<String>,
    },
    /// The pool has multihost on, and this system has no host id.
    #[error("the pool has the property multihost on, and this system has no host id")]
    NeedsHostid,
    /// Several devices have the same label and different contents, and nothing tells which of them belong together.
    #[error("{}", copies_text(copies))]
    Copies {
        /// The paths of the devices of each such leaf.
        copies: Vec<Vec<String>>,
    },
    /// The pool has no checkpoint to open.
    #[error("the pool has no checkpoint")]
    NoCheckpoint,
}

/// What is wrong with devices that have the same label, and what helps.
#[must_use]
pub fn copies_text(copies: &[Vec<String>]) -> String {
    let copies: Vec<String> = copies.iter().map(|paths| paths.join(" and ")).collect();
    format!(
        "devices have the same label and different contents, so it is not known which belong to the pool: {}; hide all but one of \
         each, for example by links to the wanted devices in a folder for 'zpool import -d', or import the pool read-only",
        copies.join("; ")
    )
}

fn list(features: &[UnsupportedFeature]) -> String {
    let words: Vec<String> = features
        .iter()
        .map(|feature| match &feature.description {
            Some(text) => format!("{} ({text})", feature.guid),
            None => feature.guid.clone(),
        })
        .collect();
    words.join(", ")
}

impl PoolView {
    /// Opens the newest readable state that `options` allow.
    ///
    /// Blocks of a state that is more than two txgs old may have been freed and overwritten since. Each is verified by its
    /// checksum; those without one are refused. The checkpoint keeps its blocks.
    ///
    /// # Errors
    /// [`OpenError`] of the newest state tried, which is the most informative one.
    pub fn open(
        env: &Env,
        candidate: &PoolCandidate,
        options: &OpenOptions,
    ) -> Result<Arc<PoolView>, OpenError> {
        let pool = Self::open_as(env, candidate, options, |newest| {
            let kept = options.at_checkpoint.then(|| newest.checkpoint());
            let kept = kept.transpose()?;
            kept.map(|kept| kept.ok_or(OpenError::NoCheckpoint))
                .transpose()
        })?;
        let newest = candidate.uberblocks.first();
        let newest = newest.map_or(0, |found| found.uberblock.txg.0);
        let may_be_overwritten = pool.uberblock.txg.0.saturating_add(TXGS_KEPT) < newest;
        if may_be_overwritten && !options.at_checkpoint {
            pool.store.set_past();
        }
        Ok(pool)
    }

    /// Like [`PoolView::open`]. Given the newest state that can be opened, `instead` tells the uberblock to open instead of
    /// its own.
    pub(crate) fn open_as(
        env: &Env,
        candidate: &PoolCandidate,
        options: &OpenOptions,
        instead: impl Fn(&PoolView) -> Result<Option<Uberblock>, OpenError>,
    ) -> Result<Arc<PoolView>, OpenError> {
        let mut first_error = None;
        for choice in candidate.uberblock_choices(options.rewind)? {
            match open_at(env, candidate, options, choice.uberblock) {
                Ok(pool) => {
                    return match instead(&pool)? {
                        Some(uberblock) => open_at(env, candidate, options, uberblock),
                        None => Ok(pool),
                    };
                }
                Err(error) => {
                    // These errors hold for every uberblock; trying an older one does not help.
                    let is_final = matches!(
                        error,
                        OpenError::Features { .. } | OpenError::Version { .. }
                    );
                    let kept = first_error.get_or_insert(error);
                    if is_final {
                        return Err(kept.clone());
                    }
                }
            }
        }
        Err(first_error.unwrap_or(OpenError::Rewind(RewindError::NoUberblock)))
    }

    /// Reads the uberblock of the pool's checkpoint; `None` if there is no checkpoint.
    ///
    /// # Errors
    /// If the object directory or the uberblock cannot be read.
    pub fn checkpoint(&self) -> Result<Option<Uberblock>, OpenError> {
        let at = |error| OpenError::State {
            txg: self.uberblock.txg,
            error,
        };
        let Some(value) = self.directory_value(key::CHECKPOINT).map_err(at)? else {
            return Ok(None);
        };
        let slot = pool_directory::checkpoint_uberblock(&value.integers().collect::<Vec<_>>());
        let uberblock = slot
            .and_then(|slot| Uberblock::decode(&slot))
            .reading("checkpoint");
        uberblock.map(Some).map_err(at)
    }
}

fn open_at(
    env: &Env,
    candidate: &PoolCandidate,
    options: &OpenOptions,
    uberblock: Uberblock,
) -> Result<Arc<PoolView>, OpenError> {
    if !PoolVersion(uberblock.version).is_known() {
        return Err(OpenError::Version {
            version: uberblock.version,
        });
    }
    let txg = uberblock.txg;
    let at = |error| OpenError::State { txg, error };
    let reflow = Reflow::from_uberblock(uberblock.raidz_reflow.0);

    let untrusted =
        candidate.assemble(&candidate.config, Trust::Untrusted { txg_max: Some(txg) })?;
    let topology = Members::new(&untrusted, reflow, env, options.deadline)?;
    let topology = topology.topology(&IndirectTables::default());
    let store = Arc::new(BlockStore::new(
        topology,
        BlockCache::of_size(options.cache_bytes),
    ));
    store.set_prefetch(options.prefetch);
    let mos = match ObjectSetView::open(Arc::clone(&store), 0, uberblock.root, None) {
        Ok(mos) => mos,
        // Missing devices are a better explanation than one unreadable block.
        Err(_) if !untrusted.state().is_usable() => {
            return Err(OpenError::Devices {
                assembly: Box::new(untrusted),
            });
        }
        Err(error) => {
            return Err(at(PoolError::Object {
                what: "pool metadata",
                error,
            }));
        }
    };
    let directory = ObjectDirectory::open(&mos).map_err(at)?;
    let config = directory.config().map_err(at)?;
    let mut trusted = candidate.assemble(&config, Trust::Trusted { txg })?;
    if trusted.guid_sum() != uberblock.guid_sum {
        return Err(OpenError::GuidSum);
    }
    if !trusted.state().is_usable() && !options.allow_missing_tops {
        return Err(OpenError::Devices {
            assembly: Box::new(trusted),
        });
    }
    let mut members = Members::new(&trusted, reflow, env, options.deadline)?;
    store.set_topology(members.topology(&IndirectTables::default()));

    // Feature tables may lie on a vdev that was removed.
    let indirect = load_indirect(&mos, &store, &members);
    let features = directory.features(uberblock.version).map_err(at)?;
    let unreadable = features.unreadable();
    if !unreadable.is_empty() {
        return Err(OpenError::Features {
            features: unreadable,
        });
    }
    members.has_large_gang_headers = features.is_active("com.klarasystems:dynamic_gang_header");

    let indirect = indirect.map_err(at)?;
    members.load_objects(&mos).map_err(at)?;
    let topology = members.topology(&indirect);
    judge(&topology, &mut trusted, txg);
    store.set_topology(topology);
    if let Some(salt) = directory.salt().map_err(at)? {
        store.set_salt(salt);
    }
    let name = candidate.name.clone();
    let env = env.clone();
    let mut load_guid = [0; 8];
    env.entropy.fill(&mut load_guid);
    let load_guid = u64::from_ne_bytes(load_guid);
    let spares = directory.auxiliaries(key::SPARES).map_err(at)?;
    let caches = directory.auxiliaries(key::L2CACHE).map_err(at)?;
    Ok(Arc::new(PoolView {
        env,
        name,
        store,
        mos,
        directory,
        config,
        uberblock,
        features,
        assembly: trusted,
        spares,
        caches,
        load_guid,
        pin: None,
        space: OnceLock::new(),
        caching_cells: Arc::default(),
    }))
}

/// The vdev tree of an assembly, with what is known about each vdev so far.
struct Members<'a> {
    assembly: &'a Assembly,
    clock: IoClock,
    deadline: RequestDeadline,
    tree: VdevTree,
    health: LeafTable,
    has_large_gang_headers: bool,
}

impl<'a> Members<'a> {
    fn new(
        assembly: &'a Assembly,
        reflow: Reflow,
        env: &Env,
        deadline: RequestDeadline,
    ) -> Result<Self, TreeError> {
        let tree = VdevTree::new(assembly.root.clone(), reflow)?;
        let mut health = LeafTable::all_good(tree.leaf_count());
        for ((id, node), leaf) in tree.leaves().zip(&assembly.leaves) {
            let Some(entry) = health.entry(id) else {
                continue;
            };
            let is_spare = matches!(node.kind, VdevKind::DraidSpare { .. });
            entry.is_readable = is_spare || leaf.device.is_some();
            if let Some(Txg(since)) = leaf.stale_since {
                // The leaf was absent when its siblings were written.
                entry.missed.push(since..u64::MAX);
            }
        }
        Ok(Self {
            assembly,
            clock: IoClock::of(env),
            deadline,
            tree,
            health,
            // The tables of features may lie below large headers themselves. Until they are read, both sizes are tried:
            // each has a checksum of its own.
            has_large_gang_headers: true,
        })
    }

    fn topology(&self, indirect: &IndirectTables) -> Topology {
        let devices = self
            .assembly
            .leaves
            .iter()
            .map(|leaf| leaf.device.clone())
            .collect();
        let (tree, health) = (self.tree.clone(), self.health.clone());
        let mut topology = Topology::new(tree, devices, health, indirect.clone());
        topology.has_large_gang_headers = self.has_large_gang_headers;
        topology.clock = self.clock.clone();
        topology.deadline = self.deadline.0;
        for ((id, node), leaf) in self.tree.leaves().zip(&self.assembly.leaves) {
            let health = self.assembly.nodes.get(leaf.node);
            if let (true, Some(health)) = (node.is_device(), health) {
                topology.set_condition(id, found_condition(health));
            }
        }
        topology
    }

    /// Reads dirty time logs and allocation classes.
    fn load_objects(&mut self, mos: &Arc<ObjectSetView>) -> Result<(), PoolError> {
        let logs: Vec<_> = self
            .tree
            .leaves()
            .filter_map(|(leaf, node)| Some((leaf, node.config.dtl.filter(|id| id.0 != 0)?)))
            .collect();
        for (leaf, id) in logs {
            let missed = load_dirty_time_log(mos, id)?;
            if let Some(entry) = self.health.entry(leaf) {
                entry.missed.extend(missed);
            }
        }
        let tops: Vec<_> = self
            .tree
            .tops()
            .filter_map(|(top, node)| Some((top, node.config.zap_top.filter(|id| id.0 != 0)?)))
            .collect();
        for (top, zap) in tops {
            if let Some(class) = load_allocation_class(mos, zap)? {
                self.tree.set_class(top, class);
            }
        }
        Ok(())
    }
}

/// Loads the mappings of removed vdevs, newest removal first.
///
/// An older mapping may be stored on a vdev that was removed later, so the newer mapping must be loaded
/// first.
fn load_indirect(
    mos: &Arc<ObjectSetView>,
    store: &Arc<BlockStore>,
    members: &Members<'_>,
) -> Result<IndirectTables, PoolError> {
    let mut tables = IndirectTables::default();
    let removed: Vec<(VdevId, Option<VdevId>)> = members
        .tree
        .tops()
        .filter(|(_, node)| node.kind == VdevKind::Indirect)
        .map(|(id, node)| (id, node.config.prev_indirect_vdev))
        .collect();
    // The newest mapping is the one that no other mapping names as its predecessor.
    let is_newest = |id: VdevId| removed.iter().all(|(_, previous)| *previous != Some(id));
    let mut next = removed.iter().map(|(id, _)| *id).find(|id| is_newest(*id));
    for _ in 0..removed.len() {
        let Some(id) = next else { break };
        let Some(node) = members.tree.top(id) else {
            break;
        };
        if let Some(mapping) = node.config.indirect_mapping {
            let births = node.config.indirect_births;
            tables.insert(id, load_indirect_mapping(mos, mapping, births)?);
            store.set_topology(members.topology(&tables));
        }
        next = node.config.prev_indirect_vdev;
    }
    Ok(tables)
}
