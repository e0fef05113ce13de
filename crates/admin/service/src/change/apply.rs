//! Applies one change to an open pool.

use super::attach::attach;
use super::checks::{new_vdevs, open_to_write, take_shared_spares};
use super::keys::{create_dataset, root_key};
use super::set::{set, set_in_contents, set_owner_quotas};
use super::split;
use crate::change::change_error;
use crate::info::compatibility::read_sets;
use millpond_control::{
    ActivityAction as Action, ChangeError, Changed, DatasetChange, LeafActivity as Activity, Note,
    PoolChange, PruneAmount, RequestedFeatures, ScrubAction, Value, Values,
};
use millpond_device::Device;
use millpond_engine::{
    ActivityAction, Creator, DestroyOptions, FeatureChoice, KeyChange, KeyRefusal, LeafActivity,
    LeafReason, ObjectId, Pool, PoolSetting, PropertyValue, Refusal, ScanError, Scanner,
    SettingTime, SliceLimits, TrimOptions, VdevSetting,
};
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_ondisk::dsl::keys::master_node;
use millpond_ondisk::{Guid, ObjectSetKind, PoolVersion};
use millpond_pool::import::{LeafState, read_labels};
use millpond_pool::{CopyLimits, PruneBy, RebuildLimits, clear_labels};
use millpond_pool::{GrowError, Growth, Offline, ScrubRange};
use std::time::Duration;

/// How long a sequential resilver waits for a device that does not answer.
const BETWEEN_SLICES: Duration = Duration::from_millis(100);

/// How long a trim waits for deleted files whose space is being freed.
const FREES_WAIT_MAX: Duration = Duration::from_secs(10);

/// Starts the resilver that is due, so that a command that waits for it finds it.
fn start_resilver(pool: &Pool) -> Result<(), ChangeError> {
    let engine = pool.inner();
    if engine.suspension().is_none() {
        engine.start_resilver()?;
    }
    Ok(())
}

