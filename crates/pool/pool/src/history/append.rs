//! Appends records of commands and events to a pool's history.
//!
//! Page `docs/format/history.md`, "Writing".

use crate::PoolError;
use crate::error::Reading;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_nvlist::NvList;
use millpond_object::{NewObject, Object};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{DecodeError, Endian, HistoryPhys, ObjectId, ObjectType, Txg};
use std::collections::VecDeque;

const WHAT: &str = "history";
/// Size of the ring's data blocks in bytes.
const BLOCK_BYTES: u32 = 128 << 10;
/// The smallest and largest ring, in bytes.
const RING_BYTES: (u64, u64) = (128 << 10, 1 << 30);
/// The ring gets 1/1000 of the pool's space.
const RING_SHARE: u64 = 1000;
/// Records longer than 1/2 of the ring are dropped, since they would displace most others.
const RECORD_SHARE: u64 = 2;

/// An internal event. Names and texts match OpenZFS, so that its tools display them correctly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// The kind of event: `create`, `set`, `destroy`, …
    pub name: String,
    /// Details; a single blank if there are none.
    pub text: String,
    /// The affected dataset: full name and object id.
    pub dataset: Option<(String, ObjectId)>,
}

impl HistoryEvent {
    /// Creates an event of the pool.
    #[must_use]
    pub fn of_pool(name: &str, text: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            text: text.into(),
            dataset: None,
        }
    }
    /// Creates an event of a dataset.
    #[must_use]
    pub fn of_dataset(name: &str, text: impl Into<String>, full_name: &str, id: ObjectId) -> Self {
        Self {
            dataset: Some((full_name.to_owned(), id)),
            ..Self::of_pool(name, text)
        }
    }

    /// The record, with its pairs in the order that OpenZFS uses.
    #[must_use]
    pub fn record(&self, txg: Txg, time_s: u64, hostname: &str) -> NvList {
        let mut record = NvList::new();
        if let Some((name, id)) = &self.dataset {
            record.insert("dsname", name.as_str());
            record.insert("dsid", id.0);
        }
        record.insert("history internal str", self.text.as_str());
        record.insert("internal_name", self.name.as_str());
        record.insert("history txg", txg.0);
        record.insert("history time", time_s);
        record.insert("history hostname", hostname);
        record
    }
}

/// A command entered by a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryCommand {
    /// The command line.
    pub command: String,
    /// The uid of the user.
    pub user: u64,
}

impl HistoryCommand {
    /// The record, with its pairs in the order that OpenZFS uses.
    #[must_use]
    pub fn record(&self, time_s: u64, hostname: &str) -> NvList {
        let mut record = NvList::new();
        record.insert("history command", self.command.as_str());
        record.insert("history zone", "linux");
        record.insert("history who", self.user);
        record.insert("history time", time_s);
        record.insert("history hostname", hostname);
        record
    }
}

/// How a pool was opened, as recorded in its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// It was opened for changes: at every import and at system start.
    Open,
    /// It was imported on request; recorded after [`Opening::Open`].
    Import,
}

impl Opening {
    fn event(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Import => "import",
        }
    }
}

/// An internal event recorded since the pool was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedEvent {
    /// The event.
    pub event: HistoryEvent,
    /// The txg of the event.
    pub txg: Txg,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The host's name, as recorded in the history.
    pub hostname: String,
}

/// The most events kept for [`Pool::take_noted_events`]; the oldest ones are dropped.
const NOTED_MAX: usize = 512;

/// The most recent recorded events.
pub(crate) type NotedEvents = Mutex<VecDeque<NotedEvent>, rank::Leaf>;

impl Pool {
    /// Takes the internal events recorded since the last call, oldest first, at most 512. They include
    /// events of txgs that could not be written.
    #[must_use]
    pub fn take_noted_events(&self) -> Vec<NotedEvent> {
        self.noted.lock().drain(..).collect()
    }

    /// Records that the pool was opened or imported; `system` describes the running system.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn record_opening(&self, opening: Opening, system: &str) -> Result<(), PoolError> {
        let text = pool_event_text(self.uberblock().version, system);
        let event = HistoryEvent::of_pool(opening.event(), text);
        self.sync_task(|ctx| ctx.history(&event))
    }

    /// Records a command.
    ///
    /// The first command is the one that created the pool. It ends the part of the history that is never
    /// overwritten.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn record_command(&self, command: &HistoryCommand) -> Result<(), PoolError> {
        // A request that changes nothing is no command.
        if command.command.is_empty() {
            return Ok(());
        }
        self.sync_task(|ctx| ctx.history_command(command))
    }
}

