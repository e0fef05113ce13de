//! What a program that runs scripts uses.

use crate::heap::{Code, Function};
use crate::library;
use crate::parse;
use crate::value::Value;
use crate::vm::{Lua, Throw};
use std::cell::RefCell;
use std::rc::Rc;

/// How much a program may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Instructions of the virtual machine. Long work of the library counts too.
    pub instructions: u64,
    /// Bytes of all objects together; more than 4 GiB count as 4 GiB.
    pub memory_bytes: usize,
}

/// Each object takes many bytes, so there are never more of them than handles.
const MEMORY_BYTES_MAX: usize = u32::MAX as usize;

/// Why a program could not be compiled or did not end properly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The source is not a program: the message has the position.
    #[error("{0}")]
    Syntax(String),
    /// The program failed.
    #[error("{message}")]
    Runtime {
        /// The text of the error, mostly with the position. Empty if the program raised something else than a string
        /// or a number.
        message: String,
        /// `stack traceback:` and a line for each function that was running. Empty until the error leaves a call.
        traceback: String,
    },
    /// The program needs more memory than it may use.
    #[error("the program needs more memory than its limit")]
    Memory,
    /// The program runs longer than it may.
    #[error("the program takes more instructions than its limit")]
    Instructions,
    /// The host stopped the program.
    #[error("the program was stopped")]
    Stopped,
}

impl<'h> Lua<'h> {
    /// An interpreter with the functions of the library.
    ///
    /// # Errors
    /// If the memory limit is too small for the library.
    pub fn new(limits: Limits) -> Result<Self, Error> {
        let limits = Limits {
            memory_bytes: limits.memory_bytes.min(MEMORY_BYTES_MAX),
            ..limits
        };
        let unlimited = Limits {
            instructions: u64::MAX,
            ..limits
        };
        let opened = Self::bare(unlimited).and_then(|mut lua| {
            library::open(&mut lua)?;
            Ok(lua)
        });
        let mut lua = opened.map_err(plain_error)?;
        lua.limits = limits;
        lua.instructions = 0;
        lua.reset_check();
        lua.is_collection_paused = false;
        Ok(lua)
    }

    /// Asks `is_stopped` after every few thousand instructions, and ends the program when it says so.
    pub fn stop_when(&mut self, is_stopped: impl Fn() -> bool + 'h) {
        self.stop = Some(Box::new(is_stopped));
    }

    /// Compiles a program. The result is a function that takes its arguments as `...`.
    ///
    /// # Errors
    /// If the source is not a program or does not fit into the memory limit.
    pub fn load(&mut self, source: &[u8], chunk_name: &str) -> Result<Value, Error> {
        let before = std::mem::replace(&mut self.is_collection_paused, true);
        let loaded = parse::compile(self, source, chunk_name);
        self.is_collection_paused = before;
        Ok(self.keep(loaded?))
    }

    /// Calls a function. The results stay alive while the host may use them.
    ///
    /// # Errors
    /// If the function fails or reaches a limit.
    pub fn call(&mut self, function: &Value, arguments: &[Value]) -> Result<Vec<Value>, Error> {
        if self.depth == 0 {
            self.traceback = None;
        }
        match self.call_value(*function, arguments, 1) {
            Ok(place) => {
                let results = self.exec.values[place..self.exec.top].to_vec();
                self.exec.top = place;
                for value in &results {
                    self.keep(*value);
                }
                Ok(results)
            }
            Err(throw) => Err(self.error_of(throw)),
        }
    }

    /// A string with these bytes.
    ///
    /// # Errors
    /// If the memory limit is reached.
    pub fn string(&mut self, bytes: &[u8]) -> Result<Value, Error> {
        self.new_string(bytes).map_err(|throw| self.error_of(throw))
    }

    /// An empty table.
    ///
    /// # Errors
    /// If the memory limit is reached.
    pub fn table(&mut self) -> Result<Value, Error> {
        let made = self.new_table().map(Value::Table);
        made.map_err(|throw| self.error_of(throw))
    }

