//! Writes the intent log records of operations.
//!
//! A record is created inside the operation's transaction and under its locks, so records have the same order
//! as the changes. During replay nothing is logged. Instead, the transaction stores the log header with the
//! replay's progress. Page `docs/format/intent-log-records.md`.

use crate::FileKind;
use crate::FileSystem;
use crate::error::FileError;
use crate::open_node::NodeInner;
use crate::record_write::record_write;
use crate::replay::Forced;
use crate::set_attributes::SetAttributes;
use crate::state::NodeState;
use crate::transaction_source::ChangeLog;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_ondisk::intent_log::{
    CreateKind, CreateRecord, CreatedObject, LogAttributes, LogRecord, LogRecordBody, LogStamp,
    LoggedPointers, RenameKind, SetAttributesRecord, SizedObject,
};
use millpond_ondisk::{BLOCK_POINTER_BYTES, BlockPointer, Endian, ObjectId};
use millpond_sa::{FileFlags, Timestamp};
use millpond_txg::Transaction;

/// The maximum size of a log block in bytes. A change with a longer record is not logged.
const RECORD_BYTES_MAX: usize = 128 << 10;

/// The bits of a SETATTR record's mask, as on Linux.
pub(crate) mod mask {
    pub const MODE: u64 = 0x1;
    pub const UID: u64 = 0x2;
    pub const GID: u64 = 0x4;
    pub const SIZE: u64 = 0x8;
    pub const ATIME: u64 = 0x10;
    pub const MTIME: u64 = 0x20;
    pub const CTIME: u64 = 0x40;
    pub const ATIME_SET: u64 = 0x80;
    pub const MTIME_SET: u64 = 0x100;
    pub const FURTHER: u64 = 0x8000_0000;
}

/// File flags, and their bits in a record's attributes.
pub(crate) const FLAG_BITS: [(FileFlags, u32); 13] = [
    (FileFlags::ARCHIVE, 0x2),
    (FileFlags::SYSTEM, 0x4),
    (FileFlags::READONLY, 0x8),
    (FileFlags::HIDDEN, 0x10),
    (FileFlags::NOUNLINK, 0x20),
    (FileFlags::IMMUTABLE, 0x40),
    (FileFlags::APPENDONLY, 0x80),
    (FileFlags::NODUMP, 0x100),
    (FileFlags::AV_QUARANTINED, 0x400),
    (FileFlags::REPARSE, 0x2000),
    (FileFlags::OFFLINE, 0x8000),
    (FileFlags::SPARSE, 0x1_0000),
    (FileFlags::PROJECT_INHERIT, 0x2_0000),
];

/// Flags that forbid operations on names.
const FORBIDDING: FileFlags = FileFlags::IMMUTABLE
    .union(FileFlags::APPENDONLY)
    .union(FileFlags::NOUNLINK)
    .union(FileFlags::READONLY)
    .union(FileFlags::PROJECT_INHERIT);

/// The progress of a replay.
#[derive(Debug, Default)]
pub(crate) struct ReplayState(Mutex<Option<Mark>, rank::Leaf>);

#[derive(Debug, Default)]
struct Mark {
    /// The log header to store with the next transaction that completes a record.
    armed: Option<[u64; 24]>,
    /// The properties of the next file that is created.
    forced: Option<Forced>,
}

impl ReplayState {
    pub(crate) fn is_on(&self) -> bool {
        self.0.lock().is_some()
    }
    pub(crate) fn begin(&self) {
        *self.0.lock() = Some(Mark::default());
    }
    pub(crate) fn end(&self) {
        *self.0.lock() = None;
    }
    pub(crate) fn arm(&self, header: [u64; 24]) {
        if let Some(mark) = self.0.lock().as_mut() {
            mark.armed = Some(header);
        }
    }
    pub(crate) fn disarm(&self) {
        let _ = self.take();
    }
    fn take(&self) -> Option<[u64; 24]> {
        self.0.lock().as_mut()?.armed.take()
    }
    pub(crate) fn force(&self, forced: Option<Forced>) {
        if let Some(mark) = self.0.lock().as_mut() {
            mark.forced = forced;
        }
    }
    pub(crate) fn take_forced(&self) -> Option<Forced> {
        self.0.lock().as_mut()?.forced.take()
    }
}

pub(crate) fn words(time: Timestamp) -> [u64; 2] {
    [time.seconds.cast_unsigned(), time.nanoseconds]
}

