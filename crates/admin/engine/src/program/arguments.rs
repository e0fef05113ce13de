//! Arguments of the functions: some positional strings, and named booleans.
//!
//! A call with parentheses gives only positional ones. A call with one table gives both:
//! `f{"pool/fs", defer=true}`.

use millpond_lua::{Error as LuaError, Lua, Value};

/// What a function takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signature {
    /// The full name of the function.
    pub name: &'static str,
    /// The names of the strings that it needs.
    pub strings: &'static [&'static str],
    /// The names of the booleans that it may get.
    pub flags: &'static [&'static str],
}

/// The arguments of one call.
#[derive(Debug)]
pub(super) struct Given {
    /// As many strings as the signature has. Bytes that are not UTF-8 are replaced: they are in no name.
    pub strings: Vec<String>,
    /// The names of the booleans that are true.
    pub flags: Vec<&'static str>,
}

impl Given {
    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }
}

impl Signature {
    fn usage(&self) -> String {
        let strings = self.strings.iter().map(|name| (*name).to_owned());
        let flags = self.flags.iter().map(|name| format!("[{name}=true|false]"));
        let all: Vec<String> = strings.chain(flags).collect();
        format!("usage: {}{{{}}}", self.name, all.join(", "))
    }

    /// Reads the arguments of a call.
    pub(super) fn read(&self, lua: &Lua<'_>, values: &[Value]) -> Result<Given, LuaError> {
        self.parse(lua, values)
            .map_err(|reason| lua.error(format!("{reason}\n{}", self.usage())))
    }

    fn parse(&self, lua: &Lua<'_>, values: &[Value]) -> Result<Given, String> {
        let mut strings: Vec<Option<String>> = vec![None; self.strings.len()];
        let mut flags = vec![];
        let entries = match values {
            [table @ Value::Table(_)] => lua.entries(table),
            values => (1i64..)
                .map(Value::Integer)
                .zip(values.iter().copied())
                .collect(),
        };
        for (key, value) in entries {
            if let Value::Integer(place) = key {
                let at = usize::try_from(place.saturating_sub(1)).unwrap_or(usize::MAX);
                let slot = strings.get_mut(at).ok_or("too many arguments")?;
                let kind = value.type_name();
                let text = lua.bytes(&value);
                let text =
                    text.ok_or_else(|| format!("argument {place} is a {kind}, not a string"))?;
                *slot = Some(String::from_utf8_lossy(text).into_owned());
                continue;
            }
            let name = lua.bytes(&key).unwrap_or_default();
            let known = self.flags.iter().find(|flag| flag.as_bytes() == name);
            let Some(flag) = known else {
                let name = String::from_utf8_lossy(name);
                return Err(format!("there is no argument '{name}'"));
            };
            match value {
                Value::Boolean(true) => flags.push(*flag),
                Value::Boolean(false) => {}
                other => {
                    let kind = other.type_name();
                    return Err(format!("argument '{flag}' is a {kind}, not a boolean"));
                }
            }
        }
        let strings: Option<Vec<String>> = strings.into_iter().collect();
        let strings = strings.ok_or("too few arguments")?;
        Ok(Given { strings, flags })
    }
}
