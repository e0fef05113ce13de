//! Extended attributes that change, in both of their places. Page `docs/format/file-system.md`.

use super::attributes::zap;
use super::error::FileError;
use super::file_system::{ENTRY_BYTES, LiveFileSystem, NODE_BYTES};
use super::make::{file_object, folding};
use super::nfs4_acl;
use super::node::{LiveNode, NodeInner};
use super::posix_acl::{POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT, PosixAcl};
use super::quota::QuotaOwner;
use super::settings::{AclKind, Caller, XattrPlace};
use super::state::{Lists, NodeState};
use crate::FileKind;
use crate::xattr::{PREFIXES, XATTR_BYTES_MAX, shown_name};
use millpond_env::sync::Arc;
use millpond_nvlist::{NvList, NvValue};
use millpond_object::LiveObject;
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_sa::FileFlags;
use millpond_txg::Transaction;
use millpond_zap::{NewZap, Zap, new_salt};

/// The longest value that can be set, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The longest name that can be set, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// A longer value is not packed.
const PACKED_VALUE_BYTES_MAX: usize = 32 << 10;
/// The packed list is an attribute, and those are no longer than this.
const PACKED_LIST_BYTES_MAX: usize = 65_535;
const SET_GROUP: u64 = 0o2000;

/// Whether setting an extended attribute may make or replace one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Either.
    #[default]
    Set,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

impl LiveFileSystem {
    /// Names of a file's extended attributes, sorted, each once.
    ///
    /// # Errors
    /// If their list or directory cannot be read.
    pub fn xattr_names(&self, node: &LiveNode) -> Result<Vec<Vec<u8>>, FileError> {
        let _shared = node.xattrs.read();
        let mut names = vec![];
        if let Some(list) = self.packed_list(node)? {
            let packed = list.iter();
            names.extend(packed.filter_map(|pair| shown_name(pair.name.as_bytes())));
        }
        if let Some((directory, _)) = self.xattr_directory(node)? {
            for entry in Zap::open_live(&directory)?.iter() {
                names.extend(shown_name(&entry?.name));
            }
        }
        names.sort();
        names.dedup();
        if self.settings().acl_kind != AclKind::Posix {
            names.retain(|name| !is_posix_acl(name));
        }
        Ok(names)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FileError::NoAttribute`] if the file has it not; [`FileError::NotSupported`]; or if it cannot
    /// be read.
    pub fn xattr(&self, node: &LiveNode, name: &[u8]) -> Result<Vec<u8>, FileError> {
        self.check_name(node, name)?;
        self.stored_xattr(node, name)?.ok_or(FileError::NoAttribute)
    }

    /// As [`LiveFileSystem::xattr`], of any name.
    pub(super) fn stored_xattr(
        &self,
        node: &NodeInner,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, FileError> {
        let _shared = node.xattrs.read();
        if let Some(value) = self.value_of(node, name)? {
            return Ok(Some(value));
        }
        // FreeBSD stores the names of user attributes without their prefix.
        match name.strip_prefix(b"user.") {
            Some(bare) => self.value_of(node, bare),
            None => Ok(None),
        }
    }

    fn value_of(&self, node: &NodeInner, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        if let Some(list) = self.packed_list(node)?
            && let Some(value) = list.get(name)
        {
            return match value {
                NvValue::ByteArray(bytes) => Ok(Some(bytes.clone())),
                _ => Err(self.corrupt(node.id, "an extended attribute is no byte array")),
            };
        }
        let Some((directory, _)) = self.xattr_directory(node)? else {
            return Ok(None);
        };
        let Some((file, state)) = self.hidden_file(&directory, name)? else {
            return Ok(None);
        };
        if state.size > XATTR_BYTES_MAX {
            return Err(self.corrupt(file.id(), "an extended attribute above 16 MiB"));
        }
        let mut value = vec![0u8; state.size as usize];
        file.read(0, &mut value)?;
        Ok(Some(value))
    }

    /// Sets an extended attribute. POSIX lists change the mode as well, and one that says no more than
    /// the mode is not stored.
    ///
    /// # Errors
    /// [`FileError::Exists`], [`FileError::NoAttribute`] by `mode`; [`FileError::NotSupported`] and
    /// [`FileError::Invalid`] for names and lists that cannot be; [`FileError::ValueTooLong`]; flags,
    /// quotas and space.
    pub fn set_xattr(
        &self,
        caller: &Caller,
        node: &LiveNode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        self.check_name(node, name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(FileError::ValueTooLong);
        }
        self.check_writable()?;
        let change = node.lock_changes();
        self.check_xattr_change(node)?;
        match (mode, self.stored_xattr(node, name)?.is_some()) {
            (XattrMode::Create, true) => return Err(FileError::Exists),
            (XattrMode::Replace, false) => return Err(FileError::NoAttribute),
            _ => {}
        }
        if is_posix_acl(name) {
            self.set_posix_acl(caller, node, name, value)?;
            drop(change);
            return self.settle();
        }
        {
            let tx = self.begin_for_xattr(node, value.len())?;
            self.store_xattr(&tx, node, name, Some(value))?;
            self.note_xattr_change(&tx, node)?;
            let is_packed = self.has_packed(node, name)?;
            self.record_xattr(&tx, node, name, Some(value), is_packed);
        }
        drop(change);
        self.settle()
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FileError::NoAttribute`]; as [`LiveFileSystem::set_xattr`].
    pub fn remove_xattr(&self, node: &LiveNode, name: &[u8]) -> Result<(), FileError> {
        self.check_name(node, name)?;
        self.check_writable()?;
        let change = node.lock_changes();
        self.check_xattr_change(node)?;
        if self.stored_xattr(node, name)?.is_none() {
            return Err(FileError::NoAttribute);
        }
        {
            let is_packed = self.has_packed(node, name)?;
            let tx = self.begin_for_xattr(node, 0)?;
            self.store_xattr(&tx, node, name, None)?;
            self.note_xattr_change(&tx, node)?;
            self.record_xattr(&tx, node, name, None, is_packed);
        }
        drop(change);
        self.settle()
    }

