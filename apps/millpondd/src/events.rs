//! Recent events of pools since the daemon started, kept in memory.

use millpond_control::{Event, EventValue};
use millpond_engine::{
    BlockAddress, DataEvent, LeafEvent, LeafEventKind, LeafState, NotedEvent, RequestError,
    RequestErrorKind, ScanNote,
};
use millpond_env::Env;
use millpond_env::rank;
use millpond_env::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum number of events kept.
const KEPT_MAX: usize = 512;

/// The `pool_context` of a pool during creation.
const CREATING: u64 = 6;

/// Numbers of errors in events, as OpenZFS has them on Linux: of a request, and of a checksum (EBADE).
const EIO: u64 = 5;
const ECKSUM: u64 = 52;

/// The events of a daemon.
pub struct Events {
    env: Env,
    kept: Mutex<Kept, rank::Leaf>,
    added: Condvar,
}

#[derive(Default)]
struct Kept {
    last_id: u64,
    events: VecDeque<Event>,
}

impl Events {
    /// Creates an empty list.
    pub fn new(env: &Env) -> Self {
        Self {
            env: env.clone(),
            kept: Mutex::new(Kept::default()),
            added: Condvar::default(),
        }
    }

    /// Adds an event of a pool.
    pub fn add(&self, class: &str, pool: &str, guid: u64, more: Vec<(String, EventValue)>) {
        self.add_at(self.env.clock.wall_ns(), class, pool, guid, (0, more));
    }

    /// Adds an event of a pool during creation.
    pub fn add_of_creation(&self, class: &str, pool: &str, guid: u64) {
        self.add_at(
            self.env.clock.wall_ns(),
            class,
            pool,
            guid,
            (CREATING, vec![]),
        );
    }

    /// Adds an event for an internal history record.
    pub fn add_noted(&self, noted: &NotedEvent, pool: &str, guid: u64, is_creation: bool) {
        let text = |text: &str| EventValue::Text(text.to_owned());
        let mut more = vec![];
        if let Some((name, id)) = &noted.event.dataset {
            more.push(("history_dsname".to_owned(), text(name)));
            more.push(("history_dsid".to_owned(), EventValue::Number(id.0)));
        }
        let number = EventValue::Number;
        more.extend([
            ("history_hostname".to_owned(), text(&noted.hostname)),
            ("history_internal_str".to_owned(), text(&noted.event.text)),
            ("history_internal_name".to_owned(), text(&noted.event.name)),
            ("history_txg".to_owned(), number(noted.txg.0)),
            (
                "history_time".to_owned(),
                number(noted.time_ns / 1_000_000_000),
            ),
        ]);
        let context = if is_creation { CREATING } else { 0 };
        self.add_at(noted.time_ns, "history_event", pool, guid, (context, more));
    }

    /// Adds an event of a scrub or resilver.
    pub fn add_of_scan(&self, scan: ScanNote, pool: &str, guid: u64) {
        self.add_at(scan.time_ns, scan.class, pool, guid, (0, vec![]));
    }

    /// Adds an event of a device.
    pub fn add_of_leaf(&self, event: &LeafEvent, pool: &str, guid: u64) {
        let class = match event.kind {
            LeafEventKind::StateChange => "resource.fs.zfs.statechange",
            LeafEventKind::ProbeFailure => "ereport.fs.zfs.probe_failure",
            LeafEventKind::Error(error, _) => match error.kind {
                RequestErrorKind::Checksum => "ereport.fs.zfs.checksum",
                _ => "ereport.fs.zfs.io",
            },
        };
        let state = match event.condition.state {
            LeafState::Offline => 2,
            LeafState::Removed => 3,
            LeafState::Unavailable => 4,
            LeafState::Faulted => 5,
            LeafState::Degraded => 6,
            LeafState::Online => 7,
        };
        let number = EventValue::Number;
        let text = |text: &str| EventValue::Text(text.to_owned());
        let (leaf, parent, stats) = (&event.config, &event.parent, &event.stats);
        let mut more = vec![
            ("vdev_guid", number(event.leaf.0)),
            ("vdev_state", number(state)),
            ("vdev_type", text(leaf.kind.name())),
        ];
        more.extend(leaf.path.iter().map(|path| ("vdev_path", text(path))));
        if let LeafEventKind::Error(error, others) = &event.kind {
            more.extend([
                ("vdev_read_errors", number(stats.read_errors)),
                ("vdev_write_errors", number(stats.write_errors)),
                ("vdev_cksum_errors", number(stats.checksum_errors)),
                ("parent_guid", number(parent.guid.0)),
                ("parent_type", text(parent.kind.name())),
            ]);
            more.extend(values_of(error));
            if *others > 0 {
                // Errors that occurred in the same moment.
                more.push(("more_errors", number(*others)));
            }
        }
        let more = more.into_iter();
        let more = more.map(|(name, value)| (name.to_owned(), value));
        self.add_at(event.time_ns, class, pool, guid, (0, more.collect()));
    }

