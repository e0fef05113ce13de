//! The XDR encoding: big-endian, padded to multiples of four bytes.
//! Page `docs/format/nvlist.md`, "XDR".

use crate::value::pair_memory_bytes;
use crate::{DEPTH_MAX, EncodeError, NvList, NvString, NvType, NvValue};
use millpond_ondisk::{DecodeError, Reader};

/// Reads a list without stream header, nested in `depth` other lists.
pub(crate) fn decode_list(reader: &mut Reader<'_>, depth: usize) -> Result<NvList, DecodeError> {
    if depth > DEPTH_MAX {
        return Err(reader.fail("lists nest deeper than 20"));
    }
    if reader.u32()? != 0 {
        return Err(reader.fail("list version is not 0"));
    }
    let mut list = NvList::with_flags(reader.u32()?);
    loop {
        // The encoded size is a hint that other readers ignore too.
        let _encoded = reader.u32()?;
        let stated = reader.u32()?;
        if stated == 0 {
            return Ok(list);
        }
        let name = decode_string(reader)?;
        let number = reader.u32()?;
        let kind = NvType::from_number(number).ok_or_else(|| reader.fail("unknown type"))?;
        let count = reader.u32()?;
        let value = decode_value(reader, kind, count, depth)?;
        if usize::try_from(stated) != Ok(pair_memory_bytes(&name, &value)) {
            return Err(reader.fail("decoded size of a pair is wrong"));
        }
        list.push(name, value);
    }
}

fn decode_value(
    reader: &mut Reader<'_>,
    kind: NvType,
    count: u32,
    depth: usize,
) -> Result<NvValue, DecodeError> {
    let items = usize::try_from(count).map_err(|_| reader.fail("too many elements"))?;
    Ok(match kind {
        NvType::Boolean => {
            if count != 0 {
                return Err(reader.fail("a boolean's element count is not 0"));
            }
            NvValue::Boolean
        }
        NvType::ByteArray => {
            let bytes = reader.take(items)?.to_vec();
            skip_padding(reader, items)?;
            NvValue::ByteArray(bytes)
        }
        NvType::Int16Array => {
            NvValue::Int16Array(decode_array(reader, items, 4, |r| Ok(low_i16(r.u32()?)))?)
        }
        NvType::Uint16Array => {
            NvValue::Uint16Array(decode_array(reader, items, 4, |r| Ok(low_u16(r.u32()?)))?)
        }
        NvType::Int32Array => NvValue::Int32Array(decode_array(reader, items, 4, |r| {
            Ok(r.u32()?.cast_signed())
        })?),
        NvType::Uint32Array => NvValue::Uint32Array(decode_array(reader, items, 4, Reader::u32)?),
        NvType::Int64Array => NvValue::Int64Array(decode_array(reader, items, 8, |r| {
            Ok(r.u64()?.cast_signed())
        })?),
        NvType::Uint64Array => NvValue::Uint64Array(decode_array(reader, items, 8, Reader::u64)?),
        NvType::BooleanArray => {
            NvValue::BooleanArray(decode_array(reader, items, 4, |r| Ok(r.u32()? != 0))?)
        }
        NvType::Int8Array => NvValue::Int8Array(decode_array(reader, items, 4, |r| {
            Ok(low_u8(r.u32()?).cast_signed())
        })?),
        NvType::Uint8Array => {
            NvValue::Uint8Array(decode_array(reader, items, 4, |r| Ok(low_u8(r.u32()?)))?)
        }
        NvType::StringArray => {
            // Do not reserve capacity: each nested count may claim all remaining bytes.
            let mut strings = Vec::new();
            for _ in 0..items {
                strings.push(decode_string(reader)?);
            }
            NvValue::StringArray(strings)
        }
        NvType::ListArray => {
            let mut lists = Vec::new();
            for _ in 0..items {
                lists.push(decode_list(reader, depth.saturating_add(1))?);
            }
            NvValue::ListArray(lists)
        }
        scalar => {
            if count != 1 {
                return Err(reader.fail("a scalar's element count is not 1"));
            }
            decode_scalar(reader, scalar, depth)?
        }
    })
}