    /// Whether an attribute stands in the packed list under exactly this name, and there alone.
    pub(super) fn has_packed(&self, node: &NodeInner, name: &[u8]) -> Result<bool, FileError> {
        let list = self.packed_list(node)?;
        let has_it = list.is_some_and(|list| list.contains(name));
        Ok(has_it && node.state().xattr_directory.is_none())
    }

    fn begin_for_xattr(&self, node: &NodeInner, bytes: usize) -> Result<Transaction, FileError> {
        let state = node.state();
        if bytes > 0 && state.xattr_directory.is_none() {
            self.check_new_owner(QuotaOwner::User, state.uid.0)?;
            self.check_new_owner(QuotaOwner::Group, state.gid.0)?;
            self.check_new_owner(QuotaOwner::Project, state.project_or_zero())?;
        }
        // A new directory and a new file in it, and the file's spill block.
        let spill = 2 * PACKED_LIST_BYTES_MAX as u64;
        self.begin(4 * NODE_BYTES + 2 * ENTRY_BYTES + spill + 2 * bytes as u64)
    }

    fn note_xattr_change(&self, tx: &Transaction, node: &NodeInner) -> Result<(), FileError> {
        let mut state = node.state();
        state.attributes_changed(self.now());
        self.store(tx, node, state, &Lists::default())
    }

    fn check_xattr_change(&self, node: &NodeInner) -> Result<(), FileError> {
        let forbidding = FileFlags::IMMUTABLE | FileFlags::APPENDONLY;
        if node.state().flags.intersects(forbidding) {
            return Err(FileError::NotPermitted);
        }
        Ok(())
    }

