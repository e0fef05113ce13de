//! Extended attributes that are stored as files, in a hidden directory of their file.

use super::read::ENTRY_OBJECT;
use crate::FileKind;
use crate::FileSystem;
use crate::attributes::{AttributeForm, zap};
use crate::content::grown_block_bytes;
use crate::create::file_object;
use crate::error::FileError;
use crate::nfs4_acl;
use crate::open_node::NodeInner;
use crate::state::{Lists, NodeState};
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use millpond_env::sync::Arc;
use millpond_object::Object;
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_sa::FileFlags;
use millpond_txg::Transaction;
use millpond_zap::{NewZap, Zap, new_salt};

impl FileSystem {
    /// The hidden directory of a file, if it has one.
    ///
    /// # Errors
    /// Also if the spill block, which may name it, is lost.
    pub(crate) fn xattr_directory(
        &self,
        node: &NodeInner,
    ) -> Result<Option<(Arc<Object>, NodeState)>, FileError> {
        let writing = self.writing()?;
        let id = match node.state().xattr_directory {
            // A lost spill block may name one: a second must not take its place.
            None if node.object.has_spill() => {
                let attributes = writing.tables().attributes(&node.object)?;
                attributes.xattr_directory()?
            }
            known => known,
        };
        let Some(id) = id else {
            return Ok(None);
        };
        let object = writing.set().object(id)?;
        let state = writing.tables().read(&object)?;
        self.check_hidden(id, state.kind(), FileKind::Directory)?;
        Ok(Some((object, state)))
    }

    fn hidden_file(
        &self,
        directory: &Arc<Object>,
        name: &[u8],
    ) -> Result<Option<(Arc<Object>, NodeState)>, FileError> {
        let writing = self.writing()?;
        let Some(id) = self.hidden_entry(&Zap::of_object(directory)?, name)? else {
            return Ok(None);
        };
        let object = writing.set().object(id)?;
        let state = writing.tables().read(&object)?;
        self.check_hidden(id, state.kind(), FileKind::Regular)?;
        Ok(Some((object, state)))
    }

    /// Stores a value in a file of the hidden directory, and creates both as needed.
    pub(crate) fn store_hidden_file(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let now = writing.now();
        let (directory, directory_state) = match self.xattr_directory(node)? {
            Some(found) => found,
            None => self.make_xattr_directory(tx, node, None)?,
        };
        let (file, state, is_new) = match self.hidden_file(&directory, name)? {
            Some((file, state)) => (file, state, false),
            None => {
                let (file, state) =
                    self.make_hidden(tx, node, &directory, FileKind::Regular, None)?;
                (file, state, true)
            }
        };
        // If the old content cannot be freed, only this attribute is affected.
        let made = is_new.then(|| tx.unfinished());
        let mut new = state;
        new.size = value.len() as u64;
        new.content_changed(now);
        file.free_range(tx, 0, u64::MAX)?;
        let unfinished = made.unwrap_or_else(|| tx.unfinished());
        let record = u64::from(self.record_bytes());
        let grown = grown_block_bytes(file.block_bytes(), record, value.len() as u64);
        let grown = grown.filter(|_| file.block_id_max().0 == 0);
        if let Some(bytes) = grown.and_then(|bytes| u32::try_from(bytes).ok()) {
            file.set_block_bytes(tx, bytes, None)?;
        }
        if !value.is_empty() {
            file.write(tx, 0, value)?;
        }
        self.store_hidden(tx, &file, &state, &new)?;
        if is_new {
            let entry = self.entry_value(tx, file.id(), FileKind::Regular);
            zap(&directory, tx).insert_u64(name, entry)?;
            let mut changed = directory_state;
            changed.entries_changed(1, 0, now);
            self.store_hidden(tx, &directory, &directory_state, &changed)?;
        }
        unfinished.done();
        Ok(())
    }

    /// Removes an attribute's file from the hidden directory, under both of its possible names.
    pub(crate) fn remove_hidden(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        name: &[u8],
        bare: Option<&[u8]>,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        for name in [Some(name), bare].into_iter().flatten() {
            let Some((directory, state)) = self.xattr_directory(node)? else {
                return Ok(());
            };
            let removed = zap(&directory, tx).remove_entry(name, self.names().name_match())?;
            let Some(value) = removed.and_then(|entry| entry.value.first()) else {
                continue;
            };
            let unfinished = tx.unfinished();
            let id = ObjectId(value & ENTRY_OBJECT);
            if !writing.tables().free(tx, id)? {
                return Err(self.corrupt(id, "an extended attribute does not exist"));
            }
            let mut changed = state;
            changed.entries_changed(-1, 0, writing.now());
            self.store_hidden(tx, &directory, &state, &changed)?;
            unfinished.done();
        }
        Ok(())
    }

