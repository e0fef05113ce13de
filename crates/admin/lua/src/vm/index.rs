//! Fields and metamethods.

use super::{Flow, Lua, Throw, frame::Return};
use crate::value::{TableId, Value};

/// The events that a metatable can define.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Index,
    NewIndex,
    Call,
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Unm,
    Len,
    Concat,
    Eq,
    Lt,
    Le,
    ToString,
    Metatable,
    Pairs,
    Ipairs,
    Mode,
}

impl Event {
    pub(crate) const ALL: [Self; 20] = [
        Self::Index,
        Self::NewIndex,
        Self::Call,
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::Mod,
        Self::Pow,
        Self::Unm,
        Self::Len,
        Self::Concat,
        Self::Eq,
        Self::Lt,
        Self::Le,
        Self::ToString,
        Self::Metatable,
        Self::Pairs,
        Self::Ipairs,
        Self::Mode,
    ];

    /// The name of the field in the metatable.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Index => "__index",
            Self::NewIndex => "__newindex",
            Self::Call => "__call",
            Self::Add => "__add",
            Self::Sub => "__sub",
            Self::Mul => "__mul",
            Self::Div => "__div",
            Self::Mod => "__mod",
            Self::Pow => "__pow",
            Self::Unm => "__unm",
            Self::Len => "__len",
            Self::Concat => "__concat",
            Self::Eq => "__eq",
            Self::Lt => "__lt",
            Self::Le => "__le",
            Self::ToString => "__tostring",
            Self::Metatable => "__metatable",
            Self::Pairs => "__pairs",
            Self::Ipairs => "__ipairs",
            Self::Mode => "__mode",
        }
    }
}

/// Where an instruction has a value from, for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Operand(u16),
    Upvalue(u8),
    Unknown,
}

/// What the search for a field ends with.
pub(crate) enum Lookup {
    /// The value, for reading.
    Value(Value),
    /// The field is set.
    Done,
    /// A function of a metatable answers for this object.
    Call(Value, Value),
    /// This object has no fields; whether it is the one that was asked first.
    NoFields(Value, bool),
}

/// Metatables that a search for a field goes through.
const CHAIN_MAX: usize = 100;

impl Lua<'_> {
    /// The metatable of a value.
    pub(crate) fn metatable(&self, value: Value) -> Option<TableId> {
        match value {
            Value::Table(id) => self.heap.table(id).metatable,
            Value::String(_) => self.string_metatable,
            _ => None,
        }
    }

    /// The handler of an event for a value, or nil.
    pub(crate) fn metamethod(&self, value: Value, event: Event) -> Value {
        self.metatable(value).map_or(Value::Nil, |table| {
            let name = Value::String(self.events[event as usize]);
            self.heap.get(table, name)
        })
    }

    /// Searches the value of a field.
    pub(crate) fn look_up(&mut self, first: Value, key: Value) -> Result<Lookup, Throw> {
        let mut object = first;
        for step in 0..CHAIN_MAX {
            if let Value::Table(table) = object {
                let value = self.heap.get(table, key);
                if value != Value::Nil || self.heap.table(table).metatable.is_none() {
                    return Ok(Lookup::Value(value));
                }
            }
            match (self.metamethod(object, Event::Index), object) {
                (Value::Nil, Value::Table(_)) => return Ok(Lookup::Value(Value::Nil)),
                (Value::Nil, _) => return Ok(Lookup::NoFields(object, step == 0)),
                (function @ Value::Function(_), _) => return Ok(Lookup::Call(function, object)),
                (next, _) => object = next,
            }
        }
        Err(self.raise("loop in gettable"))
    }

    /// Sets a field, or finds the function that does it.
    pub(crate) fn look_up_to_set(
        &mut self,
        first: Value,
        key: Value,
        value: Value,
    ) -> Result<Lookup, Throw> {
        let mut object = first;
        for step in 0..CHAIN_MAX {
            let mut handler = Value::Nil;
            if let Value::Table(table) = object {
                if self.heap.table(table).metatable.is_some()
                    && self.heap.get(table, key) == Value::Nil
                {
                    handler = self.metamethod(object, Event::NewIndex);
                }
                if handler == Value::Nil {
                    if key == Value::Nil {
                        return Err(self.raise("table index is nil"));
                    }
                    self.raw_set(table, key, value)?;
                    return Ok(Lookup::Done);
                }
            } else {
                handler = self.metamethod(object, Event::NewIndex);
            }
            match handler {
                Value::Nil => return Ok(Lookup::NoFields(object, step == 0)),
                Value::Function(_) => return Ok(Lookup::Call(handler, object)),
                next => object = next,
            }
        }
        Err(self.raise("loop in settable"))
    }

    /// The instruction that reads a field into a register.
    pub(super) fn get_field(
        &mut self,
        to: u8,
        object: Value,
        key: Value,
        origin: Origin,
    ) -> Result<Flow, Throw> {
        match self.look_up(object, key)? {
            Lookup::Value(value) => {
                self.set_register(to, value);
                Ok(Flow::Next)
            }
            Lookup::Call(function, object) => {
                self.call_handler(function, &[object, key], Return::Register(to))
            }
            Lookup::Done => Ok(Flow::Next),
            Lookup::NoFields(object, is_first) => {
                let origin = if is_first { origin } else { Origin::Unknown };
                Err(self.type_error("index", object, origin))
            }
        }
    }

    /// The instruction that sets a field.
    pub(super) fn set_field(
        &mut self,
        object: Value,
        key: Value,
        value: Value,
        origin: Origin,
    ) -> Result<Flow, Throw> {
        match self.look_up_to_set(object, key, value)? {
            Lookup::Call(function, object) => {
                self.call_handler(function, &[object, key, value], Return::Discard)
            }
            Lookup::Value(_) | Lookup::Done => Ok(Flow::Next),
            Lookup::NoFields(object, is_first) => {
                let origin = if is_first { origin } else { Origin::Unknown };
                Err(self.type_error("index", object, origin))
            }
        }
    }

    /// The value of a field, for native code.
    pub(crate) fn index(&mut self, object: Value, key: Value) -> Result<Value, Throw> {
        match self.look_up(object, key)? {
            Lookup::Value(value) => Ok(value),
            Lookup::Call(function, object) => self.call_for_one(function, &[object, key]),
            Lookup::Done => Ok(Value::Nil),
            Lookup::NoFields(object, _) => Err(self.type_error("index", object, Origin::Unknown)),
        }
    }
}
