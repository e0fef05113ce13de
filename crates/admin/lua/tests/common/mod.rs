//! Runs scripts and shows their results as text.

// Each test uses a part of it.
#![allow(dead_code)]

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
        Error::Runtime { message, traceback } if message.is_empty() => traceback.clone(),
        Error::Runtime { message, traceback } => format!("{message}\n{traceback}"),
        Error::Memory => "memory".into(),
        Error::Instructions => "instructions".into(),
        Error::Stopped => "stopped".into(),
    }
}

/// A value as text, tables with their entries.
pub fn show(lua: &Lua<'_>, value: &Value) -> String {
    show_to_depth(lua, value, 4)
}

fn show_to_depth(lua: &Lua<'_>, value: &Value, depth: usize) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Boolean(value) => value.to_string(),
        Value::Integer(number) => number.to_string(),
        Value::String(_) => {
            let bytes = lua.bytes(value).unwrap_or_default();
            format!("'{}'", String::from_utf8_lossy(bytes))
        }
        Value::Table(_) if depth == 0 => "{...}".into(),
        Value::Table(_) => {
            let mut entries: Vec<String> = Vec::new();
            for (key, value) in lua.entries(value).iter().take(50) {
                let key = show_to_depth(lua, key, depth - 1);
                let value = show_to_depth(lua, value, depth - 1);
                entries.push(format!("{}={value}", key.trim_matches('\'')));
            }
            format!("{{{}}}", entries.join(" "))
        }
        other => other.type_name().into(),
    }
}
