//! State of long-running operations: checkpoint, expansion, rebuilds, error scrub, initialization and trim.
//! Also the I/O statistics of each device since the pool was opened.
//!
//! Damaged records are omitted, because nothing else depends on them.

use millpond_block::{IoStats, TimeStats, Topology};
use millpond_control::{
    ActivityState, CheckpointInfo, EngineInfo, ErrorScrubInfo, ExpansionInfo, IoWaits, Latencies,
    PoolInfo, ProgressState, RebuildInfo, VdevActivity, VdevInfo,
};
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{
    ErrorScrubPhys, Guid, IndirectMappingPhys, ObjectId, RebuildPhase, RebuildPhys, ScanPhase,
    VdevId,
};
use millpond_pool::Pool;
use millpond_pool::PoolView;
use millpond_vdev::{LeafId, VdevKind, VdevNode};
use millpond_zap::Zap;

/// Memory for one entry of a removed vdev's mapping, in bytes.
const MAPPING_ENTRY_BYTES: u64 = 24;
/// Space that labels and the boot area occupy on a device, in bytes.
const LABELS_BYTES: u64 = (4 << 20) + (512 << 10);

/// Fills in everything that this module reads.
pub fn fill(pool: &PoolView, info: &mut PoolInfo) {
    info.checkpoint = checkpoint(pool);
    info.expansion = expansion(pool, info);
    info.rebuilds = rebuilds(pool);
    if let Some(scrub) = error_scrub(pool) {
        info.scan.get_or_insert_default().error_scrub = Some(scrub);
    }
    if let Some(removal) = &mut info.removal {
        removal.mapping_bytes = mapping_bytes(pool);
    }
    let mut stack = vec![&mut info.root];
    while let Some(vdev) = stack.pop() {
        if vdev.children.is_empty() {
            leaf(pool, vdev);
        }
        stack.extend(&mut vdev.children);
    }
}

fn checkpoint(pool: &PoolView) -> Option<CheckpointInfo> {
    if !pool.features().is_active("com.delphix:zpool_checkpoint") {
        return None;
    }
    let kept = pool.checkpoint().ok()?;
    Some(CheckpointInfo {
        is_discarding: kept.is_none(),
        start_s: kept.map_or(0, |uberblock| uberblock.timestamp_s),
        space_bytes: pool.space().ok()?.usage.checkpoint_bytes,
    })
}

/// The running expansion, or else the one that ended last.
fn expansion(pool: &PoolView, info: &PoolInfo) -> Option<ExpansionInfo> {
    let topology = pool.store().topology();
    let mut all: Vec<ExpansionInfo> = topology
        .tree
        .tops()
        .filter_map(|(id, node)| {
            let zap = vdev_zap(pool, node.config.zap_top)?;
            let number = |name: &str| zap.lookup_u64(name.as_bytes()).ok().flatten();
            let state = match number("org.openzfs:raidz_expand_state")? {
                1 => ProgressState::Active,
                2 => ProgressState::Finished,
                _ => return None,
            };
            let top = info
                .root
                .children
                .iter()
                .find(|top| top.id == u64::from(id.0));
            Some(ExpansionInfo {
                state,
                top_id: id.0.into(),
                start_s: number("org.openzfs:raidz_expand_start_time").unwrap_or(0),
                end_s: number("org.openzfs:raidz_expand_end_time").unwrap_or(0),
                to_reflow_bytes: top.map_or(0, |top| top.allocated_bytes),
                reflowed_bytes: number("org.openzfs:raidz_expand_bytes_copied").unwrap_or(0),
                is_waiting_for_resilver: false,
            })
        })
        .collect();
    all.sort_by_key(|expansion| (expansion.state == ProgressState::Active, expansion.end_s));
    all.pop()
}

fn rebuilds(pool: &PoolView) -> Vec<RebuildInfo> {
    let stored = pool.rebuilds().into_iter();
    stored
        .filter_map(|(top, phys)| rebuild(top, &phys))
        .collect()
}

/// `None` if there is nothing to show.
fn rebuild(top: VdevId, phys: &RebuildPhys) -> Option<RebuildInfo> {
    Some(RebuildInfo {
        top_id: top.0.into(),
        state: match phys.phase {
            RebuildPhase::None => return None,
            RebuildPhase::Active => ProgressState::Active,
            RebuildPhase::Canceled => ProgressState::Canceled,
            RebuildPhase::Complete => ProgressState::Finished,
        },
        start_s: phys.start_time,
        end_s: phys.end_time,
        scan_time_ms: phys.scan_time_ms,
        pass_time_ms: phys.scan_time_ms,
        estimated_bytes: phys.estimated_bytes,
        scanned_bytes: phys.scanned_bytes,
        issued_bytes: phys.issued_bytes,
        rebuilt_bytes: phys.rebuilt_bytes,
        errors: phys.errors,
        ..RebuildInfo::default()
    })
}

