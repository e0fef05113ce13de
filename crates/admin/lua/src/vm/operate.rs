//! Operators.

use super::frame::Return;
use super::index::Origin;
use super::{Arithmetic, Comparison, Event, Flow, Lua, Throw};
use crate::number;
use crate::value::Value;

impl Lua<'_> {
    /// The number that a value is or that its text has.
    pub(crate) fn to_number(&self, value: Value) -> Option<i64> {
        match value {
            Value::Integer(number) => Some(number),
            Value::String(id) => number::parse(self.heap.bytes(id)),
            _ => None,
        }
    }

    fn compute(&mut self, op: Arithmetic, left: i64, right: i64) -> Result<i64, Throw> {
        Ok(match op {
            Arithmetic::Add => left.wrapping_add(right),
            Arithmetic::Sub => left.wrapping_sub(right),
            Arithmetic::Mul => left.wrapping_mul(right),
            Arithmetic::Div if right != 0 => left.wrapping_div(right),
            Arithmetic::Div => return Err(self.raise("attempt to divide by zero")),
            // As in OpenZFS, the rest has the sign of the left operand.
            Arithmetic::Mod if right != 0 => left.wrapping_rem(right),
            Arithmetic::Mod => return Err(self.raise("attempt to perform 'n%0'")),
            Arithmetic::Pow => number::power(left, right),
        })
    }

    pub(super) fn arithmetic(
        &mut self,
        op: Arithmetic,
        to: u8,
        (left, left_origin): (Value, Origin),
        (right, right_origin): (Value, Origin),
    ) -> Result<Flow, Throw> {
        let numbers = (self.to_number(left), self.to_number(right));
        if let (Some(left), Some(right)) = numbers {
            let result = self.compute(op, left, right)?;
            self.set_register(to, Value::Integer(result));
            return Ok(Flow::Next);
        }
        if let Some(handler) = self.handler_of_either(event_of(op), left, right) {
            return self.call_handler(handler, &[left, right], Return::Register(to));
        }
        let (value, origin) = match numbers.0 {
            Some(_) => (right, right_origin),
            None => (left, left_origin),
        };
        Err(self.type_error("perform arithmetic on", value, origin))
    }

    fn handler_of_either(&self, event: Event, left: Value, right: Value) -> Option<Value> {
        let handlers = [left, right].map(|value| self.metamethod(value, event));
        handlers.into_iter().find(|handler| *handler != Value::Nil)
    }

    pub(super) fn negate(&mut self, to: u8, value: Value, origin: Origin) -> Result<Flow, Throw> {
        if let Some(number) = self.to_number(value) {
            self.set_register(to, Value::Integer(number.wrapping_neg()));
            return Ok(Flow::Next);
        }
        match self.metamethod(value, Event::Unm) {
            Value::Nil => Err(self.type_error("perform arithmetic on", value, origin)),
            handler => self.call_handler(handler, &[value, value], Return::Register(to)),
        }
    }

    pub(super) fn length(&mut self, to: u8, value: Value, origin: Origin) -> Result<Flow, Throw> {
        if let Value::String(id) = value {
            let length = self.heap.bytes(id).len() as i64;
            self.set_register(to, Value::Integer(length));
            return Ok(Flow::Next);
        }
        match (self.metamethod(value, Event::Len), value) {
            (Value::Nil, Value::Table(table)) => {
                let length = self.heap.length(table);
                self.set_register(to, Value::Integer(length));
                Ok(Flow::Next)
            }
            (Value::Nil, _) => Err(self.type_error("get length of", value, origin)),
            (handler, _) => self.call_handler(handler, &[value, value], Return::Register(to)),
        }
    }

    /// Appends the text of a string or a number; whether the value is one.
    pub(crate) fn append_text(&self, text: &mut Vec<u8>, value: Value) -> bool {
        match value {
            Value::String(id) => text.extend_from_slice(self.heap.bytes(id)),
            Value::Integer(number) => text.extend_from_slice(number.to_string().as_bytes()),
            _ => return false,
        }
        true
    }

    /// The length of the text of a string or an estimate of that of a number.
    fn text_length(&self, value: Value) -> Option<usize> {
        match value {
            Value::String(id) => Some(self.heap.bytes(id).len()),
            Value::Integer(_) => Some(20),
            _ => None,
        }
    }

    pub(super) fn concat(
        &mut self,
        to: u8,
        (left, left_origin): (Value, Origin),
        (right, right_origin): (Value, Origin),
    ) -> Result<Flow, Throw> {
        let lengths = (self.text_length(left), self.text_length(right));
        if let (Some(left_length), Some(right_length)) = lengths {
            let mut text = self.buffer(left_length.saturating_add(right_length))?;
            self.append_text(&mut text, left);
            self.append_text(&mut text, right);
            let id = self.intern(&text)?;
            self.set_register(to, Value::String(id));
            return Ok(Flow::Next);
        }
        if let Some(handler) = self.handler_of_either(Event::Concat, left, right) {
            return self.call_handler(handler, &[left, right], Return::Register(to));
        }
        let (value, origin) = match lengths.0 {
            Some(_) => (right, right_origin),
            None => (left, left_origin),
        };
        Err(self.type_error("concatenate", value, origin))
    }

    /// An empty buffer of this capacity, which must fit into the memory limit.
    pub(crate) fn buffer(&mut self, length: usize) -> Result<Vec<u8>, Throw> {
        if length > 4096 {
            self.grant(length)?;
        }
        Ok(Vec::with_capacity(length))
    }

    pub(super) fn compare(
        &mut self,
        op: Comparison,
        to: u8,
        left: Value,
        right: Value,
    ) -> Result<Flow, Throw> {
        let negate = op == Comparison::NotEqual;
        let (outcome, arguments, negate) = match op {
            Comparison::Equal | Comparison::NotEqual => {
                (self.equal(left, right), [left, right], negate)
            }
            Comparison::Less => (self.less(left, right)?, [left, right], negate),
            Comparison::LessEqual => match self.less_equal(left, right)? {
                Ordered::CallSwapped(handler) => (Ordered::Call(handler), [right, left], true),
                outcome => (outcome, [left, right], false),
            },
        };
        match outcome {
            Ordered::Known(is) => {
                self.set_register(to, Value::Boolean(is != negate));
                Ok(Flow::Next)
            }
            Ordered::Call(handler) | Ordered::CallSwapped(handler) => {
                let result = Return::Truth {
                    register: to,
                    negate,
                };
                self.call_handler(handler, &arguments, result)
            }
        }
    }

    fn equal(&self, left: Value, right: Value) -> Ordered {
        if left == right || !matches!((left, right), (Value::Table(_), Value::Table(_))) {
            return Ordered::Known(left == right);
        }
        let handler = self.metamethod(left, Event::Eq);
        if handler == Value::Nil || handler != self.metamethod(right, Event::Eq) {
            return Ordered::Known(false);
        }
        Ordered::Call(handler)
    }

    fn less(&mut self, left: Value, right: Value) -> Result<Ordered, Throw> {
        match (left, right) {
            (Value::Integer(left), Value::Integer(right)) => Ok(Ordered::Known(left < right)),
            (Value::String(left), Value::String(right)) => {
                let is_less = self.heap.bytes(left) < self.heap.bytes(right);
                Ok(Ordered::Known(is_less))
            }
            _ => match self.handler_of_either(Event::Lt, left, right) {
                Some(handler) => Ok(Ordered::Call(handler)),
                None => Err(self.comparison_error(left, right)),
            },
        }
    }

    fn less_equal(&mut self, left: Value, right: Value) -> Result<Ordered, Throw> {
        match (left, right) {
            (Value::Integer(left), Value::Integer(right)) => Ok(Ordered::Known(left <= right)),
            (Value::String(left), Value::String(right)) => {
                let is = self.heap.bytes(left) <= self.heap.bytes(right);
                Ok(Ordered::Known(is))
            }
            _ => {
                if let Some(handler) = self.handler_of_either(Event::Le, left, right) {
                    return Ok(Ordered::Call(handler));
                }
                match self.handler_of_either(Event::Lt, right, left) {
                    Some(handler) => Ok(Ordered::CallSwapped(handler)),
                    None => Err(self.comparison_error(left, right)),
                }
            }
        }
    }

    /// Whether one value is less than another, for native code.
    pub(crate) fn is_less(&mut self, left: Value, right: Value) -> Result<bool, Throw> {
        match self.less(left, right)? {
            Ordered::Known(is) => Ok(is),
            Ordered::Call(handler) | Ordered::CallSwapped(handler) => {
                Ok(self.call_for_one(handler, &[left, right])?.is_true())
            }
        }
    }

    fn comparison_error(&mut self, left: Value, right: Value) -> Throw {
        let (left, right) = (left.type_name(), right.type_name());
        if left == right {
            self.raise(&format!("attempt to compare two {left} values"))
        } else {
            self.raise(&format!("attempt to compare {left} with {right}"))
        }
    }
}

/// The outcome of a comparison.
enum Ordered {
    Known(bool),
    /// A metamethod knows.
    Call(Value),
    /// A metamethod knows the opposite for the operands in the other order.
    CallSwapped(Value),
}

/// The event of an operation on numbers.
pub(super) fn event_of(op: Arithmetic) -> Event {
    match op {
        Arithmetic::Add => Event::Add,
        Arithmetic::Sub => Event::Sub,
        Arithmetic::Mul => Event::Mul,
        Arithmetic::Div => Event::Div,
        Arithmetic::Mod => Event::Mod,
        Arithmetic::Pow => Event::Pow,
    }
}