/// Makes one change. It is on stable storage when this returns. `is_shared` tells whether another pool lists a spare.
/// `user` is the one who makes it, if not the superuser.
pub(crate) fn apply(
    pool: &Pool,
    change: &PoolChange,
    changed: &mut Changed,
    is_shared: &dyn Fn(Guid) -> bool,
    user: Option<&Creator>,
) -> Result<(), ChangeError> {
    let engine = pool.inner();
    match change {
        PoolChange::Add(devices) => {
            let mut devices = devices.clone();
            let shared = take_shared_spares(&mut devices);
            if devices.paths().next().is_some() {
                let (vdevs, options) = new_vdevs(&devices, open_to_write)?;
                engine.add_vdevs(&vdevs, options, &|_| false)?;
            }
            for spare in &shared {
                engine.share_spare(spare)?;
            }
        }
        PoolChange::Destroy => engine.destroy()?,
        PoolChange::Export => engine.export()?,
        PoolChange::Set { name, value } => {
            let version = PoolVersion(engine.version());
            if name == "bootfs" && !version.has_boot_dataset() {
                let why = "pool must be upgraded to support 'bootfs' property";
                return Err(ChangeError::Failed(why.to_owned()));
            }
            let setting = if name == "bootfs" {
                PoolSetting::boot_dataset(boot_dataset(pool, value)?, value)
            } else {
                PoolSetting::parse(name, value, SettingTime::Later)?
            };
            if name == "compatibility" {
                compatible_features(value)?;
            }
            engine.set_property(&setting)?;
            if name.starts_with("feature@") || name == "version" {
                pool.features_changed();
            }
        }
        PoolChange::SetVdev { guid, name, value } => {
            let setting = VdevSetting::parse(name, value)?;
            engine.set_vdev_property(Guid(*guid), &setting)?;
        }
        PoolChange::Upgrade {
            version,
            compatible,
        } => {
            engine.raise(PoolVersion(*version).max(PoolVersion(engine.version())))?;
            let enabled = engine.upgrade(compatible.as_deref())?;
            let names = enabled.into_iter().map(str::to_owned);
            changed.enabled_features.extend(names);
            pool.features_changed();
        }
        PoolChange::Reguid { guid } => {
            engine.reguid(guid.map(Guid))?;
        }
        PoolChange::Sync { forced: false } => sync(pool).map_err(change_error)?,
        PoolChange::Sync { forced: true } => {
            engine.sync_forced()?;
        }
        PoolChange::Freeze => engine.freeze()?,
        PoolChange::PruneDedup(amount) => {
            engine.prune_dedup(match *amount {
                PruneAmount::Days(days) => PruneBy::Age(days.saturating_mul(24 * 3600)),
                PruneAmount::Percent(percent) => PruneBy::Percent(percent),
            })?;
        }
        PoolChange::PrefetchDedup => {
            engine.committed()?.read_dedup_tables()?;
        }
        PoolChange::Clear { leaves } => {
            let leaves = leaves.as_ref();
            let guids = leaves.map(|all| all.iter().copied().map(Guid).collect::<Vec<_>>());
            engine.clear_leaves(guids.as_deref());
            engine.resume()?;
            engine.sync_unless_suspended()?;
            start_resilver(pool)?;
        }
        PoolChange::Offline {
            leaf,
            is_fault,
            is_temporary,
        } => {
            let how = Offline {
                is_fault: *is_fault,
                is_temporary: *is_temporary,
            };
            engine.offline_leaf(Guid(*leaf), how)?;
        }
        PoolChange::Online { leaves, expand } => {
            online(pool, leaves, *expand)?;
            start_resilver(pool)?;
        }
        PoolChange::Reopen { resilver_now } => {
            reopen(pool)?;
            if *resilver_now || !engine.is_scanning() {
                start_resilver(pool)?;
            }
        }
        PoolChange::Attach(side) => attach(pool, side)?,
        PoolChange::RemoveAuxiliary { guid } => {
            let removed = engine.remove_auxiliary(Guid(*guid))?;
            // A device that is open elsewhere in this process is cleared there.
            if let Some(path) = removed.path
                && !is_shared(removed.guid)
                && let Ok(found) = open_to_write(&path)
            {
                clear_if(&found.device, Guid(*guid));
            }
        }
        PoolChange::RemoveLog { guid } => engine.remove_log(Guid(*guid))?,
        PoolChange::RemoveData { guid } => engine.remove_data(Guid(*guid))?,
        PoolChange::CancelRemoval => engine.cancel_removal()?,
        PoolChange::EstimateRemoval { guid } => {
            changed.mapping_bytes = engine.removal_memory_bytes(Guid(*guid))?;
        }
        PoolChange::Detach { leaf } => engine.detach_leaf(Guid(*leaf))?,
        PoolChange::Split(half) => split::split(pool, half)?,
        PoolChange::TakeCheckpoint => engine.take_checkpoint()?,
        PoolChange::DiscardCheckpoint => engine.discard_checkpoint()?,
        PoolChange::Scrub(ScrubAction::Start { since_last }) => {
            for leaf in engine.overwritten_leaves() {
                // It stays in use if data would be lost without it.
                engine.give_up_leaf(leaf, LeafReason::BadLabel);
            }
            engine.start_scrub(match since_last {
                true => ScrubRange::SinceLastScrub,
                false => ScrubRange::All,
            })?;
        }
        PoolChange::Scrub(ScrubAction::StartErrors) => engine.start_error_scrub()?,
        PoolChange::Scrub(ScrubAction::Pause) => engine.pause_scrub()?,
        PoolChange::Scrub(ScrubAction::Cancel) => engine.cancel_scrub()?,
        PoolChange::LeafActivity {
            leaves,
            activity,
            action,
        } => {
            change_activity(pool, leaves, *activity, *action, changed)?;
        }
        PoolChange::Resilver => engine.restart_resilver()?,
        // The caller does that, if nothing else works on the pool.
        PoolChange::KeepCacheFile
        | PoolChange::FinishScan
        | PoolChange::FinishDiscard
        | PoolChange::FinishLeafActivity(_) => {}
        PoolChange::Abandon => {
            if engine.suspension().is_some() {
                engine.abandon();
            }
        }
        PoolChange::Dataset(change) => of_dataset(pool, change, user)?,
    }
    Ok(())
}

