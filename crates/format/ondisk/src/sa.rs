//! System attributes: packed buffers of file metadata, told apart by the layout they name.
//!
//! Page `docs/format/system-attributes.md`.

mod attribute;
mod placement;
#[cfg(test)]
mod tests;

pub use attribute::{SaAttribute, SaClass, SaRegistration};
pub use placement::{SaPlacement, place_attributes};

use crate::{DecodeError, Endian, Reader, Writer};

const MAGIC: u32 = 0x002f_505a;
/// Layouts are numbered with 10 bits; 0 and 1 are not stored anywhere.
pub const SA_LAYOUTS_MAX: u16 = 1023;
/// The layout of a buffer without attributes.
pub const SA_LAYOUT_EMPTY: u16 = 1;

/// The head of a buffer. Page `docs/format/system-attributes.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaHeader {
    /// The byte order of this buffer, which may differ from that of the block it lies in.
    pub endian: Endian,
    /// The number of its layout.
    pub layout: u16,
    /// Where the attributes begin, in bytes.
    pub header_bytes: u16,
}

/// Where one attribute lies in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaField {
    /// The attribute's number.
    pub number: u16,
    /// First byte.
    pub start: usize,
    /// The byte behind its last one; inside the buffer.
    pub end: usize,
}

impl SaHeader {
    /// Reads the head. A buffer of zeros is one without attributes, as of an object just made.
    ///
    /// # Errors
    /// If the magic is none, or the buffer ends before 8 bytes.
    pub fn decode(buffer: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("system attributes", buffer, Endian::Little);
        let magic = reader.u32()?;
        let endian = match magic {
            MAGIC => Endian::Little,
            _ if magic.swap_bytes() == MAGIC => Endian::Big,
            0 if reader.u16()? == 0 => {
                return Ok(Self {
                    endian: Endian::Little,
                    layout: SA_LAYOUT_EMPTY,
                    header_bytes: 8,
                });
            }
            _ => {
                return Err(DecodeError::new("system attributes", "wrong magic", 0));
            }
        };
        let info = endian.u16(reader.array()?);
        Ok(Self {
            endian,
            layout: info & 0x3ff,
            header_bytes: (info >> 10).saturating_mul(8),
        })
    }

    /// Finds the attributes that the layout named by this head lists. Allocates 24 bytes for each.
    ///
    /// # Errors
    /// If the head's length contradicts the layout, an attribute comes twice, or one would reach
    /// beyond the buffer.
    pub fn fields(
        &self,
        buffer: &[u8],
        layout: &[SaRegistration],
    ) -> Result<Vec<SaField>, DecodeError> {
        let fail = |reason, offset| DecodeError::new("system attributes", reason, offset);
        let variable = layout.iter().filter(|one| one.is_variable()).count();
        let header_bytes = usize::from(self.header_bytes);
        if header_bytes != header_length(variable) {
            return Err(fail("header length contradicts the layout", 4));
        }
        let mut lengths = Reader::new("system attributes", buffer, self.endian);
        lengths.skip(6)?;
        let mut fields: Vec<SaField> = Vec::with_capacity(layout.len());
        let mut end = header_bytes;
        for one in layout {
            let start = end.next_multiple_of(8);
            let length = if one.is_variable() {
                lengths.u16()?
            } else {
                one.length
            };
            end = start.saturating_add(usize::from(length));
            if end > buffer.len() {
                return Err(fail("attribute reaches beyond the buffer", start));
            }
            fields.push(SaField {
                number: one.number,
                start,
                end,
            });
        }
        let mut numbers: Vec<u16> = fields.iter().map(|field| field.number).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(fail("layout names an attribute twice", 4));
        }
        Ok(fields)
    }
}

/// Bytes of the head of a buffer with so many attributes of variable length.
fn header_length(variable: usize) -> usize {
    let further = variable.saturating_sub(1).saturating_mul(2);
    further.next_multiple_of(8).saturating_add(8)
}

/// A little-endian buffer that holds the given attributes, whose values are little-endian already,
/// in this order. It ends with the last attribute.
///
/// # Errors
/// If the layout's number needs more than 10 bits, a value has not its registered length, or
/// something is too long for its field.
pub fn encode_attributes(
    layout: u16,
    attributes: &[(SaRegistration, &[u8])],
) -> Result<Vec<u8>, DecodeError> {
    let fail = |reason| DecodeError::new("system attributes", reason, 0);
    if layout > SA_LAYOUTS_MAX {
        return Err(fail("layout number above 1023"));
    }
    let variable = attributes.iter().filter(|(one, _)| one.is_variable());
    let header_bytes = header_length(variable.clone().count());
    let units = u16::try_from(header_bytes / 8)
        .ok()
        .filter(|units| *units < 64)
        .ok_or_else(|| fail("too many attributes of variable length"))?;
    let mut writer = Writer::default();
    writer.put_u32(MAGIC);
    writer.put_u16(layout | (units << 10));
    for (_, value) in variable {
        let length = u16::try_from(value.len()).map_err(|_| fail("attribute above 65535 bytes"))?;
        writer.put_u16(length);
    }
    writer.pad_to(header_bytes);
    for (one, value) in attributes {
        if !one.is_variable() && usize::from(one.length) != value.len() {
            return Err(fail("value has not its registered length"));
        }
        writer.pad_to(writer.position().next_multiple_of(8));
        writer.put(value);
    }
    Ok(writer.finish())
}
