//! Describes pools and what is in them as [`millpond_control`] has it. Writes nothing.

pub(crate) mod activity;
pub(crate) mod arc;
pub(crate) mod compatibility;
pub(crate) mod damaged;
pub(crate) mod dataset;
mod history;
pub(crate) mod tree;
pub(crate) mod vdev_properties;

use crate::host::{HostId, watch_all};
use millpond_block::CacheDeviceStats;
use millpond_control::{
    ControlError, DatasetPermissions, DedupBucket, DedupStats, FeatureInfo, FeatureState,
    HistoryRecord, ImportablePool, IoCounters, LastHost, MultihostState, PoolInfo, ProgressState,
    Property, RemovalInfo, ScanFunction, ScanInfo, UnsupportedFeature, VdevAux, VdevInfo,
    VdevState,
};
use millpond_engine::{OpenOptions, View};
use millpond_env::Env;
use millpond_ondisk::Feature;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{RemovalPhase, RemovalPhys, ScanPhase, ScanPhys};
use millpond_pool::import::{ImportCondition, PoolCandidate, PoolState};
use millpond_pool::{ScanPass, is_enabled_by_default};

/// The pool part of a dataset's name.
pub(crate) fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or_default()
}

/// Calls `each` with every record of a pool's history.
pub(crate) fn records(
    pool: &View,
    each: &mut dyn FnMut(HistoryRecord) -> Result<(), ControlError>,
) -> Result<(), ControlError> {
    let Some(records) = pool.inner().history().map_err(io)? else {
        return Ok(());
    };
    for record in records {
        if let Some(record) = history::record(&record.map_err(io)?) {
            each(record)?;
        }
    }
    Ok(())
}

/// The holds on a snapshot.
pub(crate) fn holds(pool: &View, snapshot: &str) -> Result<Vec<(String, u64)>, ControlError> {
    let found = pool.dataset(snapshot).map_err(missing)?;
    let holds = found.holds().map_err(io)?;
    let mut holds: Vec<_> = holds.into_iter().map(|h| (h.tag, h.time_s)).collect();
    holds.sort();
    Ok(holds)
}

/// The space that owners use in a file system.
pub(crate) fn space_by_owner(
    pool: &View,
    dataset: &str,
    owners: millpond_engine::OwnerKind,
) -> Result<Vec<millpond_engine::OwnerSpace>, ControlError> {
    let found = pool.dataset(dataset).map_err(missing)?;
    found.space_by_owner(owners).map_err(io)
}

/// The permissions granted at a file system or volume and at its ancestors.
pub(crate) fn permissions(
    pool: &View,
    dataset: &str,
) -> Result<Vec<DatasetPermissions>, ControlError> {
    let found = pool.dataset(dataset).map_err(missing)?;
    let chain = found.inner().directory().permission_chain().map_err(io)?;
    let tables = chain.tables().iter();
    Ok(tables
        .map(|(dataset, table)| DatasetPermissions {
            dataset: dataset.clone(),
            grants: table.grants().collect(),
        })
        .collect())
}

pub(crate) fn missing(error: millpond_engine::Error) -> ControlError {
    match error {
        millpond_engine::Error::Dataset(millpond_engine::DatasetError::NotFound { .. }) => {
            ControlError::NoSuchDataset
        }
        other => io(other),
    }
}

pub(crate) fn io(error: impl std::fmt::Display) -> ControlError {
    ControlError::Io(error.to_string())
}

/// Space that labels and the boot block occupy on a cache device, in bytes.
const CACHE_LABEL_BYTES: u64 = (4 << 20) + (512 << 10);

/// The number of the defect that snapshots of encrypted datasets do not say which IVs their blocks have.
const IV_SETS_MISSING: u64 = 4;

/// Whether a pool has encryption as an early release did, whose snapshots and bookmarks lack IV set guids.
fn lacks_iv_sets(features: &millpond_pool::Features) -> bool {
    features.count("com.datto:encryption").is_some()
        && features.count("com.datto:bookmark_v2").is_none()
}

