//! Replays intent log records.
//!
//! Each record is one operation of [`FileSystem`], with the recorded object ids, generations and times.
//! The transaction that completes a record also stores a log header with that progress. After a crash, the
//! replay continues after that record. Page `docs/format/intent-log.md`, "Replaying".

use crate::FileKind;
use crate::FileSystem;
use crate::Node;
use crate::content::clone::{CLONED_AT_ONCE, link_blocks};
use crate::content::{Allocate, FILE_BYTES_MAX, FREE_DIRTY_BYTES};
use crate::create::{Draft, NewMode, Plan};
use crate::error::FileError;
use crate::nfs4_acl;
use crate::open_node::OpenNode;
use crate::records::{FLAG_BITS, mask};
use crate::rename::{DirEntryRef, RenameMode};
use crate::set_attributes::{SetAttributes, SetTime};
use crate::settings::Caller;
use crate::state::Lists;
use crate::writing::NODE_BYTES;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_nvlist::{NvList, NvValue};
use millpond_object::{Block, ObjectError, is_clonable};
use millpond_ondisk::acl::{decode_acl, decode_old_acl};
use millpond_ondisk::intent_log::{
    CreateKind, CreateRecord, CreatedObject, LogAttributes, LogRecord, LogRecordBody, LogStamp,
    LoggedPointers, RenameKind, SetAttributesRecord, WriteContent,
};
use millpond_ondisk::{BlockId, BlockPointer, Endian, ObjectId};
use millpond_sa::{Ace, FileFlags, Fuid, Timestamp};

/// The longest extended attribute value in a record, in bytes.
const XATTR_BYTES_MAX: usize = 32 << 10;

/// Reads the block that a record points to, given the object and the byte offset it belongs to.
pub type ReplayBlock<'a> =
    dyn FnMut(&BlockPointer, ObjectId, u64) -> Result<Arc<Block>, ObjectError> + 'a;

/// Properties of the next created file that override the usual ones.
#[derive(Debug, Clone)]
pub(crate) struct Forced {
    pub object: CreatedObject,
    pub acl: Option<Vec<Ace>>,
    pub attributes: Option<LogAttributes>,
}

impl FileSystem {
    /// Starts replay mode: nothing is logged, quotas do not apply, and a read-only file system is written.
    pub fn begin_replay(&self) {
        if let Ok(writing) = self.writing() {
            writing.replay().begin();
        }
    }
    /// Ends the replay mode that [`FileSystem::begin_replay`] started.
    pub fn end_replay(&self) {
        if let Ok(writing) = self.writing() {
            writing.cache().clear();
            writing.replay().end();
        }
    }

    /// Replays a record.
    ///
    /// The transaction that completes the record also stores `header` as the intent log's header. A record of
    /// a freed object is skipped if its type allows that.
    ///
    /// # Errors
    /// The errors of the operation; [`FileError::Invalid`] and [`FileError::NotSupported`] for records that
    /// are invalid for a file system.
    pub fn replay_record(
        &self,
        record: &LogRecord<'_>,
        endian: Endian,
        header: [u64; 24],
        read: &mut ReplayBlock<'_>,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        writing.replay().arm(header);
        let outcome = self.replay_body(&record.body, endian, header, read);
        writing.replay().force(None);
        match outcome {
            Err(FileError::Stale) if record.is_out_of_order() => Ok(()),
            outcome => outcome,
        }
    }

