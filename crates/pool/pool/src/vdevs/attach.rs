//! Attaches devices to vdevs: new sides of mirrors, replacements, and spares that step in.
//!
//! The new leaf lacks every txg up to its attachment and the two that were open then, since writes of those may not
//! know it. A resilver writes what it lacks. A replaced leaf is detached when its replacement is complete
//! ([`Pool::finish_replacements`]).
//!
//! Page `docs/format/vdev-tree.md`, "Attaching and detaching".

use crate::PoolError;
use crate::create::{CreateError, label_devices};
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::scan::ScanState;
use crate::sync::context::SyncContext;
use crate::vdevs::add::note_guids;
use crate::vdevs::dtl::DirtyTimeLog;
use crate::vdevs::new_vdev::{
    BuiltVdevs, Guids, NewDevice, NewTop, NewVdevOptions, NewVdevs, check_devices, leaf_of,
};
use crate::vdevs::new_vdev::{NewLayout, NewVdevError};
use crate::vdevs::rearrange::{self, AttachKind, AttachRefusal, DetachRefusal};
use crate::vdevs::rebuild::{DEVICE_REBUILD, can_rebuild};
use crate::vdevs::spares::{TAKING, is_labelled_spare};
use crate::vdevs::topology::{Added, renewed};
use millpond_env::sync::Arc;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{Guid, LeafLayout, ObjectId, ScanFunction, ScanPhase, Txg, VdevId};
use millpond_vdev::VdevConfig;
use std::collections::{BTreeMap, BTreeSet};

/// The first txg of a pool.
pub(crate) const FIRST_TXG: u64 = 4;
/// A txg that is open, one that is quiescing and one that is syncing.
pub(crate) const TXGS_UNDER_WAY: u64 = 3;

/// Why a device was not attached, or a leaf not detached.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The tree does not allow it.
    #[error(transparent)]
    Attach(#[from] AttachRefusal),
    /// The tree does not allow it.
    #[error(transparent)]
    Detach(#[from] DetachRefusal),
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] NewVdevError),
    /// Its labels could not be written, or the pool could not be changed.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The pool could not be changed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// How a new leaf gets what it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResilverKind {
    /// Block by block, with checksums verified.
    #[default]
    Healing,
    /// In the order of addresses, and checksums are verified afterwards by a scrub. For mirrors, single disks and dRAID. If
    /// there is no complete leaf to copy from, it is a healing resilver.
    Sequential,
}

/// What is attached beside a leaf.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Newcomer<'a> {
    Device(&'a NewDevice),
    /// A distributed spare as the pool lists it. It has no device and no labels.
    Distributed(&'a VdevConfig),
}

impl Newcomer<'_> {
    fn path(&self) -> &str {
        match self {
            Self::Device(device) => &device.path,
            Self::Distributed(spare) => spare.path.as_deref().unwrap_or_default(),
        }
    }

    /// Whether it is free to be attached as the listed spare.
    fn is_free_spare(&self, spare: &VdevConfig, pool: Guid) -> bool {
        match self {
            Self::Device(device) => is_labelled_spare(device.device.as_ref(), spare.guid, pool),
            Self::Distributed(listed) => listed.guid == spare.guid,
        }
    }

    /// The leaf that it becomes.
    fn leaf(&self, guid: Guid) -> VdevConfig {
        match self {
            Self::Device(device) => leaf_of(device, guid),
            Self::Distributed(spare) => VdevConfig {
                guid,
                ashift: 0,
                whole_disk: None,
                ..(*spare).clone()
            },
        }
    }
}

impl Pool {
    /// Attaches a device beside a leaf, and starts the resilver. The device belongs to the pool when this returns.
    ///
    /// `options.ashift` only permits larger sectors of the device. `is_open_here` is as for [`Pool::create`].
    ///
    /// # Errors
    /// [`AttachError`]. Except after [`AttachError::Pool`], the pool is unchanged and continues to work.
    pub fn attach_leaf(
        &self,
        old: Guid,
        device: &NewDevice,
        kind: AttachKind,
        options: NewVdevOptions,
        is_open_here: &dyn Fn(Guid) -> bool,
    ) -> Result<Guid, AttachError> {
        let how = ResilverKind::Healing;
        self.attach_leaf_as(how, old, device, kind, options, is_open_here)
    }

    /// Like [`Pool::attach_leaf`], with a resilver of the given kind.
    ///
    /// # Errors
    /// As [`Pool::attach_leaf`].
    pub fn attach_leaf_as(
        &self,
        how: ResilverKind,
        old: Guid,
        device: &NewDevice,
        kind: AttachKind,
        options: NewVdevOptions,
        is_open_here: &dyn Fn(Guid) -> bool,
    ) -> Result<Guid, AttachError> {
        let is_ours = |guid: Guid| guid == self.guid() || is_open_here(guid);
        let is_spare = kind == AttachKind::Spare;
        if !is_spare {
            let one = NewTop::normal(NewLayout::Single, vec![device.clone()]);
            let options = NewVdevOptions {
                ashift: None,
                ..options
            };
            check_devices(&NewVdevs::of(vec![one]), options, &is_ours)?;
        }
        self.attach_newcomer(how, old, Newcomer::Device(device), kind)
    }