/// The information about an open pool.
pub(crate) fn opened(
    pool: &View,
    locate: &dyn Fn(&mut millpond_control::VdevInfo),
) -> Result<PoolInfo, ControlError> {
    let inner = pool.inner();
    let config = inner.config();
    let number = |name: &str| config.opt_u64(name).ok().flatten();
    let mut info = PoolInfo {
        name: inner.name().to_owned(),
        guid: inner.guid().0,
        config_txg: number("txg").unwrap_or(0),
        version: inner.version(),
        is_loaded: true,
        errata: number("errata")
            .filter(|number| *number > 0)
            .or_else(|| lacks_iv_sets(inner.features()).then_some(IV_SETS_MISSING)),
        root: tree::root(inner.assembly()),
        caches: tree::aside(inner.caches(), millpond_control::VdevClass::Cache),
        spares: tree::aside(inner.spares(), millpond_control::VdevClass::Spare),
        ..PoolInfo::default()
    };
    tree::mark_spares_in_use(&mut info);
    for vdev in info.caches.iter_mut().chain(&mut info.spares) {
        locate(vdev);
    }
    let used = inner.store().cache_device_stats();
    for cache in &mut info.caches {
        cache.fragmentation_percent = Some(0);
        if let Some((_, stats)) = used.iter().find(|(guid, _)| guid.0 == cache.guid) {
            cache_device(cache, stats);
            continue;
        }
        // A cache device that is not in use has nothing but labels and a header of one sector.
        let sector_bytes = 1u64 << cache.configured_ashift.clamp(9, 16);
        let taken_bytes = CACHE_LABEL_BYTES + sector_bytes;
        cache.total_bytes = cache.physical_bytes.saturating_sub(taken_bytes);
    }
    info.properties = inner
        .properties()
        .map_err(io)?
        .into_iter()
        .map(property)
        .collect();
    for shape in millpond_pool::properties::table::POOL_PROPERTIES
        .iter()
        .filter(|s| !s.is_listed)
    {
        let hidden = inner.property(shape.name).map_err(io)?;
        info.properties.extend(hidden.map(property));
    }
    name_bootfs(pool, &mut info);
    info.comment = text_of(&info, "comment");
    info.requested = compatibility::requested(text_of(&info, "compatibility").as_deref());
    features(inner, &mut info);
    if let Ok(space) = inner.space() {
        for top in &mut info.root.children {
            if let Some(usage) = space
                .vdevs
                .iter()
                .find(|usage| u64::from(usage.vdev.0) == top.id)
            {
                tree::space(top, usage);
                top.expandable_bytes = inner.vdev_expandable_bytes(usage.vdev);
            }
        }
        tree::sum(&mut info.root);
        info.dedup = dedup(&space.dedup);
        if let Some(stats) = &mut info.dedup {
            // A table that cannot be read is reported elsewhere.
            stats.cached_bytes = inner.cached_dedup_bytes().unwrap_or(0);
        }
    }
    // The following records are independent: damage to one does not affect the rest.
    info.scan = words(inner, key::SCAN).and_then(|words| scan(&words));
    info.removal = words(inner, key::REMOVING).and_then(|words| removal(&words));
    activity::fill(inner, &mut info);
    damaged::errors(pool, &mut info);
    Ok(info)
}

/// Shows what a cache device holds. One that had too many errors counts as faulted.
fn cache_device(info: &mut VdevInfo, stats: &CacheDeviceStats) {
    info.total_bytes = stats.area_bytes;
    info.allocated_bytes = stats.used_bytes;
    info.read_errors = stats.read_errors;
    info.write_errors = stats.write_errors;
    info.io = IoCounters {
        reads: stats.reads,
        writes: stats.writes,
        read_bytes: stats.read_bytes,
        written_bytes: stats.write_bytes,
        ..IoCounters::default()
    };
    if !stats.is_usable {
        (info.state, info.aux) = (VdevState::Faulted, VdevAux::ErrorsExceeded);
    }
}

/// Replaces the object id in `bootfs` with the dataset's name.
fn name_bootfs(pool: &View, info: &mut PoolInfo) {
    let bootfs = info
        .properties
        .iter_mut()
        .find(|property| property.name == "bootfs");
    let Some(bootfs) = bootfs else { return };
    if let Some(millpond_control::Value::Number(id)) = bootfs.value {
        let dataset = pool.dataset_by_id(millpond_ondisk::ObjectId(id)).ok();
        bootfs.value =
            dataset.map(|dataset| millpond_control::Value::Text(dataset.name().to_owned()));
        if id == 0 {
            bootfs.source = millpond_control::Source::Default;
        }
    }
}