    fn replay_body(
        &self,
        body: &LogRecordBody<'_>,
        endian: Endian,
        header: [u64; 24],
        read: &mut ReplayBlock<'_>,
    ) -> Result<(), FileError> {
        self.writing()?;
        let caller = Caller::root();
        match body {
            LogRecordBody::Create(create) => self.replay_create(create, endian),
            LogRecordBody::Remove {
                is_directory,
                directory,
                name,
            } => {
                let directory = self.node(*directory)?;
                match is_directory {
                    true => self.remove_directory(&directory, name),
                    false => self.unlink(&directory, name),
                }
            }
            LogRecordBody::Link {
                directory,
                object,
                name,
            } => self.link(&self.node(*object)?, &self.node(*directory)?, name),
            LogRecordBody::Rename {
                kind,
                source_directory,
                target_directory,
                source_name,
                target_name,
            } => {
                let from = (*source_directory, *source_name);
                self.replay_rename(kind, from, (*target_directory, *target_name))
            }
            LogRecordBody::Write {
                object,
                offset,
                length,
                content,
            } => match content {
                WriteContent::Immediate(bytes) => self.replay_write(*object, *offset, bytes),
                WriteContent::Indirect(pointer) => {
                    self.replay_block(*object, *offset, *length, pointer, read)
                }
            },
            LogRecordBody::WriteAgain {
                object,
                offset,
                length,
            } => {
                let node = self.node(*object)?;
                let end = offset.checked_add(*length).ok_or(FileError::TooLarge)?;
                if end > node.size_bytes() {
                    self.set_size(&caller, node.for_change()?, end)?;
                }
                Ok(())
            }
            LogRecordBody::Truncate {
                object,
                offset,
                length,
            } => {
                let node = self.node(*object)?;
                if *length == 0 {
                    return self.set_size(&caller, node.for_change()?, *offset);
                }
                self.allocate(&node, Allocate::PunchHole, *offset, *length)
            }
            LogRecordBody::SetAttributes(set) => self.replay_set(set, header),
            LogRecordBody::SetAclV0 { object, entries } => {
                let count = (entries.len() / 12) as u64;
                let entries = decode_old_acl(entries, endian, count);
                self.replay_acl(*object, entries.map_err(|_| not_valid())?)
            }
            LogRecordBody::SetAcl { object, acl } => {
                let entries = decode_acl(acl.entries, endian, acl.entry_count);
                self.replay_acl(*object, entries.map_err(|_| not_valid())?)
            }
            LogRecordBody::SetXattr {
                object,
                name,
                value,
            } => self.replay_xattr(*object, name, value),
            LogRecordBody::CloneRange {
                object,
                offset,
                length,
                block_bytes,
                pointers,
            } => {
                let range = (*offset, *length, *block_bytes);
                self.replay_clone(*object, range, *pointers, header, read)
            }
        }
    }

    fn replay_rename(
        &self,
        kind: &RenameKind,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
    ) -> Result<(), FileError> {
        let (source, target) = (self.node(from.0)?, self.node(to.0)?);
        let mode = match kind {
            RenameKind::Plain => RenameMode::Replace,
            RenameKind::Exchange => RenameMode::Exchange,
            RenameKind::Whiteout(_) => RenameMode::Whiteout,
        };
        self.writing()?.replay().force(whiteout(kind));
        let from = DirEntryRef {
            directory: &source,
            name: from.1,
        };
        let to = DirEntryRef {
            directory: &target,
            name: to.1,
        };
        self.rename(&Caller::root(), from, to, mode)
    }

    fn replay_create(&self, create: &CreateRecord<'_>, endian: Endian) -> Result<(), FileError> {
        let writing = self.writing()?;
        let directory = self.open_node(create.directory)?;
        let CreateRecord { object, .. } = create;
        let slots = u8::try_from(object.id.slots).map_err(|_| not_valid())?;
        if create.kind == CreateKind::XattrDirectory {
            let _change = directory.lock_changes();
            if self.xattr_directory(&directory)?.is_some() {
                return Err(FileError::Exists);
            }
            let tx = self.begin(4 * NODE_BYTES)?;
            let _exclusive = directory.xattrs.write();
            let wanted = Some((object.id.object, slots, object.generation));
            self.make_xattr_directory(&tx, &directory, wanted)?;
            self.record_nothing(&tx, None);
            return Ok(());
        }
        let acl = match &create.acl {
            None => None,
            Some(acl) => {
                let entries = decode_acl(acl.entries, endian, acl.entry_count);
                Some(entries.map_err(|_| not_valid())?)
            }
        };
        writing.replay().force(Some(Forced {
            object: *object,
            acl,
            attributes: create.attributes,
        }));
        let caller = Caller::root();
        let kind = match create.kind {
            CreateKind::Directory => FileKind::Directory,
            CreateKind::SymbolicLink => FileKind::Symlink,
            _ => FileKind::from_mode(object.mode).ok_or_else(not_valid)?,
        };
        let target = (kind == FileKind::Symlink).then_some(create.target);
        self.make_again(&caller, &directory, create.name, kind, target)
    }