/// Adds to an expansion what only the open pool knows: whether it waits for a child.
pub(crate) fn expansion_pause(pool: &Pool, info: &mut PoolInfo) {
    if let Some(expansion) = &mut info.expansion {
        let is_active = expansion.state == ProgressState::Active;
        expansion.is_waiting_for_resilver =
            is_active && (pool.is_expansion_paused() || pool.has_expansion_failed());
    }
}

/// Adds to rebuilds what only the open pool knows: what was done since it was opened, and which devices were written.
pub(crate) fn rebuild_passes(pool: &Pool, info: &mut PoolInfo) {
    let now_s = pool.env().clock.wall_ns() / 1_000_000_000;
    for (top, _, pass) in pool.rebuilds() {
        let mut known = info.rebuilds.iter_mut();
        let Some(rebuild) = known.find(|one| one.top_id == u64::from(top.0)) else {
            continue;
        };
        rebuild.pass_scanned_bytes = pass.scanned_bytes;
        rebuild.pass_issued_bytes = pass.issued_bytes;
        if rebuild.state == ProgressState::Active {
            rebuild.pass_time_ms = now_s.saturating_sub(pass.start_s).saturating_mul(1000);
        }
    }
    let targets = pool.rebuilt_leaves();
    let mut stack = vec![&mut info.root];
    while let Some(vdev) = stack.pop() {
        if targets.contains(&Guid(vdev.guid)) {
            vdev.rebuild_processed_bytes = vdev.self_healed_bytes;
        }
        stack.extend(&mut vdev.children);
    }
}

fn error_scrub(pool: &PoolView) -> Option<ErrorScrubInfo> {
    let value = pool.directory_value(key::ERROR_SCRUB).ok()??;
    let phys = ErrorScrubPhys::from_words(&value.integers().collect::<Vec<_>>()).ok()?;
    let state = match phys.phase {
        ScanPhase::ErrorScrubbing => ProgressState::Active,
        ScanPhase::Finished => ProgressState::Finished,
        ScanPhase::Cancelled => ProgressState::Canceled,
        ScanPhase::None | ScanPhase::Scanning => return None,
    };
    Some(ErrorScrubInfo {
        state,
        start_s: phys.start_time,
        end_s: phys.end_time,
        // The disk records that it was paused, but not when.
        paused_at_s: if phys.is_paused { phys.start_time } else { 0 },
        examined: phys.examined,
        to_examine: u64::try_from(phys.to_examine).unwrap_or(0),
    })
}

/// Memory that a kernel would need for the mappings of all removed vdevs, in bytes.
fn mapping_bytes(pool: &PoolView) -> u64 {
    let topology = pool.store().topology();
    let entries = |node: &VdevNode| {
        let object = pool.mos().object(node.config.indirect_mapping?).ok()?;
        let phys = IndirectMappingPhys::decode(object.bonus().ok()?, object.dnode().endian);
        Some(phys.ok()?.entry_count)
    };
    let tops = topology.tree.tops();
    tops.filter_map(|(_, node)| entries(node))
        .fold(0u64, u64::saturating_add)
        .saturating_mul(MAPPING_ENTRY_BYTES)
}

/// Fills in a device's I/O statistics. Does no I/O. `None` if the vdev is not a leaf of the topology.
pub(crate) fn leaf_stats(topology: &Topology, vdev: &mut VdevInfo) -> Option<LeafId> {
    let id = topology.tree.find_leaf(Guid(vdev.guid))?;
    let stats = topology.leaf_stats(id);
    vdev.read_errors = stats.read_errors;
    vdev.checksum_errors = stats.checksum_errors;
    vdev.io.reads = stats.reads;
    vdev.io.read_bytes = stats.read_bytes;
    vdev.write_errors = stats.write_errors;
    vdev.io.writes = stats.writes;
    vdev.io.written_bytes = stats.write_bytes;
    vdev.io.trims = stats.trims;
    vdev.io.trimmed_bytes = stats.trim_bytes;
    vdev.trim.errors = stats.trim_errors;
    vdev.self_healed_bytes = stats.repaired_bytes;
    let counters = topology.counters.get(id.0 as usize);
    let size_bytes = counters.map_or(0, |counters| counters.device_bytes());
    if vdev.physical_bytes == 0 {
        vdev.physical_bytes = size_bytes;
    }
    let waits = topology.io_stats(id);
    vdev.slow_ios = waits.slow;
    vdev.waits = io_waits(waits);
    Some(id)
}

