//! Runs scripts and shows their results as text.

use millpond_lua::{Error, Limits, Lua, Value};

pub const LIMITS: Limits = Limits {
    instructions: 10_000_000,
    memory_bytes: 10 << 20,
};

pub const CHUNK: &str = "channel program";

/// The results of a script, or its error, as text.
pub fn run(source: &str) -> String {
    run_within(LIMITS, source.as_bytes())
}

pub fn run_within(limits: Limits, source: &[u8]) -> String {
    let mut lua = match Lua::new(limits) {
        Ok(lua) => lua,
        Err(error) => return error_text(&error),
    };
    match run_in(&mut lua, source) {
        Ok(values) => {
            let shown: Vec<String> = values.iter().map(|value| show(&lua, value)).collect();
            shown.join(" ")
        }
        Err(error) => error_text(&error),
    }
}

pub fn run_in(lua: &mut Lua<'_>, source: &[u8]) -> Result<Vec<Value>, Error> {
    let program = lua.load(source, CHUNK)?;
    lua.call(&program, &[])
}

/// An error with its traceback.
pub fn error_text(error: &Error) -> String {
    match error {
        Error::Syntax(message) => format!("syntax: {message}"),
        Error::Runtime { message, traceback } => format!("{message}\n{traceback}"),
        Error::Memory => "memory".into(),
        Error::Instructions => "instructions".into(),
        Error::Stopped => "stopped".into(),
    }
}

/// A value as text, tables with their entries.
pub fn show(lua: &Lua<'_>, value: &Value) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Boolean(value) => value.to_string(),
        Value::Integer(number) => number.to_string(),
        Value::String(_) => {
            let bytes = lua.bytes(value).unwrap_or_default();
            format!("'{}'", bytes.escape_ascii())
        }
        Value::Table(_) => {
            let entries = lua.entries(value);
            let entries = entries.iter().map(|(key, value)| match key {
                Value::Integer(number) => format!("{number}={}", show(lua, value)),
                key => format!("{}={}", show(lua, key).trim_matches('\''), show(lua, value)),
            });
            format!("{{{}}}", entries.collect::<Vec<_>>().join(" "))
        }
        other => other.type_name().into(),
    }
}
