//! Detaches leaves from mirrors, and replaced leaves once their replacement is complete.
//!
//! Page `docs/format/vdev-tree.md`, "Attaching and detaching".

use crate::PoolError;
use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::import::LeafState;
use crate::labels::{LabelError, clear_labels, write_auxiliary_labels, write_initial_labels};
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::vdevs::activity::PATIENCE;
use crate::vdevs::attach::AttachError;
use crate::vdevs::leaf_states::is_complete;
use crate::vdevs::rearrange::{self, DetachRefusal, Detached};
use crate::vdevs::topology::Added;
use millpond_block::Topology;
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{Guid, Txg, Uberblock};
use millpond_vdev::{VdevConfig, VdevKind};

impl Pool {
    /// Takes a leaf out of a mirror, or ends a replacement by taking out one of its leaves. The device belongs to no
    /// pool when this returns.
    ///
    /// # Errors
    /// [`AttachError`]. Except after [`AttachError::Pool`], the pool is unchanged and continues to work.
    pub fn detach_leaf(&self, leaf: Guid) -> Result<(), AttachError> {
        let pause = self.activities.pause(PATIENCE)?;
        let device = self.sync_task(|ctx| ctx.detach_leaf(leaf))??;
        drop(pause);
        if let Some(gone) = device {
            // If this fails, the label shows an older txg than the pool's others, so it takes part in nothing.
            let _ = gone.relabel(&self.uberblock());
        }
        // Those that are left may all be larger.
        self.grow_if_automatic();
        Ok(())
    }

    /// Detaches the leaves whose replacements are complete. Returns how many there were.
    ///
    /// # Errors
    /// As [`Pool::detach_leaf`].
    pub fn finish_replacements(&self) -> Result<usize, AttachError> {
        let mut count = 0;
        while let Some(old) = self.replaced_leaf() {
            self.detach_leaf(old)?;
            mark::hit("replacement-finished");
            count += 1;
        }
        Ok(count)
    }

    /// Whether a replacement is complete and can be finished.
    #[must_use]
    pub fn has_finished_replacement(&self) -> bool {
        self.replaced_leaf().is_some()
    }

    /// A leaf that is replaced by a complete one and not needed any more. What was copied without looking at blocks is
    /// verified first: until then it may have the only right bytes.
    fn replaced_leaf(&self) -> Option<Guid> {
        if self.checkpoint_refusal().is_some() {
            return None;
        }
        let unverified = self.unverified_tops();
        let topology = self.store.topology();
        let tree = &topology.tree;
        tree.nodes().iter().find_map(|node| {
            let (first, last) = (node.children.first()?, node.children.last()?);
            let is_replacing = matches!(node.kind, VdevKind::Replacing);
            // A spare gives its place back when the leaf that it stands for is complete again.
            let is_unspared = matches!(node.kind, VdevKind::Spare)
                && tree.node(*last).is_some_and(|spare| spare.config.unspare);
            let (done, gone) = match () {
                () if is_replacing => (tree.node(*last)?, tree.node(*first)?),
                () if is_unspared => (tree.node(*first)?, tree.node(*last)?),
                () => return None,
            };
            let top = done
                .top
                .filter(|top| is_replacing && unverified.contains(top));
            let done = done.leaf.filter(|_| top.is_none())?;
            let is_done = is_complete(&topology, done);
            (is_done && may_go(&topology, gone.config.guid)).then_some(gone.config.guid)
        })
    }
}

/// Whether all data of the leaf's top-level vdev is complete without it.
fn may_go(topology: &Topology, leaf: Guid) -> bool {
    let tree = &topology.tree;
    let Some(number) = tree.find_leaf(leaf) else {
        return false;
    };
    let top = tree.leaf(number).and_then(|node| node.top);
    let is_lost = |other| other == number || !is_complete(topology, other);
    top.is_some_and(|top| tree.survives(top, &is_lost))
}

/// A leaf that was taken out of the pool, and whose device works.
pub(crate) struct Gone {
    pub(crate) config: VdevConfig,
    pub(crate) device: Arc<dyn Device>,
    /// The label and the last uberblock from before the detach. What they lead to is whole on the device, unless it lacked txgs.
    before: Option<(NvList, Uberblock)>,
}