    /// A function of the host. The name is for messages, and the function must not call itself through Lua.
    ///
    /// # Errors
    /// If the memory limit is reached.
    pub fn function(
        &mut self,
        name: &str,
        body: impl FnMut(&mut Lua<'h>, &[Value]) -> Result<Vec<Value>, Error> + 'h,
    ) -> Result<Value, Error> {
        let function = Function {
            code: Code::Host(name.into(), Rc::new(RefCell::new(body))),
            upvalues: Box::default(),
            state: Vec::new(),
        };
        match self.make_function(function) {
            Ok(id) => Ok(self.keep(Value::Function(id))),
            Err(throw) => Err(self.error_of(throw)),
        }
    }

    /// The value of a key, without metamethods: nil if the first value is not a table.
    #[must_use]
    pub fn get(&self, table: &Value, key: &Value) -> Value {
        match table {
            Value::Table(id) => self.keep(self.heap.get(*id, *key)),
            _ => Value::Nil,
        }
    }

    /// Sets the value of a key, without metamethods.
    ///
    /// # Errors
    /// If the first value is not a table, the key is nil, or the memory limit is reached.
    pub fn set(&mut self, table: &Value, key: Value, value: Value) -> Result<(), Error> {
        let Value::Table(id) = table else {
            let type_name = table.type_name();
            return Err(self.error(format!("attempt to index a {type_name} value")));
        };
        if key == Value::Nil {
            return Err(self.error("table index is nil"));
        }
        let set = self.raw_set(*id, key, value);
        set.map_err(|throw| self.error_of(throw))
    }

    /// All keys and values of a table: first those of a sequence, then the others as they were inserted.
    #[must_use]
    pub fn entries(&self, table: &Value) -> Vec<(Value, Value)> {
        let Value::Table(id) = table else {
            return Vec::new();
        };
        let table = self.heap.table(*id);
        let items = (1..).map(Value::Integer).zip(table.array().iter().copied());
        let all = items.chain(table.entries().iter().copied());
        let all: Vec<_> = all.filter(|(_, value)| *value != Value::Nil).collect();
        for (key, value) in &all {
            self.keep(*key);
            self.keep(*value);
        }
        all
    }

    /// The bytes of a string; `None` for other values.
    #[must_use]
    pub fn bytes<'a>(&'a self, value: &'a Value) -> Option<&'a [u8]> {
        match value {
            Value::String(id) => Some(self.heap.bytes(*id)),
            _ => None,
        }
    }

    /// Sets a global variable.
    ///
    /// # Errors
    /// If the memory limit is reached.
    pub fn set_global(&mut self, name: &str, value: Value) -> Result<(), Error> {
        let key = self.string(name.as_bytes())?;
        let globals = Value::Table(self.globals);
        self.set(&globals, key, value)
    }

    /// An error of a function of the host. The message gets the position of the code that called it.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Runtime {
            message: self.position(1) + &message.into(),
            traceback: String::new(),
        }
    }

    /// The value of the error that the last [`Lua::call`] ended with: programs may raise other values than strings.
    #[must_use]
    pub fn error_value(&self) -> Option<Value> {
        self.in_flight.as_ref().map(|(_, value)| *value)
    }

    /// The functions that were running when the last [`Lua::call`] reached a limit.
    #[must_use]
    pub fn traceback(&self) -> Option<&str> {
        self.traceback.as_deref()
    }

    /// Instructions that were run.
    #[must_use]
    pub fn instructions_used(&self) -> u64 {
        self.instructions
    }

    /// Bytes that the objects use.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.heap.used
    }

    /// The error for the host.
    fn error_of(&mut self, throw: Throw) -> Error {
        let Throw::Error(value) = throw else {
            return plain_error(throw);
        };
        let traceback = self.traceback.take();
        let traceback = traceback.unwrap_or_else(|| self.describe_stack());
        let message = self.error_text(value);
        self.in_flight = Some((message.clone(), value));
        Error::Runtime { message, traceback }
    }

    /// The text of an error's value: empty if it is neither a string nor a number.
    fn error_text(&self, value: Value) -> String {
        let mut text = Vec::new();
        self.append_text(&mut text, value);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// What an error of a function of the host throws.
    pub(crate) fn throw_of(&mut self, error: Error) -> Throw {
        match error {
            Error::Memory => Throw::Memory,
            Error::Instructions => Throw::Instructions,
            Error::Stopped => Throw::Stopped,
            Error::Syntax(message) => self.throw_text(&message),
            Error::Runtime { message, traceback } => {
                if !traceback.is_empty() && self.current == self.main {
                    self.traceback = Some(traceback);
                }
                match self.in_flight.take() {
                    Some((text, value)) if text == message => Throw::Error(value),
                    _ => self.throw_text(&message),
                }
            }
        }
    }

    fn throw_text(&mut self, message: &str) -> Throw {
        match self.new_string(message.as_bytes()) {
            Ok(value) => {
                self.thrown = value;
                Throw::Error(value)
            }
            Err(throw) => throw,
        }
    }
}

fn plain_error(throw: Throw) -> Error {
    match throw {
        Throw::Memory => Error::Memory,
        Throw::Instructions => Error::Instructions,
        Throw::Stopped => Error::Stopped,
        Throw::Error(value) => Error::Runtime {
            message: value.type_name().to_owned(),
            traceback: String::new(),
        },
    }
}