    fn check_name(&self, node: &NodeInner, name: &[u8]) -> Result<(), FileError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        let settings = self.settings();
        if is_posix_acl(name) {
            let may_have = settings.acl_kind == AclKind::Posix && node.kind != FileKind::Symlink;
            return may_have.then_some(()).ok_or(FileError::NotSupported);
        }
        let prefix = PREFIXES.iter().find(|prefix| name.starts_with(prefix));
        let Some(prefix) = prefix.filter(|prefix| **prefix != b"system.") else {
            return Err(FileError::NotSupported);
        };
        let rest = &name[prefix.len()..];
        if rest.is_empty() || name.contains(&0) {
            return Err(FileError::invalid("no attribute can have this name"));
        }
        if *prefix == b"user." {
            if settings.xattr == XattrPlace::Off {
                return Err(FileError::NotSupported);
            }
            if !matches!(node.kind, FileKind::Regular | FileKind::Directory) {
                return Err(FileError::NotPermitted);
            }
            let is_reserved = rest.starts_with(b"freebsd:")
                || PREFIXES.iter().any(|prefix| rest.starts_with(prefix));
            if is_reserved {
                return Err(FileError::invalid(
                    "a name that other systems would misread",
                ));
            }
        }
        Ok(())
    }

    /// Sets a POSIX list, and the mode that it shows. The caller holds the node's change lock.
    fn set_posix_acl(
        &self,
        caller: &Caller,
        node: &LiveNode,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), FileError> {
        let acl = PosixAcl::decode(value)
            .map_err(|_| FileError::invalid("not a valid access control list"))?;
        let mut state = node.state();
        let mut lists = Lists::default();
        let stored = if name == POSIX_ACL_DEFAULT {
            if acl.is_some() && !node.is_directory() {
                return Err(FileError::AccessDenied);
            }
            acl
        } else {
            if let Some(acl) = &acl {
                state.mode = (state.mode & !0o777) | acl.mode();
                if !caller.is_privileged && !caller.is_in_group(state.gid.0) {
                    state.mode &= !SET_GROUP;
                }
                self.change_list(node, &mut state, &mut lists)?;
            }
            acl.filter(|acl| !acl.is_the_mode())
        };
        let stored = stored.map(|acl| acl.encode());
        let bytes = stored.as_ref().map_or(0, Vec::len);
        let tx = self.begin_for_xattr(node, bytes)?;
        state.attributes_changed(self.now());
        self.store(&tx, node, state, &lists)?;
        let was_packed = self.has_packed(node, name)?;
        let was_there = was_packed || self.value_of(node, name)?.is_some();
        self.store_xattr(&tx, node, name, stored.as_deref())?;
        if name != POSIX_ACL_DEFAULT {
            self.record_mode(&tx, node, &state);
        }
        if stored.is_some() || was_there {
            let is_packed = match stored {
                Some(_) => self.has_packed(node, name)?,
                None => was_packed,
            };
            self.record_xattr(&tx, node, name, stored.as_deref(), is_packed);
        }
        Ok(())
    }

    /// Gives an attribute a value, or takes it away with `None`, in whichever place it belongs. The caller
    /// holds the node's change lock, or the node is still unknown to others.
    pub(super) fn store_xattr(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FileError> {
        let _exclusive = node.xattrs.write();
        // What FreeBSD stored without its prefix is the same attribute.
        let bare = name.strip_prefix(b"user.");
        let packs = self.settings().xattr != XattrPlace::Directory;
        let list = self.packed_list(node)?;
        let had_packed = list.as_ref().is_some_and(|list| {
            list.contains(name) || bare.is_some_and(|bare| list.contains(bare))
        });
        let mut without = list.unwrap_or_else(|| NvList::with_flags(NvList::UNIQUE_NAME));
        without.remove(name);
        if let Some(bare) = bare {
            without.remove(bare);
        }
        if let Some(value) = value.filter(|_| packs)
            && let Some(packed) = packed_with(&without, name, value)
        {
            self.store_packed(tx, node, packed)?;
            return self.remove_hidden(tx, node, name, bare);
        }
        match value {
            Some(value) => self.store_hidden_file(tx, node, name, value)?,
            None => self.remove_hidden(tx, node, name, None)?,
        }
        if let Some(bare) = bare {
            self.remove_hidden(tx, node, bare, None)?;
        }
        if had_packed {
            let packed = without.encode_xdr();
            let packed = packed.map_err(|_| self.corrupt(node.id, "attributes that cannot be"))?;
            self.store_packed(tx, node, packed)?;
        }
        Ok(())
    }

    pub(super) fn store_packed(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        packed: Vec<u8>,
    ) -> Result<(), FileError> {
        let lists = Lists {
            packed_xattrs: Some(packed),
            ..Lists::default()
        };
        self.store(tx, node, node.state(), &lists)
    }

    pub(super) fn packed_list(&self, node: &NodeInner) -> Result<Option<NvList>, FileError> {
        let Some(packed) = self.tables.packed_xattrs(&node.object)? else {
            return Ok(None);
        };
        if packed.is_empty() {
            return Ok(None);
        }
        NvList::decode(&packed)
            .map(Some)
            .map_err(|_| self.corrupt(node.id, "its extended attributes cannot be decoded"))
    }

    /// The hidden directory of a file, if it has one.
    fn xattr_directory(
        &self,
        node: &NodeInner,
    ) -> Result<Option<(Arc<LiveObject>, NodeState)>, FileError> {
        let Some(id) = node.state().xattr_directory else {
            return Ok(None);
        };
        let object = self.object_set().object(id)?;
        let state = self.tables.read(&object)?;
        if state.kind() != Some(FileKind::Directory) {
            return Err(self.corrupt(id, "extended attributes are not in a directory"));
        }
        Ok(Some((object, state)))
    }

    fn hidden_file(
        &self,
        directory: &Arc<LiveObject>,
        name: &[u8],
    ) -> Result<Option<(Arc<LiveObject>, NodeState)>, FileError> {
        let entry = Zap::open_live(directory)?.lookup_entry(name, self.name_match())?;
        let Some(value) = entry.and_then(|entry| entry.value.first()) else {
            return Ok(None);
        };
        let object = self
            .object_set()
            .object(ObjectId(value & 0xffff_ffff_ffff))?;
        let state = self.tables.read(&object)?;
        if state.kind() != Some(FileKind::Regular) {
            return Err(self.corrupt(object.id(), "an extended attribute is no ordinary file"));
        }
        Ok(Some((object, state)))
    }

    /// Puts a value into a file of the hidden directory, both made as needed.
    fn store_hidden_file(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), FileError> {
        let now = self.now();
        let (directory, directory_state) = match self.xattr_directory(node)? {
            Some(found) => found,
            None => self.make_xattr_directory(tx, node)?,
        };
        let (file, state, is_new) = match self.hidden_file(&directory, name)? {
            Some((file, state)) => (file, state, false),
            None => {
                let (file, state) = self.make_hidden(tx, node, &directory, FileKind::Regular)?;
                (file, state, true)
            }
        };
        let mut new = state;
        new.size = value.len() as u64;
        new.content_changed(now);
        file.free_range(tx, 0, u64::MAX)?;
        let wanted = (value.len() as u64).div_ceil(512).max(1) * 512;
        let record = u64::from(self.record_bytes());
        let block = file.block_bytes();
        if wanted > block && file.block_id_max().0 == 0 && (block < record) {
            let bytes = u32::try_from(wanted.min(record)).unwrap_or(512);
            file.set_block_bytes(tx, bytes, None)?;
        }
        if !value.is_empty() {
            file.write(tx, 0, value)?;
        }
        self.store_hidden(tx, &file, &state, &new)?;
        if is_new {
            let entry = file.id().0 | FileKind::Regular.entry_type() << 60;
            zap(&directory, tx).insert_u64(name, entry)?;
            let mut changed = directory_state;
            changed.entries_changed(1, 0, now);
            self.store_hidden(tx, &directory, &directory_state, &changed)?;
        }
        Ok(())
    }

    /// Removes the file of an attribute from the hidden directory, under either of its names.
    fn remove_hidden(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        name: &[u8],
        bare: Option<&[u8]>,
    ) -> Result<(), FileError> {
        for name in [Some(name), bare].into_iter().flatten() {
            let Some((directory, state)) = self.xattr_directory(node)? else {
                return Ok(());
            };
            let removed = zap(&directory, tx).remove_entry(name, self.name_match())?;
            let Some(value) = removed.and_then(|entry| entry.value.first()) else {
                continue;
            };
            let id = ObjectId(value & 0xffff_ffff_ffff);
            self.object_set().free(tx, id)?;
            let mut changed = state;
            changed.entries_changed(-1, 0, self.now());
            self.store_hidden(tx, &directory, &state, &changed)?;
        }
        Ok(())
    }

    fn make_xattr_directory(
        &self,
        tx: &Transaction,
        node: &NodeInner,
    ) -> Result<(Arc<LiveObject>, NodeState), FileError> {
        self.make_xattr_directory_as(tx, node, None)
    }

    /// The same under a number and with a generation and a time that a record of the intent log says.
    pub(super) fn make_xattr_directory_as(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        wanted: Option<(ObjectId, u8, u64)>,
    ) -> Result<(Arc<LiveObject>, NodeState), FileError> {
        let (object, state) =
            self.make_hidden_as(tx, node, &node.object, FileKind::Directory, wanted)?;
        let new = NewZap {
            normalisation: folding(self.normalisation(), self.case()),
            ..NewZap::plain(new_salt(self.env()))
        };
        zap(&object, tx).create(&new)?;
        let mut owner = node.state();
        owner.xattr_directory = Some(object.id());
        self.store(tx, node, owner, &Lists::default())?;
        Ok((object, state))
    }

    /// A hidden directory, or a file in one. It is the owner's, whoever sets the attribute.
    fn make_hidden(
        &self,
        tx: &Transaction,
        owner: &NodeInner,
        parent: &Arc<LiveObject>,
        kind: FileKind,
    ) -> Result<(Arc<LiveObject>, NodeState), FileError> {
        self.make_hidden_as(tx, owner, parent, kind, None)
    }

    fn make_hidden_as(
        &self,
        tx: &Transaction,
        owner: &NodeInner,
        parent: &Arc<LiveObject>,
        kind: FileKind,
        wanted: Option<(ObjectId, u8, u64)>,
    ) -> Result<(Arc<LiveObject>, NodeState), FileError> {
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
        let project = self
            .settings()
            .has_projects
            .then(|| owner.project_or_zero());
        if project.is_some() {
            flags |= FileFlags::PROJECT_ID;
        }
        let now = self.now();
        let state = NodeState {
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
        let object_type = if is_directory {
            ObjectType::DIRECTORY
        } else {
            ObjectType::PLAIN_FILE
        };
        let slots = self.settings().dnode_slots.clamp(1, 32);
        let set = self.object_set();
        let object = match wanted {
            Some((id, slots, _)) => set.allocate_at(tx, id, file_object(object_type, slots))?,
            None => set.allocate(tx, file_object(object_type, slots))?,
        };
        self.tables
            .write_new(tx, &object, &state.all(&Lists::of_acl(acl)))?;
        Ok((object, state))
    }

    /// Gives the hidden directory, and what is in it, the owners of the file. The caller holds the
    /// node's change lock.
    pub(super) fn hand_over_xattrs(
        &self,
        tx: &Transaction,
        owner: &NodeState,
    ) -> Result<(), FileError> {
        let Some(id) = owner.xattr_directory else {
            return Ok(());
        };
        let directory = self.object_set().object(id)?;
        let mut objects = vec![Arc::clone(&directory)];
        for entry in Zap::open_live(&directory)?.iter() {
            if let Some(value) = entry?.value.first() {
                let id = ObjectId(value & 0xffff_ffff_ffff);
                objects.push(self.object_set().object(id)?);
            }
        }
        for object in objects {
            let old = self.tables.read(&object)?;
            let mut new = old;
            (new.uid, new.gid) = (owner.uid, owner.gid);
            if owner.project.is_some() {
                new.project = owner.project;
                new.flags |= FileFlags::PROJECT_ID;
            }
            self.store_hidden(tx, &object, &old, &new)?;
        }
        Ok(())
    }

    /// Frees everything in a hidden directory whose file is gone, each in a transaction of its own.
    pub(super) fn empty_xattr_directory(
        &self,
        directory: &Arc<LiveObject>,
    ) -> Result<(), FileError> {
        loop {
            let Some(entry) = Zap::open_live(directory)?.iter().next() else {
                return Ok(());
            };
            let entry = entry?;
            let id = ObjectId(entry.value.first().unwrap_or(0) & 0xffff_ffff_ffff);
            let tx = self.begin_freeing(NODE_BYTES + ENTRY_BYTES)?;
            zap(directory, &tx).remove(&entry.name)?;
            match self.object_set().free(&tx, id) {
                // Gone already: nothing to free.
                Ok(()) | Err(millpond_object::ObjectError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_posix_acl(name: &[u8]) -> bool {
    name == POSIX_ACL_ACCESS || name == POSIX_ACL_DEFAULT
}

/// The packed list with one attribute more; `None` if that cannot be packed.
fn packed_with(list: &NvList, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    if value.len() > PACKED_VALUE_BYTES_MAX {
        return None;
    }
    let mut list = list.clone();
    list.insert(name.to_vec(), NvValue::ByteArray(value.to_vec()));
    let packed = list.encode_xdr().ok()?;
    (packed.len() <= PACKED_LIST_BYTES_MAX).then_some(packed)
}
