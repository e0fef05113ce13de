//! Starts expansions (`zpool attach POOL raidzP-N DEVICE`).

use super::{RAIDZ_EXPANSION, entry};
use crate::PoolError;
use crate::create::label_devices;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::vdevs::activity::PATIENCE;
use crate::vdevs::add::note_guids;
use crate::vdevs::attach::{AttachError, is_resilvering};
use crate::vdevs::grow::child_bytes;
use crate::vdevs::new_vdev::{
    BuiltVdevs, Guids, NewDevice, NewLayout, NewTop, NewVdevOptions, NewVdevs, check_devices,
    leaf_of,
};
use crate::vdevs::rearrange::AttachRefusal;
use crate::vdevs::topology::Added;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{Ashift, Guid, LeafLayout, VdevId};
use millpond_vdev::{RaidzGeometry, VdevConfig, VdevType};
use std::collections::{BTreeMap, BTreeSet};

impl Pool {
    /// Adds a child to a RAID-Z vdev, and begins to move its rows. The device belongs to the pool when this returns;
    /// [`Pool::expansion_slice`] moves the rows.
    ///
    /// `options.ashift` only permits larger sectors of the device. `is_open_here` is as for [`Pool::create`].
    ///
    /// # Errors
    /// [`AttachError`]. Except after [`AttachError::Pool`], the pool is unchanged and continues to work.
    pub fn expand_raidz(
        &self,
        top: Guid,
        device: &NewDevice,
        options: NewVdevOptions,
        is_open_here: &dyn Fn(Guid) -> bool,
    ) -> Result<Guid, AttachError> {
        let is_ours = |guid: Guid| guid == self.guid() || is_open_here(guid);
        let one = NewTop::normal(NewLayout::Single, vec![device.clone()]);
        let options = NewVdevOptions {
            ashift: None,
            ..options
        };
        check_devices(&NewVdevs::of(vec![one]), options, &is_ours)?;
        // Work on free space knows the old places only.
        let _pause = self.activities.pause(PATIENCE)?;
        let guid = self.sync_task(|ctx| ctx.expand_raidz(top, device))??;
        mark::hit("expansion-started");
        self.scan.change(|_| ());
        Ok(guid)
    }