    /// Attaches what was checked.
    ///
    /// # Errors
    /// As [`Pool::attach_leaf`].
    pub(crate) fn attach_newcomer(
        &self,
        how: ResilverKind,
        old: Guid,
        new: Newcomer<'_>,
        kind: AttachKind,
    ) -> Result<Guid, AttachError> {
        let guid = self.sync_task(|ctx| ctx.attach_leaf(old, new, kind, how))??;
        // Until the txgs are over that the leaf lacks.
        for _ in 0..=TXGS_UNDER_WAY {
            self.sync()?;
        }
        self.start_resilver()?;
        // The thread that scans looks for a sequential resilver.
        self.scan.change(|_| ());
        Ok(guid)
    }
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn attach_leaf(
        &self,
        old: Guid,
        newcomer: Newcomer<'_>,
        kind: AttachKind,
        how: ResilverKind,
    ) -> Result<Result<Guid, AttachError>, PoolError> {
        let pool = self.pool;
        if let Some(refusal) = pool.checkpoint_refusal() {
            return Ok(Err(AttachRefusal::from(refusal).into()));
        }
        let txg = self.txg();
        let mut config = pool.state.read().config.clone();
        let fits = match newcomer {
            Newcomer::Device(device) => check_fit(&config.root, old, device),
            Newcomer::Distributed(_) => Ok(()),
        };
        if let Err(refusal) = fits {
            return Ok(Err(refusal.into()));
        }
        let how = match self.resilver_kind(&config.root, old, how) {
            Ok(how) => how,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        let spares = self.device_list(key::SPARES)?;
        let listed = spares.iter().map(|spare| spare.guid.0);
        let mut taken: BTreeSet<u64> = listed.collect();
        note_guids(&config.root, &mut taken);
        let mut guids = Guids {
            env: &pool.env,
            taken,
        };
        // A spare keeps its guid, by which the list of spares names it.
        let spare = spares.iter().find(|spare| {
            kind == AttachKind::Spare && spare.path.as_deref() == Some(newcomer.path())
        });
        let taking = (kind == AttachKind::Spare).then(|| TAKING.lock());
        let is_free = |spare: &VdevConfig| newcomer.is_free_spare(spare, pool.guid());
        if taking.is_some() && !spare.is_some_and(is_free) {
            return Ok(Err(AttachRefusal::NotSpare.into()));
        }
        let guid = spare.map_or_else(|| guids.next(), |spare| spare.guid);
        let mut new = VdevConfig {
            is_spare: spare.is_some(),
            resilver_txg: (how == ResilverKind::Healing).then_some(txg),
            rebuild_txg: (how == ResilverKind::Sequential).then_some(txg),
            ..newcomer.leaf(guid)
        };
        let group = guids.next();
        let old_path = rearrange::path_to(&config.root, old)
            .and_then(|path| rearrange::at_mut(&mut config.root, &path).cloned())
            .and_then(|leaf| leaf.path);
        if kind == AttachKind::Replacement {
            rearrange::give_up_path(&mut config.root, old, newcomer.path());
        }
        let planned = rearrange::attach(&config.root, old, new.clone(), kind, group);
        let mut labelled = config.clone();
        labelled.root = match planned {
            Ok(root) => root,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        let built = BuiltVdevs {
            tops: vec![],
            spares: vec![],
            caches: vec![],
            devices: match newcomer {
                Newcomer::Device(device) => BTreeMap::from([(guid, Arc::clone(&device.device))]),
                Newcomer::Distributed(_) => BTreeMap::new(),
            },
        };
        let uberblock = pool.uberblock();
        if let Err(refusal) = label_devices(&labelled, &built, txg, Some(&uberblock)) {
            return Ok(Err(refusal.into()));
        }
        drop(taking);
        // From here on only a write by the pool itself can fail.
        if config.has_vdev_zaps {
            new.zap_leaf = Some(self.new_vdev_zap()?);
        }
        // The tree may not have changed since: the planned attachment succeeds again.
        let Ok(root) = rearrange::attach(&config.root, old, new, kind, group) else {
            return Ok(Err(AttachRefusal::NoSuchLeaf.into()));
        };
        let added = Added {
            devices: built.devices,
            ..Added::default()
        };
        let is_out = !pool.leaves_in_use().contains(&old);
        pool.put_tree(root, &added, |missed| {
            let mut lacks = DirtyTimeLog::default();
            lacks.add(FIRST_TXG..txg.0.saturating_add(TXGS_UNDER_WAY));
            missed.insert(guid, lacks);
            // A leaf of a dRAID may be away without missing anything. When it is back, a resilver must see that it is
            // complete, so that its spare goes.
            if kind == AttachKind::Spare && is_out {
                let missed: &mut DirtyTimeLog = missed.entry(old).or_default();
                missed.add(txg.0..txg.0.saturating_add(1));
            }
        })?;
        self.mark_config_dirty();
        let text = attach_text(kind, newcomer.path(), old_path);
        self.history(&HistoryEvent::of_pool("vdev attach", text))?;
        if how == ResilverKind::Sequential {
            self.stop_scrubs()?;
            self.begin_rebuild(guid, Txg(txg.0.saturating_add(TXGS_UNDER_WAY)))?;
        }
        Ok(Ok(guid))
    }
    /// How the leaf that is attached beside `old` gets what it lacks, if it may.
    fn resilver_kind(
        &self,
        root: &VdevConfig,
        old: Guid,
        wanted: ResilverKind,
    ) -> Result<ResilverKind, AttachRefusal> {
        let pool = self.pool;
        if wanted == ResilverKind::Healing {
            return match pool.has_rebuild() {
                true => Err(AttachRefusal::Rebuilding),
                false => Ok(wanted),
            };
        }
        if !self.feature_is_enabled(DEVICE_REBUILD) {
            return Err(AttachRefusal::NoRebuilds);
        }
        let path = rearrange::path_to(root, old).unwrap_or_default();
        let top = path.first().and_then(|index| root.children.get(*index));
        if !can_rebuild(root, old) {
            return Err(AttachRefusal::NotSequential);
        }
        if pool.scan.with(|scan| is_resilvering(scan)) {
            return Err(AttachRefusal::Resilvering);
        }
        let id = path.first().and_then(|index| u32::try_from(*index).ok());
        let id = VdevId(id.unwrap_or(u32::MAX));
        pool.take_in_missed();
        let has_place = top.is_some_and(|top| top.zap_top.and_then(ObjectId::some).is_some());
        match has_place && pool.store.topology().has_copy_source(id, &[]) {
            true => Ok(wanted),
            false => Ok(ResilverKind::Healing),
        }
    }

    /// Cancels a scrub and an error scrub.
    fn stop_scrubs(&self) -> Result<(), PoolError> {
        if self.pool.scan.with(|scan| scan.is_scanning()) {
            self.end_scan(ScanPhase::Cancelled)?;
        }
        self.end_error_scrub(ScanPhase::Cancelled)
    }
}

/// Whether a healing resilver runs.
pub(crate) fn is_resilvering(scan: &ScanState) -> bool {
    scan.is_scanning() && scan.phys.function == ScanFunction::Resilver
}

/// The record of the history.
fn attach_text(kind: AttachKind, new: &str, old_path: Option<String>) -> String {
    let verb = match kind {
        AttachKind::Mirror => "attach",
        AttachKind::Replacement => "replace",
        AttachKind::Spare => "spare in",
    };
    let link = match kind {
        AttachKind::Mirror => "to",
        _ => "for",
    };
    let old = old_path.unwrap_or_default();
    format!("{verb} vdev={new} {link} vdev={old}")
}

impl Pool {
    /// Replaces the vdev tree, in syncing context. `change` adapts what leaves miss.
    pub(crate) fn put_tree(
        &self,
        root: VdevConfig,
        added: &Added,
        change: impl FnOnce(&mut BTreeMap<Guid, DirtyTimeLog>),
    ) -> Result<(), PoolError> {
        let mut outcome = Ok(());
        let mut state = self.state.write();
        change(&mut state.missed);
        // Hold the topology's lock, so that the new topology records the txgs that leaves miss meanwhile.
        self.store.change_topology(|topology| {
            let mut missed = state.missed.clone();
            for one in self.store.noted_missed() {
                let entry = missed.entry(one.guid).or_default();
                entry.add(one.txg.0..one.txg.0.saturating_add(1));
            }
            match renewed(topology, &root, &missed, added) {
                Ok(new) => *topology = new,
                Err(error) => outcome = Err(error),
            }
        });
        outcome?;
        state.config.root = root;
        state.assembly = None;
        Ok(())
    }
}

/// Checks size and sectors of a device that is attached beside `old`.
fn check_fit(root: &VdevConfig, old: Guid, device: &NewDevice) -> Result<(), AttachRefusal> {
    let path = rearrange::path_to(root, old).ok_or(AttachRefusal::NoSuchLeaf)?;
    let top = path.first().and_then(|index| root.children.get(*index));
    let top = top.ok_or(AttachRefusal::NoSuchLeaf)?;
    let needed = rearrange::needed_bytes(root, old).ok_or(AttachRefusal::NoSuchLeaf)?;
    let layout = LeafLayout::new(device.device.size_bytes()).ok_or(AttachRefusal::TooSmall)?;
    if layout.asize_bytes() < needed {
        return Err(AttachRefusal::TooSmall);
    }
    let sector_bytes = u64::from(device.device.sector_bytes());
    if sector_bytes > 1 << top.ashift.min(16) {
        return Err(AttachRefusal::SectorSize);
    }
    Ok(())
}
