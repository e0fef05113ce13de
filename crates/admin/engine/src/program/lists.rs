//! `zfs.list`: iterators over what a dataset has.

use super::arguments::Signature;
use super::submodules::{array, put};
use super::{Running, properties};
use millpond_dataset::Refused;
use millpond_lua::{Error as LuaError, Lua, Value};

/// One step of an iterator: the values of the loop's variables.
type Row = Vec<Cell>;

enum Cell {
    Text(String),
    Number(u64),
}

/// An iterator: its name, what it takes, and the rows of a dataset.
struct List {
    name: &'static str,
    signature: Signature,
    rows: fn(&Running<'_>, &str) -> Refused<Vec<Row>>,
}

macro_rules! list {
    ($name:literal, $string:literal, $rows:expr) => {
        List {
            name: $name,
            signature: Signature {
                name: concat!("zfs.list.", $name),
                strings: &[$string],
                flags: &[],
            },
            rows: $rows,
        }
    };
}

const LISTS: [List; 7] = [
    list!("children", "dataset", |r, name| Ok(names(
        r.tasks.children(name)?
    ))),
    list!("snapshots", "dataset", |r, name| Ok(names(
        r.tasks.snapshots(name)?
    ))),
    list!("clones", "snapshot", |r, name| Ok(names(
        r.tasks.clones(name)?
    ))),
    list!("bookmarks", "dataset", |r, name| Ok(names(
        r.tasks.bookmarks(name)?
    ))),
    list!("holds", "snapshot", |r, name| {
        let holds = r.tasks.holds(name)?.into_iter();
        let row = |(tag, time)| vec![Cell::Text(tag), Cell::Number(time)];
        Ok(holds.map(row).collect())
    }),
    list!("user_properties", "dataset", user_properties),
    list!("properties", "dataset", user_properties),
];

const SYSTEM_PROPERTIES: Signature = Signature {
    name: "zfs.list.system_properties",
    strings: &["dataset"],
    flags: &[],
};

fn names(names: Vec<String>) -> Vec<Row> {
    names
        .into_iter()
        .map(|name| vec![Cell::Text(name)])
        .collect()
}

fn user_properties(running: &Running<'_>, name: &str) -> Refused<Vec<Row>> {
    let found = running.tasks.user_properties(name)?.into_iter();
    let row = |(name, value, source)| vec![Cell::Text(name), Cell::Text(value), Cell::Text(source)];
    Ok(found.map(row).collect())
}

pub(super) fn register<'r>(lua: &mut Lua<'r>, running: &'r Running<'r>) -> Result<Value, LuaError> {
    let table = lua.table()?;
    for list in &LISTS {
        let function = lua.function(list.signature.name, move |lua, values| {
            let given = list.signature.read(lua, values)?;
            let name = &given.strings[0];
            running.check_pool(lua, name)?;
            let rows = (list.rows)(running, name);
            let rows = rows.map_err(|error| lua.error(error.to_string()))?;
            Ok(vec![iterator(lua, list.signature.name, rows)?])
        })?;
        put(lua, &table, list.name, function)?;
    }
    let function = lua.function(SYSTEM_PROPERTIES.name, move |lua, values| {
        let given = SYSTEM_PROPERTIES.read(lua, values)?;
        let kind = running.kind_of(lua, &given.strings[0])?;
        let names: Vec<String> = properties::of_kind(kind).map(str::to_owned).collect();
        Ok(vec![array(lua, &names)?])
    })?;
    put(lua, &table, "system_properties", function)?;
    Ok(table)
}

/// A function that returns one row after the other, then nothing.
fn iterator(lua: &mut Lua<'_>, name: &str, rows: Vec<Row>) -> Result<Value, LuaError> {
    let mut rows = rows.into_iter();
    lua.function(name, move |lua, _| {
        let Some(row) = rows.next() else {
            return Ok(vec![Value::Nil]);
        };
        row.into_iter()
            .map(|cell| match cell {
                Cell::Text(text) => lua.string(text.as_bytes()),
                Cell::Number(number) => Ok(properties::number(number)),
            })
            .collect()
    })
}