    fn replay_write(&self, object: ObjectId, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let node = self.open_node(object)?;
        if node.kind() != FileKind::Regular {
            return Err(not_valid());
        }
        let end = offset.checked_add(bytes.len() as u64);
        end.filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(FileError::TooLarge)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _range = node.ranges.write(0..u64::MAX);
        self.write_chunk(&Caller::root(), &node, offset, bytes)
    }

    /// Replays a write record that points to a whole block of the file.
    ///
    /// It writes the part of the block that is inside the file, after the file has grown by the write.
    fn replay_block(
        &self,
        object: ObjectId,
        offset: u64,
        length: u64,
        pointer: &BlockPointer,
        read: &mut ReplayBlock<'_>,
    ) -> Result<(), FileError> {
        let node = self.open_node(object)?;
        let block_bytes = pointer.lsize_bytes().max(1);
        let end = offset.checked_add(length).ok_or(FileError::TooLarge)?;
        let start = offset - offset % block_bytes;
        if end - start > block_bytes {
            return Err(not_valid());
        }
        let block = read(pointer, object, offset)?;
        let until = end.max(node.size_bytes());
        let count = usize::try_from(until.saturating_sub(start)).unwrap_or(usize::MAX);
        let bytes = block.bytes.get(..count.min(block.bytes.len()));
        self.replay_write(object, start, bytes.unwrap_or_default())
    }

    /// Replays a clone record: by reference where the file has blocks of that size, else by copying the content.
    fn replay_clone(
        &self,
        object: ObjectId,
        (offset, length, block_bytes): (u64, u64, u64),
        pointers: LoggedPointers<'_>,
        header: [u64; 24],
        read: &mut ReplayBlock<'_>,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let node = self.node(object)?;
        let end = offset.checked_add(length).ok_or(FileError::TooLarge)?;
        if block_bytes == 0 || offset % block_bytes != 0 {
            return Err(not_valid());
        }
        writing.replay().disarm();
        let mut at = self.replay_by_reference(&node, (offset, end, block_bytes), pointers)?;
        let done = usize::try_from((at - offset) / block_bytes).unwrap_or(usize::MAX);
        for pointer in pointers.iter().skip(done) {
            if at >= end {
                break;
            }
            let count = block_bytes.min(end - at);
            if pointer.is_hole() {
                let what = Allocate::ZeroRange { keeps_size: false };
                self.allocate(&node, what, at, count)?;
            } else {
                let block = read(&pointer, object, at)?;
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                let bytes = block.bytes.get(..count).ok_or_else(not_valid)?;
                self.replay_write(object, at, bytes)?;
            }
            at = at.saturating_add(block_bytes);
        }
        writing.replay().arm(header);
        if end > node.size_bytes() {
            self.set_size(&Caller::root(), node.for_change()?, end)?;
        }
        Ok(())
    }

