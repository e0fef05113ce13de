//! Converts old znodes to system attributes.
//!
//! Page `docs/format/znode.md`, "Writing".

use super::{SaChange, SaFile, SaLayouts};
use crate::attributes::{MODE_SYMLINK, MODE_TYPE};
use crate::list::{Value, change_flags, flag_project, sort_by_template};
use crate::old_form::ZnodeAclForm;
use crate::value::{time, word};
use crate::{Attributes, FileFlags, SaAttribute, SaError};
use millpond_env::mark;
use millpond_ondisk::acl::encode_acl;
use millpond_ondisk::znode::ZnodePhys;
use millpond_ondisk::{Endian, ObjectId};
use millpond_txg::Transaction;

const MODE_CHARACTER_DEVICE: u64 = 0o020_000;
const MODE_BLOCK_DEVICE: u64 = 0o060_000;

impl SaLayouts {
    /// Changes an old znode. A symbolic link keeps its form; any other file is converted to system
    /// attributes.
    pub(crate) fn change_znode(
        &self,
        tx: &Transaction,
        file: &dyn SaFile,
        changes: &[SaChange<'_>],
    ) -> Result<(), SaError> {
        let bonus = file.bonus();
        let old = self.registry().znode(file.id(), &bonus, Endian::Little)?;
        match old.old_znode() {
            Some(znode) if znode.mode & MODE_TYPE == MODE_SYMLINK => {
                self.patch_znode(tx, file, &bonus, changes, ZnodeAclForm::Fuid)
            }
            Some(znode) => self.convert(tx, file, &old, znode, changes),
            None => Ok(()),
        }
    }

    fn convert(
        &self,
        tx: &Transaction,
        file: &dyn SaFile,
        old: &Attributes,
        znode: &ZnodePhys,
        changes: &[SaChange<'_>],
    ) -> Result<(), SaError> {
        let id = file.id();
        self.register(tx)?;
        let registry = self.registry();
        let gets_list = changes
            .iter()
            .any(|change| matches!(change, SaChange::Set(SaAttribute::DaclAces, _)));
        let mut attributes = attributes_of(znode);
        if !gets_list {
            let list = old.acl()?.unwrap_or_default();
            let bytes = encode_acl(&list).map_err(|error| registry.corrupt(id, error))?;
            attributes.push((SaAttribute::DaclCount, word(list.len() as u64)));
            attributes.push((SaAttribute::DaclAces, bytes));
        }
        let mut values: Vec<Value> = vec![];
        for (attribute, bytes) in attributes {
            let registration = self.checked(&registry, id, attribute, &bytes)?;
            values.push(Value {
                registration,
                bytes,
            });
        }
        for change in changes {
            let (SaChange::Set(attribute, _) | SaChange::Remove(attribute)) = *change;
            let number = registry.number(attribute);
            values.retain(|one| Some(one.registration.number) != number);
            if let SaChange::Set(attribute, bytes) = *change {
                values.push(Value {
                    registration: self.checked(&registry, id, attribute, bytes)?,
                    bytes: bytes.to_vec(),
                });
            }
        }
        sort_by_template(&mut values, &registry);
        change_flags(&mut values, &registry, |flags| {
            flags - FileFlags::BONUS_SCANSTAMP
        });
        let project = registry.number(SaAttribute::ProjectId);
        let mut numbers = values.iter().map(|one| Some(one.registration.number));
        if numbers.any(|number| number == project) {
            flag_project(&mut values, &registry);
        }
        let buffers = self.lay_out(tx, id, file.dnode_bytes(), &values, None)?;
        if znode.acl.external != ObjectId(0) {
            mark::hit("old-list-becomes-attribute");
            file.free_acl(znode.acl.external)?;
        }
        // The znode occupies the space of the spill block's pointer, so the bonus is set first.
        file.set_attributes_bonus(buffers.bonus)?;
        if buffers.spill.is_some() {
            file.set_spill(buffers.spill)?;
        }
        Ok(())
    }
}

/// Returns an old znode's attributes except its access control list, little-endian.
fn attributes_of(znode: &ZnodePhys) -> Vec<(SaAttribute, Vec<u8>)> {
    let mut attributes = vec![
        (SaAttribute::Mode, word(znode.mode)),
        (SaAttribute::Size, word(znode.size)),
        (SaAttribute::Generation, word(znode.generation)),
        (SaAttribute::Uid, word(znode.uid.0)),
        (SaAttribute::Gid, word(znode.gid.0)),
        (SaAttribute::Parent, word(znode.parent.0)),
        (SaAttribute::Flags, word(znode.flags.bits())),
        (SaAttribute::Atime, time(znode.atime)),
        (SaAttribute::Mtime, time(znode.mtime)),
        (SaAttribute::Ctime, time(znode.ctime)),
        (SaAttribute::Crtime, time(znode.crtime)),
        (SaAttribute::Links, word(znode.links)),
    ];
    if [MODE_CHARACTER_DEVICE, MODE_BLOCK_DEVICE].contains(&(znode.mode & MODE_TYPE)) {
        attributes.push((SaAttribute::Rdev, word(znode.rdev)));
    }
    if znode.xattr != ObjectId(0) {
        attributes.push((SaAttribute::Xattr, word(znode.xattr.0)));
    }
    if let Some(stamp) = znode.scanstamp() {
        attributes.push((SaAttribute::Scanstamp, stamp.to_vec()));
    }
    attributes
}