/// Reads a value that is not an array.
#[inline]
fn decode_scalar(
    reader: &mut Reader<'_>,
    kind: NvType,
    depth: usize,
) -> Result<NvValue, DecodeError> {
    Ok(match kind {
        NvType::Byte => NvValue::Byte(low_u8(reader.u32()?)),
        NvType::Int8 => NvValue::Int8(low_u8(reader.u32()?).cast_signed()),
        NvType::Uint8 => NvValue::Uint8(low_u8(reader.u32()?)),
        NvType::Int16 => NvValue::Int16(low_i16(reader.u32()?)),
        NvType::Uint16 => NvValue::Uint16(low_u16(reader.u32()?)),
        NvType::Int32 => NvValue::Int32(reader.u32()?.cast_signed()),
        NvType::Uint32 => NvValue::Uint32(reader.u32()?),
        NvType::BooleanValue => NvValue::BooleanValue(reader.u32()? != 0),
        NvType::Int64 => NvValue::Int64(reader.u64()?.cast_signed()),
        NvType::Uint64 => NvValue::Uint64(reader.u64()?),
        NvType::HrTime => NvValue::HrTime(reader.u64()?.cast_signed()),
        NvType::Double => NvValue::Double(reader.u64()?),
        NvType::String => NvValue::String(decode_string(reader)?),
        NvType::List => NvValue::List(decode_list(reader, depth.saturating_add(1))?),
        _ => return Err(reader.fail("not a scalar")),
    })
}

/// Reads an array. Unless it is empty, its count is repeated before its elements.
fn decode_array<'a, T>(
    reader: &mut Reader<'a>,
    items: usize,
    item_bytes: usize,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    if items == 0 {
        return Ok(Vec::new());
    }
    if usize::try_from(reader.u32()?) != Ok(items) {
        return Err(reader.fail("an array's two counts differ"));
    }
    if items
        .checked_mul(item_bytes)
        .is_none_or(|bytes| bytes > reader.remaining())
    {
        return Err(reader.fail("too short"));
    }
    let mut array = Vec::with_capacity(items);
    for _ in 0..items {
        array.push(item(reader)?);
    }
    Ok(array)
}

fn decode_string(reader: &mut Reader<'_>) -> Result<NvString, DecodeError> {
    let word = reader.u32()?;
    let length = usize::try_from(word).map_err(|_| reader.fail("too short"))?;
    let padded = reader.take(length.saturating_add(padding(length)))?;
    let bytes = padded.get(..length).unwrap_or(padded);
    if bytes.contains(&0) {
        return Err(reader.fail("NUL inside a string"));
    }
    Ok(bytes.into())
}

fn skip_padding(reader: &mut Reader<'_>, length: usize) -> Result<(), DecodeError> {
    reader.skip(padding(length))
}

/// The number of padding bytes from `length` to the next multiple of four.
fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}

fn low_u8(word: u32) -> u8 {
    word.to_le_bytes()[0]
}
fn low_u16(word: u32) -> u16 {
    let [low, high, _, _] = word.to_le_bytes();
    u16::from_le_bytes([low, high])
}
fn low_i16(word: u32) -> i16 {
    low_u16(word).cast_signed()
}

/// Appends a list without stream header, nested in `depth` other lists.
pub(crate) fn encode_list(
    list: &NvList,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), EncodeError> {
    if depth > DEPTH_MAX {
        return Err(EncodeError::TooDeep);
    }
    put_u32(out, 0);
    put_u32(out, list.flags());
    for pair in list {
        let mut body = Vec::new();
        put_string(&mut body, &pair.name)?;
        put_u32(&mut body, pair.value.value_type().number());
        put_u32(&mut body, length_field(pair.value.element_count())?);
        encode_value(&pair.value, &mut body, depth)?;
        put_u32(out, length_field(body.len().saturating_add(8))?);
        put_u32(
            out,
            length_field(pair_memory_bytes(&pair.name, &pair.value))?,
        );
        out.extend_from_slice(&body);
    }
    out.extend_from_slice(&[0; 8]);
    Ok(())
}