fn text_of(info: &PoolInfo, name: &str) -> Option<String> {
    info.property(name)?
        .value
        .as_ref()?
        .text()
        .map(str::to_owned)
}

fn features(pool: &millpond_pool::PoolView, info: &mut PoolInfo) {
    let state = |state| match state {
        millpond_ondisk::FeatureState::Disabled => FeatureState::Disabled,
        millpond_ondisk::FeatureState::Enabled => FeatureState::Enabled,
        millpond_ondisk::FeatureState::Active(_) => FeatureState::Active,
    };
    info.features = pool
        .feature_properties()
        .into_iter()
        .filter_map(|row| {
            let name = row.name.strip_prefix("feature@")?.to_owned();
            let known = pool
                .features()
                .known()
                .find(|(feature, _)| feature.name() == name);
            Some(FeatureInfo {
                state: known.map_or(FeatureState::Disabled, |(_, s)| state(s)),
                is_left_alone: !Feature::by_name(&name).is_some_and(is_enabled_by_default),
                name,
            })
        })
        .collect();
    // If a pool uses no feature of a later release, those features are omitted.
    let is_later = |feature: &FeatureInfo| FEATURES_OF_2_4.contains(&feature.name.as_str());
    let is_unused = |feature: &FeatureInfo| feature.state == FeatureState::Disabled;
    if info.features.iter().filter(|f| is_later(f)).all(is_unused) {
        info.features.retain(|feature| !is_later(feature));
    }
    let is_unreleased = |feature: &FeatureInfo| UNRELEASED.contains(&feature.name.as_str());
    info.features
        .retain(|feature| !is_unreleased(feature) || !is_unused(feature));
    let needed_to_read = pool.features().unreadable();
    info.unsupported = pool
        .features()
        .unknown()
        .into_iter()
        .map(|feature| UnsupportedFeature {
            is_active: feature.count > 0,
            is_needed_for_write_only: !needed_to_read.contains(&feature),
            guid: feature.guid,
            description: feature.description,
        })
        .collect();
}

fn words(pool: &millpond_pool::PoolView, name: &str) -> Option<Vec<u64>> {
    Some(pool.directory_value(name).ok()??.integers().collect())
}

/// Shows a scan as this process knows it: with its rate, and with the progress that is not stored yet.
pub(crate) fn scan_in_progress(info: &mut PoolInfo, phys: &ScanPhys, pass: &ScanPass) {
    let Some(mut scan) = scan_of(phys) else {
        return;
    };
    let known = info.scan.map(|known| known.state);
    if scan.state != ProgressState::Active && known == Some(ProgressState::Active) {
        // Its end is not committed yet.
        return;
    }
    scan.pass_start_s = pass.start_s;
    scan.pass_issued_bytes = pass.issued_bytes;
    if scan.state == ProgressState::Active {
        let (examined, issued) = (pass.slice_examined_bytes, pass.slice_issued_bytes);
        scan.paused_at_s = pass.paused_at_s;
        scan.spent_paused_s = pass.spent_paused_s;
        scan.pass_examined_bytes = pass.examined_bytes.saturating_add(examined);
        scan.pass_issued_bytes = scan.pass_issued_bytes.saturating_add(issued);
        scan.examined_bytes = scan.examined_bytes.saturating_add(examined);
        scan.issued_bytes = scan.issued_bytes.saturating_add(issued);
    }
    scan.error_scrub = info.scan.and_then(|known| known.error_scrub);
    info.scan = Some(scan);
}

fn scan(words: &[u64]) -> Option<ScanInfo> {
    scan_of(&ScanPhys::from_words(words).ok()?)
}