fn online(pool: &Pool, leaves: &[u64], expand: bool) -> Result<(), ChangeError> {
    let engine = pool.inner();
    let lost = engine.lost_leaves(true);
    let grow = |leaf| match engine.grow_vdevs(Some(leaf), if_told(expand)) {
        Ok(_) => Ok(()),
        // To bring the device online is all that was asked for.
        Err(GrowError::Device { .. } | GrowError::TooManyMetaslabs(_)) if !expand => Ok(()),
        Err(error) => Err(error),
    };
    for leaf in leaves.iter().copied().map(Guid) {
        let place = lost.iter().find(|(guid, _)| *guid == leaf);
        let found = place.and_then(|(_, path)| open_to_write(path).ok());
        // A device in use is measured before anything is written: a write behind the end of a truncated file would
        // make the file look whole.
        if place.is_none() && engine.suspension().is_none() {
            grow(leaf)?;
        }
        engine.online_leaf(leaf, found.as_ref().map(|found| &found.device))?;
        if place.is_some() && engine.suspension().is_none() {
            grow(leaf)?;
        }
    }
    Ok(())
}

/// Tries to open lost devices at their last paths: all, or those of `leaves`. Those that open are used again.
pub(crate) fn reopen_lost(pool: &Pool, leaves: Option<&[u64]>) -> Result<(), ChangeError> {
    for (guid, path) in pool.inner().lost_leaves(false) {
        if leaves.is_some_and(|meant| !meant.contains(&guid.0)) {
            continue;
        }
        if let Ok(found) = open_to_write(&path) {
            pool.inner().reopen_leaf(guid, &found.device)?;
        }
    }
    Ok(())
}

