//! Extended attributes of files that change, in both storage places. Page `docs/format/file-system.md`.

use super::attributes::AttributeTables;
use super::file_system::{ENTRY_BYTES, LiveFileSystem, NODE_BYTES};
use super::node::{LiveNode, NodeInner};
use super::posix_acl::{POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT, PosixAcl};
use super::quota::QuotaOwner;
use super::settings::{AclKind, Caller, XattrPlace};
use super::state::Lists;
use crate::FileKind;
use crate::error::FileError;
use crate::xattr::{PREFIXES, XATTR_BYTES_MAX, shown_name};
use millpond_nvlist::{NvList, NvValue};
use millpond_sa::FileFlags;
use millpond_txg::Transaction;
use millpond_zap::Zap;

/// The longest value that can be set, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The longest name that can be set, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The longest value that is packed, in bytes.
const PACKED_VALUE_BYTES_MAX: usize = 32 << 10;
/// The longest packed list in bytes. The list is a system attribute, which cannot be longer.
const PACKED_LIST_BYTES_MAX: usize = 65_535;
const SET_GROUP: u64 = 0o2000;

/// Whether setting an extended attribute may create or replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Set,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

impl LiveFileSystem {
    /// The names of a file's extended attributes, sorted and without duplicates.
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
            for entry in Zap::of_object(&directory)?.iter() {
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
    /// [`FileError::NoAttribute`] if the file does not have it; [`FileError::NotSupported`]; or if it cannot
    /// be read.
    pub fn xattr(&self, node: &LiveNode, name: &[u8]) -> Result<Vec<u8>, FileError> {
        self.check_name(node, name)?;
        self.stored_xattr(node, name)?.ok_or(FileError::NoAttribute)
    }

    /// Like [`LiveFileSystem::xattr`], without checking the name.
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

    /// Sets an extended attribute.
    ///
    /// A POSIX ACL also changes the mode, and an ACL that is equivalent to the mode is not stored.
    ///
    /// # Errors
    /// [`FileError::Exists`], [`FileError::NoAttribute`] by `mode`; [`FileError::NotSupported`] and
    /// [`FileError::Invalid`] for invalid names and lists; [`FileError::ValueTooLong`]; flags, quotas and
    /// space.
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
            // If a later step fails, a changed time alone is harmless.
            self.note_xattr_change(&tx, node)?;
            self.store_xattr(&tx, node, name, Some(value))?;
            let unfinished = tx.unfinished();
            let is_packed = self.has_packed(node, name)?;
            self.record_xattr(&tx, node, name, Some(value), is_packed);
            unfinished.done();
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
            self.note_xattr_change(&tx, node)?;
            self.store_xattr(&tx, node, name, None)?;
            self.record_xattr(&tx, node, name, None, is_packed);
        }
        drop(change);
        self.settle()
    }

    /// Whether an attribute is in the packed list under exactly this name, and the file has no extended
    /// attribute directory.
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
        // A new directory, a new file in it, and the file's spill block.
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

    /// Sets a POSIX ACL and the mode that represents it. The caller holds the node's change lock.
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
        let was_packed = self.has_packed(node, name)?;
        let was_there = was_packed || self.value_of(node, name)?.is_some();
        let tx = self.begin_for_xattr(node, bytes)?;
        state.attributes_changed(self.now());
        self.store(&tx, node, state, &lists)?;
        let unfinished = tx.unfinished();
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
        unfinished.done();
        Ok(())
    }

    /// Sets an attribute, or removes it with `None`, in the right storage place.
    ///
    /// The caller holds the node's change lock, or the node is not visible to other threads yet.
    pub(super) fn store_xattr(
        &self,
        tx: &Transaction,
        node: &NodeInner,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FileError> {
        let _exclusive = node.xattrs.write();
        // A name that FreeBSD stored without the prefix is the same attribute.
        let bare = name.strip_prefix(b"user.");
        let is_old_link = node.kind == FileKind::Symlink && AttributeTables::is_old(&node.object);
        let packs = self.settings().xattr != XattrPlace::Directory && !is_old_link;
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
            let unfinished = tx.unfinished();
            self.remove_hidden(tx, node, name, bare)?;
            unfinished.done();
            return Ok(());
        }
        match value {
            Some(value) => self.store_hidden_file(tx, node, name, value)?,
            None => self.remove_hidden(tx, node, name, None)?,
        }
        let unfinished = tx.unfinished();
        if let Some(bare) = bare {
            self.remove_hidden(tx, node, bare, None)?;
        }
        if had_packed {
            let packed = without.encode_xdr();
            let packed = packed.map_err(|_| self.corrupt(node.id, "attributes that cannot be"))?;
            self.store_packed(tx, node, packed)?;
        }
        unfinished.done();
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
}

fn is_posix_acl(name: &[u8]) -> bool {
    name == POSIX_ACL_ACCESS || name == POSIX_ACL_DEFAULT
}

/// Encodes the list with one more attribute; `None` if that cannot be packed.
fn packed_with(list: &NvList, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    if value.len() > PACKED_VALUE_BYTES_MAX {
        return None;
    }
    let mut list = list.clone();
    list.insert(name.to_vec(), NvValue::ByteArray(value.to_vec()));
    let packed = list.encode_xdr().ok()?;
    (packed.len() <= PACKED_LIST_BYTES_MAX).then_some(packed)
}