impl FileSystem {
    /// The log, if records are to be logged.
    ///
    /// If not, replay progress is stored with `tx`, or, if the log keeps no records, later commits wait for
    /// the txg.
    fn records(&self, tx: &Transaction) -> Option<&dyn ChangeLog> {
        let writing = self.writing().ok()?;
        if writing.replay().is_on() {
            if let Some(header) = writing.replay().take() {
                writing.set().set_log_header(tx, header);
            }
            return None;
        }
        let log = writing.source().log()?;
        if !log.is_wanted() {
            log.append_unlogged(tx, None);
            return None;
        }
        Some(log)
    }
    fn log(&self) -> Option<&dyn ChangeLog> {
        self.writing().ok()?.source().log()
    }

    /// Logs a change: in the list of `object`, or (`None`) in the global order.
    pub(crate) fn record(
        &self,
        tx: &Transaction,
        object: Option<ObjectId>,
        body: LogRecordBody<'_>,
    ) {
        let Some(log) = self.records(tx) else {
            return;
        };
        match LogRecord::new(tx.txg(), body).encode() {
            Ok(bytes) if bytes.len() <= RECORD_BYTES_MAX - 512 => log.append(tx, object, bytes),
            _ => log.append_unlogged(tx, None),
        }
    }

    /// Notes a change that has no record.
    pub(crate) fn record_nothing(&self, tx: &Transaction, object: Option<ObjectId>) {
        if let Some(log) = self.records(tx) {
            log.append_unlogged(tx, object);
        }
    }

    pub(crate) fn promote_records(&self, id: ObjectId) {
        if let Some(log) = self.log() {
            log.promote(id);
        }
    }
    pub(crate) fn forget_records(&self, id: ObjectId) {
        if let Some(log) = self.log() {
            log.forget(id);
        }
    }

    /// Runs at the end of an operation. With `sync=always`, commits it to stable storage before it returns.
    pub(crate) fn settle(&self) -> Result<(), FileError> {
        match self.log() {
            Some(log) if log.commits_always() && !self.is_replaying() => Ok(log.commit(None)?),
            _ => Ok(()),
        }
    }

    pub(crate) fn record_create(
        &self,
        tx: &Transaction,
        directory: ObjectId,
        node: &NodeInner,
        name: &[u8],
        target: &[u8],
    ) {
        let state = node.state();
        let kind = match node.kind {
            FileKind::Directory => CreateKind::Directory,
            FileKind::Symlink => CreateKind::SymbolicLink,
            _ => CreateKind::File,
        };
        if is_ephemeral(&state) {
            return self.record_nothing(tx, None);
        }
        let create = CreateRecord {
            kind,
            directory,
            object: created(node, &state),
            attributes: None,
            acl: None,
            domains: vec![],
            name,
            target,
        };
        self.record(tx, None, LogRecordBody::Create(create));
    }

    pub(crate) fn record_whiteout(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        (source_directory, source_name): (ObjectId, &[u8]),
        (target_directory, target_name): (ObjectId, &[u8]),
    ) {
        let state = node.state();
        if is_ephemeral(&state) {
            return self.record_nothing(tx, None);
        }
        let kind = RenameKind::Whiteout(created(node, &state));
        let body = LogRecordBody::Rename {
            kind,
            source_directory,
            target_directory,
            source_name,
            target_name,
        };
        self.record(tx, None, body);
    }

    /// Logs written bytes. Files without a name are not logged.
    pub(crate) fn record_write(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        offset: u64,
        bytes: &[u8],
    ) {
        if node.state().links == 0 && !self.is_replaying() {
            return;
        }
        let Some(log) = self.records(tx) else {
            return;
        };
        record_write(log, tx, &node.object, offset, bytes);
    }

    /// Logs blocks that were cloned into a file: offset, length and block size in bytes, and the pointers of the
    /// originals.
    pub(crate) fn record_clone(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        (offset, length, block_bytes): (u64, u64, u64),
        pointers: &[BlockPointer],
    ) {
        if node.state().links == 0 && !self.is_replaying() {
            return;
        }
        let mut bytes = Vec::with_capacity(pointers.len() * BLOCK_POINTER_BYTES);
        for pointer in pointers {
            bytes.extend(pointer.words.iter().flat_map(|word| word.to_le_bytes()));
        }
        let body = LogRecordBody::CloneRange {
            object: node.id,
            offset,
            length,
            block_bytes,
            pointers: LoggedPointers::new(&bytes, Endian::Little),
        };
        self.record(tx, Some(node.id), body);
    }