fn io_waits(waits: IoStats) -> IoWaits {
    IoWaits {
        total: waits.total.map(latencies),
        disk: waits.disk.map(latencies),
        queue: waits.queue.map(latencies),
        asked_sizes: waits.asked,
        joined_sizes: waits.joined,
        pending: waits.pending,
        active: waits.active,
    }
}

fn latencies(times: TimeStats) -> Latencies {
    Latencies {
        counts: times.counts,
        sum_ns: times.sum_ns,
    }
}

/// Activity of the engine of an open pool. Does no I/O.
pub(crate) fn engine(live: &Pool) -> EngineInfo {
    let (groups, cache) = (live.groups(), live.store().cache_statistics());
    EngineInfo {
        open_txg: groups.open_txg().0,
        synced_txg: groups.synced_txg().0,
        dirty_bytes: groups.dirty_bytes(),
        cache_hits: cache.demand.hits,
        cache_misses: (cache.demand.misses).saturating_add(cache.demand.io_hits),
        cache_bytes: cache.weight_bytes,
        fsync: latencies(live.store().log_commit_stats()),
    }
}

/// Fills in a device's statistics, initialization and trim.
fn leaf(pool: &PoolView, vdev: &mut VdevInfo) {
    let topology = pool.store().topology();
    let Some(id) = leaf_stats(&topology, vdev) else {
        return;
    };
    let device = topology.devices.get(id.0 as usize).and_then(Option::as_ref);
    vdev.is_deleted = device.is_some_and(|device| device.is_deleted());
    vdev.is_trim_unsupported = device
        .and_then(|device| device.discard_support())
        .is_some_and(|support| !support.plain);
    let trim_errors = vdev.trim.errors;
    let zap = topology.tree.leaf(id).and_then(|node| node.config.zap_leaf);
    let Some(zap) = vdev_zap(pool, zap) else {
        return;
    };
    let total_bytes = match vdev.physical_bytes.saturating_sub(LABELS_BYTES) {
        0 => needed_bytes(&topology, id),
        bytes => bytes,
    };
    let activity = |state: &str, offset: &str, time: &str| {
        let number = |name: &str| zap.lookup_u64(name.as_bytes()).ok().flatten();
        let state = match number(state) {
            Some(1) => ActivityState::Active,
            Some(2) => ActivityState::Canceled,
            Some(3) => ActivityState::Suspended,
            Some(4) => ActivityState::Complete,
            _ => return VdevActivity::default(),
        };
        VdevActivity {
            state,
            // The offset ends with the last free space.
            done_bytes: match state {
                ActivityState::Complete => total_bytes,
                _ => number(offset).unwrap_or(0).min(total_bytes),
            },
            total_bytes,
            action_time_s: number(time).unwrap_or(0),
            errors: 0,
        }
    };
    vdev.initialize = activity(
        vdev_key::INITIALIZE_STATE,
        vdev_key::INITIALIZE_OFFSET,
        vdev_key::INITIALIZE_ACTION_TIME,
    );
    vdev.trim = activity(
        vdev_key::TRIM_STATE,
        vdev_key::TRIM_OFFSET,
        vdev_key::TRIM_ACTION_TIME,
    );
    vdev.trim.errors = trim_errors;
}

/// The space that a leaf without a device needs for its part of the top-level vdev.
fn needed_bytes(topology: &Topology, leaf: LeafId) -> u64 {
    let tree = &topology.tree;
    let top = tree.leaf(leaf).and_then(|node| tree.top(node.top?));
    top.map_or(0, |top| {
        let bytes = top.config.asize_bytes;
        match &top.kind {
            VdevKind::Raidz(_) => bytes / (top.children.len() as u64).max(1),
            VdevKind::Draid(geometry) => geometry.child_bytes(bytes),
            _ => bytes,
        }
    })
}

fn vdev_zap(pool: &PoolView, zap: Option<ObjectId>) -> Option<Zap> {
    let object = pool.mos().object(zap?.some()?).ok()?;
    Zap::open(object).ok()
}
