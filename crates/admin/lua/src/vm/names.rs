//! Names of values and functions for error messages.

use super::frame::Frame;
use super::index::Origin;
use super::{ALL, Event, FIRST_CONSTANT, Lua, Op, Operand, Throw};
use crate::heap::{Code, LocalName, Proto};
use crate::value::Value;

/// What a value is called, and what kind of name that is.
pub(super) struct Name {
    pub(super) kind: &'static str,
    pub(super) name: String,
}

impl Lua<'_> {
    /// The frame on top, if it is one of the program, with its instruction.
    pub(super) fn current_op(&self) -> Option<(&Frame, Op)> {
        let frame = self.exec.frames.last()?;
        let proto = frame.proto.as_ref()?;
        Some((frame, *proto.code.get(frame.next.checked_sub(1)?)?))
    }

    /// The position of the function `level` frames below the top: empty for native code.
    pub(crate) fn position(&self, level: usize) -> String {
        let index = self.exec.frames.len().checked_sub(level + 1);
        let frame = index.and_then(|index| self.exec.frames.get(index));
        match frame.and_then(|frame| Some((frame.proto.as_ref()?, frame.next))) {
            Some((proto, next)) => format!("{}:{}: ", proto.source, line(proto, next)),
            None => String::new(),
        }
    }

    /// An error whose message begins with the position of a frame.
    pub(crate) fn error_at(&mut self, level: usize, message: &[u8]) -> Throw {
        let mut text = self.position(level).into_bytes();
        text.extend_from_slice(message);
        match self.intern(&text) {
            Ok(text) => {
                self.thrown = Value::String(text);
                Throw::Error(self.thrown)
            }
            Err(throw) => throw,
        }
    }

    /// An error of the interpreter itself.
    pub(crate) fn raise(&mut self, message: &str) -> Throw {
        self.error_at(0, message.as_bytes())
    }

    /// An error of the native function on top, at the position of its caller.
    pub(crate) fn fail(&mut self, message: &str) -> Throw {
        self.error_at(1, message.as_bytes())
    }

    /// An error about an argument of the native function on top.
    pub(crate) fn argument_error(&mut self, number: usize, message: &str) -> Throw {
        let top = self.exec.frames.len().saturating_sub(1);
        let (mut number, name) = (number, self.called_name(top));
        let name = match name {
            Some(Name {
                kind: "method",
                name,
            }) => {
                number -= 1;
                if number == 0 {
                    return self.fail(&format!("calling '{name}' on bad self ({message})"));
                }
                name
            }
            Some(Name { name, .. }) => name,
            None => self.own_name(top).unwrap_or_else(|| "?".into()),
        };
        self.fail(&format!("bad argument #{number} to '{name}' ({message})"))
    }

    /// An error about an operand of the wrong type.
    pub(super) fn type_error(&mut self, action: &str, value: Value, origin: Origin) -> Throw {
        let type_name = value.type_name();
        let what = match self.name_of_origin(origin) {
            Some(Name { kind, name }) => format!("{kind} '{name}' (a {type_name} value)"),
            None => format!("a {type_name} value"),
        };
        self.raise(&format!("attempt to {action} {what}"))
    }

    fn name_of_origin(&self, origin: Origin) -> Option<Name> {
        let frame = self.exec.frames.last()?;
        let proto = frame.proto.as_ref()?;
        match origin {
            Origin::Unknown => None,
            Origin::Upvalue(upvalue) => Some(Name {
                kind: "upvalue",
                name: self.text(proto.captures.get(usize::from(upvalue))?.0.0),
            }),
            Origin::Operand(operand) => {
                let register = u8::try_from(operand).ok()?;
                self.name_of_register(proto, frame.next.checked_sub(1)?, register)
            }
        }
    }

    fn text(&self, string: u32) -> String {
        String::from_utf8_lossy(&self.heap.strings.get(string).bytes).into_owned()
    }

    /// The local variable of a register at an instruction.
    fn name_of_local(&self, proto: &Proto, at: usize, register: u8) -> Option<String> {
        let is_it = |local: &&LocalName| {
            local.register == register && (local.begin as usize..local.end as usize).contains(&at)
        };
        let local = proto.locals.iter().rev().find(is_it)?;
        Some(self.text(local.name.0))
    }

    /// What the value in a register is called at an instruction.
    pub(super) fn name_of_register(&self, proto: &Proto, at: usize, register: u8) -> Option<Name> {
        if let Some(name) = self.name_of_local(proto, at, register) {
            return Some(Name {
                kind: "local",
                name,
            });
        }
        let at = last_writer(proto, at, register)?;
        match proto.code[at] {
            Op::Move { from, to } if from < to => self.name_of_register(proto, at, from),
            Op::Get { table, key, .. } => {
                let is_environment = self
                    .name_of_local(proto, at, table)
                    .is_some_and(|name| name == "_ENV");
                let kind = if is_environment { "global" } else { "field" };
                let name = self.name_of_key(proto, key);
                Some(Name { kind, name })
            }
            Op::GetField { upvalue, key, .. } => {
                let is_environment =
                    self.text(proto.captures.get(usize::from(upvalue))?.0.0) == "_ENV";
                let kind = if is_environment { "global" } else { "field" };
                let name = self.name_of_key(proto, key);
                Some(Name { kind, name })
            }
            Op::GetUpvalue { upvalue, .. } => Some(Name {
                kind: "upvalue",
                name: self.text(proto.captures.get(usize::from(upvalue))?.0.0),
            }),
            Op::Constant { constant, .. } => match proto.constants.get(constant as usize) {
                Some(Value::String(id)) => Some(Name {
                    kind: "constant",
                    name: self.text(id.0),
                }),
                _ => None,
            },
            Op::Method { key, .. } => Some(Name {
                kind: "method",
                name: self.name_of_key(proto, key),
            }),
            _ => None,
        }
    }

    fn name_of_key(&self, proto: &Proto, key: Operand) -> String {
        let constant = key.checked_sub(FIRST_CONSTANT);
        match constant.and_then(|constant| proto.constants.get(usize::from(constant))) {
            Some(Value::String(id)) => self.text(id.0),
            _ => "?".into(),
        }
    }

    /// What the code that called a frame calls the function.
    pub(super) fn called_name(&self, index: usize) -> Option<Name> {
        let called = self.exec.frames.get(index)?;
        let caller = self.exec.frames.get(index.checked_sub(1)?)?;
        let boundaries = &self.exec.boundaries;
        let is_from_native = boundaries.iter().any(|boundary| boundary.frames == index);
        if called.is_tail || is_from_native {
            return None;
        }
        let proto = caller.proto.as_ref()?;
        let at = caller.next.checked_sub(1)?;
        let event = match proto.code[at] {
            Op::Call { base, .. } | Op::TailCall { base, .. } => {
                return self.name_of_register(proto, at, base);
            }
            Op::IteratorCall { .. } => {
                return Some(Name {
                    kind: "for iterator",
                    name: "for iterator".into(),
                });
            }
            Op::Get { .. } | Op::GetField { .. } | Op::Method { .. } => Event::Index,
            Op::Set { .. } | Op::SetField { .. } => Event::NewIndex,
            Op::Arithmetic { op, .. } => super::operate::event_of(op),
            Op::Negate { .. } => Event::Unm,
            Op::Length { .. } => Event::Len,
            Op::Concat { .. } => Event::Concat,
            Op::Compare { op, .. } => match op {
                super::Comparison::Equal | super::Comparison::NotEqual => Event::Eq,
                super::Comparison::Less => Event::Lt,
                super::Comparison::LessEqual => Event::Le,
            },
            _ => return None,
        };
        Some(Name {
            kind: "metamethod",
            name: event.name().into(),
        })
    }

    /// The name under which a native function was made.
    pub(super) fn own_name(&self, index: usize) -> Option<String> {
        let frame = self.exec.frames.get(index)?;
        match &self.heap.function(frame.function).code {
            Code::Native(native) if native.name.is_empty() => None,
            Code::Native(native) => Some(native.name.into()),
            Code::Host(name, _) => Some(name.to_string()),
            Code::Lua(_) => None,
        }
    }
}