    /// Links as many blocks as possible from the front. Returns where the rest begins.
    fn replay_by_reference(
        &self,
        node: &Node,
        (offset, end, block_bytes): (u64, u64, u64),
        pointers: LoggedPointers<'_>,
    ) -> Result<u64, FileError> {
        let inner = &node.for_change()?.inner;
        let own = inner.object.block_bytes();
        let is_one = inner.object.block_id_max() == BlockId(0) && own <= block_bytes;
        let bytes = u32::try_from(block_bytes).ok();
        // A block of another size is the only one of its file.
        let fits = block_bytes.is_power_of_two() || offset == 0 && end <= block_bytes;
        let Some(bytes) = bytes.filter(|_| fits && (own == block_bytes || is_one)) else {
            return Ok(offset);
        };
        // The claim has a reference to each of these blocks.
        let is_sound = |pointer: &BlockPointer| {
            pointer.is_hole() || is_clonable(pointer) && pointer.lsize_bytes() == block_bytes
        };
        let count = (end - offset).div_ceil(block_bytes);
        let all = pointers.iter().take_while(is_sound);
        let all: Vec<BlockPointer> = all
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .collect();
        let mut at = offset;
        for some in all.chunks(CLONED_AT_ONCE as usize) {
            let _change = inner.lock_changes();
            let cloned = some.iter().map(BlockPointer::asize_bytes).sum();
            let tx = self.begin_cloning(FREE_DIRTY_BYTES, some.len() as u64, cloned)?;
            if inner.object.block_bytes() != block_bytes {
                inner.object.set_block_bytes(&tx, bytes, None)?;
            }
            let mut state = inner.state();
            let until = at.saturating_add(block_bytes.saturating_mul(some.len() as u64));
            state.size = state.size.max(until.min(end));
            self.store(&tx, inner, state, &Lists::default())?;
            link_blocks(&tx, inner, block_bytes, at, some)?;
            mark::hit("clone-replayed-by-reference");
            at = until;
        }
        Ok(at)
    }

    fn replay_set(
        &self,
        record: &SetAttributesRecord<'_>,
        header: [u64; 24],
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let node = self.node(record.object)?;
        let caller = Caller::root();
        let has = |bit: u64| record.mask & bit != 0;
        let id = |id: u64| u32::try_from(id).map_err(|_| FileError::NotSupported);
        let mut set = SetAttributes {
            permissions: has(mask::MODE).then_some((record.mode & 0o7777) as u32),
            uid: has(mask::UID).then(|| id(record.uid)).transpose()?,
            gid: has(mask::GID).then(|| id(record.gid)).transpose()?,
            atime: has(mask::ATIME).then(|| SetTime::To(timestamp(record.access_time))),
            mtime: has(mask::MTIME).then(|| SetTime::To(timestamp(record.modification_time))),
            ..SetAttributes::default()
        };
        if let Some(further) = &record.attributes {
            let (on, off) = flags_of(further);
            (set.set_flags, set.clear_flags) = (on, off);
            if let LogStamp::Project(project) = further.stamp {
                set.project = Some(id(project)?);
            }
        }
        // The last operation stores the header.
        let has_more = set != SetAttributes::default();
        if has(mask::SIZE) && node.kind() == FileKind::Regular {
            if has_more {
                writing.replay().disarm();
            }
            self.set_size(&caller, node.for_change()?, record.size)?;
            writing.replay().arm(header);
        }
        if has_more {
            self.set_attributes(&caller, &node, &set)?;
        }
        Ok(())
    }

    fn replay_acl(&self, object: ObjectId, acl: Vec<Ace>) -> Result<(), FileError> {
        let writing = self.writing()?;
        let node = self.open_node(object)?;
        let _change = node.lock_changes();
        let mut state = node.state();
        state.flags = (state.flags - nfs4_acl::ACL_FLAGS) | nfs4_acl::hints(&acl);
        state.mode = (state.mode & !0o777) | (nfs4_acl::mode_of(&acl) & 0o777);
        state.attributes_changed(writing.now());
        let tx = self.begin(4 * NODE_BYTES)?;
        self.store(&tx, &node, state, &Lists::of_acl(acl))?;
        self.record_nothing(&tx, None);
        Ok(())
    }