impl SyncContext<'_> {
    /// Records an internal event.
    ///
    /// # Errors
    /// If the history cannot be read or changed.
    pub fn history(&self, event: &HistoryEvent) -> Result<(), PoolError> {
        let hostname = self.hostname();
        let record = event.record(self.txg(), self.now_s(), &hostname);
        self.append_history(&record, false)?;
        let mut noted = self.pool.noted.lock();
        if noted.len() >= NOTED_MAX {
            noted.pop_front();
        }
        noted.push_back(NotedEvent {
            event: event.clone(),
            txg: self.txg(),
            time_ns: self.pool.env().clock.wall_ns(),
            hostname,
        });
        Ok(())
    }

    /// Records a command.
    ///
    /// # Errors
    /// If the history cannot be read or changed.
    pub fn history_command(&self, command: &HistoryCommand) -> Result<(), PoolError> {
        self.append_history(&command.record(self.now_s(), &self.hostname()), true)
    }

    /// The current time in seconds since 1970.
    #[must_use]
    pub fn now_s(&self) -> u64 {
        self.pool.env().clock.wall_ns() / 1_000_000_000
    }

    fn hostname(&self) -> String {
        let state = self.pool.state.read();
        state.config.hostname.clone().unwrap_or_default()
    }

    /// Appends a record. If blocks of the history are lost or make no sense, the record is dropped: a pool
    /// works without its history, and an error here would stop all changes.
    fn append_history(&self, record: &NvList, is_command: bool) -> Result<(), PoolError> {
        match self.store_record(record, is_command) {
            Err(error) if error.is_damage() => {
                mark::hit("history-lost");
                let pool = self.pool.name();
                tracing::warn!(%pool, %error, "a record of the history is dropped");
                Ok(())
            }
            stored => stored,
        }
    }

    /// Appends a record and drops the oldest records if there is no space left.
    fn store_record(&self, record: &NvList, is_command: bool) -> Result<(), PoolError> {
        let packed = record
            .encode_native()
            .map_err(|_| DecodeError::new(WHAT, "the record cannot be encoded", 0))
            .reading(WHAT)?;
        let mut bytes = (packed.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&packed);
        let object = self.history_object()?;
        let mut ring = Ring::open(&object)?;
        if bytes.len() as u64 > ring.phys.ring_bytes / RECORD_SHARE {
            return Ok(());
        }
        ring.make_room(bytes.len() as u64)?;
        for (at, from, to) in ring.pieces(bytes.len() as u64) {
            object
                .write(self.tx(), at, &bytes[from..to])
                .reading(WHAT)?;
        }
        ring.phys.end += bytes.len() as u64;
        if is_command && ring.phys.create_bytes == 0 {
            ring.phys.create_bytes = ring.phys.end;
            ring.phys.begin = ring.phys.end;
        }
        object
            .set_bonus(self.tx(), ring.phys.encode())
            .reading(WHAT)
    }

    /// The history's object, created if the pool has none.
    fn history_object(&self) -> Result<Arc<Object>, PoolError> {
        if let Some(id) = self.directory_object(key::HISTORY)? {
            return self.mos().object(id).reading(WHAT);
        }
        let usage = self.pool.allocator().usage();
        let normal = usage
            .vdevs
            .iter()
            .filter(|vdev| vdev.class == millpond_alloc::AllocationClass::Normal);
        let space = normal.map(|vdev| vdev.space_bytes).sum();
        let phys = HistoryPhys {
            ring_bytes: ring_bytes_for(space),
            ..HistoryPhys::default()
        };
        let new = NewObject::new(ObjectType::HISTORY)
            .with_block_bytes(BLOCK_BYTES)
            .with_bonus(ObjectType::HISTORY_OFFSETS, phys.encode());
        let object = self.mos().allocate(self.tx(), new).reading(WHAT)?;
        self.set_directory_number(key::HISTORY, object.id().0)?;
        Ok(object)
    }
}

/// The size of a new ring for a pool with `space_bytes` of space for ordinary data.
fn ring_bytes_for(space_bytes: u64) -> u64 {
    (space_bytes / RING_SHARE).clamp(RING_BYTES.0, RING_BYTES.1)
}

/// Reads bytes of the ring at an offset of its object.
type ReadRing<'a> = Box<dyn Fn(u64, &mut [u8]) -> Result<(), PoolError> + 'a>;

/// The ring's header, with access to its bytes.
struct Ring<'a> {
    phys: HistoryPhys,
    read: ReadRing<'a>,
}

impl<'a> Ring<'a> {
    fn open(object: &'a Object) -> Result<Self, PoolError> {
        Ok(Self {
            phys: HistoryPhys::decode(&object.bonus(), Endian::Little).reading(WHAT)?,
            read: Box::new(|at, buffer| object.read(at, buffer).reading(WHAT)),
        })
    }

    /// Size in bytes of the part that is overwritten cyclically.
    fn capacity(&self) -> u64 {
        self.phys.ring_bytes.saturating_sub(self.phys.create_bytes)
    }

    fn physical(&self, logical: u64) -> u64 {
        let create = self.phys.create_bytes;
        match logical.checked_sub(create) {
            None => logical,
            Some(into) => create + into.checked_rem(self.capacity()).unwrap_or(0),
        }
    }

