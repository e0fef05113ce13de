//! Object set blocks: the root of the dnodes of a dataset or of the MOS.
//!
//! Page `docs/format/object-set.md`.

use crate::{DNODE_SLOT_BYTES, DecodeError, Dnode, Endian, Reader, Writer};

/// The kind of an object set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectSetKind {
    /// The pool's own objects (the MOS).
    Meta,
    /// A file system.
    FileSystem,
    /// A volume.
    Volume,
    /// An object set of a test program.
    Other,
}

/// An object set block in native form. Page `docs/format/object-set.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSetPhys {
    /// The dnode of the array of dnodes.
    pub meta_dnode: Dnode,
    /// The intent log header: 24 words.
    pub intent_log_header: [u64; 24],
    /// The kind of the object set.
    pub kind: ObjectSetKind,
    /// Bit 0 user accounting complete, bit 1 object accounting complete, bit 2 project accounting complete.
    pub flags: u64,
    /// MAC over the parts that a raw send preserves (encrypted datasets).
    pub portable_mac: [u8; 32],
    /// MAC over the other parts (encrypted datasets).
    pub local_mac: [u8; 32],
    /// Space used by user, if it is in use and the block is large enough to contain it.
    pub user_used: Option<Dnode>,
    /// Space used by group.
    pub group_used: Option<Dnode>,
    /// Space used by project.
    pub project_used: Option<Dnode>,
}

impl ObjectSetKind {
    /// The number stored on disk.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Meta => 1,
            Self::FileSystem => 2,
            Self::Volume => 3,
            Self::Other => 4,
        }
    }
}

/// The valid sizes of an object set block in bytes: of pool versions below 15, from 15 on, and with project
/// accounting.
pub const OBJECT_SET_BYTES: [usize; 3] = [1024, 2048, 4096];

impl ObjectSetPhys {
    /// Encodes the block as little-endian bytes; `length` is one of [`OBJECT_SET_BYTES`].
    ///
    /// # Errors
    /// If the length is invalid, an accounting dnode does not fit, or a dnode exceeds one slot or cannot be
    /// encoded.
    pub fn encode(&self, length: usize) -> Result<Vec<u8>, DecodeError> {
        let fail = |reason, offset| DecodeError::new("object set", reason, offset);
        if !OBJECT_SET_BYTES.contains(&length) {
            return Err(fail("no object set has this length", length));
        }
        let mut writer = Writer::with_capacity(length);
        let put = |writer: &mut Writer, dnode: &Dnode| {
            let bytes = dnode.encode()?;
            if bytes.len() != DNODE_SLOT_BYTES {
                return Err(fail("dnode does not fit its slot", writer.position()));
            }
            writer.put(&bytes);
            Ok(())
        };
        put(&mut writer, &self.meta_dnode)?;
        for word in self.intent_log_header {
            writer.put_u64(word);
        }
        writer.put_u64(self.kind.number());
        writer.put_u64(self.flags);
        writer.put(&self.portable_mac);
        writer.put(&self.local_mac);
        let accounting = [
            (1024, &self.user_used),
            (1536, &self.group_used),
            (2048, &self.project_used),
        ];
        for (start, dnode) in accounting {
            let Some(dnode) = dnode else { continue };
            if start >= length {
                return Err(fail("no room for an accounting dnode", start));
            }
            writer.pad_to(start);
            put(&mut writer, dnode)?;
        }
        writer.pad_to(length);
        Ok(writer.finish())
    }

    /// Reads an object set block of 1024, 2048 or 4096 bytes; missing parts count as zero.
    ///
    /// # Errors
    /// If it is shorter than 1024 bytes, its meta-dnode is free or invalid, or its type is unknown.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dnode;
    use proptest::prelude::*;

    fn object_set(kind: ObjectSetKind, is_large: bool) -> ObjectSetPhys {
        let mut words = [0u64; 24];
        for (word, number) in words.iter_mut().zip(1..) {
            *word = number;
        }
        ObjectSetPhys {
            meta_dnode: dnode(10),
            intent_log_header: words,
            kind,
            flags: 7,
            portable_mac: [1; 32],
            local_mac: [2; 32],
            user_used: is_large.then(|| dnode(39)),
            group_used: None,
            project_used: is_large.then(|| dnode(39)),
        }
    }

    #[test]
    fn every_part_of_an_object_set_survives_encoding() {
        for kind in [
            ObjectSetKind::Meta,
            ObjectSetKind::FileSystem,
            ObjectSetKind::Volume,
            ObjectSetKind::Other,
        ] {
            for (is_large, length) in [(false, 1024), (false, 2048), (false, 4096), (true, 4096)] {
                let set = object_set(kind, is_large);
                let bytes = set.encode(length).unwrap();
                assert_eq!(bytes.len(), length);
                assert_eq!(ObjectSetPhys::decode(&bytes, Endian::Little).unwrap(), set);
            }
        }
    }

    #[test]
    fn lengths_beyond_the_block_are_refused() {
        assert!(object_set(ObjectSetKind::Meta, false).encode(512).is_err());
        assert!(
            object_set(ObjectSetKind::FileSystem, true)
                .encode(2048)
                .is_err()
        );
    }

    #[test]
    fn a_block_without_meta_dnode_or_kind_is_an_error() {
        assert!(ObjectSetPhys::decode(&[0; 4096], Endian::Little).is_err());
        let mut bytes = object_set(ObjectSetKind::Volume, false)
            .encode(1024)
            .unwrap();
        bytes[704] = 9;
        assert!(ObjectSetPhys::decode(&bytes, Endian::Little).is_err());
        assert!(ObjectSetPhys::decode(&bytes[..1023], Endian::Little).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..4200)) {
            let _ = ObjectSetPhys::decode(&bytes, Endian::Little);
            let _ = ObjectSetPhys::decode(&bytes, Endian::Big);
        }
    }
}