/// The line of the instruction before `next`.
pub(super) fn line(proto: &Proto, next: usize) -> u32 {
    let at = next.saturating_sub(1);
    proto.lines.get(at).copied().unwrap_or(proto.line)
}

/// The instruction before `at` that wrote a register, if there is only one way to get there.
fn last_writer(proto: &Proto, at: usize, register: u8) -> Option<usize> {
    let (mut writer, mut joined) = (None, 0);
    for (index, op) in proto.code.iter().enumerate().take(at) {
        let target = match *op {
            Op::Jump { target, .. } | Op::JumpIf { target, .. } => target as usize,
            _ => 0,
        };
        if target > index && target <= at {
            joined = joined.max(target);
        }
        if writes(*op, register) {
            writer = (index >= joined).then_some(index);
        }
    }
    writer
}

/// Whether an instruction writes a register.
fn writes(op: Op, register: u8) -> bool {
    match op {
        Op::Move { to, .. }
        | Op::Constant { to, .. }
        | Op::Boolean { to, .. }
        | Op::GetUpvalue { to, .. }
        | Op::GetField { to, .. }
        | Op::Get { to, .. }
        | Op::NewTable { to }
        | Op::Arithmetic { to, .. }
        | Op::Negate { to, .. }
        | Op::Not { to, .. }
        | Op::Length { to, .. }
        | Op::Concat { to, .. }
        | Op::Compare { to, .. }
        | Op::Closure { to, .. } => to == register,
        Op::Method { to, .. } => register == to || register == to + 1,
        Op::Nil { to, count } => register >= to && register - to < count,
        Op::Varargs { to, count } => register >= to && (count == ALL || register - to < count),
        Op::Call { base, .. } | Op::TailCall { base, .. } => register >= base,
        Op::IteratorCall { base, .. } => register >= base + 3,
        Op::ForLoop { base, .. } | Op::ForPrepare { base, .. } => {
            register >= base && register <= base + 3
        }
        _ => false,
    }
}