    /// The location of `length` bytes appended at the end, as at most two pieces of (byte offset in the
    /// object, from, to). The record must not be longer than the cyclic part.
    fn pieces(&self, length: u64) -> Vec<(u64, usize, usize)> {
        let start = self.physical(self.phys.end);
        let first = length.min(self.phys.ring_bytes.saturating_sub(start));
        let mut pieces = vec![(start, 0, first as usize)];
        if first < length {
            pieces.push((self.phys.create_bytes, first as usize, length as usize));
        }
        pieces
    }

    /// Drops the oldest records until more than `length` bytes are free. Every drop frees at least eight
    /// bytes, so the loop ends.
    fn make_room(&mut self, length: u64) -> Result<(), PoolError> {
        while self
            .capacity()
            .saturating_sub(self.phys.end.saturating_sub(self.phys.begin))
            <= length
        {
            if self.phys.begin >= self.phys.end {
                let error = DecodeError::new(WHAT, "the ring has no capacity for the record", 8);
                return Err(error).reading(WHAT);
            }
            let mut head = [0u8; 8];
            for (place, byte) in (0u64..).zip(head.iter_mut()) {
                let at = self.physical(self.phys.begin + place);
                (self.read)(at, std::slice::from_mut(byte))?;
            }
            let next = u64::from_le_bytes(head)
                .checked_add(8)
                .and_then(|bytes| self.phys.begin.checked_add(bytes))
                .filter(|next| *next <= self.phys.end);
            let Some(next) = next else {
                let error = DecodeError::new(WHAT, "record is too long", 0);
                return Err(error).reading(WHAT);
            };
            self.phys.begin = next;
            self.phys.records_lost += 1;
        }
        Ok(())
    }
}

/// The text of a pool's `create`, `open` and `import` events.
#[must_use]
pub fn pool_event_text(version: u64, system: &str) -> String {
    format!(
        "pool version {version}; software version millpond-{}; uts {system}",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn record(byte: u8, length: usize) -> Vec<u8> {
        let mut bytes = (length as u64).to_le_bytes().to_vec();
        bytes.resize(8 + length, byte);
        bytes
    }

    /// Appends to bytes in memory, like the engine appends to the object.
    fn append(bytes: &RefCell<Vec<u8>>, phys: &mut HistoryPhys, record: &[u8]) {
        let mut ring = Ring {
            phys: *phys,
            read: Box::new(|at, buffer| {
                let at = at as usize;
                buffer.copy_from_slice(&bytes.borrow()[at..at + buffer.len()]);
                Ok(())
            }),
        };
        ring.make_room(record.len() as u64).unwrap();
        for (at, from, to) in ring.pieces(record.len() as u64) {
            bytes.borrow_mut()[at as usize..at as usize + to - from]
                .copy_from_slice(&record[from..to]);
        }
        ring.phys.end += record.len() as u64;
        *phys = ring.phys;
    }

    #[test]
    fn a_full_ring_loses_its_oldest_records_and_keeps_the_creation() {
        let bytes = RefCell::new(vec![0u8; 1000]);
        let mut phys = HistoryPhys {
            ring_bytes: 1000,
            ..HistoryPhys::default()
        };
        append(&bytes, &mut phys, &record(0xcc, 92));
        (phys.create_bytes, phys.begin) = (phys.end, phys.end);
        for number in 1..=50u8 {
            append(&bytes, &mut phys, &record(number, 20 + usize::from(number)));
            // The stored part is always readable: the creation, then a contiguous run of records.
            let phys = HistoryPhys::decode(&phys.encode(), Endian::Little).unwrap();
            let stored: Vec<u8> = phys
                .ranges()
                .into_iter()
                .flat_map(|range| bytes.borrow()[range.start as usize..range.end as usize].to_vec())
                .collect();
            let numbers: Vec<u8> = millpond_ondisk::HistoryRecords::new(&stored)
                .map(|record| record.unwrap()[0])
                .collect();
            assert_eq!((numbers[0], *numbers.last().unwrap()), (0xcc, number));
            assert!(numbers[1..].windows(2).all(|pair| pair[0] + 1 == pair[1]));
            assert_eq!(
                phys.records_lost,
                u64::from(number) - (numbers.len() as u64 - 1)
            );
        }
    }

    #[test]
    fn rings_are_a_thousandth_of_the_pool_within_bounds() {
        assert_eq!(ring_bytes_for(50 << 20), 128 << 10);
        assert_eq!(ring_bytes_for(1_000_000_000), 1_000_000);
        assert_eq!(ring_bytes_for(u64::MAX), 1 << 30);
    }

    #[test]
    fn a_ring_with_too_long_records_is_an_error() {
        let mut ring = Ring {
            phys: HistoryPhys {
                create_bytes: 0,
                ring_bytes: 1000,
                begin: 0,
                end: 990,
                records_lost: 0,
            },
            read: Box::new(|_, buffer| {
                buffer.fill(0xff);
                Ok(())
            }),
        };
        assert!(ring.make_room(100).is_err());
    }
}
