//! Collects the metrics of a daemon.

use super::arc;
use super::page::{Kind, Page};
use crate::daemon::Daemon;
use millpond_control::properties::{DatasetKind, Kinds, by_name};
use millpond_control::{
    ControlError, DatasetQuery, IoWaits, PoolInfo, READ, VdevInfo, VdevState, WRITE, Wanted,
};
use millpond_engine::FileStatistics;
use millpond_service::{ImportedPool, arc_info};

/// Upper bound of the datasets reported per pool. `millpond_datasets_complete` shows whether there are more.
const DATASETS_MAX: usize = 1000;

pub(super) type Name = (&'static str, Kind, &'static str);

pub(super) const fn counter(name: &'static str, help: &'static str) -> Name {
    (name, Kind::Counter, help)
}

pub(super) const fn gauge(name: &'static str, help: &'static str) -> Name {
    (name, Kind::Gauge, help)
}

/// The health states of a pool, one sample each.
const HEALTHS: [&str; 7] = [
    "ONLINE",
    "DEGRADED",
    "FAULTED",
    "OFFLINE",
    "REMOVED",
    "UNAVAIL",
    "SUSPENDED",
];

/// Creates the page with the current metrics of a daemon.
pub fn page(daemon: &Daemon) -> String {
    let mut page = Page::default();
    let version = env!("CARGO_PKG_VERSION");
    let info = gauge("millpond_build_info", "The program; always 1.");
    page.add(info, &[("version", version)], 1);
    let pools = daemon.pools.all();
    let imported = gauge("millpond_pools", "Imported pools.");
    page.add(imported, &[], pools.len() as u64);
    let absent = gauge(
        "millpond_pools_absent",
        "Pools of the cache file that could not be imported.",
    );
    page.add(absent, &[], daemon.absent_count());
    arc::add(&mut page, &arc_info());
    for (name, pool) in &pools {
        engine(&mut page, name, pool);
        // A suspended pool that cannot be read reports its last known information.
        let info = daemon.pools.pool(name);
        let is_readable = gauge(
            "millpond_pool_readable",
            "Whether the state of the pool could be read for this page.",
        );
        page.add(is_readable, &[("pool", name)], u64::from(info.is_ok()));
        if let Ok(info) = info {
            health(&mut page, name, &info);
            devices(&mut page, name, &info);
        }
        datasets(&mut page, name, pool, daemon);
        mounts(&mut page, name, daemon);
    }
    page.text()
}

fn engine(page: &mut Page, name: &str, pool: &ImportedPool) {
    let labels = [("pool", name)];
    let mut add = |name, value| page.add(name, &labels, value);
    let is_writable = gauge("millpond_pool_writable", "Whether the pool can be changed.");
    add(is_writable, u64::from(pool.live().is_some()));
    let since = gauge(
        "millpond_pool_held_since_seconds",
        "When the pool was imported and its counters began, in seconds since 1970.",
    );
    add(since, pool.imported_since_s());
    let Some(live) = pool.live() else { return };
    let engine = live.inner();
    let (groups, uberblock) = (engine.groups(), engine.uberblock());
    for (name, value) in [
        (
            gauge("millpond_txg_open", "The txg that takes changes."),
            groups.open_txg().0,
        ),
        (
            gauge("millpond_txg_synced", "The last txg written."),
            groups.synced_txg().0,
        ),
        (
            gauge(
                "millpond_txg_synced_time_seconds",
                "When the last committed uberblock was made, in seconds since 1970.",
            ),
            uberblock.timestamp_s,
        ),
        (
            gauge(
                "millpond_dirty_bytes",
                "Changes in memory that are not written.",
            ),
            groups.dirty_bytes(),
        ),
    ] {
        add(name, value);
    }
    if let Some(info) = pool.engine_info() {
        let fsync = (
            "millpond_fsync_seconds",
            "From when fsync was asked for until what it is for was on stable storage.",
        );
        page.add_times(fsync, &labels, &info.fsync);
    }
}

/// The classes of device requests, in the order of their counters.
const CLASSES: [&str; millpond_control::CLASSES] = [
    "sync_read",
    "sync_write",
    "async_read",
    "async_write",
    "scrub",
    "trim",
    "rebuild",
];

