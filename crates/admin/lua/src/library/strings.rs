//! Functions for strings.

use super::Entry;
use super::format::format;
use super::pattern::{find, gmatch, gsub, matches};
use crate::heap::NativeRun::Plain;
use crate::value::Value;
use crate::vm::{Args, Lua, Throw};

pub(super) const FUNCTIONS: &[Entry] = &[
    ("string.byte", Plain(byte)),
    ("string.char", Plain(char)),
    ("string.find", Plain(find)),
    ("string.format", Plain(format)),
    ("string.gmatch", Plain(gmatch)),
    ("string.gsub", Plain(gsub)),
    ("string.len", Plain(len)),
    ("string.lower", Plain(lower)),
    ("string.match", Plain(matches)),
    ("string.rep", Plain(rep)),
    ("string.reverse", Plain(reverse)),
    ("string.sub", Plain(sub)),
    ("string.upper", Plain(upper)),
];

/// Bytes that a buffer may grow before the limit is looked at again.
const BUFFER_STEP: usize = 4096;

impl Lua<'_> {
    /// Makes sure that a buffer that grows fits into the memory limit.
    pub(super) fn check_buffer(&mut self, buffer: &[u8], granted: &mut usize) -> Result<(), Throw> {
        if buffer.len() > *granted + BUFFER_STEP {
            *granted = buffer.len();
            self.work(BUFFER_STEP / 64)?;
            self.grant(buffer.len() + BUFFER_STEP)?;
        }
        Ok(())
    }
}

/// The place of a position that may count from the end.
pub(super) fn absolute(position: i64, length: usize) -> i64 {
    let length = length as i64;
    match position {
        0.. => position,
        _ if position < -length => 0,
        _ => length + position + 1,
    }
}

/// The part of a string between two positions.
fn range(length: usize, first: i64, last: i64) -> std::ops::Range<usize> {
    let first = absolute(first, length).max(1);
    let last = absolute(last, length).min(length as i64);
    if first > last {
        return 0..0;
    }
    first as usize - 1..last as usize
}

fn sub(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let string = lua.string_arg(args, 1)?;
    let first = lua.integer_arg(args, 2)?;
    let last = lua.optional_integer(args, 3, -1)?;
    let bytes = lua.heap.bytes(string);
    let part = bytes[range(bytes.len(), first, last)].to_vec();
    lua.push_string(&part)?;
    Ok(1)
}

fn byte(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let string = lua.string_arg(args, 1)?;
    let first = lua.optional_integer(args, 2, 1)?;
    let last = lua.optional_integer(args, 3, first)?;
    let length = lua.heap.bytes(string).len();
    let range = range(length, first, last);
    if range.len() >= 900_000 {
        return Err(lua.fail("string slice too long"));
    }
    let count = range.len();
    lua.work(count / 4)?;
    for place in range {
        let byte = lua.heap.bytes(string)[place];
        lua.push(Value::Integer(byte.into()))?;
    }
    Ok(count)
}

fn char(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let mut bytes = lua.buffer(args.count)?;
    for number in 1..=args.count {
        let code = lua.integer_arg(args, number)?;
        match u8::try_from(code) {
            Ok(byte) => bytes.push(byte),
            Err(_) => return Err(lua.argument_error(number, "value out of range")),
        }
    }
    lua.work(args.count / 4)?;
    lua.push_string(&bytes)?;
    Ok(1)
}

fn len(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let string = lua.string_arg(args, 1)?;
    let length = lua.heap.bytes(string).len();
    lua.result(Value::Integer(length as i64))
}

/// A string that is made from the bytes of another one.
fn change(
    lua: &mut Lua<'_>,
    args: Args,
    change: impl FnOnce(&mut Vec<u8>),
) -> Result<usize, Throw> {
    let string = lua.string_arg(args, 1)?;
    let length = lua.heap.bytes(string).len();
    let mut bytes = lua.buffer(length)?;
    bytes.extend_from_slice(lua.heap.bytes(string));
    change(&mut bytes);
    lua.push_string(&bytes)?;
    Ok(1)
}

fn lower(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    change(lua, args, |bytes| bytes.make_ascii_lowercase())
}

fn upper(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    change(lua, args, |bytes| bytes.make_ascii_uppercase())
}

fn reverse(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    change(lua, args, |bytes| bytes.reverse())
}

fn rep(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let string = lua.string_arg(args, 1)?;
    let times = lua.integer_arg(args, 2)?;
    let separator = match lua.arg(args, 3) {
        Value::Nil => Vec::new(),
        _ => {
            let separator = lua.string_arg(args, 3)?;
            lua.heap.bytes(separator).to_vec()
        }
    };
    let piece = lua.heap.bytes(string).len();
    let times = usize::try_from(times).unwrap_or(0);
    let length = piece
        .saturating_mul(times)
        .saturating_add(separator.len().saturating_mul(times.saturating_sub(1)));
    if length == 0 {
        lua.push_string(b"")?;
        return Ok(1);
    }
    lua.grant(length.saturating_add(piece + separator.len()))?;
    lua.work(length / 64)?;
    let unit = [lua.heap.bytes(string), &separator].concat();
    let mut text = unit.repeat(times - 1);
    text.extend_from_slice(lua.heap.bytes(string));
    lua.push_string(&text)?;
    Ok(1)
}
