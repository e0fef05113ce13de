//! System attributes: packed buffers of file metadata, described by a layout.
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
/// The highest layout number (10 bits). Layouts 0 and 1 are not stored.
pub const SA_LAYOUTS_MAX: u16 = 1023;
/// The layout of a buffer without attributes.
pub const SA_LAYOUT_EMPTY: u16 = 1;

/// The header of a buffer. Page `docs/format/system-attributes.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaHeader {
    /// The byte order of this buffer, which may differ from that of its block.
    pub endian: Endian,
    /// The layout number.
    pub layout: u16,
    /// The offset of the first attribute in bytes.
    pub header_bytes: u16,
}

/// The position of an attribute in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaField {
    /// The attribute number.
    pub number: u16,
    /// Offset of its first byte.
    pub start: usize,
    /// Offset of its end, at most the length of the buffer.
    pub end: usize,
}

impl SaHeader {
    /// Reads the header. A buffer of zeros has no attributes, as in a new object.
    ///
    /// # Errors
    /// If the magic is wrong, or the buffer is shorter than 8 bytes.
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

    /// Locates the attributes of this header's layout. Allocates 24 bytes for each.
    ///
    /// # Errors
    /// If the header's length contradicts the layout, an attribute occurs twice, or one exceeds the buffer.
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

/// Bytes of the header of a buffer with this number of variable-length attributes.
fn header_length(variable: usize) -> usize {
    let further = variable.saturating_sub(1).saturating_mul(2);
    further.next_multiple_of(8).saturating_add(8)
}

/// Encodes a little-endian buffer with the given attributes, in this order, up to the end of the last one.
///
/// The values must already be little-endian.
///
/// # Errors
/// If the layout number exceeds 10 bits, a value does not have its registered length, or a length exceeds its
/// field.
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
