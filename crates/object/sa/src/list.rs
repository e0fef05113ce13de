//! Lists of attributes, decoded from old buffers to build new ones.

use crate::{FileFlags, SaAttribute, SaClass, SaRegistration, SaRegistry};
use millpond_ondisk::acl::acl_to_little;
use millpond_ondisk::sa::{SaField, SaHeader};
use millpond_ondisk::{DecodeError, Endian};

/// One attribute with its little-endian bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) registration: SaRegistration,
    pub(crate) bytes: Vec<u8>,
}

/// The positions of the attributes in a stored buffer.
pub(crate) struct Stored {
    pub(crate) endian: Endian,
    fields: Vec<(SaRegistration, SaField)>,
}

impl Stored {
    pub(crate) fn read(bytes: &[u8], registry: &SaRegistry) -> Result<Self, DecodeError> {
        let header = SaHeader::decode(bytes)?;
        let layout = registry
            .layout(header.layout)
            .ok_or_else(|| DecodeError::new("system attributes", "layout is not registered", 4))?;
        let fields = header.fields(bytes, layout)?;
        Ok(Self {
            endian: header.endian,
            fields: layout.iter().copied().zip(fields).collect(),
        })
    }
    pub(crate) fn field(&self, number: u16) -> Option<SaField> {
        let mut fields = self.fields.iter();
        fields
            .find(|(one, _)| one.number == number)
            .map(|(_, field)| *field)
    }
    /// The attributes in their order, little-endian.
    pub(crate) fn values(&self, bytes: &[u8]) -> Result<Vec<Value>, DecodeError> {
        let values = self.fields.iter().map(|(registration, field)| {
            let bytes = bytes
                .get(field.start..field.end)
                .ok_or_else(|| DecodeError::new("system attributes", "too short", field.start))?;
            Ok(Value {
                registration: *registration,
                bytes: to_little(bytes, registration.class, self.endian),
            })
        });
        values.collect()
    }
}

/// Converts an attribute's bytes to little-endian order.
fn to_little(bytes: &[u8], class: SaClass, endian: Endian) -> Vec<u8> {
    let mut swapped = bytes.to_vec();
    if endian == Endian::Little {
        return swapped;
    }
    let width = match class {
        SaClass::U64 => 8,
        SaClass::U32 => 4,
        SaClass::U16 => 2,
        SaClass::Bytes => 1,
        SaClass::Acl => return acl_to_little(bytes, endian),
    };
    swapped.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    swapped
}

/// The attribute order of a new file. A project id must be inserted at its position here, because other
/// software reads it at a fixed offset.
const TEMPLATE: [SaAttribute; 18] = [
    SaAttribute::Mode,
    SaAttribute::Size,
    SaAttribute::Generation,
    SaAttribute::Uid,
    SaAttribute::Gid,
    SaAttribute::Parent,
    SaAttribute::Flags,
    SaAttribute::Atime,
    SaAttribute::Mtime,
    SaAttribute::Ctime,
    SaAttribute::Crtime,
    SaAttribute::Links,
    SaAttribute::ProjectId,
    SaAttribute::Rdev,
    SaAttribute::DaclCount,
    SaAttribute::DaclAces,
    SaAttribute::Xattr,
    SaAttribute::Scanstamp,
];

/// Sorts values into the template's order. Other attributes follow in their present order.
pub(crate) fn sort_by_template(values: &mut [Value], registry: &SaRegistry) {
    let order = TEMPLATE.map(|one| registry.number(one));
    values.sort_by_key(|value| {
        let mut order = order.iter();
        let number = Some(value.registration.number);
        order
            .position(|one| *one == number)
            .unwrap_or(TEMPLATE.len())
    });
}

/// Sets the flag without which accounting does not look for a project id.
pub(crate) fn flag_project(values: &mut [Value], registry: &SaRegistry) {
    change_flags(values, registry, |flags| flags | FileFlags::PROJECT_ID);
}

/// Changes the flags in a file's attribute list.
pub(crate) fn change_flags(
    values: &mut [Value],
    registry: &SaRegistry,
    change: impl FnOnce(FileFlags) -> FileFlags,
) {
    let number = registry.number(SaAttribute::Flags);
    let flags = values
        .iter_mut()
        .find(|one| Some(one.registration.number) == number);
    if let Some(flags) = flags
        && let Ok(word) = <[u8; 8]>::try_from(flags.bytes.as_slice())
    {
        let old = FileFlags::from_bits_retain(u64::from_le_bytes(word));
        flags.bytes = change(old).bits().to_le_bytes().to_vec();
    }
}

/// Returns the offset of an attribute of fixed length in an old znode.
pub(crate) fn znode_offset(attribute: SaAttribute) -> Option<usize> {
    Some(match attribute {
        SaAttribute::Atime => 0,
        SaAttribute::Mtime => 16,
        SaAttribute::Ctime => 32,
        SaAttribute::Crtime => 48,
        SaAttribute::Generation => 64,
        SaAttribute::Mode => 72,
        SaAttribute::Size => 80,
        SaAttribute::Parent => 88,
        SaAttribute::Links => 96,
        SaAttribute::Xattr => 104,
        SaAttribute::Rdev => 112,
        SaAttribute::Flags => 120,
        SaAttribute::Uid => 128,
        SaAttribute::Gid => 136,
        _ => return None,
    })
}
