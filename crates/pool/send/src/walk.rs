//! Walks an object set and makes records of what it finds.

use crate::batch::{Form, SMALL_BLOCK_BYTES, Unread};
use crate::error::SendError;
use crate::forms::{byte_swap_flag, embedded, iv_of, raw_write, salt_of, takes_embedded, with_key};
use crate::output::Output;
use crate::redaction::{Fate, Lists};
use millpond_block::BlockAddress;
use millpond_env::sync::Arc;
use millpond_object::{ObjectSetView, to_native};
use millpond_ondisk::{
    BlockId, BlockPointer, ChecksumKind, CompressionKind, Dnode, EmbeddedKind, Endian, Level,
    ObjectId, SPILL_BLOCK_ID, Txg,
};
use millpond_stream::{
    ObjectRange, ObjectRecord, Record, RecordFlags, Spill, StreamFeatures, TO_THE_END, Write,
};
use millpond_traverse::{Fault, Order, Step, Traversal, Tree, Visit};
use std::cell::RefCell;
use std::ops::Range;
use visitors::{Blocks, Objects};

mod visitors;

/// Objects from here on are those of the space accounting, which no stream has.
const OBJECTS_END: u64 = 1 << 48;
/// Slots of a dnode block.
const SLOTS: u64 = 32;

/// A walk over an object set.
pub(crate) struct Walk<'a> {
    set: &'a Arc<ObjectSetView>,
    /// Blocks born up to then are not sent.
    from: Txg,
    /// The object and offset from which an interrupted stream continues: what comes before was received.
    resume: Option<(u64, u64)>,
    /// Whether there are redaction lists.
    has_lists: bool,
    state: RefCell<State<'a>>,
}