fn encode_value(value: &NvValue, out: &mut Vec<u8>, depth: usize) -> Result<(), EncodeError> {
    match value {
        NvValue::Boolean => {}
        // Other writers pass all three byte types through a signed char.
        NvValue::Byte(item) | NvValue::Uint8(item) => {
            put_i32(out, i32::from(item.cast_signed()));
        }
        NvValue::Int8(item) => put_i32(out, i32::from(*item)),
        NvValue::Int16(item) => put_i32(out, i32::from(*item)),
        NvValue::Uint16(item) => put_u32(out, u32::from(*item)),
        NvValue::Int32(item) => put_i32(out, *item),
        NvValue::Uint32(item) => put_u32(out, *item),
        NvValue::Int64(item) | NvValue::HrTime(item) => put_u64(out, item.cast_unsigned()),
        NvValue::Uint64(item) | NvValue::Double(item) => put_u64(out, *item),
        NvValue::BooleanValue(item) => put_u32(out, u32::from(*item)),
        NvValue::String(string) => put_string(out, string)?,
        NvValue::ByteArray(bytes) => {
            out.extend_from_slice(bytes);
            out.resize(out.len().saturating_add(padding(bytes.len())), 0);
        }
        NvValue::Int16Array(items) => {
            put_array(out, items, |out, item| put_i32(out, i32::from(*item)))?;
        }
        NvValue::Uint16Array(items) => {
            put_array(out, items, |out, item| put_u32(out, u32::from(*item)))?;
        }
        NvValue::Int32Array(items) => put_array(out, items, |out, item| put_i32(out, *item))?,
        NvValue::Uint32Array(items) => put_array(out, items, |out, item| put_u32(out, *item))?,
        NvValue::Int64Array(items) => {
            put_array(out, items, |out, item| put_u64(out, item.cast_unsigned()))?;
        }
        NvValue::Uint64Array(items) => put_array(out, items, |out, item| put_u64(out, *item))?,
        NvValue::BooleanArray(items) => {
            put_array(out, items, |out, item| put_u32(out, u32::from(*item)))?;
        }
        NvValue::Int8Array(items) => {
            put_array(out, items, |out, item| put_i32(out, i32::from(*item)))?;
        }
        NvValue::Uint8Array(items) => put_array(out, items, |out, item| {
            put_i32(out, i32::from(item.cast_signed()));
        })?,
        NvValue::StringArray(strings) => {
            for string in strings {
                put_string(out, string)?;
            }
        }
        NvValue::List(list) => encode_list(list, out, depth.saturating_add(1))?,
        NvValue::ListArray(lists) => {
            for list in lists {
                encode_list(list, out, depth.saturating_add(1))?;
            }
        }
    }
    Ok(())
}

fn put_array<T>(
    out: &mut Vec<u8>,
    items: &[T],
    put: impl Fn(&mut Vec<u8>, &T),
) -> Result<(), EncodeError> {
    if items.is_empty() {
        return Ok(());
    }
    put_u32(out, length_field(items.len())?);
    for item in items {
        put(out, item);
    }
    Ok(())
}

fn put_string(out: &mut Vec<u8>, string: &NvString) -> Result<(), EncodeError> {
    let bytes = string.as_bytes();
    if bytes.contains(&0) {
        return Err(EncodeError::NulInString);
    }
    put_u32(out, length_field(bytes.len())?);
    out.extend_from_slice(bytes);
    out.resize(out.len().saturating_add(padding(bytes.len())), 0);
    Ok(())
}

/// Lengths and sizes are signed 32-bit integers.
fn length_field(length: usize) -> Result<u32, EncodeError> {
    i32::try_from(length)
        .map(i32::cast_unsigned)
        .map_err(|_| EncodeError::TooLong)
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}
fn put_i32(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}
fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}
