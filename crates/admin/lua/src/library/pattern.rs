//! Functions that search strings for patterns.

use super::strings::absolute;
use crate::heap::NativeRun::Plain;
use crate::value::{StringId, Value};
use crate::vm::{Args, Lua, Throw};
use matcher::{Captured, Failure, Found, Matcher};

mod matcher;

/// Steps of a search for the price of one instruction.
const STEPS_PER_INSTRUCTION: u64 = 4;
/// What a function that `gsub` calls weighs, in units of [`crate::vm::DEPTH_MAX`]. Six such calls within each other
/// are possible, as in OpenZFS.
const GSUB_WEIGHT: usize = 30;

/// Bytes that a search without a pattern looks at before the limit.
const PART_BYTES: usize = 1024;

/// The bytes with a meaning in patterns.
const SPECIAL: &[u8] = b"^$*+?.([%-";

impl Lua<'_> {
    /// Searches a string from a position on.
    fn search(
        &mut self,
        source: StringId,
        pattern: StringId,
        from: usize,
        is_anchored: bool,
    ) -> Result<Option<Found>, Throw> {
        let left = self.limits.instructions.saturating_sub(self.instructions);
        let steps = left.saturating_mul(STEPS_PER_INSTRUCTION);
        let stop = self.stop.as_deref();
        let (source, pattern) = (self.heap.bytes(source), self.heap.bytes(pattern));
        let pattern = if is_anchored { &pattern[1..] } else { pattern };
        let mut matcher = Matcher::new(source, pattern, steps, stop);
        let mut outcome = Ok(None);
        for begin in from..=source.len() {
            outcome = matcher.at(begin);
            if is_anchored || !matches!(outcome, Ok(None)) {
                break;
            }
        }
        let used = steps - matcher.steps_left();
        self.work((used / STEPS_PER_INSTRUCTION) as usize)?;
        match outcome {
            Ok(found) => Ok(found),
            Err(Failure::TooDeep) => Err(self.raise("C stack overflow")),
            Err(Failure::Message(message)) => Err(self.fail(&message)),
            Err(Failure::Stopped) => Err(Throw::Stopped),
            Err(Failure::NoSteps) => Err(Throw::Instructions),
        }
    }

    /// A captured part of a string.
    fn captured(&mut self, source: StringId, captured: Captured) -> Result<Value, Throw> {
        match captured {
            Captured::Position(place) => Ok(Value::Integer(place as i64 + 1)),
            Captured::Part(begin, end) => {
                let part = self.heap.bytes(source)[begin..end].to_vec();
                self.new_string(&part)
            }
        }
    }

    /// Pushes the captures, or the whole match if there are none. Returns their number.
    fn push_captures(&mut self, source: StringId, found: &Found) -> Result<usize, Throw> {
        let captures = found.captures_or_whole();
        for captured in &captures {
            let value = self.captured(source, *captured)?;
            self.push(value)?;
        }
        Ok(captures.len())
    }
}

pub(super) fn find(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    search_once(lua, args, true)
}

pub(super) fn matches(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    search_once(lua, args, false)
}

fn search_once(lua: &mut Lua<'_>, args: Args, is_find: bool) -> Result<usize, Throw> {
    let (source, pattern) = (lua.string_arg(args, 1)?, lua.string_arg(args, 2)?);
    let length = lua.heap.bytes(source).len();
    let from = lua.optional_integer(args, 3, 1)?;
    let from = absolute(from, length).max(1) as usize - 1;
    if from > length {
        return lua.result(Value::Nil);
    }
    let text = lua.heap.bytes(pattern);
    let is_plain = !text.iter().any(|byte| SPECIAL.contains(byte));
    if is_find && (is_plain || lua.arg(args, 4).is_true()) {
        return find_plain(lua, source, pattern, from);
    }
    let is_anchored = text.first() == Some(&b'^');
    let Some(found) = lua.search(source, pattern, from, is_anchored)? else {
        return lua.result(Value::Nil);
    };
    if !is_find {
        return lua.push_captures(source, &found);
    }
    lua.push(Value::Integer(found.begin as i64 + 1))?;
    lua.push(Value::Integer(found.end as i64))?;
    let mut count = 2;
    for captured in found.captures() {
        let value = lua.captured(source, *captured)?;
        lua.push(value)?;
        count += 1;
    }
    Ok(count)
}

/// Searches a string without a pattern.
fn find_plain(
    lua: &mut Lua<'_>,
    source: StringId,
    needle: StringId,
    from: usize,
) -> Result<usize, Throw> {
    let length = lua.heap.bytes(needle).len();
    let mut place = from;
    loop {
        let (source, needle) = (lua.heap.bytes(source), lua.heap.bytes(needle));
        let Some(last) = source
            .len()
            .checked_sub(length)
            .filter(|last| place <= *last)
        else {
            return lua.result(Value::Nil);
        };
        // A part at a time, so that a long search can be stopped.
        let end = source.len().min(last + 1).min(place + PART_BYTES);
        let part = &source[place..end];
        let candidate = match needle.first() {
            Some(first) => part.iter().position(|byte| byte == first),
            None => Some(0),
        };
        let used = candidate.unwrap_or(part.len());
        let is_found = candidate.is_some() && source[place + used..].starts_with(needle);
        place += used;
        if is_found {
            lua.push(Value::Integer(place as i64 + 1))?;
            lua.push(Value::Integer((place + length) as i64))?;
            return Ok(2);
        }
        place += usize::from(candidate.is_some());
        lua.work(1 + used / 32 + length / 32)?;
    }
}

