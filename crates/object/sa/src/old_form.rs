//! Old znodes that keep their form: all files of file systems before version 5, and symbolic links after an upgrade.
//!
//! Page `docs/format/znode.md`, "Writing".

use super::{SaChange, SaFile, SaLayouts};
use crate::attributes::TAIL_TARGET_BYTES_MAX;
use crate::layouts::Patch;
use crate::list::znode_offset;
use crate::{SaAttribute, SaError};
use millpond_env::mark;
use millpond_ondisk::acl::{decode_acl, encode_old_acl};
use millpond_ondisk::znode::{ZNODE_ACL_BYTES, ZNODE_BYTES, ZnodeAcl, ZnodePhys};
use millpond_ondisk::{Endian, ObjectId, ObjectType};
use millpond_txg::Transaction;
use std::ops::Range;

/// The encoding of the access control lists that are written into znodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZnodeAclForm {
    /// Entries of 12 bytes: file systems of versions 1 and 2.
    Old,
    /// Entries as in system attributes: file systems from version 3.
    Fuid,
}

/// Where the access control list begins in a znode, in bytes.
const ACL_START: usize = 176;

/// What the changes of a znode set beside fields of fixed length. A list has a count and encoded entries.
#[derive(Default)]
struct Further<'a> {
    list: Option<&'a [u8]>,
    count: Option<u64>,
    target: Option<&'a [u8]>,
}

