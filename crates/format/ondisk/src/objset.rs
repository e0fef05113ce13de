//! Object set blocks: where the dnodes of a dataset, or of the pool itself, begin.
//!
//! Page `docs/format/object-set.md`.

use crate::{DecodeError, Dnode, Endian, Reader};

/// What an object set holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectSetKind {
    /// The pool's own objects (the MOS).
    Meta,
    /// A file system.
    FileSystem,
    /// A volume.
    Volume,
    /// Test programs' object sets.
    Other,
}

/// An object set block in native form. Page `docs/format/object-set.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSetPhys {
    /// The dnode of the array of dnodes.
    pub meta_dnode: Dnode,
    /// The intent log header: 24 words.
    pub intent_log_header: [u64; 24],
    /// What the set holds.
    pub kind: ObjectSetKind,
    /// Bit 0 user accounting complete, bit 1 object accounting complete, bit 2 project accounting complete.
    pub flags: u64,
    /// MAC over the parts that survive a raw send (encrypted datasets).
    pub portable_mac: [u8; 32],
    /// MAC over the rest (encrypted datasets).
    pub local_mac: [u8; 32],
    /// Space used by user, if the block is large enough to hold it and it is in use.
    pub user_used: Option<Dnode>,
    /// Space used by group.
    pub group_used: Option<Dnode>,
    /// Space used by project.
    pub project_used: Option<Dnode>,
}

impl ObjectSetPhys {
    /// Reads an object set block of 1024, 2048 or 4096 bytes; missing parts count as zero.
    ///
    /// # Errors
    /// If it is shorter than 1024 bytes, its meta-dnode is free or wrong, or its type does not exist.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("object set", reason, offset);
        if bytes.len() < 1024 {
            return Err(fail("shorter than 1024 bytes", 0));
        }
        let part = |start: usize| -> Result<Option<Dnode>, DecodeError> {
            match bytes.get(start..start.saturating_add(512)) {
                Some(slot) => Dnode::decode(slot, endian),
                None => Ok(None),
            }
        };
        let meta_dnode = part(0)?.ok_or_else(|| fail("no meta-dnode", 0))?;
        let mut reader = Reader::new("object set", bytes, endian);
        reader.skip(512)?;
        let mut intent_log_header = [0u64; 24];
        for word in &mut intent_log_header {
            *word = reader.u64()?;
        }
        let kind = match reader.u64()? {
            1 => ObjectSetKind::Meta,
            2 => ObjectSetKind::FileSystem,
            3 => ObjectSetKind::Volume,
            4 => ObjectSetKind::Other,
            _ => return Err(fail("type does not exist", 704)),
        };
        Ok(Self {
            meta_dnode,
            intent_log_header,
            kind,
            flags: reader.u64()?,
            portable_mac: reader.array()?,
            local_mac: reader.array()?,
            user_used: part(1024)?,
            group_used: part(1536)?,
            project_used: part(2048)?,
        })
    }
}
