//! The native encoding: the writer's memory image, with pointers zeroed.
//! Page `docs/format/nvlist.md`, "Native".

use crate::value::{pair_memory_bytes, round8};
use crate::{DEPTH_MAX, EncodeError, NvList, NvString, NvType, NvValue};
use millpond_ondisk::{DecodeError, Reader};

/// Size of the pair header in bytes; the name follows it.
const PAIR_HEADER_BYTES: usize = 16;

/// Reads a list without stream header, in the reader's byte order.
pub(crate) fn decode_list(reader: &mut Reader<'_>) -> Result<NvList, DecodeError> {
    if reader.u32()? != 0 {
        return Err(reader.fail("list version is not 0"));
    }
    let mut list = NvList::with_flags(reader.u32()?);
    decode_pairs(reader, &mut list, 0)?;
    Ok(list)
}

/// Reads pairs up to the terminating zero into `list`, which is nested in `depth` other lists.
fn decode_pairs(
    reader: &mut Reader<'_>,
    list: &mut NvList,
    depth: usize,
) -> Result<(), DecodeError> {
    if depth > DEPTH_MAX {
        return Err(reader.fail("lists nest deeper than 20"));
    }
    loop {
        let stated = reader.u32()?;
        if stated == 0 {
            return Ok(());
        }
        let size = usize::try_from(stated).map_err(|_| reader.fail("too short"))?;
        let name_bytes = usize::from(reader.u16()?);
        reader.skip(2)?;
        let count = reader.u32()?;
        let number = reader.u32()?;
        let kind = NvType::from_number(number).ok_or_else(|| reader.fail("unknown type"))?;
        let body_bytes = size
            .checked_sub(PAIR_HEADER_BYTES)
            .ok_or_else(|| reader.fail("a pair is smaller than its header"))?;
        let failure = reader.fail("a pair's name does not end with NUL");
        let body = reader.take(body_bytes)?;
        let name: NvString = match body.get(..name_bytes).and_then(<[u8]>::split_last) {
            Some((0, name)) if !name.contains(&0) => name.into(),
            _ => return Err(failure),
        };
        let value_start =
            round8(PAIR_HEADER_BYTES.saturating_add(name_bytes)).saturating_sub(PAIR_HEADER_BYTES);
        let value_bytes = body.get(value_start..).ok_or(failure)?;
        let mut value_reader = Reader::new("nvlist value", value_bytes, reader.endian());
        let value = decode_value(&mut value_reader, reader, kind, count, depth)?;
        if size != pair_memory_bytes(&name, &value) {
            return Err(reader.fail("size of a pair is wrong"));
        }
        list.push(name, value);
    }
}

/// Reads a value from `value`. The pairs of nested lists follow in `rest`.
fn decode_value(
    value: &mut Reader<'_>,
    rest: &mut Reader<'_>,
    kind: NvType,
    count: u32,
    depth: usize,
) -> Result<NvValue, DecodeError> {
    let items = usize::try_from(count).map_err(|_| rest.fail("too many elements"))?;
    Ok(match kind {
        NvType::Boolean => {
            if count != 0 {
                return Err(rest.fail("a boolean's element count is not 0"));
            }
            NvValue::Boolean
        }
        NvType::ByteArray => NvValue::ByteArray(value.take(items)?.to_vec()),
        NvType::Uint8Array => NvValue::Uint8Array(value.take(items)?.to_vec()),
        NvType::Int8Array => NvValue::Int8Array(
            value
                .take(items)?
                .iter()
                .map(|byte| byte.cast_signed())
                .collect(),
        ),
        NvType::Int16Array => NvValue::Int16Array(decode_array(value, items, 2, |r| {
            Ok(r.u16()?.cast_signed())
        })?),
        NvType::Uint16Array => NvValue::Uint16Array(decode_array(value, items, 2, Reader::u16)?),
        NvType::Int32Array => NvValue::Int32Array(decode_array(value, items, 4, |r| {
            Ok(r.u32()?.cast_signed())
        })?),
        NvType::Uint32Array => NvValue::Uint32Array(decode_array(value, items, 4, Reader::u32)?),
        NvType::BooleanArray => {
            NvValue::BooleanArray(decode_array(value, items, 4, |r| Ok(r.u32()? != 0))?)
        }
        NvType::Int64Array => NvValue::Int64Array(decode_array(value, items, 8, |r| {
            Ok(r.u64()?.cast_signed())
        })?),
        NvType::Uint64Array => NvValue::Uint64Array(decode_array(value, items, 8, Reader::u64)?),
        NvType::StringArray => {
            // The writer's pointers, without meaning here.
            value.skip(items.saturating_mul(8))?;
            let mut strings = Vec::new();
            for _ in 0..items {
                strings.push(decode_string(value)?);
            }
            NvValue::StringArray(strings)
        }
        NvType::ListArray => {
            value.skip(items.saturating_mul(8))?;
            let mut lists = Vec::new();
            for _ in 0..items {
                lists.push(decode_embedded(value, rest, depth)?);
            }
            NvValue::ListArray(lists)
        }
        scalar => {
            if count != 1 {
                return Err(rest.fail("a scalar's element count is not 1"));
            }
            decode_scalar(value, rest, scalar, depth)?
        }
    })
}

