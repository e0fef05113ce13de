//! Walks an object set and makes records of what it finds.

use crate::batch::{Form, SMALL_BLOCK_BYTES, Unread};
use crate::error::SendError;
use crate::forms::{byte_swap_flag, embedded, iv_of, raw_write, salt_of, takes_embedded, with_key};
use crate::output::Output;
use crate::redaction::LeftOut;
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
use millpond_traverse::{Fault, Object, Order, Step, Traversal, Tree, Visit, Visitor};
use std::cell::RefCell;

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
    state: RefCell<State<'a>>,
}

struct State<'a> {
    output: Output<'a>,
    /// The blocks that are not sent, although they are here.
    left_out: LeftOut<'a>,
    /// The next slot of the dnode block whose objects come, and the end of the block.
    slots: Option<(u64, u64)>,
    failure: Option<SendError>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        set: &'a Arc<ObjectSetView>,
        from: Txg,
        resume: Option<(u64, u64)>,
        left_out: LeftOut<'a>,
        output: Output<'a>,
    ) -> Self {
        let state = State {
            output,
            left_out,
            slots: None,
            failure: None,
        };
        Self {
            set,
            from,
            resume,
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
        Tree {
            born_after: (self.from > Txg(0)).then_some(self.from),
            key: self.set.key().cloned(),
            ..Tree::new(self.set.dataset(), *self.set.root(), ())
        }
    }

    fn is_new(&self, pointer: &BlockPointer) -> bool {
        pointer.birth() > self.from
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

    /// The objects of a dnode block come next.
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
        Traversal::new(self.set.store(), &Blocks { walk: self, dnode }).run_object(
            self.tree(),
            id,
            dnode,
        );
        if let Some(pointer) = modified {
            self.spill(id, &pointer, 0);
        }
        Ok(())
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
        let State {
            output, left_out, ..
        } = &mut *self.state.borrow_mut();
        let block_bytes = dnode.data_block_bytes();
        let offset = block.0.saturating_mul(block_bytes);
        let bytes = u128::from(offset)..u128::from(offset).saturating_add(block_bytes.into());
        match left_out.next_within(id, &bytes, block_bytes)? {
            Some(_) => output.redact(id.0, offset, block_bytes),
            None => self.whole_block(output, id, dnode, block, pointer),
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
    fn hole(&self, id: ObjectId, dnode: &Dnode, level: Level, block: BlockId) {
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
        if state.left_out.is_empty() {
            let length = u64::try_from(length).unwrap_or(TO_THE_END);
            state.output.free(id.0, offset, length);
        } else if let Err(error) = part_left_out(&mut state, id, dnode, offset, length) {
            state.failure.get_or_insert(error);
        }
    }
}

/// A hole, parts of which are listed.
fn part_left_out(
    state: &mut State<'_>,
    id: ObjectId,
    dnode: &Dnode,
    offset: u64,
    length: u128,
) -> Result<(), SendError> {
    let mut rest = u128::from(offset)..u128::from(offset).saturating_add(length);
    let bytes = |range: &std::ops::Range<u128>| {
        let start = u64::try_from(range.start).unwrap_or(u64::MAX);
        let length = range.end.saturating_sub(range.start);
        (start, u64::try_from(length).unwrap_or(TO_THE_END))
    };
    while let Some(found) = (state.left_out).next_within(id, &rest, dnode.data_block_bytes())? {
        if found.start > rest.start {
            let (start, length) = bytes(&(rest.start..found.start));
            state.output.free(id.0, start, length);
        }
        let (start, length) = bytes(&found);
        state.output.redact(id.0, start, length);
        rest.start = found.end;
        if rest.is_empty() {
            return Ok(());
        }
    }
    let (start, length) = bytes(&rest);
    state.output.free(id.0, start, length);
    Ok(())
}

/// Ends the dnode block whose objects came.
fn end_slots(state: &mut State<'_>) {
    if let Some((next, end)) = state.slots.take() {
        state.output.free_objects(next, end.saturating_sub(next));
    }
}

/// Visits the dnodes.
struct Objects<'w, 'a>(&'w Walk<'a>);

impl Visitor for Objects<'_, '_> {
    type Tree = ();
    type Object = ();
    const SEES_ALL_HOLES: bool = true;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        if !block.is_root() && !self.0.is_new(block.pointer) {
            return Step::Skip;
        }
        if let Err(error) = self.0.check_protected(ObjectId(0), block.pointer) {
            return self.0.after(Err(error), Step::Stop);
        }
        if !block.is_root() {
            let shift = block.object.pointers_shift();
            let shift = shift.saturating_mul(block.level.0.into()).min(64);
            let blocks = u128::from(block.id.0).saturating_add(1) << shift;
            let end = blocks.saturating_mul(SLOTS.into());
            if end <= u128::from(self.0.first_object()) {
                return Step::Skip;
            }
        }
        if !block.is_root() && block.level == Level(0) {
            self.0.begin_slots(block.id, block.pointer);
        }
        self.0.after(Ok(()), Step::Descend)
    }

    fn hole(&self, block: &Visit<'_, Self>) {
        let shift = (block.object.pointers_shift()).saturating_mul(block.level.0.into());
        let count = SLOTS.checked_shl(shift).unwrap_or(u64::MAX);
        let first = u64::try_from(u128::from(block.id.0).saturating_mul(count.into()));
        self.0.free_objects(first.unwrap_or(u64::MAX), count);
    }

    fn object(&self, object: &Object<Self>) -> Step {
        match &object.new {
            _ if object.id == ObjectId(0) => Step::Descend,
            Some(_) if object.id.0 < self.0.first_object() => Step::Skip,
            Some(dnode) if object.id.0 < OBJECTS_END => {
                let sent = self.0.object(object.id, dnode);
                self.0.after(sent, Step::Skip)
            }
            _ => Step::Skip,
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        self.0.fail(block.object.id, fault)
    }
}

/// Visits the blocks of an object.
struct Blocks<'w, 'a> {
    walk: &'w Walk<'a>,
    dnode: &'w Arc<Dnode>,
}

impl Visitor for Blocks<'_, '_> {
    type Tree = ();
    type Object = ();
    const SEES_ALL_HOLES: bool = true;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        if block.is_spill() || !self.walk.is_new(block.pointer) {
            return Step::Skip;
        }
        let end = Walk::end_of(self.dnode, block.level, block.id);
        if self.walk.is_received(block.object.id, end) {
            return Step::Skip;
        }
        let checked = self.walk.check_protected(block.object.id, block.pointer);
        if checked.is_err() {
            return self.walk.after(checked, Step::Stop);
        }
        if block.level > Level(0) {
            return self.walk.after(Ok(()), Step::Descend);
        }
        if let Some(reason) = block.contradiction() {
            return self.fault(block, Fault::Contradiction(reason));
        }
        let (id, dnode) = (block.object.id, self.dnode);
        let sent = self.walk.block(id, dnode, block.id, block.pointer);
        self.walk.after(sent, Step::Skip)
    }

    fn hole(&self, block: &Visit<'_, Self>) {
        let end = Walk::end_of(self.dnode, block.level, block.id);
        if !block.is_spill() && !self.walk.is_received(block.object.id, end) {
            let (id, dnode) = (block.object.id, self.dnode);
            self.walk.hole(id, dnode, block.level, block.id);
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        self.walk.fail(block.object.id, fault)
    }
}
