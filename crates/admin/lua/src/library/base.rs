//! The basic functions.

use super::Entry;
use crate::heap::NativeRun::Plain;
use crate::number;
use crate::value::Value;
use crate::vm::{Args, Event, Lua, Throw};

pub(super) const FUNCTIONS: &[Entry] = &[
    ("_G.assert", Plain(assert)),
    ("_G.collectgarbage", Plain(collectgarbage)),
    ("_G.error", Plain(error)),
    ("_G.getmetatable", Plain(getmetatable)),
    ("_G.ipairs", Plain(ipairs)),
    ("_G.next", Plain(next)),
    ("_G.pairs", Plain(pairs)),
    ("_G.rawequal", Plain(rawequal)),
    ("_G.rawget", Plain(rawget)),
    ("_G.rawlen", Plain(rawlen)),
    ("_G.rawset", Plain(rawset)),
    ("_G.select", Plain(select)),
    ("_G.setmetatable", Plain(setmetatable)),
    ("_G.tonumber", Plain(tonumber)),
    ("_G.tostring", Plain(tostring)),
    ("_G.type", Plain(type_name)),
];

fn assert(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    if lua.arg(args, 1).is_true() {
        lua.exec.top = args.base + args.count;
        return Ok(args.count);
    }
    let message = match lua.arg(args, 2) {
        Value::Nil => b"assertion failed!".to_vec(),
        _ => {
            let message = lua.string_arg(args, 2)?;
            lua.heap.bytes(message).to_vec()
        }
    };
    Err(lua.error_at(1, &message))
}

fn collectgarbage(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let option = match lua.arg(args, 1) {
        Value::Nil => b"collect".to_vec(),
        _ => {
            let option = lua.string_arg(args, 1)?;
            lua.heap.bytes(option).to_vec()
        }
    };
    let result = match option.as_slice() {
        b"collect" | b"step" => {
            let work = lua.collect();
            lua.work(work / 16)?;
            match option.as_slice() {
                b"step" => Value::Boolean(true),
                _ => Value::Integer(0),
            }
        }
        b"count" => {
            let used = lua.heap.used as i64;
            lua.push(Value::Integer(used / 1024))?;
            lua.push(Value::Integer(used % 1024))?;
            return Ok(2);
        }
        b"isrunning" => Value::Boolean(true),
        // The collector decides by itself when it runs.
        b"stop" | b"restart" | b"generational" | b"incremental" => Value::Integer(0),
        b"setpause" | b"setstepmul" | b"setmajorinc" => Value::Integer(200),
        other => {
            let option = String::from_utf8_lossy(other);
            let message = format!("invalid option '{option}'");
            return Err(lua.argument_error(1, &message));
        }
    };
    lua.result(result)
}

fn error(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let level = lua.optional_integer(args, 2, 1)?;
    let value = lua.arg(args, 1);
    let mut message = Vec::new();
    if level > 0 && lua.append_text(&mut message, value) {
        let level = usize::try_from(level).unwrap_or(usize::MAX / 2);
        return Err(lua.error_at(level, &message));
    }
    lua.thrown = value;
    Err(Throw::Error(value))
}

fn getmetatable(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let value = lua.any(args, 1)?;
    let protected = lua.metamethod(value, Event::Metatable);
    let metatable = lua.metatable(value).map_or(Value::Nil, Value::Table);
    lua.result(match protected {
        Value::Nil => metatable,
        protected => protected,
    })
}

fn setmetatable(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let table = lua.table_arg(args, 1)?;
    let metatable = match lua.arg(args, 2) {
        Value::Nil if args.count >= 2 => None,
        Value::Table(metatable) => Some(metatable),
        _ => return Err(lua.argument_error(2, "nil or table expected")),
    };
    if lua.metamethod(Value::Table(table), Event::Metatable) != Value::Nil {
        return Err(lua.fail("cannot change a protected metatable"));
    }
    lua.heap.table_mut(table).metatable = metatable;
    lua.result(Value::Table(table))
}

fn ipairs(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    if let Some(count) = iterate_with(lua, args, Event::Ipairs)? {
        return Ok(count);
    }
    let table = lua.table_arg(args, 1)?;
    let step = lua.native("", Plain(ipairs_step), Vec::new())?;
    lua.push(Value::Function(step))?;
    lua.push(Value::Table(table))?;
    lua.push(Value::Integer(0))?;
    Ok(3)
}