pub(super) fn gmatch(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let (source, pattern) = (lua.string_arg(args, 1)?, lua.string_arg(args, 2)?);
    let state = vec![
        Value::String(source),
        Value::String(pattern),
        Value::Integer(0),
    ];
    let step = lua.native("", Plain(gmatch_step), state)?;
    lua.result(Value::Function(step))
}

fn gmatch_step(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let own = lua.exec.values[args.base - 1];
    let Value::Function(own) = own else {
        return Ok(0);
    };
    let state = lua.heap.function(own).state.clone();
    let [
        Value::String(source),
        Value::String(pattern),
        Value::Integer(from),
    ] = state[..]
    else {
        return Ok(0);
    };
    let from = from as usize;
    if from > lua.heap.bytes(source).len() {
        return lua.result(Value::Nil);
    }
    let Some(found) = lua.search(source, pattern, from, false)? else {
        return lua.result(Value::Nil);
    };
    // After an empty match, the next search begins one byte later.
    let next = found.end + usize::from(found.end == found.begin);
    lua.heap.function_mut(own).state[2] = Value::Integer(next as i64);
    lua.push_captures(source, &found)
}

pub(super) fn gsub(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let (source, pattern) = (lua.string_arg(args, 1)?, lua.string_arg(args, 2)?);
    let replacement = match lua.arg(args, 3) {
        Value::Integer(_) => Value::String(lua.string_arg(args, 3)?),
        value @ (Value::String(_) | Value::Table(_) | Value::Function(_)) => value,
        _ => return Err(lua.argument_error(3, "string/function/table expected")),
    };
    let length = lua.heap.bytes(source).len();
    let most = lua.optional_integer(args, 4, length as i64 + 1)?;
    let is_anchored = lua.heap.bytes(pattern).first() == Some(&b'^');
    let (mut text, mut granted) = (Vec::new(), 0);
    // As in OpenZFS, a negative number is no limit.
    let most = most as u64;
    let (mut place, mut count) = (0, 0);
    while count < most {
        let kept = lua.roots.borrow().len();
        let Some(found) = lua.search(source, pattern, place, is_anchored)? else {
            break;
        };
        count += 1;
        text.extend_from_slice(&lua.heap.bytes(source)[place..found.begin]);
        append_replacement(lua, source, &found, replacement, &mut text)?;
        lua.roots.borrow_mut().truncate(kept);
        place = found.end;
        if found.end == found.begin {
            match lua.heap.bytes(source).get(place) {
                Some(byte) => text.push(*byte),
                None => break,
            }
            place += 1;
        }
        lua.check_buffer(&text, &mut granted)?;
        if is_anchored {
            break;
        }
    }
    let rest = lua.heap.bytes(source).get(place..).unwrap_or_default();
    text.extend_from_slice(rest);
    lua.push_string(&text)?;
    lua.push(Value::Integer(count as i64))?;
    Ok(2)
}

/// Appends what a match is replaced by.
fn append_replacement(
    lua: &mut Lua<'_>,
    source: StringId,
    found: &Found,
    replacement: Value,
    text: &mut Vec<u8>,
) -> Result<(), Throw> {
    let captures = found.captures_or_whole();
    let value = match replacement {
        Value::String(template) => {
            return append_template(lua, source, found, template, text);
        }
        Value::Function(_) => {
            let mut values = Vec::with_capacity(captures.len());
            for captured in &captures {
                values.push(lua.captured(source, *captured)?);
            }
            let place = lua.call_value(replacement, &values, GSUB_WEIGHT)?;
            let value = match lua.exec.top > place {
                true => lua.exec.values[place],
                false => Value::Nil,
            };
            lua.exec.top = place;
            lua.keep(value)
        }
        _ => {
            let key = lua.captured(source, captures[0])?;
            lua.index(replacement, key)?
        }
    };
    if !value.is_true() {
        text.extend_from_slice(&lua.heap.bytes(source)[found.begin..found.end]);
    } else if !lua.append_text(text, value) {
        let type_name = value.type_name();
        return Err(lua.fail(&format!("invalid replacement value (a {type_name})")));
    }
    Ok(())
}

/// Appends a replacement in which `%1` and the like are captures.
fn append_template(
    lua: &mut Lua<'_>,
    source: StringId,
    found: &Found,
    template: StringId,
    text: &mut Vec<u8>,
) -> Result<(), Throw> {
    let length = lua.heap.bytes(template).len();
    lua.work(length / 16)?;
    let captures = found.captures_or_whole();
    let mut place = 0;
    while place < length {
        let byte = lua.heap.bytes(template)[place];
        place += 1;
        if byte != b'%' {
            text.push(byte);
            continue;
        }
        let next = lua.heap.bytes(template).get(place).copied();
        place += 1;
        match next {
            Some(b'%') => text.push(b'%'),
            Some(b'0') => text.extend_from_slice(&lua.heap.bytes(source)[found.begin..found.end]),
            Some(digit @ b'1'..=b'9') => {
                let Some(captured) = captures.get(usize::from(digit - b'1')) else {
                    return Err(lua.fail("invalid capture index"));
                };
                match captured {
                    Captured::Position(at) => {
                        text.extend_from_slice((at + 1).to_string().as_bytes())
                    }
                    Captured::Part(begin, end) => {
                        text.extend_from_slice(&lua.heap.bytes(source)[*begin..*end]);
                    }
                }
            }
            _ => return Err(lua.fail("invalid use of '%' in replacement string")),
        }
    }
    Ok(())
}