fn scan_of(phys: &ScanPhys) -> Option<ScanInfo> {
    let function = match phys.function {
        millpond_ondisk::ScanFunction::Scrub => ScanFunction::Scrub,
        millpond_ondisk::ScanFunction::Resilver => ScanFunction::Resilver,
        _ => return None,
    };
    Some(ScanInfo {
        function,
        state: match phys.phase {
            ScanPhase::Scanning => ProgressState::Active,
            ScanPhase::Finished => ProgressState::Finished,
            ScanPhase::Cancelled => ProgressState::Canceled,
            _ => ProgressState::None,
        },
        start_s: phys.start_time,
        end_s: phys.end_time,
        to_examine_bytes: phys.to_examine_bytes,
        examined_bytes: phys.examined_bytes,
        skipped_bytes: phys.skipped_bytes,
        processed_bytes: phys.processed_bytes,
        errors: phys.errors,
        issued_bytes: phys.issued_bytes(),
        // The disk records that it was paused, but not when.
        paused_at_s: if phys.is_paused() { phys.start_time } else { 0 },
        ..ScanInfo::default()
    })
}

fn removal(words: &[u64]) -> Option<RemovalInfo> {
    let phys = RemovalPhys::from_words(words).ok()?;
    let state = match phys.phase {
        RemovalPhase::None => return None,
        RemovalPhase::Active => ProgressState::Active,
        RemovalPhase::Finished => ProgressState::Finished,
        RemovalPhase::Cancelled => ProgressState::Canceled,
    };
    Some(RemovalInfo {
        state,
        top_id: phys.vdev.map_or(0, |vdev| vdev.0.into()),
        start_s: phys.start_time,
        end_s: phys.end_time,
        to_copy_bytes: phys.bytes_to_copy,
        copied_bytes: phys.bytes_copied,
        mapping_bytes: 0,
    })
}

fn dedup(totals: &millpond_pool::DedupTotals) -> Option<DedupStats> {
    let entries = totals.total().blocks;
    let rows = totals
        .buckets
        .iter()
        .enumerate()
        .filter(|(_, row)| row.blocks > 0);
    let buckets = rows
        .map(|(log2, row)| DedupBucket {
            refcount_log2: u8::try_from(log2).unwrap_or(u8::MAX),
            blocks: row.blocks,
            logical_bytes: row.logical_bytes,
            physical_bytes: row.physical_bytes,
            allocated_bytes: row.allocated_bytes,
            referenced_blocks: row.referenced_blocks,
            referenced_logical_bytes: row.referenced_logical_bytes,
            referenced_physical_bytes: row.referenced_physical_bytes,
            referenced_allocated_bytes: row.referenced_allocated_bytes,
        })
        .collect();
    (entries > 0).then_some(DedupStats {
        entries,
        disk_bytes: totals.disk_bytes,
        core_bytes: totals.core_bytes,
        cached_bytes: 0,
        buckets,
    })
}

fn property(property: millpond_pool::properties::Property) -> Property {
    Property {
        name: property.name,
        value: property.value.map(value),
        source: source(property.source),
        received: property.received.map(value),
    }
}

fn value(value: millpond_pool::properties::PropertyValue) -> millpond_control::Value {
    match value {
        millpond_pool::properties::PropertyValue::Number(number) => {
            millpond_control::Value::Number(number)
        }
        millpond_pool::properties::PropertyValue::Text(text) => millpond_control::Value::Text(text),
    }
}

fn source(source: millpond_pool::properties::PropertySource) -> millpond_control::Source {
    use millpond_pool::properties::PropertySource;
    match source {
        PropertySource::Local => millpond_control::Source::Local,
        PropertySource::Received => millpond_control::Source::Received,
        PropertySource::Inherited(from) => millpond_control::Source::Inherited(from),
        PropertySource::Default => millpond_control::Source::Default,
        PropertySource::None => millpond_control::Source::None,
    }
}