/// Reads a value that is not an array.
fn decode_scalar(
    value: &mut Reader<'_>,
    rest: &mut Reader<'_>,
    kind: NvType,
    depth: usize,
) -> Result<NvValue, DecodeError> {
    Ok(match kind {
        NvType::Byte => NvValue::Byte(value.u8()?),
        NvType::Int8 => NvValue::Int8(value.u8()?.cast_signed()),
        NvType::Uint8 => NvValue::Uint8(value.u8()?),
        NvType::Int16 => NvValue::Int16(value.u16()?.cast_signed()),
        NvType::Uint16 => NvValue::Uint16(value.u16()?),
        NvType::Int32 => NvValue::Int32(value.u32()?.cast_signed()),
        NvType::Uint32 => NvValue::Uint32(value.u32()?),
        NvType::BooleanValue => NvValue::BooleanValue(value.u32()? != 0),
        NvType::Int64 => NvValue::Int64(value.u64()?.cast_signed()),
        NvType::Uint64 => NvValue::Uint64(value.u64()?),
        NvType::HrTime => NvValue::HrTime(value.u64()?.cast_signed()),
        NvType::Double => NvValue::Double(value.u64()?),
        NvType::String => NvValue::String(decode_string(value)?),
        NvType::List => NvValue::List(decode_embedded(value, rest, depth)?),
        _ => return Err(rest.fail("not a scalar")),
    })
}

/// Reads a nested list: its 24-byte header from `value`, its pairs from `rest`.
fn decode_embedded(
    value: &mut Reader<'_>,
    rest: &mut Reader<'_>,
    depth: usize,
) -> Result<NvList, DecodeError> {
    if value.u32()? != 0 {
        return Err(value.fail("list version is not 0"));
    }
    let mut list = NvList::with_flags(value.u32()?);
    value.skip(16)?;
    decode_pairs(rest, &mut list, depth.saturating_add(1))?;
    Ok(list)
}

fn decode_array<'a, T>(
    value: &mut Reader<'a>,
    items: usize,
    item_bytes: usize,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    if items
        .checked_mul(item_bytes)
        .is_none_or(|bytes| bytes > value.remaining())
    {
        return Err(value.fail("too short"));
    }
    let mut array = Vec::with_capacity(items);
    for _ in 0..items {
        array.push(item(value)?);
    }
    Ok(array)
}

/// Reads a string up to its NUL.
fn decode_string(value: &mut Reader<'_>) -> Result<NvString, DecodeError> {
    let failure = value.fail("a string does not end with NUL");
    let mut ahead = value.clone();
    let left = ahead.take(value.remaining())?;
    let length = left.iter().position(|byte| *byte == 0).ok_or(failure)?;
    let string = value.take(length)?.into();
    value.skip(1)?;
    Ok(string)
}

/// Appends a list without stream header, little-endian.
pub(crate) fn encode_list(list: &NvList, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&list.flags().to_le_bytes());
    encode_pairs(list, out, 0)
}