    fn replay_xattr(&self, object: ObjectId, name: &[u8], value: &[u8]) -> Result<(), FileError> {
        let writing = self.writing()?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(FileError::ValueTooLong);
        }
        let node = self.open_node(object)?;
        let _change = node.lock_changes();
        let tx = self.begin(4 * NODE_BYTES + (256 << 10))?;
        {
            let _exclusive = node.xattrs.write();
            let list = self.packed_list(&node)?;
            let mut list = list.unwrap_or_else(|| NvList::with_flags(NvList::UNIQUE_NAME));
            if value.is_empty() {
                list.remove(name);
            } else {
                list.insert(name.to_vec(), NvValue::ByteArray(value.to_vec()));
            }
            let packed = list.encode_xdr().map_err(|_| not_valid())?;
            self.store_packed(&tx, &node, packed)?;
        }
        let mut state = node.state();
        state.attributes_changed(writing.now());
        self.store(&tx, &node, state, &Lists::default())?;
        self.record_nothing(&tx, None);
        Ok(())
    }

    /// Applies the forced properties to the file being created, if there are any.
    ///
    /// Returns the object id and dnode slots to use.
    pub(crate) fn force(&self, draft: &mut Draft) -> Option<(ObjectId, u8)> {
        let forced = self.writing().ok()?.replay().take_forced()?;
        let kind = draft.kind;
        let state = &mut draft.state;
        state.mode = kind.entry_type() << 12 | (forced.object.mode & 0o7777);
        (state.uid, state.gid) = (Fuid(forced.object.uid), Fuid(forced.object.gid));
        state.generation = forced.object.generation;
        for time in [
            &mut state.atime,
            &mut state.mtime,
            &mut state.ctime,
            &mut state.crtime,
        ] {
            *time = timestamp(forced.object.creation_time);
        }
        if matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice) {
            state.rdev = Some(forced.object.device);
        }
        // ACLs inherited from the directory have their own records.
        draft.xattrs.clear();
        let is_trivial = state.flags.contains(FileFlags::ACL_TRIVIAL);
        match forced.acl {
            Some(acl) => draft.acl = acl,
            None if is_trivial => {
                draft.acl = nfs4_acl::trivial_acl(state.mode, kind == FileKind::Directory);
            }
            None => {}
        }
        state.flags = (state.flags - nfs4_acl::ACL_FLAGS) | nfs4_acl::hints(&draft.acl);
        if let Some(further) = &forced.attributes {
            let (on, off) = flags_of(further);
            state.flags = (state.flags - off) | on;
            if further.requested & LogAttributes::CREATION_TIME != 0 {
                state.crtime = timestamp(further.creation_time);
            }
            if let LogStamp::Project(project) = further.stamp {
                state.project = Some(project);
                state.flags |= FileFlags::PROJECT_ID;
            }
        }
        let slots = u8::try_from(forced.object.id.slots).unwrap_or(1);
        Some((forced.object.id.object, slots))
    }

    /// Creates the file of a record in its directory.
    fn make_again(
        &self,
        caller: &Caller,
        directory: &OpenNode,
        name: &[u8],
        kind: FileKind,
        target: Option<&[u8]>,
    ) -> Result<(), FileError> {
        let plan = Plan {
            target,
            ..Plan::of(kind, NewMode::exactly(0))
        };
        self.make(caller, directory, name, plan).map(|_| ())
    }
}

fn whiteout(kind: &RenameKind) -> Option<Forced> {
    match *kind {
        RenameKind::Plain | RenameKind::Exchange => None,
        RenameKind::Whiteout(object) => Some(Forced {
            object,
            acl: None,
            attributes: None,
        }),
    }
}

/// The flags that a record sets, and those that it clears.
fn flags_of(further: &LogAttributes) -> (FileFlags, FileFlags) {
    let (mut on, mut off) = (FileFlags::default(), FileFlags::default());
    for (flag, bit) in FLAG_BITS {
        if further.requested & bit == 0 {
            continue;
        }
        if further.values & u64::from(bit) != 0 {
            on |= flag;
        } else {
            off |= flag;
        }
    }
    (on, off)
}

fn timestamp([seconds, nanoseconds]: [u64; 2]) -> Timestamp {
    Timestamp {
        seconds: seconds.cast_signed(),
        nanoseconds,
    }
}

fn not_valid() -> FileError {
    FileError::invalid("a record of the intent log that cannot be")
}