impl SaLayouts {
    /// Changes attributes of an old znode, which stays one. Its access control list, if that changes, gets the form
    /// `acl`.
    ///
    /// # Errors
    /// [`SaError::Refused`] for attributes that an old znode cannot store; [`SaError::NotAFile`] if the file is not an
    /// old znode; if it is corrupt, or its list cannot be stored.
    pub fn change_znode_in_place(
        &self,
        tx: &Transaction,
        file: &dyn SaFile,
        changes: &[SaChange<'_>],
        acl: ZnodeAclForm,
    ) -> Result<(), SaError> {
        if file.bonus_type() != ObjectType::ZNODE {
            return Err(SaError::NotAFile {
                dataset: self.registry().dataset(),
                object: file.id(),
                bonus_type: file.bonus_type(),
            });
        }
        self.patch_znode(tx, file, &file.bonus(), changes, acl)
    }

    /// Writes the attributes of a new file as an old znode. The object's bonus is of that type and has space for it.
    ///
    /// # Errors
    /// [`SaError::Refused`] for attributes that an old znode cannot store; if its list or target cannot be stored.
    pub fn write_new_znode(
        &self,
        tx: &Transaction,
        file: &dyn SaFile,
        attributes: &[(SaAttribute, &[u8])],
        acl: ZnodeAclForm,
    ) -> Result<(), SaError> {
        let changes: Vec<_> = attributes
            .iter()
            .map(|(attribute, bytes)| SaChange::Set(*attribute, bytes))
            .collect();
        self.patch_znode(tx, file, &[0; ZNODE_BYTES], &changes, acl)
    }

    pub(crate) fn patch_znode(
        &self,
        tx: &Transaction,
        file: &dyn SaFile,
        bonus: &[u8],
        changes: &[SaChange<'_>],
        form: ZnodeAclForm,
    ) -> Result<(), SaError> {
        let id = file.id();
        let registry = self.registry();
        let corrupt = |error| registry.corrupt(id, error);
        let (fixed, further) = self.split(id, changes)?;
        let mut bonus = fixed.apply(bonus);
        let mut external = None;
        if let Some(list) = further.list {
            let (acl, bytes) = self.list_of(id, list, further.count, form)?;
            let mut znode = ZnodePhys::decode(&bonus, Endian::Little).map_err(corrupt)?;
            let old = std::mem::replace(&mut znode.acl, acl).external;
            // This fails before anything changes if the znode names an object of another type.
            if old != ObjectId(0) {
                file.free_acl(old)?;
            }
            let with_list = znode.encode().map_err(corrupt)?;
            overwrite(&mut bonus, ACL_START..ZNODE_BYTES, &with_list);
            external = bytes;
        }
        let unfinished = tx.unfinished();
        if let Some(bytes) = external {
            mark::hit("znode-list-in-its-own-object");
            let kind = match form {
                ZnodeAclForm::Old => ObjectType::OLD_ACL,
                ZnodeAclForm::Fuid => ObjectType::ACL,
            };
            let holder = file.store_acl(kind, bytes)?;
            let place = ACL_START..ACL_START + 8;
            bonus.splice(place, holder.0.to_le_bytes());
        }
        match further.target {
            Some(target) if target.len() as u64 <= TAIL_TARGET_BYTES_MAX => {
                bonus.truncate(ZNODE_BYTES);
                bonus.extend(target);
            }
            Some(target) => file.store_target(target)?,
            None => {}
        }
        file.set_bonus(bonus)?;
        unfinished.done();
        Ok(())
    }

    /// Splits changes into those of fields with a fixed place, and the rest.
    fn split<'a>(
        &self,
        id: ObjectId,
        changes: &[SaChange<'a>],
    ) -> Result<(Patch<'a>, Further<'a>), SaError> {
        let mut patch = Patch::default();
        let mut further = Further::default();
        for change in changes {
            let SaChange::Set(attribute, bytes) = *change else {
                return Err(self.refused(id, "an old znode keeps all its attributes"));
            };
            let has_length = bytes.len() == usize::from(attribute.registration().length);
            match attribute {
                SaAttribute::DaclAces => further.list = Some(bytes),
                SaAttribute::DaclCount => {
                    further.count = bytes.try_into().ok().map(u64::from_le_bytes);
                }
                SaAttribute::Symlink => further.target = Some(bytes),
                _ => {
                    let offset = znode_offset(attribute)
                        .filter(|_| has_length)
                        .ok_or_else(|| self.refused(id, "an old znode has no room for it"))?;
                    // Every offset is within the first 264 bytes.
                    patch.0.push((offset, bytes));
                }
            }
        }
        Ok((patch, further))
    }

    /// Encodes a list of system attributes for a znode. Returns the bytes too if they do not fit there.
    fn list_of(
        &self,
        id: ObjectId,
        list: &[u8],
        count: Option<u64>,
        form: ZnodeAclForm,
    ) -> Result<(ZnodeAcl, Option<Vec<u8>>), SaError> {
        let refused = |_| self.refused(id, "its file system has no such access control list");
        let count = count.ok_or_else(|| self.refused(id, "a list without its length"))?;
        let entries = decode_acl(list, Endian::Little, count).map_err(refused)?;
        let short = u16::try_from(entries.len())
            .map_err(|_| self.refused(id, "an access control list above 65535 entries"))?;
        let (bytes, version, count) = match form {
            ZnodeAclForm::Old => (encode_old_acl(&entries).map_err(refused)?, 0, 0),
            ZnodeAclForm::Fuid => (list.to_vec(), 1, short),
        };
        let size = match form {
            ZnodeAclForm::Old => u32::from(short),
            // Bounded by 65535 entries of 48 bytes.
            ZnodeAclForm::Fuid => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        };
        let mut embedded = [0; ZNODE_ACL_BYTES];
        let place = embedded.get_mut(..bytes.len());
        let is_short = place.map(|place| place.copy_from_slice(&bytes)).is_some();
        let acl = ZnodeAcl {
            external: ObjectId(0),
            size,
            version,
            count,
            embedded,
            endian: Endian::Little,
        };
        Ok((acl, (!is_short).then_some(bytes)))
    }
}

/// Copies a range of `from` to the same place of `to`.
fn overwrite(to: &mut [u8], range: Range<usize>, from: &[u8]) {
    if let (Some(place), Some(bytes)) = (to.get_mut(range.clone()), from.get(range)) {
        place.copy_from_slice(bytes);
    }
}