    /// Whether a vdev is a RAID-Z vdev, which [`Pool::expand_raidz`] may expand.
    #[must_use]
    pub fn is_raidz(&self, top: Guid) -> bool {
        let state = self.state.read();
        let mut tops = state.config.root.children.iter();
        tops.any(|vdev| vdev.guid == top && vdev.kind == VdevType::Raidz)
    }
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn expand_raidz(
        &self,
        guid: Guid,
        device: &NewDevice,
    ) -> Result<Result<Guid, AttachError>, PoolError> {
        let pool = self.pool;
        let txg = self.txg();
        let mut config = pool.state.read().config.clone();
        let (id, needed) = match pool.expandable(&config.root, guid) {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        if let Err(refusal) = fits(device, &config.root, id, needed) {
            return Ok(Err(refusal.into()));
        }
        let spares = self.device_list(key::SPARES)?;
        let mut taken: BTreeSet<u64> = spares.iter().map(|spare| spare.guid.0).collect();
        note_guids(&config.root, &mut taken);
        let env = &pool.env;
        let new = Guids { env, taken }.next();
        let mut leaf = leaf_of(device, new);
        let before = config.root.clone();
        config.root = widened(&before, id, leaf.clone());
        let built = BuiltVdevs {
            tops: vec![],
            spares: vec![],
            caches: vec![],
            devices: BTreeMap::from([(new, Arc::clone(&device.device))]),
        };
        let uberblock = pool.uberblock();
        if let Err(refusal) = label_devices(&config, &built, txg, Some(&uberblock)) {
            return Ok(Err(refusal.into()));
        }
        // From here on only a write by the pool itself can fail.
        if config.has_vdev_zaps {
            leaf.zap_leaf = Some(self.new_vdev_zap()?);
        }
        let root = widened(&before, id, leaf);
        let width = root
            .children
            .get(id.0 as usize)
            .map_or(0, |top| top.children.len());
        let added = Added {
            devices: built.devices,
            ..Added::default()
        };
        pool.store.set_moved_bytes(0);
        pool.put_tree(root, &added, |_| {})?;
        self.mark_config_dirty();
        self.feature_increment(RAIDZ_EXPANSION)?;
        if let Some(zap) = pool.top_zap(id) {
            let now_s = pool.env.clock.wall_ns() / 1_000_000_000;
            for (name, number) in [
                (entry::STATE, entry::ACTIVE),
                (entry::START_TIME, now_s),
                (entry::END_TIME, 0),
                (entry::BYTES_COPIED, 0),
            ] {
                self.set_table_number(zap, name, number)?;
            }
        }
        let text = format!("{} vdev {} new width {width}", pool.name(), id.0);
        self.history(&HistoryEvent::of_pool("raidz vdev expansion started", text))?;
        Ok(Ok(new))
    }
}

impl Pool {
    /// The number of a RAID-Z vdev that can be expanded now, and how many bytes it needs of a child.
    fn expandable(&self, root: &VdevConfig, guid: Guid) -> Result<(VdevId, u64), AttachRefusal> {
        if let Some(refusal) = self.checkpoint_refusal() {
            return Err(refusal.into());
        }
        if root.children.iter().any(|top| top.removing) {
            return Err(AttachRefusal::Removing);
        }
        let mut tops = (0u32..).map(VdevId).zip(&root.children);
        let found = tops.find(|(_, top)| top.guid == guid && top.kind == VdevType::Raidz);
        let (id, top) = found.ok_or(AttachRefusal::NotMirror)?;
        if !self.feature_is_enabled(RAIDZ_EXPANSION) {
            return Err(AttachRefusal::NoExpansions);
        }
        if root.children.iter().any(|top| top.raidz_expanding) {
            return Err(AttachRefusal::Expanding);
        }
        if self.has_rebuild() {
            return Err(AttachRefusal::Rebuilding);
        }
        if self.scan.with(|scan| is_resilvering(scan)) {
            return Err(AttachRefusal::Resilvering);
        }
        let in_use = self.leaves_in_use();
        let state = self.state.read();
        let is_whole = |child: &VdevConfig| {
            let missed = state.missed.get(&child.guid);
            child.kind.is_device()
                && in_use.contains(&child.guid)
                && missed.is_none_or(|missed| missed.ranges().is_empty())
        };
        if !top.children.iter().all(is_whole) {
            return Err(AttachRefusal::NotWhole);
        }
        let sectors = u8::try_from(top.ashift).map(Ashift);
        let width = top.children.len().saturating_add(1);
        let parity = top.nparity.unwrap_or(1);
        let wide = RaidzGeometry::new(width, parity, &top.raidz_expand_txgs, true).ok();
        let first_rows = wide.zip(sectors.ok());
        let first_rows = first_rows.and_then(|(wide, ashift)| wide.scratch_end_bytes(ashift));
        if first_rows.is_none_or(|bytes| bytes > top.asize_bytes) {
            return Err(AttachRefusal::TooWide);
        }
        Ok((id, child_bytes(top)))
    }
}

/// The tree with one more child of a vdev.
fn widened(root: &VdevConfig, id: VdevId, mut leaf: VdevConfig) -> VdevConfig {
    let mut root = root.clone();
    if let Some(top) = root.children.get_mut(id.0 as usize) {
        leaf.id = Some(top.children.len() as u64);
        leaf.create_txg = top.create_txg;
        top.children.push(leaf);
        top.raidz_expanding = true;
    }
    root
}

/// Checks size and sectors of a new child.
fn fits(
    device: &NewDevice,
    root: &VdevConfig,
    id: VdevId,
    needed_bytes: u64,
) -> Result<(), AttachRefusal> {
    let layout = LeafLayout::new(device.device.size_bytes()).ok_or(AttachRefusal::TooSmall)?;
    if layout.asize_bytes() < needed_bytes {
        return Err(AttachRefusal::TooSmall);
    }
    let ashift = root.children.get(id.0 as usize).map_or(0, |top| top.ashift);
    match u64::from(device.device.sector_bytes()) > 1 << ashift.min(16) {
        true => Err(AttachRefusal::SectorSize),
        false => Ok(()),
    }
}