fn health(page: &mut Page, name: &str, info: &PoolInfo) {
    let state = gauge(
        "millpond_pool_state",
        "1 for the pool's state, 0 for the others.",
    );
    let is = info.health();
    for word in HEALTHS {
        page.add(
            state,
            &[("pool", name), ("state", word)],
            u64::from(word == is),
        );
    }
    let labels = [("pool", name)];
    for (name, value) in [
        (
            gauge(
                "millpond_pool_size_bytes",
                "Bytes that can be allocated, parity included.",
            ),
            info.root.total_bytes,
        ),
        (
            gauge(
                "millpond_pool_allocated_bytes",
                "Bytes allocated, parity included.",
            ),
            info.root.allocated_bytes,
        ),
        (
            gauge("millpond_pool_data_errors", "Known errors in data."),
            info.error_count,
        ),
    ] {
        page.add(name, &labels, value);
    }
}

/// Adds the leaves, each with its top-level vdev.
fn devices(page: &mut Page, pool: &str, info: &PoolInfo) {
    let tops = info.root.children.iter().chain(&info.caches);
    for top in tops.chain(&info.spares) {
        let vdev = match top.kind.is_leaf() {
            true => device_name(top),
            false => format!("{}-{}", top.kind.word(), top.id),
        };
        let mut stack = vec![top];
        while let Some(node) = stack.pop() {
            stack.extend(node.children.iter().rev());
            if node.kind.is_leaf() {
                device(page, pool, &vdev, node);
            }
        }
    }
}

fn device_name(leaf: &VdevInfo) -> String {
    let path = leaf.path.as_ref();
    path.map_or_else(|| leaf.guid.to_string(), Clone::clone)
}

fn device(page: &mut Page, pool: &str, vdev: &str, leaf: &VdevInfo) {
    let device = device_name(leaf);
    let guid = leaf.guid.to_string();
    let labels = [
        ("pool", pool),
        ("vdev", vdev),
        ("device", &device),
        ("guid", &guid),
    ];
    for (name, value) in [
        (
            counter("millpond_device_reads_total", "Reads issued."),
            leaf.io.reads,
        ),
        (
            counter(
                "millpond_device_writes_total",
                "Writes issued; neighbours that went together count once.",
            ),
            leaf.io.writes,
        ),
        (
            counter("millpond_device_read_bytes_total", "Bytes read."),
            leaf.io.read_bytes,
        ),
        (
            counter("millpond_device_written_bytes_total", "Bytes written."),
            leaf.io.written_bytes,
        ),
        // Error counts are gauges, because `zpool clear` resets them.
        (
            gauge(
                "millpond_device_read_errors",
                "Reads that the device failed, since they were last cleared.",
            ),
            leaf.read_errors,
        ),
        (
            gauge(
                "millpond_device_write_errors",
                "Writes that the device failed, since they were last cleared.",
            ),
            leaf.write_errors,
        ),
        (
            gauge(
                "millpond_device_checksum_errors",
                "Reads with wrong bytes, since they were last cleared.",
            ),
            leaf.checksum_errors,
        ),
        (
            counter(
                "millpond_device_repaired_bytes_total",
                "Bytes written over wrong ones.",
            ),
            leaf.self_healed_bytes,
        ),
        (
            gauge(
                "millpond_device_online",
                "Whether the device is used without reserve.",
            ),
            u64::from(leaf.state == VdevState::Healthy),
        ),
        (
            gauge(
                "millpond_device_missed_txgs",
                "Transaction groups whose data is not on the device and is not read there.",
            ),
            leaf.missed_txgs,
        ),
        (
            gauge(
                "millpond_device_slow_operations",
                "Operations that took 30 seconds or longer, since errors were last cleared.",
            ),
            leaf.slow_ios,
        ),
    ] {
        page.add(name, &labels, value);
    }
    device_waits(page, labels, &leaf.waits);
}