    /// Logs a new file size (`length` 0) or a hole.
    pub(crate) fn record_truncate(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        offset: u64,
        length: u64,
    ) {
        if node.state().links == 0 && !self.is_replaying() {
            return;
        }
        let body = LogRecordBody::Truncate {
            object: node.id,
            offset,
            length,
        };
        self.record(tx, Some(node.id), body);
    }

    /// Logs only new permissions.
    pub(crate) fn record_mode(&self, tx: &Transaction, node: &NodeInner, new: &NodeState) {
        self.record_attributes(tx, node, new, mask::MODE, (Some(node.id), None));
    }

    pub(crate) fn record_set(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        (old, new): (&NodeState, &NodeState),
        set: &SetAttributes,
    ) {
        let mut wanted = 0;
        let mut want = |is_set: bool, bits: u64| wanted |= if is_set { bits } else { 0 };
        // A change of owner may clear permission bits.
        want(
            set.permissions.is_some() || old.mode != new.mode,
            mask::MODE,
        );
        want(set.uid.is_some(), mask::UID);
        want(set.gid.is_some(), mask::GID);
        want(set.atime.is_some(), mask::ATIME | mask::ATIME_SET);
        want(set.mtime.is_some(), mask::MTIME | mask::MTIME_SET);
        let flags = set.set_flags | set.clear_flags;
        let mut further = LogAttributes::default();
        for (flag, bit) in FLAG_BITS {
            if flags.contains(flag) {
                further.requested |= bit;
            }
            if set.set_flags.contains(flag) {
                further.values |= u64::from(bit);
            }
        }
        if let Some(project) = set.project {
            further.requested |= LogAttributes::PROJECT;
            further.stamp = LogStamp::Project(u64::from(project));
        }
        let further = (further.requested != 0).then_some(further);
        want(further.is_some(), mask::FURTHER);
        // Operations on names may only be possible because of it, and their records are in the global order. OpenZFS
        // checks flags when it replays them.
        let allows_names = set.clear_flags.intersects(FORBIDDING) || set.project.is_some();
        let list = match allows_names {
            true => {
                self.promote_records(node.id);
                None
            }
            false => Some(node.id),
        };
        self.record_attributes(tx, node, new, wanted, (list, further));
    }

    fn record_attributes(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        new: &NodeState,
        mask: u64,
        (list, attributes): (Option<ObjectId>, Option<LogAttributes>),
    ) {
        if new.links == 0 && !self.is_replaying() {
            return;
        }
        if is_ephemeral(new) {
            return self.record_nothing(tx, list);
        }
        let set = SetAttributesRecord {
            object: node.id,
            mask: mask | mask::CTIME,
            mode: new.mode,
            uid: new.uid.0,
            gid: new.gid.0,
            size: new.size,
            access_time: words(new.atime),
            modification_time: words(new.mtime),
            attributes,
            domains: vec![],
        };
        self.record(tx, list, LogRecordBody::SetAttributes(set));
    }

    /// Logs an extended attribute that was set or removed. A removal has an empty value.
    pub(crate) fn record_xattr(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        name: &[u8],
        value: Option<&[u8]>,
        is_packed: bool,
    ) {
        if node.state().links == 0 && !self.is_replaying() {
            return;
        }
        let can =
            is_packed && value != Some(&[]) && self.log().is_some_and(|log| log.takes_xattrs());
        if !can {
            return self.record_nothing(tx, Some(node.id));
        }
        let body = LogRecordBody::SetXattr {
            object: node.id,
            name,
            value: value.unwrap_or(&[]),
        };
        self.record(tx, Some(node.id), body);
    }
}

/// A new file as its record describes it.
fn created(node: &NodeInner, state: &NodeState) -> CreatedObject {
    CreatedObject {
        id: SizedObject {
            object: node.id,
            slots: u16::from(node.object.dnode_slots()),
        },
        mode: state.mode,
        uid: state.uid.0,
        gid: state.gid.0,
        generation: state.generation,
        creation_time: words(state.crtime),
        device: state.rdev.unwrap_or(0),
    }
}

/// Ids above 32 bits come from other systems. Records written here cannot hold their domains.
fn is_ephemeral(state: &NodeState) -> bool {
    state.uid.0 > u64::from(u32::MAX) || state.gid.0 > u64::from(u32::MAX)
}