/// The information in the labels of a pool.
pub(crate) fn found(candidate: &PoolCandidate, hostid: u64) -> PoolInfo {
    let root = match &candidate.assembly {
        Ok(assembly) => tree::root(assembly),
        Err(_) => millpond_control::VdevInfo {
            kind: millpond_control::VdevKind::Root,
            state: VdevState::CannotOpen,
            aux: VdevAux::CorruptData,
            ..millpond_control::VdevInfo::default()
        },
    };
    let mut info = PoolInfo {
        name: candidate.name.clone(),
        guid: candidate.guid.0,
        config_txg: candidate.config_txg.0,
        version: candidate.version,
        is_loaded: false,
        is_state_active: candidate.state == PoolState::Active,
        config_hostid: candidate.hostid,
        system_hostid: hostid,
        comment: candidate.comment.clone(),
        requested: compatibility::requested(candidate.compatibility.as_deref()),
        root,
        ..PoolInfo::default()
    };
    info.root.guid = candidate.guid.0;
    for condition in &candidate.conditions {
        let aux = match condition {
            ImportCondition::VersionNewer { .. } => VdevAux::VersionNewer,
            ImportCondition::UnsupportedReadFeatures { features } => {
                info.unsupported
                    .extend(features.iter().map(|guid| UnsupportedFeature {
                        guid: guid.clone(),
                        description: None,
                        is_active: true,
                        is_needed_for_write_only: false,
                    }));
                VdevAux::UnsupportedFeature
            }
            ImportCondition::NoFeatureList
            | ImportCondition::NoUberblock
            | ImportCondition::CorruptConfig { .. } => VdevAux::CorruptData,
            ImportCondition::Errata { number } => {
                info.errata = Some(*number);
                continue;
            }
            _ => continue,
        };
        (info.root.state, info.root.aux) = (VdevState::CannotOpen, aux);
    }
    info
}

/// Describes pools for import: from their content if they can be opened, otherwise from their labels.
pub(crate) fn importable(
    env: &Env,
    candidates: &[PoolCandidate],
    host: HostId,
) -> Vec<ImportablePool> {
    let states = watch_all(env, candidates, host);
    let pools = candidates.iter().zip(states);
    pools
        .map(|(candidate, state)| importable_one(candidate, host.number, state))
        .collect()
}

fn importable_one(
    candidate: &PoolCandidate,
    hostid: u64,
    multihost: Option<MultihostState>,
) -> ImportablePool {
    let by_labels = found(candidate, hostid);
    // A pool without some top-level vdevs can still report which ones are missing.
    let without = OpenOptions {
        allow_missing_tops: true,
        ..OpenOptions::default()
    };
    let tried = View::open_candidate(candidate, &OpenOptions::default())
        .or_else(|_| View::open_candidate(candidate, &without))
        .ok();
    let tried_info = tried.and_then(|pool| {
        let locate = |vdev: &mut millpond_control::VdevInfo| {
            tree::locate(vdev, &|guid| tree::located(candidate.found(), guid));
        };
        opened(&pool, &locate).ok()
    });
    let mut info = match tried_info {
        Some(info) => PoolInfo {
            is_state_active: by_labels.is_state_active,
            config_hostid: by_labels.config_hostid,
            system_hostid: by_labels.system_hostid,
            ..info
        },
        None => {
            let mut info = by_labels;
            let root = &mut info.root;
            if root.state == VdevState::Healthy {
                // All devices listed in the labels are present, but the pool cannot be read.
                (root.state, root.aux) = (VdevState::CannotOpen, VdevAux::CorruptData);
            }
            info
        }
    };
    info.is_loaded = true;
    info.multihost = multihost;
    if multihost.is_some() {
        (info.root.state, info.root.aux) = (VdevState::CannotOpen, VdevAux::Active);
    }
    let time_s = candidate
        .newest()
        .map_or(0, |found| found.uberblock.timestamp_s);
    let copies = candidate.undecided_copies();
    ImportablePool {
        info,
        is_destroyed: candidate.state == PoolState::Destroyed,
        is_exported: candidate.state == PoolState::Exported,
        last_host: candidate.hostname.clone().map(|name| LastHost {
            name,
            hostid: candidate.hostid,
            time_s,
        }),
        copies: (!copies.is_empty()).then(|| millpond_pool::copies_text(&copies)),
        older: candidate.why_older(None),
    }
}

/// Features that release 2.4 added to those of 2.3.
const FEATURES_OF_2_4: [&str; 3] = [
    "dynamic_gang_header",
    "block_cloning_endian",
    "physical_rewrite",
];
/// Features that are in no release of OpenZFS yet.
const UNRELEASED: [&str; 1] = ["draid_failure_domains"];