/// Latencies and queues of a device.
fn device_waits(page: &mut Page, labels: [(&str, &str); 4], waits: &IoWaits) {
    let read = (
        "millpond_device_read_seconds",
        "From when reads were asked for until they were back.",
    );
    page.add_times(read, &labels, &waits.total[READ]);
    let write = (
        "millpond_device_write_seconds",
        "From when writes were asked for until they were back; neighbours that went together count once.",
    );
    page.add_times(write, &labels, &waits.total[WRITE]);
    let [pool, vdev, device, guid] = labels;
    for (class, (pending, active)) in CLASSES.iter().zip(waits.pending.iter().zip(&waits.active)) {
        let labels = [pool, vdev, device, guid, ("class", *class)];
        let waiting = gauge("millpond_device_pending", "Requests that wait.");
        page.add(waiting, &labels, *pending);
        let working = gauge(
            "millpond_device_active",
            "Requests that are with the device.",
        );
        page.add(working, &labels, *active);
    }
}

const DATASET_SPACE: [(Name, &str); 4] = [
    (
        gauge(
            "millpond_dataset_used_bytes",
            "Space of the dataset and all below it.",
        ),
        "used",
    ),
    (
        gauge(
            "millpond_dataset_referenced_bytes",
            "Space of the dataset's present content.",
        ),
        "referenced",
    ),
    (
        gauge(
            "millpond_dataset_available_bytes",
            "Space that the dataset may still take.",
        ),
        "available",
    ),
    (
        gauge(
            "millpond_dataset_written_bytes",
            "Space written since the last snapshot.",
        ),
        "written",
    ),
];

/// What an open file system has done. The kernel keeps the same of OpenZFS's datasets.
fn statistics(page: &mut Page, labels: &[(&str, &str)], counts: &FileStatistics) {
    let mut add = |name, help, value| page.add(counter(name, help), labels, value);
    add(
        "millpond_dataset_reads_total",
        "Reads of files since the file system was opened; the kernel's page cache answers others.",
        counts.reads,
    );
    add(
        "millpond_dataset_nread_total",
        "Bytes that they returned.",
        counts.read_bytes,
    );
    add(
        "millpond_dataset_writes_total",
        "Writes to files since the file system was opened.",
        counts.writes,
    );
    add(
        "millpond_dataset_nwritten_total",
        "Bytes that they wrote.",
        counts.written_bytes,
    );
    add(
        "millpond_dataset_nunlinks_total",
        "Files that came into the unlinked set, also before the file system was opened.",
        counts.unlinks,
    );
    add(
        "millpond_dataset_nunlinked_total",
        "Files that left the unlinked set, so that their space is free.",
        counts.unlinked,
    );
}

fn datasets(page: &mut Page, pool: &str, imported: &ImportedPool, daemon: &Daemon) {
    let wanted = ["used", "referenced", "available", "written", "objsetid"];
    let query = DatasetQuery {
        root: pool.to_owned(),
        depth: DatasetQuery::WHOLE_TREE,
        kinds: Kinds::only(&[DatasetKind::Filesystem, DatasetKind::Volume]),
        wanted: Wanted::Named(wanted.iter().filter_map(|name| by_name(name)).collect()),
        names_damaged: false,
    };
    let mut count = 0;
    let walked = daemon.pools.datasets(&query, &mut |info| {
        if count == DATASETS_MAX {
            // Bounds the time for a pool with very many datasets.
            return Err(ControlError::Stopped);
        }
        count += 1;
        let labels = [("pool", pool), ("dataset", info.name.as_str())];
        let number = |property: &str| {
            let value = info.property(property).and_then(|p| p.value.as_ref());
            value.and_then(millpond_control::Value::number)
        };
        for (name, property) in DATASET_SPACE {
            if let Some(value) = number(property) {
                page.add(name, &labels, value);
            }
        }
        let live = imported.live().zip(number("objsetid"));
        if let Some(counts) = live.and_then(|(pool, head)| pool.file_statistics(head)) {
            statistics(page, &labels, &counts);
        }
        Ok(())
    });
    let all = gauge(
        "millpond_datasets_complete",
        "Whether all file systems and volumes of the pool are on this page (at most 1000 are).",
    );
    page.add(all, &[("pool", pool)], u64::from(walked.is_ok()));
}

fn mounts(page: &mut Page, pool: &str, daemon: &Daemon) {
    let mounted = daemon.mounts.list();
    let of_pool = mounted.iter().filter(|mount| {
        let first = mount.dataset.split('/').next();
        first == Some(pool)
    });
    let name = gauge("millpond_mounts", "File systems mounted.");
    page.add(name, &[("pool", pool)], of_pool.count() as u64);
}
