//! Writes the object set block, and ends the sync of an object set.

use super::*;
use millpond_ondisk::PoolVersion;

impl Sync<'_> {
    /// Writes the object set block.
    pub(super) fn write_head(
        &mut self,
        head: &SyncedHead,
        mut meta: Dnode,
        change: &crate::core::HeadChange,
        specials: &BTreeMap<ObjectId, Vec<u8>>,
    ) -> Result<SyncedHead, ObjectError> {
        let core = self.run.core;
        let special = |which: usize| -> Result<Option<Dnode>, ObjectError> {
            if let Some(bytes) = specials.get(&special_id(which)) {
                let dnode = Dnode::decode(bytes, Endian::Little);
                return dnode.map_err(|_| core.refuse(special_id(which), "dnode is not valid"));
            }
            let object = core.table.lock().specials[which].clone();
            let Some(object) = object else {
                return Ok(None);
            };
            let state = object.state();
            Ok(state.is_on_disk.then(|| Dnode::clone(&state.synced)))
        };
        let mut portable_mac = head.portable_mac;
        let mut local_mac = head.local_mac;
        if let Some(raw) = change.raw {
            raw.array.apply(&mut meta);
            portable_mac = raw.portable_mac;
            local_mac = [0; 32];
        }
        let phys = ObjectSetPhys {
            meta_dnode: meta,
            intent_log_header: change.log_header.unwrap_or(head.log_header),
            kind: core.kind,
            flags: change.flags.unwrap_or(head.flags),
            portable_mac,
            local_mac,
            user_used: special(0)?,
            group_used: special(1)?,
            project_used: special(2)?,
        };
        let least = match &self.run.policy {
            policy if !PoolVersion(policy.pool_version).has_user_accounting() => 1024,
            policy if !policy.has_project_quota => 2048,
            _ => 4096,
        };
        let length = head.length.max(least);
        let fills = phys.meta_dnode.block_pointers.iter();
        let fill = fills
            .filter(|pointer| !pointer.is_hole())
            .fold(0u64, |sum, pointer| sum.saturating_add(pointer.fill()));
        let mut content = phys.encode(length).map_err(|error| ObjectError::Invalid {
            dataset: core.dataset,
            object: ObjectId(0),
            error,
        })?;
        // Without the key, the codes are those that came with the stream.
        if let Some(key) = core.read_key() {
            key.seal_object_set(&mut content, Endian::Little)
                .map_err(|_| core.refuse(ObjectId(0), "its authentication failed"))?;
        }
        let mut job = WriteJob {
            address: BlockAddress::object_set(core.dataset),
            object_type: ObjectType::OBJECT_SET,
            level: Level(0),
            policy: self.run.policy.block(&BlockTraits {
                object_type: ObjectType::OBJECT_SET,
                level: Level(0),
                is_spill: false,
                lsize_bytes: content.len() as u64,
                dnode_checksum: 0,
                dnode_compression: 0,
                is_rewritten_late: false,
            }),
            content: Arc::new(content),
            encoded: None,
            fill,
            previous: head.root,
            txg: self.run.txg,
            pass: self.run.pass,
            stored: None,
            is_clone: false,
            keeps_birth: false,
            key: core.key.clone(),
            is_raw: core.raw.is_some(),
        };
        if job.is_rewritten_late() {
            job.policy.compression = millpond_ondisk::CompressionKind::Off;
        }
        let root = self.write(vec![job])?.pop().unwrap_or_default();
        Ok(SyncedHead {
            root,
            meta: Arc::new(phys.meta_dnode),
            flags: phys.flags,
            accounting_cursor: change.accounting_cursor.or(head.accounting_cursor),
            log_header: phys.intent_log_header,
            portable_mac: phys.portable_mac,
            local_mac: phys.local_mac,
            length,
        })
    }

    /// Makes the written state the synced state.
    pub(super) fn commit(&mut self, head: SyncedHead) {
        let (core, txg) = (self.run.core, self.run.txg);
        let mut freed = Vec::new();
        for done in &self.retired {
            let mut state = done.object.state();
            match &done.dnode {
                Some(dnode) => state.settle(txg, Arc::clone(dnode), true),
                None => {
                    let mut gone = Dnode::clone(&state.synced);
                    gone.object_type = ObjectType::NONE;
                    gone.block_pointers.fill(BlockPointer::default());
                    (gone.spill, gone.used) = (None, 0);
                    gone.block_id_max.0 = 0;
                    state.settle(txg, Arc::new(gone), false);
                    freed.push((done.object.id(), done.slots));
                }
            }
        }
        let written = {
            let mut table = core.table.lock();
            table.synced = head;
            table.generation += 1;
            table.heads.remove(&txg);
            table.born.retain(|_, born| *born > txg);
            for (id, _) in &freed {
                table.dead.remove(id);
                table.remove(*id);
            }
            table.dirty.remove(&txg)
        };
        core.numbers.lock().synced(txg, &freed);
        // Objects without other references are dropped here, with no lock held.
        drop(written);
    }
}
