//! Values of Lua as they travel between a program and its caller.

use super::{ProgramError, plain};
use millpond_dataset::ProgramValue;
use millpond_lua::{Error as LuaError, Lua, Value};
use std::collections::BTreeMap;

/// How deep tables may nest.
const DEPTH_MAX: usize = 20;

/// A value of the caller as one of Lua.
pub(super) fn to_lua(lua: &mut Lua<'_>, value: &ProgramValue) -> Result<Value, LuaError> {
    Ok(match value {
        ProgramValue::Nil => Value::Nil,
        ProgramValue::Boolean(boolean) => Value::Boolean(*boolean),
        ProgramValue::Integer(number) => Value::Integer(*number),
        ProgramValue::Text(text) => lua.string(text.as_bytes())?,
        ProgramValue::List(items) => {
            let table = lua.table()?;
            for (at, item) in (1i64..).zip(items) {
                let item = to_lua(lua, item)?;
                lua.set(&table, Value::Integer(at), item)?;
            }
            table
        }
        ProgramValue::Table(entries) => {
            let table = lua.table()?;
            for (key, item) in entries {
                let (key, item) = (lua.string(key.as_bytes())?, to_lua(lua, item)?);
                lua.set(&table, key, item)?;
            }
            table
        }
    })
}

/// Orders the keys of a table: numbers by value, then names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Number(i64),
    Name(String),
}

struct Converter<'a, 'h> {
    lua: &'a Lua<'h>,
    bytes_left: usize,
}

/// A value of Lua for the caller, of at most `bytes_max` bytes. `key` is its name in error texts.
pub(super) fn from_lua(
    lua: &Lua<'_>,
    key: &str,
    value: &Value,
    bytes_max: usize,
) -> Result<ProgramValue, ProgramError> {
    let bytes_left = bytes_max;
    Converter { lua, bytes_left }.value(key, value, 0)
}

impl Converter<'_, '_> {
    /// A table can be in another more than once, so that a small one can be large when it is written out.
    fn charge(&mut self, bytes: usize) -> Result<(), ProgramError> {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.ok_or(ProgramError::TooLarge)?;
        Ok(())
    }

    fn text(&self, value: &Value) -> String {
        let bytes = self.lua.bytes(value).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn value(
        &mut self,
        key: &str,
        value: &Value,
        depth: usize,
    ) -> Result<ProgramValue, ProgramError> {
        self.charge(size_of::<ProgramValue>())?;
        Ok(match value {
            Value::Nil => ProgramValue::Nil,
            Value::Boolean(boolean) => ProgramValue::Boolean(*boolean),
            Value::Integer(number) => ProgramValue::Integer(*number),
            Value::String(_) => {
                let text = self.text(value);
                self.charge(text.len())?;
                ProgramValue::Text(text)
            }
            Value::Table(_) if depth >= DEPTH_MAX => {
                return Err(plain(format!("Maximum table depth ({DEPTH_MAX}) exceeded")));
            }
            Value::Table(_) => self.table(value, depth)?,
            other => {
                let kind = other.type_name();
                return Err(plain(format!(
                    "Invalid value type '{kind}' for key '{key}'"
                )));
            }
        })
    }

    fn table(&mut self, table: &Value, depth: usize) -> Result<ProgramValue, ProgramError> {
        let mut found: BTreeMap<Key, ProgramValue> = BTreeMap::new();
        let mut names = std::collections::BTreeSet::new();
        for (key, value) in self.lua.entries(table) {
            let key = match key {
                Value::Integer(number) => Key::Number(number),
                Value::Boolean(boolean) => Key::Name(boolean.to_string()),
                Value::String(_) => Key::Name(self.text(&key)),
                other => {
                    let kind = other.type_name();
                    return Err(plain(format!("Invalid key type '{kind}' in table")));
                }
            };
            let name = match &key {
                Key::Number(number) => number.to_string(),
                Key::Name(name) => name.clone(),
            };
            self.charge(name.len())?;
            let value = self.value(&name, &value, depth + 1)?;
            if !names.insert(name.clone()) {
                return Err(plain(format!("Collision of key '{name}' in table")));
            }
            found.insert(key, value);
        }
        let named = |(key, value)| match key {
            Key::Number(number) => (i64::to_string(&number), value),
            Key::Name(name) => (name, value),
        };
        Ok(ProgramValue::Table(found.into_iter().map(named).collect()))
    }
}