fn ipairs_step(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let next = lua.integer_arg(args, 2)?.wrapping_add(1);
    let table = lua.table_arg(args, 1)?;
    match lua.heap.get(table, Value::Integer(next)) {
        Value::Nil => lua.result(Value::Nil),
        value => {
            lua.push(Value::Integer(next))?;
            lua.push(value)?;
            Ok(2)
        }
    }
}

/// Asks the metamethod of `pairs` or `ipairs`, if there is one, for the three values.
fn iterate_with(lua: &mut Lua<'_>, args: Args, event: Event) -> Result<Option<usize>, Throw> {
    let value = lua.arg(args, 1);
    let handler = lua.metamethod(value, event);
    if handler == Value::Nil {
        return Ok(None);
    }
    let place = lua.call_value(handler, &[value], 1)?;
    let given = lua.exec.top - place;
    lua.exec.top = place + given.min(3);
    for _ in given..3 {
        lua.push(Value::Nil)?;
    }
    Ok(Some(3))
}

fn pairs(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    if let Some(count) = iterate_with(lua, args, Event::Pairs)? {
        return Ok(count);
    }
    let table = lua.table_arg(args, 1)?;
    let step = lua.native("_G.next", Plain(next), Vec::new())?;
    lua.push(Value::Function(step))?;
    lua.push(Value::Table(table))?;
    lua.push(Value::Nil)?;
    Ok(3)
}

fn next(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let table = lua.table_arg(args, 1)?;
    let key = lua.arg(args, 2);
    let hash = lua.heap.hash(key);
    match lua.heap.table(table).next(key, hash) {
        Some(Some((key, value))) => {
            lua.push(key)?;
            lua.push(value)?;
            Ok(2)
        }
        Some(None) => lua.result(Value::Nil),
        None => Err(lua.raise("invalid key to 'next'")),
    }
}

fn rawequal(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let (left, right) = (lua.any(args, 1)?, lua.any(args, 2)?);
    lua.result(Value::Boolean(left == right))
}

fn rawget(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let table = lua.table_arg(args, 1)?;
    let key = lua.any(args, 2)?;
    let value = lua.heap.get(table, key);
    lua.result(value)
}

fn rawlen(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let length = match lua.arg(args, 1) {
        Value::Table(table) => lua.heap.length(table),
        Value::String(string) => lua.heap.bytes(string).len() as i64,
        _ => return Err(lua.argument_error(1, "table or string expected")),
    };
    lua.result(Value::Integer(length))
}

fn rawset(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let table = lua.table_arg(args, 1)?;
    let (key, value) = (lua.any(args, 2)?, lua.any(args, 3)?);
    if key == Value::Nil {
        return Err(lua.raise("table index is nil"));
    }
    lua.raw_set(table, key, value)?;
    lua.result(Value::Table(table))
}

fn select(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let first = lua.arg(args, 1);
    if let Value::String(string) = first
        && lua.heap.bytes(string).starts_with(b"#")
    {
        return lua.result(Value::Integer(args.count as i64 - 1));
    }
    let number = lua.integer_arg(args, 1)?;
    let given = args.count as i64;
    let number = match number {
        ..0 => given.saturating_add(number),
        number => number.min(given),
    };
    if number < 1 {
        return Err(lua.argument_error(1, "index out of range"));
    }
    lua.exec.top = args.base + args.count;
    Ok(args.count - number as usize)
}

fn tonumber(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    if matches!(lua.arg(args, 2), Value::Nil) {
        let value = lua.any(args, 1)?;
        let number = lua.to_number(value);
        return lua.result(number.map_or(Value::Nil, Value::Integer));
    }
    let text = lua.string_arg(args, 1)?;
    let base = lua.integer_arg(args, 2)?;
    let Some(base) = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))
    else {
        return Err(lua.argument_error(2, "base out of range"));
    };
    let number = number::parse_in_base(lua.heap.bytes(text), base);
    lua.result(number.map_or(Value::Nil, Value::Integer))
}

fn tostring(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let value = lua.any(args, 1)?;
    let text = lua.describe(value)?;
    lua.result(text)
}

fn type_name(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let name = lua.any(args, 1)?.type_name();
    lua.push_string(name.as_bytes())?;
    Ok(1)
}
