//! Writes the dnode array. Each block is written once the last object in it is complete.

use crate::Object;
use crate::ObjectError;
use crate::byteswap;
use crate::core::{Core, SLOTS_PER_BLOCK};
use crate::sync::Sync;
use crate::writer::{Run, TreeWriter};
use millpond_env::sync::Arc;
use millpond_ondisk::{DNODE_SLOT_BYTES, Dnode, Endian, ObjectId};

/// Bytes of finished blocks that are passed to the sink at once.
const READY_BYTES_MAX: u64 = 16 << 20;

/// The dnode array between one txg and the next. Blocks come in order.
pub(crate) struct DnodeArray {
    pub(crate) tree: TreeWriter,
    old: Arc<Dnode>,
    present: Option<(u64, Vec<u8>)>,
    ready: Vec<(u64, Vec<u8>)>,
    ready_bytes: u64,
}

impl DnodeArray {
    pub(crate) fn new(core: &Core, meta: &Arc<Dnode>) -> Self {
        Self {
            tree: TreeWriter::new(core, ObjectId(0), Dnode::clone(meta)),
            old: Arc::clone(meta),
            present: None,
            ready: Vec::new(),
            ready_bytes: 0,
        }
    }

    /// Extends the array so that it covers these objects.
    pub(crate) fn reach(
        &mut self,
        run: &Run<'_>,
        objects: &[Arc<Object>],
    ) -> Result<(), ObjectError> {
        let is_kept = |object: &&Arc<Object>| {
            let state = object.state();
            state.slot_of(run.txg).is_some_and(|slot| !slot.is_freed)
        };
        if let Some(last) = objects.iter().rev().find(is_kept) {
            let block = last.id().0 / SLOTS_PER_BLOCK;
            self.tree.grow(run, block, 1)?;
            let end = &mut self.tree.dnode.block_id_max.0;
            *end = (*end).max(block);
        }
        Ok(())
    }

    pub(crate) fn put(
        &mut self,
        sync: &mut Sync<'_>,
        id: ObjectId,
        slots: u64,
        was_on_disk: bool,
        bytes: Option<&[u8]>,
    ) -> Result<(), ObjectError> {
        let block = id.0 / SLOTS_PER_BLOCK;
        if self.present.as_ref().is_none_or(|(at, _)| *at != block) {
            self.close_block(sync)?;
            self.present = Some((block, self.load(sync.run.core, block)?));
        }
        let Some((_, content)) = &mut self.present else {
            return Ok(());
        };
        let start = (id.0 % SLOTS_PER_BLOCK) as usize * DNODE_SLOT_BYTES;
        let end = start + slots as usize * DNODE_SLOT_BYTES;
        let wrong = || sync.run.core.refuse(id, "its slots are not its own");
        let place = content.get_mut(start..end).ok_or_else(wrong)?;
        let is_free = place
            .chunks(DNODE_SLOT_BYTES)
            .all(|slot| slot.iter().all(|byte| *byte == 0));
        if !was_on_disk && !is_free {
            return Err(wrong());
        }
        match bytes {
            Some(bytes) if bytes.len() == place.len() => place.copy_from_slice(bytes),
            Some(_) => return Err(wrong()),
            None => place.fill(0),
        }
        Ok(())
    }

    /// Reads the current content of a block, in little-endian order.
    fn load(&self, core: &Core, block: u64) -> Result<Vec<u8>, ObjectError> {
        let size = SLOTS_PER_BLOCK as usize * DNODE_SLOT_BYTES;
        if block > self.old.block_id_max.0 {
            return Ok(vec![0; size]);
        }
        let content = core.tree(ObjectId(0), &self.old).read_block(block)?;
        if content.endian == Endian::Little {
            return Ok(content.bytes.to_vec());
        }
        if core.raw.is_some() {
            let reason = "dnodes of another byte order are not rewritten without their key";
            return Err(core.refuse(ObjectId(0), reason));
        }
        let mut native = vec![0; size];
        for slot in crate::set_view::used_slots(&content) {
            let id = ObjectId(block * SLOTS_PER_BLOCK + slot as u64);
            let start = slot * DNODE_SLOT_BYTES;
            let invalid = |error| ObjectError::Invalid {
                dataset: core.dataset,
                object: id,
                error,
            };
            let dnode = Dnode::decode(&content.bytes[start..], Endian::Big).map_err(invalid)?;
            let Some(mut dnode) = dnode else { continue };
            byteswap::adopt(&mut dnode).map_err(|reason| core.refuse(id, reason))?;
            let bytes = encode(core, id, &dnode)?;
            if let Some(place) = native.get_mut(start..start + bytes.len()) {
                place.copy_from_slice(&bytes);
            }
        }
        Ok(native)
    }

    fn close_block(&mut self, sync: &mut Sync<'_>) -> Result<(), ObjectError> {
        if let Some((block, content)) = self.present.take() {
            self.ready_bytes += content.len() as u64;
            self.ready.push((block, content));
        }
        if self.ready_bytes >= READY_BYTES_MAX {
            self.write_ready(sync)?;
        }
        Ok(())
    }

    fn write_ready(&mut self, sync: &mut Sync<'_>) -> Result<(), ObjectError> {
        self.ready_bytes = 0;
        let mut jobs = Vec::new();
        let mut ids = Vec::new();
        for (block, content) in self.ready.drain(..) {
            let previous = self.tree.pointer(&sync.run, 0, block)?;
            let fill = used_dnodes(&content);
            let content = Arc::new(content);
            let mut job = sync
                .run
                .job(&self.tree, 0, block, Arc::clone(&content), previous);
            job.fill = fill;
            // A block without dnodes becomes a hole.
            if let Some(raw) = &sync.run.core.raw
                && fill > 0
            {
                job.encoded = Some(raw.sealed(block, content, &previous));
            }
            jobs.push(job);
            ids.push(block);
        }
        let pointers = sync.write(jobs)?;
        for (pointer, id) in pointers.into_iter().zip(ids) {
            self.tree.set_pointer(&sync.run, 0, id, pointer)?;
            self.tree.cursor = id + 1;
        }
        sync.write_nodes(&mut [&mut self.tree])
    }

    pub(crate) fn finish(&mut self, sync: &mut Sync<'_>) -> Result<(), ObjectError> {
        self.close_block(sync)?;
        self.tree.is_swept = true;
        self.write_ready(sync)?;
        self.tree.finish(&sync.run);
        Ok(())
    }
}

fn used_dnodes(content: &[u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let Some(slot) = content.get(at..).filter(|slot| !slot.is_empty()) {
        count += u64::from(slot[0] != 0);
        at += Dnode::slot_count(slot) * DNODE_SLOT_BYTES;
    }
    count
}

/// Encodes a dnode. Refuses a dnode that a reader would reject.
pub(crate) fn encode(core: &Core, id: ObjectId, dnode: &Dnode) -> Result<Vec<u8>, ObjectError> {
    let checked = || {
        let bytes = dnode.encode()?;
        Dnode::decode(&bytes, Endian::Little)?;
        Ok(bytes)
    };
    checked().map_err(|error| ObjectError::Invalid {
        dataset: core.dataset,
        object: id,
        error,
    })
}