    /// Creates the hidden directory of a file. `wanted` is the object id, dnode slots and generation from an
    /// intent log record.
    pub(crate) fn make_xattr_directory(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        wanted: Option<(ObjectId, u8, u64)>,
    ) -> Result<(Arc<Object>, NodeState), FileError> {
        let writing = self.writing()?;
        let (object, state) =
            self.make_hidden(tx, node, &node.object, FileKind::Directory, wanted)?;
        let unfinished = tx.unfinished();
        let new = NewZap {
            normalisation: self.names().folding(),
            ..NewZap::plain(new_salt(writing.env()))
        };
        zap(&object, tx).create(&new)?;
        let mut owner = node.state();
        owner.xattr_directory = Some(object.id());
        self.store(tx, node, owner, &Lists::default())?;
        unfinished.done();
        Ok((object, state))
    }

    /// Creates a hidden directory, or a file in one. It belongs to the file's owner, no matter which caller
    /// sets the attribute.
    fn make_hidden(
        &self,
        tx: &Transaction,
        owner: &NodeInner,
        parent: &Arc<Object>,
        kind: FileKind,
        wanted: Option<(ObjectId, u8, u64)>,
    ) -> Result<(Arc<Object>, NodeState), FileError> {
        let writing = self.writing()?;
        let owner = owner.state();
        let is_directory = kind == FileKind::Directory;
        let permissions = if is_directory { 0o1777 } else { 0o644 };
        let mode = kind.entry_type() << 12 | permissions;
        let acl = nfs4_acl::trivial_acl(mode, is_directory);
        let mut flags =
            FileFlags::ARCHIVE | FileFlags::AV_MODIFIED | FileFlags::XATTR | nfs4_acl::hints(&acl);
        if is_directory {
            flags |= FileFlags::ACL_AUTO_INHERIT;
        }
        let now = writing.now();
        let version = self.version_in(tx);
        let form = AttributeForm::of_version(version);
        // The version may be raised meanwhile, for later txgs than this one: its form decides.
        let has_project = self.has_projects() && form == AttributeForm::System;
        let project = has_project.then(|| owner.project_or_zero());
        if project.is_some() {
            flags |= FileFlags::PROJECT_ID;
        }
        let mut state = NodeState {
            mode,
            size: if is_directory { 2 } else { 0 },
            generation: wanted.map_or(tx.txg().0, |(_, _, generation)| generation),
            uid: owner.uid,
            gid: owner.gid,
            parent: parent.id(),
            flags,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links: if is_directory { 2 } else { 1 },
            project,
            rdev: None,
            xattr_directory: None,
        };
        state.keep_to_version(version, FileFlags::empty());
        let object_type = if is_directory {
            ObjectType::DIRECTORY
        } else {
            ObjectType::PLAIN_FILE
        };
        let slots = self.settings().dnode_slots.clamp(1, 32);
        let set = writing.set();
        let object = match wanted {
            Some((id, slots, _)) => {
                set.allocate_at(tx, id, file_object(object_type, slots, form))?
            }
            None => set.allocate(tx, file_object(object_type, slots, form))?,
        };
        let unfinished = tx.unfinished();
        writing
            .tables()
            .write_new(tx, &object, &state.all(&Lists::of_acl(acl)), form)?;
        unfinished.done();
        Ok((object, state))
    }

    /// Computes the changes that give the hidden directory and its files the same owners as the file.
    ///
    /// Returns each object with its old and new state. The caller holds the node's change lock.
    pub(crate) fn handed_over_xattrs(
        &self,
        owner: &NodeState,
    ) -> Result<Vec<(Arc<Object>, NodeState, NodeState)>, FileError> {
        let writing = self.writing()?;
        let Some(id) = owner.xattr_directory else {
            return Ok(vec![]);
        };
        let directory = writing.set().object(id)?;
        let mut objects = vec![Arc::clone(&directory)];
        for entry in Zap::of_object(&directory)?.iter() {
            if let Some(value) = entry?.value.first() {
                let id = ObjectId(value & ENTRY_OBJECT);
                objects.push(writing.set().object(id)?);
            }
        }
        let mut changes = vec![];
        for object in objects {
            let old = writing.tables().read(&object)?;
            let mut new = old;
            (new.uid, new.gid) = (owner.uid, owner.gid);
            if owner.project.is_some() {
                new.project = owner.project;
                new.flags |= FileFlags::PROJECT_ID;
            }
            changes.push((object, old, new));
        }
        Ok(changes)
    }

    /// Frees everything in the hidden directory of a removed file, each file in its own transaction.
    pub(crate) fn empty_xattr_directory(&self, directory: &Arc<Object>) -> Result<(), FileError> {
        let writing = self.writing()?;
        loop {
            let Some(entry) = Zap::of_object(directory)?.iter().next() else {
                return Ok(());
            };
            let entry = entry?;
            let id = ObjectId(entry.value.first().unwrap_or(0) & ENTRY_OBJECT);
            let tx = self.begin_freeing(NODE_BYTES + ENTRY_BYTES, 0)?;
            // If the file is already freed, only its entry is removed.
            writing.tables().free(&tx, id)?;
            zap(directory, &tx).remove(&entry.name)?;
        }
    }
}