struct State<'a> {
    output: Output<'a>,
    /// The blocks that are treated otherwise than their births say.
    lists: Lists<'a>,
    /// Whether the dnode block whose objects come is new.
    is_new_block: bool,
    /// The next slot of the dnode block whose objects come, and the end of the block.
    slots: Option<(u64, u64)>,
    failure: Option<SendError>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        set: &'a Arc<ObjectSetView>,
        from: Txg,
        resume: Option<(u64, u64)>,
        lists: Lists<'a>,
        output: Output<'a>,
    ) -> Self {
        let has_lists = !lists.is_empty();
        let state = State {
            output,
            lists,
            is_new_block: false,
            slots: None,
            failure: None,
        };
        Self {
            set,
            from,
            resume,
            has_lists,
            state: RefCell::new(state),
        }
    }

    /// Walks to the end, or until something fails, or nothing more is wanted.
    pub(crate) fn run(self) -> Result<(), SendError> {
        Traversal::new(self.set.store(), &Objects(&self)).run_in_order(
            self.tree(),
            Order::ParentsFirst,
            None,
        );
        let mut state = self.state.into_inner();
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        if self.set.store().has_expired() {
            return Err(SendError::Expired);
        }
        end_slots(&mut state);
        state.output.finish();
        Ok(())
    }

    fn tree(&self) -> Tree<()> {
        // What is listed may be old.
        let is_pruned = self.from > Txg(0) && !self.has_lists;
        Tree {
            born_after: is_pruned.then_some(self.from),
            key: self.set.key().cloned(),
            ..Tree::new(self.set.dataset(), *self.set.root(), ())
        }
    }

    fn is_new(&self, pointer: &BlockPointer) -> bool {
        pointer.birth() > self.from
    }

    /// Whether a hole may be new: it has no birth if there never was anything.
    fn is_new_hole(&self, pointer: &BlockPointer) -> bool {
        self.is_new(pointer) || pointer.birth() == Txg(0)
    }

    /// Whether a redaction list has blocks below a block of an object.
    fn is_listed(
        &self,
        id: ObjectId,
        dnode: &Dnode,
        (level, block): (Level, BlockId),
    ) -> Result<bool, SendError> {
        if !self.has_lists {
            return Ok(false);
        }
        let bytes = Self::start_of(dnode, level, block)..Self::end_of(dnode, level, block);
        let lists = &mut self.state.borrow_mut().lists;
        lists.have_blocks(id, &bytes, dnode.data_block_bytes())
    }

    /// Checks that a block of a raw stream is one of an encrypted object set: a plain one was put there by another.
    fn check_protected(&self, object: ObjectId, pointer: &BlockPointer) -> Result<(), SendError> {
        let is_raw = self.state.borrow().output.is_raw();
        match is_raw && !pointer.is_hole() && !pointer.has_crypt_bit() {
            true => Err(SendError::Invalid {
                object,
                reason: "a block of an encrypted dataset is neither encrypted nor authenticated"
                    .to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// How to go on after a step that may have failed.
    fn after(&self, done: Result<(), SendError>, otherwise: Step) -> Step {
        let mut state = self.state.borrow_mut();
        match done {
            Ok(()) if state.output.is_wanted() => otherwise,
            Ok(()) => Step::Stop,
            Err(error) => {
                state.failure.get_or_insert(error);
                Step::Stop
            }
        }
    }

    fn fail(&self, object: ObjectId, fault: Fault) -> Step {
        let error = match fault {
            Fault::Read(error) => SendError::Block(error),
            fault => SendError::Invalid {
                object,
                reason: fault.to_string(),
            },
        };
        self.after(Err(error), Step::Stop)
    }

    /// The objects of a dnode block come next. Only what is listed comes of those of an old one.
    fn begin_block(&self, block: BlockId, pointer: &BlockPointer, is_new: bool) {
        self.state.borrow_mut().is_new_block = is_new;
        match is_new {
            true => self.begin_slots(block, pointer),
            false => end_slots(&mut self.state.borrow_mut()),
        }
    }

    fn begin_slots(&self, block: BlockId, pointer: &BlockPointer) {
        let mut state = self.state.borrow_mut();
        end_slots(&mut state);
        let first = block.0.saturating_mul(SLOTS);
        if state.output.is_raw() {
            let range = ObjectRange {
                first,
                slots: SLOTS,
                to_guid: state.output.to_guid,
                salt: pointer.crypt_salt(),
                iv: pointer.crypt_iv(),
                mac: pointer.crypt_mac(),
                flags: byte_swap_flag(pointer),
            };
            state.output.record(Record::ObjectRange(range), vec![]);
        }
        // Slot 0 is not one of an object.
        let from = first.max(1).max(self.first_object());
        state.slots = Some((from, first.saturating_add(SLOTS)));
    }

    /// The first object that is sent.
    fn first_object(&self) -> u64 {
        self.resume.map_or(0, |(object, _)| object)
    }

    /// Whether what comes before `end` in an object was received already.
    fn is_received(&self, id: ObjectId, end: u128) -> bool {
        let resumed = self.resume.filter(|(object, _)| *object == id.0);
        resumed.is_some_and(|(_, offset)| end <= u128::from(offset))
    }

    /// The start of the bytes below a block of an object.
    fn start_of(dnode: &Dnode, level: Level, block: BlockId) -> u128 {
        let shift = dnode.pointers_shift().saturating_mul(level.0.into());
        let blocks = u128::from(block.0) << shift.min(64);
        blocks.saturating_mul(dnode.data_block_bytes().into())
    }

    /// The end of the bytes below a block of an object.
    fn end_of(dnode: &Dnode, level: Level, block: BlockId) -> u128 {
        let shift = dnode
            .pointers_shift()
            .saturating_mul(level.0.into())
            .min(64);
        let blocks = u128::from(block.0).saturating_add(1) << shift;
        blocks.saturating_mul(dnode.data_block_bytes().into())
    }

    /// No object of a range exists.
    fn free_objects(&self, first: u64, count: u64) {
        let mut state = self.state.borrow_mut();
        end_slots(&mut state);
        let blocks = self.set.phys().meta_dnode.block_id_max.0.saturating_add(1);
        let end = first
            .saturating_add(count)
            .min(blocks.saturating_mul(SLOTS));
        let first = first.max(1).max(self.first_object());
        state.output.free_objects(first, end.saturating_sub(first));
    }

    /// An object and its blocks.
    fn object(&self, id: ObjectId, dnode: &Arc<Dnode>) -> Result<(), SendError> {
        let modified = self.begin_object(id, dnode)?;
        self.blocks(id, dnode);
        if let Some(pointer) = modified {
            self.spill(id, &pointer, 0);
        }
        Ok(())
    }

    fn blocks(&self, id: ObjectId, dnode: &Arc<Dnode>) {
        Traversal::new(self.set.store(), &Blocks { walk: self, dnode }).run_object(
            self.tree(),
            id,
            dnode,
        );
    }

    /// Writes the records before an object's blocks. Returns its spill block, if it comes after them.
    fn begin_object(&self, id: ObjectId, dnode: &Dnode) -> Result<Option<BlockPointer>, SendError> {
        let mut bonus = dnode.bonus.clone();
        let is_raw = self.state.borrow().output.is_raw();
        if dnode.endian == Endian::Big && !is_raw {
            let native = to_native(dnode.bonus_type, &mut bonus);
            native.map_err(|reason| SendError::Invalid {
                object: id,
                reason: reason.to_owned(),
            })?;
        }
        let bonus_bytes = u32::try_from(bonus.len()).unwrap_or(u32::MAX);
        if is_raw && !bonus.is_empty() {
            // Ciphertext fills the area.
            bonus.extend_from_slice(&dnode.bonus_tail);
            bonus.resize(dnode.bonus_area_bytes(), 0);
        }
        bonus.resize(bonus.len().next_multiple_of(8), 0);
        let block_bytes = dnode.data_block_bytes();
        let spill = dnode.spill.filter(|pointer| !pointer.is_hole());
        if let Some(pointer) = &spill {
            self.check_protected(id, pointer)?;
        }
        {
            let state = &mut *self.state.borrow_mut();
            if let Some((next, _)) = &mut state.slots {
                let free = id.0.saturating_sub(*next);
                state.output.free_objects(*next, free);
                *next = id.0.saturating_add(dnode.slots());
            }
            let output = &mut state.output;
            let most = match output.features.contains(StreamFeatures::LARGE_BLOCKS) {
                true => u64::MAX,
                false => SMALL_BLOCK_BYTES,
            };
            let record = ObjectRecord {
                object: id.0,
                object_type: dnode.object_type.0.into(),
                bonus_type: dnode.bonus_type.0.into(),
                block_bytes: u32::try_from(block_bytes.min(most)).unwrap_or(u32::MAX),
                bonus_bytes,
                checksum: dnode.checksum,
                compression: dnode.compression,
                slots: u8::try_from(dnode.slots()).unwrap_or(u8::MAX),
                flags: spill.map_or(0, |_| RecordFlags::OBJECT_SPILL),
                to_guid: output.to_guid,
                ..ObjectRecord::default()
            };
            let record = match is_raw {
                false => record,
                true => ObjectRecord {
                    raw_bonus_bytes: u32::try_from(bonus.len()).unwrap_or(u32::MAX),
                    indirect_shift: dnode.indirect_block_shift,
                    levels: dnode.levels,
                    pointers: u8::try_from(dnode.block_pointers.len()).unwrap_or(u8::MAX),
                    last_block: dnode.block_id_max.0,
                    ..record
                },
            };
            output.record(Record::Object(record), bonus);
            let end = (dnode.block_id_max.0)
                .saturating_add(1)
                .saturating_mul(block_bytes);
            output.free(id.0, end, TO_THE_END);
        }
        match spill {
            Some(pointer) if !self.is_new(&pointer) => {
                self.spill(id, &pointer, RecordFlags::SPILL_UNMODIFIED);
                Ok(None)
            }
            spill => Ok(spill),
        }
    }

    fn address(&self, object: ObjectId, block: BlockId) -> BlockAddress {
        BlockAddress {
            dataset: self.set.dataset(),
            object,
            level: Level(0),
            block,
        }
    }

    fn spill(&self, id: ObjectId, pointer: &BlockPointer, flags: u8) {
        let output = &mut self.state.borrow_mut().output;
        // OpenZFS sends one that its pointer holds as an embedded block at an offset below 0, which its receiver refuses
        // if the block is larger than twice the object's. So the content is sent.
        let spill = Spill {
            object: id.0,
            length: pointer.lsize_bytes(),
            to_guid: output.to_guid,
            flags,
            ..Spill::default()
        };
        if output.is_raw() {
            let spill = Spill {
                flags: flags | byte_swap_flag(pointer),
                compression: pointer.compression().map_or(0, |kind| kind.number()),
                compressed_bytes: pointer.psize_bytes(),
                salt: salt_of(pointer),
                iv: iv_of(pointer),
                mac: pointer.crypt_mac(),
                ..spill
            };
            let unread = Unread::StoredSpill(spill);
            return output.block(pointer, self.address(id, SPILL_BLOCK_ID), unread);
        }
        let unread = Unread::Spill(spill, pointer.object_type());
        output.block(pointer, self.address(id, SPILL_BLOCK_ID), unread);
    }

    /// A data block.
    fn block(
        &self,
        id: ObjectId,
        dnode: &Dnode,
        block: BlockId,
        pointer: &BlockPointer,
    ) -> Result<(), SendError> {
        let State { output, lists, .. } = &mut *self.state.borrow_mut();
        let block_bytes = dnode.data_block_bytes();
        let offset = block.0.saturating_mul(block_bytes);
        let bytes = u128::from(offset)..u128::from(offset).saturating_add(block_bytes.into());
        match lists.first_part(id, &bytes, block_bytes)?.0 {
            Fate::Redacted => output.redact(id.0, offset, block_bytes),
            Fate::Unmentioned => {}
            Fate::IfNew if !self.is_new(pointer) => {}
            Fate::IfNew | Fate::Lacked => self.whole_block(output, id, dnode, block, pointer),
        }
        Ok(())
    }

    /// A data block that is not left out.
    fn whole_block(
        &self,
        output: &mut Output<'_>,
        id: ObjectId,
        dnode: &Dnode,
        block: BlockId,
        pointer: &BlockPointer,
    ) {
        let block_bytes = dnode.data_block_bytes();
        let offset = block.0.saturating_mul(block_bytes);
        match pointer.embedded_kind() {
            Some(EmbeddedKind::Redacted) => return output.redact(id.0, offset, block_bytes),
            Some(EmbeddedKind::Data) if takes_embedded(output, pointer) => {
                return embedded(output, id, offset, block_bytes, pointer);
            }
            _ => {}
        }
        let write = Write {
            object: id.0,
            object_type: dnode.object_type.0.into(),
            offset,
            logical_bytes: block_bytes,
            to_guid: output.to_guid,
            checksum: ChecksumKind::Off as u8,
            ..Write::default()
        };
        if output.is_raw() {
            let write = raw_write(write, pointer);
            let unread = Unread::Write(write, Form::Stored);
            return output.block(pointer, self.address(id, block), unread);
        }
        let is_large = block_bytes > SMALL_BLOCK_BYTES;
        let (write, form) = if is_large && !output.features.contains(StreamFeatures::LARGE_BLOCKS) {
            (write, Form::Split)
        } else if pointer.is_embedded() || pointer.has_crypt_bit() {
            (write, Form::Plain)
        } else {
            let write = with_key(write, pointer);
            let compression = pointer.compression();
            let is_compressed = compression.is_some_and(|kind| kind != CompressionKind::Off);
            let is_sent_compressed = output.features.contains(StreamFeatures::COMPRESSED)
                && is_compressed
                && !dnode.object_type.is_metadata()
                && pointer.endian() == Endian::Little;
            match is_sent_compressed {
                false => (write, Form::Plain),
                true => {
                    let stored = Write {
                        compression: compression.map_or(0, |kind| kind.number()),
                        compressed_bytes: pointer.psize_bytes(),
                        ..write
                    };
                    (stored, Form::Stored)
                }
            }
        };
        let unread = Unread::Write(write, form);
        output.block(pointer, self.address(id, block), unread);
    }

    /// A hole of any level.
    fn hole(&self, id: ObjectId, dnode: &Dnode, visit: &Visit<'_, Blocks<'_, 'a>>) {
        let (level, block) = (visit.level, visit.id);
        let shift = dnode.pointers_shift().saturating_mul(level.0.into());
        let first = u128::from(block.0) << shift.min(64);
        let is_past = first > u128::from(dnode.block_id_max.0);
        if is_past && !dnode.object_type.is_metadata() {
            return;
        }
        let block_bytes = u128::from(dnode.data_block_bytes());
        let Ok(offset) = u64::try_from(first.saturating_mul(block_bytes)) else {
            return;
        };
        let length = block_bytes << shift.min(64);
        let mut state = self.state.borrow_mut();
        if !self.has_lists {
            let length = u64::try_from(length).unwrap_or(TO_THE_END);
            return state.output.free(id.0, offset, length);
        }
        let offset = u128::from(offset);
        let bytes = offset..offset.saturating_add(length);
        let is_new = self.is_new_hole(visit.pointer);
        if let Err(error) = listed_hole(&mut state, id, dnode.data_block_bytes(), bytes, is_new) {
            state.failure.get_or_insert(error);
        }
    }
}

/// A hole, parts of which may be listed.
fn listed_hole(
    state: &mut State<'_>,
    id: ObjectId,
    block_bytes: u64,
    mut rest: Range<u128>,
    is_new: bool,
) -> Result<(), SendError> {
    while !rest.is_empty() {
        let (fate, end) = state.lists.first_part(id, &rest, block_bytes)?;
        let start = u64::try_from(rest.start).unwrap_or(u64::MAX);
        let length = u64::try_from(end.saturating_sub(rest.start)).unwrap_or(TO_THE_END);
        match fate {
            Fate::Redacted => state.output.redact(id.0, start, length),
            Fate::Unmentioned => {}
            Fate::IfNew if !is_new => {}
            Fate::IfNew | Fate::Lacked => state.output.free(id.0, start, length),
        }
        rest.start = end;
    }
    Ok(())
}

/// Ends the dnode block whose objects came.
fn end_slots(state: &mut State<'_>) {
    if let Some((next, end)) = state.slots.take() {
        state.output.free_objects(next, end.saturating_sub(next));
    }
}