/// Looks at the devices of a pool again, by their paths.
fn reopen(pool: &Pool) -> Result<(), ChangeError> {
    let engine = pool.inner();
    reopen_lost(pool, None)?;
    for (leaf, path) in engine.open_leaves() {
        let is_gone = std::fs::metadata(&path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_gone {
            engine.give_up_leaf(leaf, LeafReason::OpenFailed);
        }
    }
    engine.sync_unless_suspended()?;
    if engine.suspension().is_none() {
        match engine.grow_vdevs(None, Growth::IfAutomatic) {
            // `zpool status` shows a device that cannot be measured.
            Ok(_) | Err(GrowError::Device { .. } | GrowError::TooManyMetaslabs(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn activity_of(activity: Activity) -> LeafActivity {
    match activity {
        Activity::Initialize => LeafActivity::Initialize,
        Activity::Trim => LeafActivity::Trim,
    }
}

fn change_activity(
    pool: &Pool,
    leaves: &[u64],
    activity: Activity,
    action: Action,
    changed: &mut Changed,
) -> Result<(), ChangeError> {
    let leaves: Vec<Guid> = leaves.iter().copied().map(Guid).collect();
    let action = match action {
        Action::Start {
            rate_bytes,
            is_secure,
        } => ActivityAction::Start(TrimOptions {
            rate_bytes,
            is_secure,
        }),
        Action::Suspend => ActivityAction::Suspend,
        Action::Cancel => ActivityAction::Cancel,
        Action::Reset => ActivityAction::Reset,
    };
    if matches!(activity, Activity::Trim)
        && matches!(action, ActivityAction::Start(_))
        && pool.inner().suspension().is_none()
    {
        pool.wait_for_frees(FREES_WAIT_MAX).map_err(change_error)?;
    }
    let refused = (pool.inner()).change_leaf_activity(&leaves, activity_of(activity), action)?;
    let notes = refused.into_iter().map(|(leaf, why)| Note::NoActivity {
        leaf: leaf.0,
        why: why.to_string(),
    });
    changed.notes.extend(notes);
    Ok(())
}

/// Works on the free space of leaves to the end, in a pool that this process opened for one command.
pub(crate) fn finish_activity(pool: &Pool, activity: Activity) -> Result<(), ChangeError> {
    let (pool, activity) = (pool.inner(), activity_of(activity));
    let limits = SliceLimits::default();
    while pool.is_leaf_active(activity) {
        let has_moved = pool.leaf_activity_slice(&limits)?;
        let delay = pool.leaf_activity_delay();
        let is_open = pool.wait_for_leaf_activity(delay);
        if !is_open || !has_moved && delay.is_zero() {
            return Err(ChangeError::Failed(
                "a device takes no requests; see 'zpool status', the work continues when the pool is imported".into(),
            ));
        }
    }
    Ok(())
}

fn if_told(expand: bool) -> Growth {
    match expand {
        true => Growth::Ordered,
        false => Growth::IfAutomatic,
    }
}

/// The properties of a request, for the engine.
pub(crate) fn values(values: &Values) -> Vec<(String, PropertyValue)> {
    let value = |value: &Value| match value {
        Value::Number(number) => PropertyValue::Number(*number),
        Value::Text(text) => PropertyValue::Text(text.clone()),
    };
    let pairs = values.iter();
    pairs
        .map(|(name, own)| (name.clone(), value(own)))
        .collect()
}

fn borrowed(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn of_dataset(
    pool: &Pool,
    change: &DatasetChange,
    user: Option<&Creator>,
) -> Result<(), ChangeError> {
    let datasets = pool.datasets();
    match change {
        DatasetChange::CreateFileSystem {
            name,
            properties,
            key,
            ..
        } => create_dataset(
            pool,
            name,
            ObjectSetKind::FileSystem,
            (properties, key.as_ref()),
            user,
        )?,
        DatasetChange::CreateVolume {
            name,
            properties,
            key,
        } => create_dataset(
            pool,
            name,
            ObjectSetKind::Volume,
            (properties, key.as_ref()),
            user,
        )?,
        DatasetChange::ChangeKey {
            name,
            properties,
            key,
        } => {
            let key = root_key(pool.inner().env(), properties, Some(key))?;
            let key = key.ok_or_else(|| ChangeError::Refused {
                name: name.clone(),
                why: Refusal::Key(KeyRefusal::NoKeyFormat),
            })?;
            datasets.change_key(name, KeyChange::Own(&key))?;
        }
        DatasetChange::InheritKey { name } => datasets.change_key(name, KeyChange::Inherit)?,
        DatasetChange::Clone {
            snapshot,
            name,
            properties,
            ..
        } => datasets.clone_snapshot_by(snapshot, name, &values(properties), user)?,
        DatasetChange::Snapshot { names, properties } => {
            datasets.snapshot_by(&borrowed(names), &values(properties), user)?;
        }
        DatasetChange::Destroy { name } => datasets.destroy(name, DestroyOptions::default())?,
        DatasetChange::DestroyInOrder {
            names,
            before_rollback,
        } => datasets.destroy_in_order(&borrowed(names), before_rollback.as_deref())?,
        DatasetChange::DestroySnapshots { names, defer } => {
            let options = DestroyOptions { defer: *defer };
            datasets.destroy_snapshots(&borrowed(names), options)?;
        }
        DatasetChange::Rename {
            from,
            to,
            recursively: true,
            ..
        } => datasets.rename_recursively(from, to)?,
        DatasetChange::Rename { from, to, .. } => datasets.rename_by(from, to, user)?,
        DatasetChange::Promote { name } => datasets.promote_by(name, user)?,
        DatasetChange::Rollback { snapshot } => datasets.rollback(snapshot)?,
        DatasetChange::AbortReceive { name } => datasets.abort_resumable(name)?,
        DatasetChange::Bookmark { source, name } => datasets.bookmark(source, name)?,
        DatasetChange::Redact {
            snapshot,
            name,
            redacted_for,
        } => (pool.redact(snapshot, name, redacted_for)).map_err(change_error)?,
        DatasetChange::Hold { names, tag } => datasets.hold(&borrowed(names), tag)?,
        DatasetChange::Release { names, tag } => datasets.release(&borrowed(names), tag)?,
        DatasetChange::Set {
            name, properties, ..
        } => set(pool, name, properties)?,
        DatasetChange::SetOwnerQuota { name, quota } => set_owner_quotas(pool, name, &[*quota])?,
        DatasetChange::Allow { name, grants } => datasets.allow(name, grants)?,
        DatasetChange::Unallow {
            name,
            recursively,
            removals,
        } => datasets.unallow(name, *recursively, removals)?,
        // A default quota has no received value: inheriting it removes the quota.
        DatasetChange::Inherit { name, property, .. }
            if master_node::default_quota(property).is_some() =>
        {
            let none = Value::Number(0);
            set_in_contents(pool, name, &[(property.clone(), none)])?;
        }
        DatasetChange::Inherit {
            name,
            property,
            to_received,
        } => datasets.inherit(name, property, *to_received)?,
    }
    Ok(())
}

/// The dataset named by `bootfs`; `None` if the value is empty.
fn boot_dataset(pool: &Pool, value: &str) -> Result<Option<ObjectId>, ChangeError> {
    if value.is_empty() {
        return Ok(None);
    }
    let (id, kind) = pool
        .read_committed(|view| {
            let dataset = view.dataset(value)?;
            Ok((dataset.inner().id(), dataset.kind()?))
        })
        .map_err(change_error)?;
    use millpond_engine::DatasetKind::{Filesystem, Snapshot};
    if !matches!(kind, Filesystem | Snapshot) {
        return Err(ChangeError::Failed(
            "operation not supported on this type of pool".into(),
        ));
    }
    Ok(Some(id))
}

/// The features that property `compatibility` allows in a new pool.
pub(crate) fn compatible_features(value: &str) -> Result<FeatureChoice, ChangeError> {
    match read_sets(Some(value)).map_err(ChangeError::Compatibility)? {
        RequestedFeatures::All => Ok(FeatureChoice::Default),
        RequestedFeatures::Legacy => Ok(FeatureChoice::OnlyNamed),
        RequestedFeatures::Listed(names) => Ok(FeatureChoice::Compatible(names)),
        RequestedFeatures::Unreadable => Err(ChangeError::Compatibility(vec![])),
    }
}

/// Clears the labels of a spare or cache device that was removed, if they are still its own and no pool uses it. A label
/// that stays is that of a device which no pool lists.
pub(crate) fn clear_if(device: &Arc<dyn Device>, guid: Guid) {
    let labels = read_labels(device.as_ref());
    let is_aside = |state| matches!(state, LeafState::Spare | LeafState::Cache);
    let mut labels = labels.iter().flatten().peekable();
    if labels.peek().is_some() && labels.all(|label| label.guid == guid && is_aside(label.state)) {
        let _ = clear_labels(device.as_ref());
    }
}

/// How often an expansion is tried that does not come further.
const EXPANSION_TRIES: u32 = 20;

/// Whether a change is followed by a scan to its end, in a pool that is opened for one command. A scrub is only begun.
pub(crate) fn starts_scan(change: &PoolChange) -> bool {
    matches!(
        change,
        PoolChange::Attach(_)
            | PoolChange::Online { .. }
            | PoolChange::Reopen { .. }
            | PoolChange::RemoveData { .. }
            | PoolChange::Resilver
            | PoolChange::FinishScan
    )
}

/// Scrubs and resilvers to the end, in a pool that this process opened for one command.
pub(crate) fn scan_to_end(pool: &Pool) -> Result<(), ChangeError> {
    let failed = |error: ScanError| ChangeError::Failed(error.to_string());
    let scanner = Scanner::default();
    while pool.inner().is_rebuilding() && pool.inner().suspension().is_none() {
        if !pool.inner().rebuild_slice(&RebuildLimits::default())? {
            thread::sleep(BETWEEN_SLICES);
        }
    }
    pool.inner().finish_replacements()?;
    while pool.inner().is_removing() && pool.inner().suspension().is_none() {
        if !pool.inner().removal_slice(&CopyLimits::default())? {
            thread::sleep(BETWEEN_SLICES);
        }
    }
    let mut tries_left = EXPANSION_TRIES;
    while pool.inner().is_expanding() && tries_left > 0 && pool.inner().suspension().is_none() {
        if pool.inner().expansion_slice(&CopyLimits::default())? {
            tries_left = EXPANSION_TRIES;
            continue;
        }
        // A child that is away or cannot be read stops it. It continues when the pool is imported.
        if pool.inner().is_expansion_paused() {
            break;
        }
        tries_left -= 1;
        thread::sleep(BETWEEN_SLICES);
    }
    // Checksums were not verified.
    if pool.inner().take_scrub_due() && !pool.inner().needs_resilver() {
        pool.inner().start_scrub(ScrubRange::All)?;
    }
    if pool.inner().needs_resilver() {
        pool.inner().start_resilver()?;
    }
    while scanner.slice(pool.inner()).map_err(failed)?
        || scanner.error_slice(pool.inner()).map_err(failed)?
    {}
    pool.inner().finish_replacements()?;
    Ok(())
}

/// Commits what has changed, and then a txg in which what was freed and logged in the first is settled: tables of dedup get
/// their entries.
fn sync(pool: &Pool) -> Result<(), millpond_engine::Error> {
    let before = pool.committed()?.inner().uberblock().txg;
    pool.sync()?;
    if pool.committed()?.inner().uberblock().txg > before {
        pool.inner().sync_forced()?;
    }
    Ok(())
}