fn encode_pairs(list: &NvList, out: &mut Vec<u8>, depth: usize) -> Result<(), EncodeError> {
    if depth > DEPTH_MAX {
        return Err(EncodeError::TooDeep);
    }
    for pair in list {
        let start = out.len();
        let size = pair_memory_bytes(&pair.name, &pair.value);
        let name_bytes =
            i16::try_from(pair.name.len().saturating_add(1)).map_err(|_| EncodeError::TooLong)?;
        out.extend_from_slice(&length_field(size)?.to_le_bytes());
        out.extend_from_slice(&name_bytes.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&length_field(pair.value.element_count())?.to_le_bytes());
        out.extend_from_slice(&pair.value.value_type().number().to_le_bytes());
        put_string(out, &pair.name)?;
        let value_start = round8(out.len().saturating_sub(start)).saturating_add(start);
        out.resize(value_start, 0);
        encode_value(&pair.value, out)?;
        out.resize(start.saturating_add(size), 0);
        let inner = depth.saturating_add(1);
        match &pair.value {
            NvValue::List(list) => encode_pairs(list, out, inner)?,
            NvValue::ListArray(lists) => {
                for list in lists {
                    encode_pairs(list, out, inner)?;
                }
            }
            _ => {}
        }
    }
    out.extend_from_slice(&[0; 4]);
    Ok(())
}

fn encode_value(value: &NvValue, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(item) | NvValue::Uint8(item) => out.push(*item),
        NvValue::Int8(item) => out.push(item.cast_unsigned()),
        NvValue::Int16(item) => out.extend_from_slice(&item.to_le_bytes()),
        NvValue::Uint16(item) => out.extend_from_slice(&item.to_le_bytes()),
        NvValue::Int32(item) => out.extend_from_slice(&item.to_le_bytes()),
        NvValue::Uint32(item) => out.extend_from_slice(&item.to_le_bytes()),
        NvValue::Int64(item) | NvValue::HrTime(item) => out.extend_from_slice(&item.to_le_bytes()),
        NvValue::Uint64(item) | NvValue::Double(item) => out.extend_from_slice(&item.to_le_bytes()),
        NvValue::BooleanValue(item) => out.extend_from_slice(&u32::from(*item).to_le_bytes()),
        NvValue::String(string) => put_string(out, string)?,
        NvValue::ByteArray(bytes) | NvValue::Uint8Array(bytes) => out.extend_from_slice(bytes),
        NvValue::Int8Array(items) => out.extend(items.iter().map(|item| item.cast_unsigned())),
        NvValue::Int16Array(items) => put_array(out, items, |item| item.to_le_bytes()),
        NvValue::Uint16Array(items) => put_array(out, items, |item| item.to_le_bytes()),
        NvValue::Int32Array(items) => put_array(out, items, |item| item.to_le_bytes()),
        NvValue::Uint32Array(items) => put_array(out, items, |item| item.to_le_bytes()),
        NvValue::Int64Array(items) => put_array(out, items, |item| item.to_le_bytes()),
        NvValue::Uint64Array(items) => put_array(out, items, |item| item.to_le_bytes()),
        NvValue::BooleanArray(items) => {
            put_array(out, items, |item| u32::from(*item).to_le_bytes());
        }
        NvValue::StringArray(strings) => {
            put_zeros(out, strings.len().saturating_mul(8));
            for string in strings {
                put_string(out, string)?;
            }
        }
        NvValue::List(list) => put_list_header(out, list),
        NvValue::ListArray(lists) => {
            put_zeros(out, lists.len().saturating_mul(8));
            for list in lists {
                put_list_header(out, list);
            }
        }
    }
    Ok(())
}

fn put_array<T, const N: usize>(out: &mut Vec<u8>, items: &[T], bytes: impl Fn(&T) -> [u8; N]) {
    for item in items {
        out.extend_from_slice(&bytes(item));
    }
}

fn put_list_header(out: &mut Vec<u8>, list: &NvList) {
    put_zeros(out, 4);
    out.extend_from_slice(&list.flags().to_le_bytes());
    put_zeros(out, 16);
}

fn put_zeros(out: &mut Vec<u8>, count: usize) {
    out.resize(out.len().saturating_add(count), 0);
}

fn put_string(out: &mut Vec<u8>, string: &NvString) -> Result<(), EncodeError> {
    if string.as_bytes().contains(&0) {
        return Err(EncodeError::NulInString);
    }
    out.extend_from_slice(string.as_bytes());
    out.push(0);
    Ok(())
}

/// Lengths and sizes are signed 32-bit integers.
fn length_field(length: usize) -> Result<i32, EncodeError> {
    i32::try_from(length).map_err(|_| EncodeError::TooLong)
}