    /// Adds an event of lost data.
    pub fn add_of_data(&self, event: &DataEvent, pool: &str, guid: u64) {
        let mut more = vec![("zio_err", EventValue::Number(EIO))];
        more.extend(values_of_block(&event.address));
        let more = more.into_iter();
        let more = more.map(|(name, value)| (name.to_owned(), value));
        let class = "ereport.fs.zfs.data";
        self.add_at(event.time_ns, class, pool, guid, (0, more.collect()));
    }

    /// `class` is either a full class or the last part of a system event's class.
    fn add_at(
        &self,
        time_ns: u64,
        class: &str,
        pool: &str,
        guid: u64,
        (context, more): (u64, Vec<(String, EventValue)>),
    ) {
        let class = match class.contains('.') {
            true => class.to_owned(),
            false => format!("sysevent.fs.zfs.{class}"),
        };
        let mut values = vec![
            ("version".to_owned(), EventValue::Number(0)),
            ("class".to_owned(), EventValue::Text(class.clone())),
            ("pool".to_owned(), EventValue::Text(pool.to_owned())),
            ("pool_guid".to_owned(), EventValue::Number(guid)),
            ("pool_state".to_owned(), EventValue::Number(0)),
            ("pool_context".to_owned(), EventValue::Number(context)),
        ];
        values.extend(more);
        let time = vec![time_ns / 1_000_000_000, time_ns % 1_000_000_000];
        values.push(("time".to_owned(), EventValue::Numbers(time)));
        let mut kept = self.kept.lock();
        kept.last_id += 1;
        let id = kept.last_id;
        values.push(("eid".to_owned(), EventValue::Number(id)));
        if kept.events.len() >= KEPT_MAX {
            kept.events.pop_front();
        }
        kept.events.push_back(Event {
            id,
            time_ns,
            class,
            pool: pool.to_owned(),
            values,
        });
        drop(kept);
        self.added.notify_all();
    }

    /// Waits until there is an event with a number greater than `id`, but not longer than `limit`.
    pub fn wait_after(&self, id: u64, limit: Duration) {
        let mut kept = self.kept.lock();
        if kept.events.back().is_none_or(|event| event.id <= id) {
            self.added.wait_for(&mut kept, limit);
        }
    }

    /// The events with a number greater than `id`.
    pub fn after(&self, id: u64) -> Vec<Event> {
        let kept = self.kept.lock();
        let events = kept.events.iter().filter(|event| event.id > id);
        events.cloned().collect()
    }

    /// Deletes all events and returns their count.
    pub fn clear(&self) -> u64 {
        let mut kept = self.kept.lock();
        let count = kept.events.len() as u64;
        kept.events.clear();
        count
    }
}

/// What an event of an error says of the request. The names are those of OpenZFS.
fn values_of(error: &RequestError) -> Vec<(&'static str, EventValue)> {
    let number = EventValue::Number;
    let code = match error.kind {
        RequestErrorKind::Checksum => ECKSUM,
        _ => EIO,
    };
    let mut values = vec![("zio_err", number(code))];
    if error.length_bytes > 0 {
        values.push(("zio_offset", number(error.offset_bytes)));
        values.push(("zio_size", number(error.length_bytes)));
    }
    values.extend(error.address.iter().flat_map(values_of_block));
    values
}

fn values_of_block(address: &BlockAddress) -> [(&'static str, EventValue); 4] {
    let number = EventValue::Number;
    [
        ("zio_objset", number(address.dataset)),
        ("zio_object", number(address.object.0)),
        ("zio_level", number(address.level.0.into())),
        ("zio_blkid", number(address.block.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_are_dropped_and_ids_continue() {
        let events = Events::new(&Env::real());
        for _ in 0..KEPT_MAX + 3 {
            events.add("pool_create", "tank", 1, vec![]);
        }
        let kept = events.after(0);
        assert_eq!(kept.len(), KEPT_MAX);
        assert_eq!(kept[0].id, 4);
        assert_eq!(events.clear(), KEPT_MAX as u64);
        events.add("pool_export", "tank", 1, vec![]);
        assert_eq!(events.after(0)[0].id, KEPT_MAX as u64 + 4);
    }
}
