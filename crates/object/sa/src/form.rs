//! The two on-disk forms of attributes.

use millpond_env::sync::Arc;
use millpond_object::{Block, ObjectError};
use millpond_ondisk::sa::{SaField, SaHeader, SaRegistration};
use millpond_ondisk::znode::ZnodePhys;
use millpond_ondisk::{DecodeError, Endian};
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub(crate) enum Form {
    Buffers { bonus: Buffer, spill: Spill },
    Znode(Box<ZnodePhys>),
}

/// The attributes outside the bonus.
#[derive(Debug, Clone)]
pub(crate) enum Spill {
    None,
    Read(Buffer),
    /// No copy of the block could be read.
    Lost(ObjectError),
}

/// The buffer that holds the bytes.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Bonus(Vec<u8>),
    Spill(Arc<Block>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bonus(bytes) => bytes,
            Self::Spill(block) => &block.bytes,
        }
    }
}

/// A packed buffer and the positions of its attributes.
#[derive(Debug, Clone)]
pub(crate) struct Buffer {
    content: Content,
    endian: Endian,
    fields: Vec<SaField>,
}

impl Buffer {
    pub(crate) fn new(
        content: Content,
        layouts: &BTreeMap<u16, Vec<SaRegistration>>,
    ) -> Result<Self, DecodeError> {
        let header = SaHeader::decode(content.bytes())?;
        let layout = layouts
            .get(&header.layout)
            .ok_or_else(|| DecodeError::new("system attributes", "layout is not registered", 4))?;
        let fields = header.fields(content.bytes(), layout)?;
        Ok(Self {
            content,
            endian: header.endian,
            fields,
        })
    }
    pub(crate) fn endian(&self) -> Endian {
        self.endian
    }
    pub(crate) fn get(&self, number: u16) -> Option<(&[u8], Endian)> {
        let field = self.fields.iter().find(|field| field.number == number)?;
        let bytes = self.content.bytes().get(field.start..field.end)?;
        Some((bytes, self.endian))
    }
    pub(crate) fn shares_a_number_with(&self, other: &Buffer) -> bool {
        self.fields.iter().any(|one| {
            other
                .fields
                .iter()
                .any(|another| one.number == another.number)
        })
    }
}