impl Gone {
    /// Labels a spare as one that is available. Any other device gets labels of txg 0, so that it belongs to no pool.
    ///
    /// They have what `zhack label repair -u` needs to make the device one of its old pool again: the configuration and the
    /// uberblock from before the detach.
    fn relabel(&self, current: &Uberblock) -> Result<(), LabelError> {
        let device = self.device.as_ref();
        match (&self.before, self.config.is_spare) {
            (_, true) => {
                let state = LeafState::Spare;
                write_auxiliary_labels(device, &self.config, state, current.version, Some(current))
            }
            (Some((label, before)), false) => write_initial_labels(device, label, Some(before)),
            (None, false) => clear_labels(device).map(drop),
        }
    }
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    pub(crate) fn detach_leaf(
        &self,
        leaf: Guid,
    ) -> Result<Result<Option<Gone>, AttachError>, PoolError> {
        let pool = self.pool;
        if let Some(refusal) = pool.checkpoint_refusal() {
            return Ok(Err(DetachRefusal::from(refusal).into()));
        }
        pool.take_in_missed();
        pool.refresh_topology()?;
        let topology = pool.store.topology();
        let planned = rearrange::detach(&pool.state.read().config.root, leaf);
        let detached = match planned {
            Ok(detached) => detached,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        if !may_go(&topology, leaf) {
            return Ok(Err(DetachRefusal::Required.into()));
        }
        let label = (pool.state.read().config).initial_label_list(leaf, Txg(0));
        let before = label.map(|label| (label, pool.uberblock()));
        let Detached {
            root,
            leaf: gone,
            group_zap,
            renamed,
            kept_spare,
        } = detached;
        self.free_leaf_objects(&gone)?;
        if let Some(zap) = group_zap {
            self.free_vdev_zap(zap)?;
        }
        let device_of = |guid| {
            let number = topology.tree.find_leaf(guid)?;
            topology.devices.get(number.0 as usize)?.clone()
        };
        let mut added = Added::default();
        if let Some((before, after)) = renamed
            && let Some(device) = device_of(before)
        {
            added.devices.insert(after, device);
        }
        pool.put_tree(root, &added, |missed| {
            missed.remove(&leaf);
            if let Some((before, after)) = renamed
                && let Some(lacks) = missed.remove(&before)
            {
                missed.insert(after, lacks);
            }
        })?;
        if let Some((before, after)) = renamed {
            pool.leaf_watch.lock().rename(before, after);
        }
        if let Some(spare) = kept_spare {
            mark::hit("spare-stays-for-good");
            let mut spares = self.device_list(key::SPARES)?;
            spares.retain(|listed| listed.guid != spare);
            self.write_device_list(key::SPARES, &spares)?;
            pool.spares.lock().forget(spare);
        }
        self.mark_config_dirty();
        self.settle_deferral()?;
        self.settle_rebuilds()?;
        let text = format!("vdev={}", gone.path.clone().unwrap_or_default());
        self.history(&HistoryEvent::of_pool("detach", text))?;
        Ok(Ok(device_of(leaf).map(|device| Gone {
            config: gone,
            device,
            before,
        })))
    }

    /// Whether [`SyncContext::detach_leaf`] would succeed now.
    pub(crate) fn may_detach(&self, leaf: Guid) -> Result<(), DetachRefusal> {
        rearrange::detach(&self.pool.state.read().config.root, leaf)?;
        match may_go(&self.pool.store.topology(), leaf) {
            true => Ok(()),
            false => Err(DetachRefusal::Required),
        }
    }

    /// Destroys the objects of a leaf that left the tree.
    pub(crate) fn free_leaf_objects(&self, leaf: &VdevConfig) -> Result<(), PoolError> {
        if let Some(log) = leaf.dtl.filter(|log| log.0 != 0) {
            self.free_space_map(log)?;
        }
        if let Some(zap) = leaf.zap_leaf.filter(|zap| zap.0 != 0) {
            self.pool.activities.forget(zap);
            self.free_vdev_zap(zap)?;
        }
        Ok(())
    }

    /// Destroys a space map, a dirty time log or an array of space maps.
    pub(crate) fn free_space_map(&self, log: millpond_ondisk::ObjectId) -> Result<(), PoolError> {
        use crate::space::maps::HISTOGRAM;
        let what = "space map";
        let object = self.mos().object(log).reading(what)?;
        let has_histogram = object.bonus().len() >= 320;
        drop(object);
        self.mos().free(self.tx(), log).reading(what)?;
        match has_histogram && self.feature_count(HISTOGRAM) > 0 {
            true => self.feature_decrement(HISTOGRAM),
            false => Ok(()),
        }
    }
}
