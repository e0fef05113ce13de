//! Coroutines. `resume`, `yield` and wrapped functions are part of the virtual machine.

use super::Entry;
use crate::heap::NativeRun::{Plain, Resume, Wrapped, Yield};
use crate::value::Value;
use crate::vm::{Args, Lua, Status, Throw};

pub(super) const FUNCTIONS: &[Entry] = &[
    ("coroutine.create", Plain(create)),
    ("coroutine.resume", Resume),
    ("coroutine.running", Plain(running)),
    ("coroutine.status", Plain(status)),
    ("coroutine.wrap", Plain(wrap)),
    ("coroutine.yield", Yield),
];

fn create(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let function = lua.function_arg(args, 1)?;
    let thread = lua.new_thread(function)?;
    lua.result(Value::Thread(thread))
}

fn wrap(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let function = lua.function_arg(args, 1)?;
    let thread = Value::Thread(lua.new_thread(function)?);
    lua.push(thread)?;
    let wrapped = lua.native("", Wrapped, vec![thread])?;
    lua.result(Value::Function(wrapped))
}

fn running(lua: &mut Lua<'_>, _: Args) -> Result<usize, Throw> {
    let (current, main) = (lua.current, lua.main);
    lua.push(Value::Thread(current))?;
    lua.push(Value::Boolean(current == main))?;
    Ok(2)
}

fn status(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let Value::Thread(thread) = lua.arg(args, 1) else {
        return Err(lua.argument_error(1, "coroutine expected"));
    };
    let name = match lua.heap.threads.get(thread.0).status {
        Status::Suspended => "suspended",
        Status::Running => "running",
        Status::Normal => "normal",
        Status::Dead => "dead",
    };
    lua.push_string(name.as_bytes())?;
    Ok(1)
}
