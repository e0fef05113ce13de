//! The table `zfs` and the functions in it. `zfs.sync` makes changes, `zfs.check` tells whether they would be made.

use super::arguments::{Given, Signature};
use super::{Running, errno, lists, properties};
use millpond_dataset::{DatasetError, ProgramMode, Refusal, Refused};
use millpond_lua::{Error as LuaError, Lua, Value};
use millpond_pool::PoolError;
use rustix::io::Errno;

const USER_NAME_BYTES_MAX: usize = 255;
const USER_VALUE_BYTES_MAX: usize = 8191;

type Outcome = Result<Refused, PoolError>;

/// A change: its name in `zfs.sync` and in `zfs.check`, and what it takes.
struct Change {
    names: [&'static str; 2],
    signatures: [Signature; 2],
    make: fn(&Running<'_>, ProgramMode, &Given) -> Outcome,
}

/// Describes a change with the same name in both submodules.
macro_rules! change {
    ($name:literal, $check:literal, $strings:expr, $flags:expr, $make:expr) => {
        Change {
            names: [$name, $check],
            signatures: [
                Signature {
                    name: concat!("zfs.sync.", $name),
                    strings: &$strings,
                    flags: &$flags,
                },
                Signature {
                    name: concat!("zfs.check.", $check),
                    strings: &$strings,
                    flags: &$flags,
                },
            ],
            make: $make,
        }
    };
}

const CHANGES: [Change; 8] = [
    change!(
        "destroy",
        "destroy",
        ["dataset"],
        ["defer"],
        |r, mode, given| { r.tasks.destroy(mode, &given.strings[0], given.has("defer")) }
    ),
    change!("promote", "promote", ["clone"], [], |r, mode, given| {
        r.tasks.promote(mode, &given.strings[0])
    }),
    change!(
        "rollback",
        "rollback",
        ["filesystem"],
        [],
        |r, mode, given| { r.tasks.rollback(mode, &given.strings[0]) }
    ),
    change!(
        "snapshot",
        "snapshot",
        ["snapshot"],
        [],
        |r, mode, given| { r.tasks.snapshot(mode, &given.strings[0]) }
    ),
    change!(
        "rename_snapshot",
        "rename_snapshot",
        ["dataset", "oldsnapname", "newsnapname"],
        [],
        |r, mode, given| {
            let [dataset, old, new] = [0, 1, 2].map(|at| given.strings[at].as_str());
            r.tasks.rename_snapshot(mode, dataset, old, new)
        }
    ),
    change!(
        "bookmark",
        "bookmark",
        ["source", "newbookmark"],
        [],
        |r, mode, given| { r.tasks.bookmark(mode, &given.strings[0], &given.strings[1]) }
    ),
    change!(
        "inherit",
        "inherit",
        ["dataset", "property"],
        [],
        |r, mode, given| { r.tasks.inherit(mode, &given.strings[0], &given.strings[1]) }
    ),
    change!(
        "set_prop",
        "set_property",
        ["dataset", "property", "value"],
        [],
        |r, mode, given| {
            let [dataset, property, value] = [0, 1, 2].map(|at| given.strings[at].as_str());
            r.tasks.set_user_property(mode, dataset, property, value)
        }
    ),
];

pub(super) fn register<'r>(lua: &mut Lua<'r>, running: &'r Running<'r>) -> Result<(), LuaError> {
    let zfs = lua.table()?;
    for (at, submodule) in ["sync", "check"].into_iter().enumerate() {
        let table = lua.table()?;
        for change in &CHANGES {
            let full = change.signatures[at].name;
            let function = lua.function(full, move |lua, values| {
                let given = change.signatures[at].read(lua, values)?;
                if at == 0 && running.is_read_only {
                    let reason = "functions of zfs.sync change the pool, which requires passing sync=TRUE (do not specify '-n')";
                    return Err(lua.error(reason));
                }
                call(lua, running, change, at, &given)
            })?;
            put(lua, &table, change.names[at], function)?;
        }
        put(lua, &zfs, submodule, table)?;
    }
    let list = lists::register(lua, running)?;
    put(lua, &zfs, "list", list)?;
    for (name, function) in properties::functions(lua, running)? {
        put(lua, &zfs, name, function)?;
    }
    lua.set_global("zfs", zfs)
}

pub(super) fn put(
    lua: &mut Lua<'_>,
    table: &Value,
    name: &str,
    value: Value,
) -> Result<(), LuaError> {
    let name = lua.string(name.as_bytes())?;
    lua.set(table, name, value)
}

/// Makes or checks a change. Returns an error number, and for a promotion the snapshots in its way.
fn call(
    lua: &mut Lua<'_>,
    running: &Running<'_>,
    change: &Change,
    submodule: usize,
    given: &Given,
) -> Result<Vec<Value>, LuaError> {
    let mode = [ProgramMode::Change, ProgramMode::Check][submodule];
    if let Some(number) = refused_at_once(change.names[0], given) {
        return Ok(vec![errno::value(number)]);
    }
    let outcome = (change.make)(running, mode, given).map_err(|error| running.end(lua, error))?;
    let refused = match outcome {
        Ok(()) => return Ok(vec![Value::Integer(0)]),
        Err(refused) => refused,
    };
    let number = match (change.names[0], &refused) {
        // The next txg can take another one.
        (
            "snapshot",
            DatasetError::Refused {
                why: Refusal::Busy, ..
            },
        ) => Errno::AGAIN,
        _ => errno::of(&refused),
    };
    let mut results = vec![errno::value(number)];
    if change.names[0] == "promote" && number == Errno::EXIST {
        let names = running.tasks.promote_conflicts(&given.strings[0]);
        let names = names.map_err(|error| lua.error(error.to_string()))?;
        results.push(array(lua, &names)?);
    }
    Ok(results)
}

/// What is wrong with the arguments alone.
fn refused_at_once(name: &str, given: &Given) -> Option<Errno> {
    match name {
        "snapshot" if !given.strings[0].contains('@') => Some(Errno::INVAL),
        "set_prop" if given.strings[1].len() > USER_NAME_BYTES_MAX => Some(Errno::NAMETOOLONG),
        "set_prop" if given.strings[2].len() > USER_VALUE_BYTES_MAX => Some(Errno::TOOBIG),
        _ => None,
    }
}

/// A table with the keys 1, 2, and so on.
pub(super) fn array(lua: &mut Lua<'_>, items: &[String]) -> Result<Value, LuaError> {
    let table = lua.table()?;
    for (at, item) in (1i64..).zip(items) {
        let item = lua.string(item.as_bytes())?;
        lua.set(&table, Value::Integer(at), item)?;
    }
    Ok(table)
}
