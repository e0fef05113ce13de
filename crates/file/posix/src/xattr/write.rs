//! Sets and removes extended attributes.

use super::{XattrMode, is_posix_acl};
use crate::attributes::AttributeTables;
use crate::error::FileError;
use crate::file_system::VERSION;
use crate::open_node::{NodeInner, OpenNode};
use crate::posix_acl::{POSIX_ACL_DEFAULT, PosixAcl};
use crate::quota::QuotaOwner;
use crate::settings::{Caller, XattrPlace};
use crate::state::Lists;
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use crate::{FileKind, FileSystem, Node};
use millpond_nvlist::{NvList, NvValue};
use millpond_sa::FileFlags;
use millpond_txg::Transaction;

/// The longest value that can be set, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The longest value that is packed, in bytes.
const PACKED_VALUE_BYTES_MAX: usize = 32 << 10;
/// The longest packed list in bytes. The list is a system attribute, which cannot be longer.
const PACKED_LIST_BYTES_MAX: usize = 65_535;
const SET_GROUP: u64 = 0o2000;

impl FileSystem {
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
        node: &Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        let node = node.for_change()?;
        self.check_xattr_name(node.kind(), name)?;
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
    /// [`FileError::NoAttribute`]; as [`FileSystem::set_xattr`].
    pub fn remove_xattr(&self, node: &Node, name: &[u8]) -> Result<(), FileError> {
        let node = node.for_change()?;
        self.check_xattr_name(node.kind(), name)?;
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
    pub(crate) fn has_packed(&self, node: &NodeInner, name: &[u8]) -> Result<bool, FileError> {
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
        let writing = self.writing()?;
        let mut state = node.state();
        state.attributes_changed(writing.now());
        self.store(tx, node, state, &Lists::default())
    }

    fn check_xattr_change(&self, node: &NodeInner) -> Result<(), FileError> {
        let forbidding = FileFlags::IMMUTABLE | FileFlags::APPENDONLY;
        if self.forbids(&node.state(), forbidding) {
            return Err(FileError::NotPermitted);
        }
        Ok(())
    }

    /// Sets a POSIX ACL and the mode that represents it. The caller holds the node's change lock.
    fn set_posix_acl(
        &self,
        caller: &Caller,
        node: &OpenNode,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
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
        let was_there = was_packed || self.xattrs_of(node)?.value(name)?.is_some();
        let tx = self.begin_for_xattr(node, bytes)?;
        state.attributes_changed(writing.now());
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
    pub(crate) fn store_xattr(
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
        let has_attributes = self.version_in(tx) >= VERSION && !is_old_link;
        let packs = self.settings().xattr != XattrPlace::Directory && has_attributes;
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

    pub(crate) fn store_packed(
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

    pub(crate) fn packed_list(&self, node: &NodeInner) -> Result<Option<NvList>, FileError> {
        self.xattrs_of(node)?.packed()
    }
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
