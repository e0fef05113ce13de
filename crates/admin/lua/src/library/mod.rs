//! The functions of the manual that need neither files nor fractions.

mod base;
mod coroutine;
mod format;
mod pattern;
mod strings;
mod table;

use crate::heap::{Code, Function, Native, NativeRun};
use crate::value::{FunctionId, StringId, TableId, Value};
use crate::vm::{Args, Event, Lua, Throw};

/// A function of the library by its name.
type Entry = (&'static str, NativeRun);

/// Adds the library to the global variables.
pub(crate) fn open(lua: &mut Lua<'_>) -> Result<(), Throw> {
    let globals = lua.globals;
    lua.add_functions(globals, base::FUNCTIONS)?;
    lua.add_field(globals, "_G", Value::Table(globals))?;
    let version = Value::String(lua.intern(b"Lua 5.2")?);
    lua.add_field(globals, "_VERSION", version)?;
    for (name, functions) in [
        ("coroutine", coroutine::FUNCTIONS),
        ("string", strings::FUNCTIONS),
        ("table", table::FUNCTIONS),
    ] {
        let library = lua.make_table()?;
        lua.add_functions(library, functions)?;
        lua.add_field(globals, name, Value::Table(library))?;
        if name == "string" {
            let metatable = lua.make_table()?;
            lua.add_field(metatable, Event::Index.name(), Value::Table(library))?;
            lua.string_metatable = Some(metatable);
        }
    }
    Ok(())
}

impl Lua<'_> {
    fn add_field(&mut self, table: TableId, name: &str, value: Value) -> Result<(), Throw> {
        let key = Value::String(self.intern(name.as_bytes())?);
        self.raw_set(table, key, value)
    }

    fn add_functions(&mut self, table: TableId, functions: &[Entry]) -> Result<(), Throw> {
        for (name, run) in functions {
            // Functions of tables have the name of the table in front.
            let short = name.rsplit('.').next().unwrap_or(name);
            let function = self.native(name, *run, Vec::new())?;
            self.add_field(table, short, Value::Function(function))?;
        }
        Ok(())
    }

    /// A function of the library with values that it keeps.
    fn native(
        &mut self,
        name: &'static str,
        run: NativeRun,
        state: Vec<Value>,
    ) -> Result<FunctionId, Throw> {
        self.make_function(Function {
            code: Code::Native(Native { name, run }),
            upvalues: Box::default(),
            state,
        })
    }

    /// An argument; nil if it is missing.
    fn arg(&self, args: Args, number: usize) -> Value {
        if number > args.count {
            return Value::Nil;
        }
        self.exec.values[args.base + number - 1]
    }

    /// An argument that may be nil, but must be there.
    fn any(&mut self, args: Args, number: usize) -> Result<Value, Throw> {
        if number > args.count {
            return Err(self.argument_error(number, "value expected"));
        }
        Ok(self.arg(args, number))
    }

    fn type_expected(&mut self, args: Args, number: usize, expected: &str) -> Throw {
        let found = match number > args.count {
            // The name that OpenZFS shows for an argument that is missing.
            true => "internal_type_error",
            false => self.arg(args, number).type_name(),
        };
        self.argument_error(number, &format!("{expected} expected, got {found}"))
    }

    fn table_arg(&mut self, args: Args, number: usize) -> Result<TableId, Throw> {
        match self.arg(args, number) {
            Value::Table(table) => Ok(table),
            _ => Err(self.type_expected(args, number, "table")),
        }
    }

    fn function_arg(&mut self, args: Args, number: usize) -> Result<Value, Throw> {
        match self.arg(args, number) {
            function @ Value::Function(_) => Ok(function),
            _ => Err(self.type_expected(args, number, "function")),
        }
    }

    fn integer_arg(&mut self, args: Args, number: usize) -> Result<i64, Throw> {
        match self.to_number(self.arg(args, number)) {
            Some(integer) => Ok(integer),
            None => Err(self.type_expected(args, number, "number")),
        }
    }

    /// A number that may be missing or nil.
    fn optional_integer(&mut self, args: Args, number: usize, missing: i64) -> Result<i64, Throw> {
        match self.arg(args, number) {
            Value::Nil => Ok(missing),
            _ => self.integer_arg(args, number),
        }
    }

    /// A string, or a number as text.
    fn string_arg(&mut self, args: Args, number: usize) -> Result<StringId, Throw> {
        match self.arg(args, number) {
            Value::String(string) => Ok(string),
            Value::Integer(integer) => {
                let text = Value::String(self.intern(integer.to_string().as_bytes())?);
                // The stack keeps the text alive.
                self.exec.values[args.base + number - 1] = text;
                self.string_arg(args, number)
            }
            _ => Err(self.type_expected(args, number, "string")),
        }
    }

    /// Pushes a string as a result.
    fn push_string(&mut self, bytes: &[u8]) -> Result<(), Throw> {
        let string = self.intern(bytes)?;
        self.push(Value::String(string))
    }

    /// Pushes one result and returns the number of results.
    fn result(&mut self, value: Value) -> Result<usize, Throw> {
        self.push(value)?;
        Ok(1)
    }

    /// The text of any value.
    fn describe(&mut self, value: Value) -> Result<Value, Throw> {
        let handler = self.metamethod(value, Event::ToString);
        if handler != Value::Nil {
            return match self.call_for_one(handler, &[value])? {
                Value::Integer(number) => self.new_string(number.to_string().as_bytes()),
                text => Ok(text),
            };
        }
        let text = match value {
            Value::Nil => "nil".to_owned(),
            Value::Boolean(value) => value.to_string(),
            Value::Integer(number) => number.to_string(),
            Value::String(_) => return Ok(value),
            // The place of an object says which one it is, as its address does elsewhere.
            Value::Table(id) => format!("table: {:016x}", id.0),
            Value::Function(id) => format!("function: {:016x}", id.0),
            Value::Thread(id) => format!("thread: {:016x}", id.0),
        };
        self.new_string(text.as_bytes())
    }
}
