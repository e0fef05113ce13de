//! The loop that runs instructions.

use super::frame::Return;
use super::index::Origin;
use super::{ALL, Arithmetic, FIRST_CONSTANT, Flow, Lua, Op, Operand, Throw};
use crate::heap::{Capture, Code, Function, Proto};
use crate::value::{FunctionId, Value};
use std::rc::Rc;

/// The frame on top, for the instructions.
struct Running {
    proto: Rc<Proto>,
    function: FunctionId,
    base: usize,
    varargs: usize,
}

impl Lua<'_> {
    /// Runs until the results are there that native code waits for.
    pub(super) fn run(&mut self, start: Result<Flow, Throw>) -> Result<(), Throw> {
        let mut flow = start;
        loop {
            flow = match flow {
                Ok(Flow::Exit) => return Ok(()),
                Ok(_) => self.run_frame(),
                Err(throw) => Ok(self.unwind(throw)?),
            };
        }
    }

    fn run_frame(&mut self) -> Result<Flow, Throw> {
        let Some(frame) = self.exec.frames.last() else {
            return Ok(Flow::Exit);
        };
        let Some(proto) = &frame.proto else {
            return Ok(Flow::Exit);
        };
        let running = Running {
            proto: Rc::clone(proto),
            function: frame.function,
            base: frame.base,
            varargs: frame.varargs,
        };
        let (position, mut next) = (self.exec.frames.len() - 1, frame.next);
        loop {
            if self.instructions >= self.check_at {
                self.check_limits()?;
            }
            self.instructions += 1;
            let op = running.proto.code[next];
            next += 1;
            self.exec.frames[position].next = next;
            match self.step(&running, op, &mut next)? {
                Flow::Next => {}
                flow => return Ok(flow),
            }
        }
    }

    #[inline]
    fn step(&mut self, running: &Running, op: Op, next: &mut usize) -> Result<Flow, Throw> {
        let base = running.base;
        match op {
            Op::Move { to, from } => {
                let value = self.register(running, from);
                self.exec.values[base + usize::from(to)] = value;
            }
            Op::Constant { to, constant } => {
                self.exec.values[base + usize::from(to)] =
                    running.proto.constants[constant as usize];
            }
            Op::Boolean { to, value } => {
                self.exec.values[base + usize::from(to)] = Value::Boolean(value);
            }
            Op::Nil { to, count } => {
                let from = base + usize::from(to);
                self.exec.values[from..from + usize::from(count)].fill(Value::Nil);
            }
            Op::Jump { close, target } => {
                if close > 0 {
                    self.close_upvalues(base + usize::from(close) - 1);
                }
                *next = target as usize;
            }
            Op::JumpIf {
                register,
                is,
                target,
            } => {
                if self.register(running, register).is_true() == is {
                    *next = target as usize;
                }
            }
            Op::Not { to, from } => {
                let value = Value::Boolean(!self.register(running, from).is_true());
                self.exec.values[base + usize::from(to)] = value;
            }
            Op::Close { from } => self.close_upvalues(base + usize::from(from)),
            Op::ForLoop { base, target } => {
                if self.for_loop(running, base) {
                    *next = target as usize;
                }
            }
            Op::IteratorLoop { base, target } => {
                let value = self.register(running, base + 3);
                if value != Value::Nil {
                    self.set_register(base + 2, value);
                    *next = target as usize;
                }
            }
            Op::ForPrepare { base, target } => {
                if !self.for_prepare(running, base)? {
                    *next = target as usize;
                }
            }
            Op::Get { .. }
            | Op::Set { .. }
            | Op::GetField { .. }
            | Op::SetField { .. }
            | Op::GetUpvalue { .. }
            | Op::SetUpvalue { .. }
            | Op::Method { .. } => return self.step_field(running, op),
            Op::Call { .. } | Op::TailCall { .. } | Op::Return { .. } | Op::IteratorCall { .. } => {
                return self.step_call(running, op);
            }
            _ => return self.step_operator(running, op),
        }
        Ok(Flow::Next)
    }

    #[inline]
    fn register(&self, running: &Running, register: u8) -> Value {
        self.exec.values[running.base + usize::from(register)]
    }

    #[inline]
    fn operand(&self, running: &Running, operand: Operand) -> Value {
        match operand.checked_sub(FIRST_CONSTANT) {
            Some(constant) => running.proto.constants[usize::from(constant)],
            None => self.exec.values[running.base + usize::from(operand)],
        }
    }

    /// An operand with its origin.
    fn known(&self, running: &Running, operand: Operand) -> (Value, Origin) {
        (self.operand(running, operand), Origin::Operand(operand))
    }

    fn shared(&self, running: &Running, upvalue: u8) -> Value {
        let function = self.heap.function(running.function);
        self.upvalue(function.upvalues[usize::from(upvalue)])
    }

    fn step_field(&mut self, running: &Running, op: Op) -> Result<Flow, Throw> {
        match op {
            Op::GetUpvalue { to, upvalue } => {
                let value = self.shared(running, upvalue);
                self.set_register(to, value);
            }
            Op::SetUpvalue { upvalue, from } => {
                let value = self.register(running, from);
                let function = self.heap.function(running.function);
                self.set_upvalue(function.upvalues[usize::from(upvalue)], value);
            }
            Op::Get { to, table, key } => {
                let object = self.register(running, table);
                let key = self.operand(running, key);
                return self.get_field(to, object, key, Origin::Operand(table.into()));
            }
            Op::GetField { to, upvalue, key } => {
                let object = self.shared(running, upvalue);
                let key = self.operand(running, key);
                return self.get_field(to, object, key, Origin::Upvalue(upvalue));
            }
            Op::Set { table, key, value } => {
                let object = self.register(running, table);
                let key = self.operand(running, key);
                let value = self.operand(running, value);
                return self.set_field(object, key, value, Origin::Operand(table.into()));
            }
            Op::SetField {
                upvalue,
                key,
                value,
            } => {
                let object = self.shared(running, upvalue);
                let key = self.operand(running, key);
                let value = self.operand(running, value);
                return self.set_field(object, key, value, Origin::Upvalue(upvalue));
            }
            Op::Method { to, object, key } => {
                let origin = Origin::Operand(object.into());
                let object = self.register(running, object);
                let key = self.operand(running, key);
                self.set_register(to + 1, object);
                return self.get_field(to, object, key, origin);
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn step_call(&mut self, running: &Running, op: Op) -> Result<Flow, Throw> {
        match op {
            Op::Call {
                base,
                arguments,
                results,
            } => {
                let place = running.base + usize::from(base);
                let count = self.list_length(place + 1, arguments);
                let wanted = (results != ALL).then_some(results);
                self.begin_call(place, count, Return::Replace(wanted))
            }
            Op::TailCall { base, arguments } => {
                let place = running.base + usize::from(base);
                let count = self.list_length(place + 1, arguments);
                self.tail_call(place, count)
            }
            Op::Return { base, count } => {
                let from = running.base + usize::from(base);
                let count = self.list_length(from, count);
                self.return_values(from, count)
            }
            Op::IteratorCall { base, results } => {
                let from = running.base + usize::from(base);
                self.exec.values.copy_within(from..from + 3, from + 3);
                self.begin_call(from + 3, 2, Return::Replace(Some(results)))
            }
            _ => Ok(Flow::Next),
        }
    }

    /// The length of a list of values that begins at a place.
    fn list_length(&self, begin: usize, count: u8) -> usize {
        match count {
            ALL => self.exec.list_end.saturating_sub(begin),
            count => count.into(),
        }
    }

    fn step_operator(&mut self, running: &Running, op: Op) -> Result<Flow, Throw> {
        match op {
            Op::Arithmetic {
                op,
                to,
                left,
                right,
            } => {
                let (left, right) = (self.known(running, left), self.known(running, right));
                if let (Value::Integer(a), Value::Integer(b)) = (left.0, right.0) {
                    let simple = match op {
                        Arithmetic::Add => Some(a.wrapping_add(b)),
                        Arithmetic::Sub => Some(a.wrapping_sub(b)),
                        Arithmetic::Mul => Some(a.wrapping_mul(b)),
                        _ => None,
                    };
                    if let Some(result) = simple {
                        self.set_register(to, Value::Integer(result));
                        return Ok(Flow::Next);
                    }
                }
                self.arithmetic(op, to, left, right)
            }
            Op::Compare {
                op,
                to,
                left,
                right,
            } => {
                let left = self.operand(running, left);
                let right = self.operand(running, right);
                self.compare(op, to, left, right)
            }
            Op::Concat { to, left, right } => {
                let (left, right) = (self.known(running, left), self.known(running, right));
                self.concat(to, left, right)
            }
            Op::Negate { to, from } => {
                let (value, origin) = self.known(running, from.into());
                self.negate(to, value, origin)
            }
            Op::Length { to, from } => {
                let (value, origin) = self.known(running, from.into());
                self.length(to, value, origin)
            }
            Op::NewTable { to } => {
                let table = self.make_table()?;
                self.set_register(to, Value::Table(table));
                Ok(Flow::Next)
            }
            Op::SetItems { base, count, first } => self.set_items(running, base, count, first),
            Op::Closure { to, proto } => self.make_closure(running, to, proto),
            Op::Varargs { to, count } => self.varargs(running, to, count),
            _ => Ok(Flow::Next),
        }
    }

    fn set_items(
        &mut self,
        running: &Running,
        base: u8,
        count: u8,
        first: u32,
    ) -> Result<Flow, Throw> {
        let from = running.base + usize::from(base) + 1;
        let count = self.list_length(from, count);
        if let Value::Table(table) = self.register(running, base) {
            self.append_items(table, first, from, count)?;
        }
        self.restore_top();
        self.work(count / 4)?;
        Ok(Flow::Next)
    }

    fn make_closure(&mut self, running: &Running, to: u8, proto: u32) -> Result<Flow, Throw> {
        let proto = Rc::clone(&running.proto.protos[proto as usize]);
        let mut upvalues = Vec::with_capacity(proto.captures.len());
        for (_, capture) in &proto.captures {
            upvalues.push(match capture {
                Capture::Local(register) => self.share(running.base + usize::from(*register))?,
                Capture::Upvalue(upvalue) => {
                    self.heap.function(running.function).upvalues[usize::from(*upvalue)]
                }
            });
        }
        let function = self.make_function(Function {
            code: Code::Lua(proto),
            upvalues: upvalues.into(),
            state: Vec::new(),
        })?;
        self.set_register(to, Value::Function(function));
        Ok(Flow::Next)
    }

    fn varargs(&mut self, running: &Running, to: u8, count: u8) -> Result<Flow, Throw> {
        let from = running.base - running.varargs;
        let place = running.base + usize::from(to);
        if count == ALL {
            self.ensure_stack(place + running.varargs)?;
            self.exec.values.copy_within(from..running.base, place);
            self.exec.list_end = place + running.varargs;
            self.exec.top = self.exec.top.max(self.exec.list_end);
            self.work(running.varargs / 4)?;
            return Ok(Flow::Next);
        }
        let wanted = usize::from(count);
        let given = running.varargs.min(wanted);
        self.exec.values.copy_within(from..from + given, place);
        self.exec.values[place + given..place + wanted].fill(Value::Nil);
        Ok(Flow::Next)
    }

    /// Whether the loop goes through its body at all.
    fn for_prepare(&mut self, running: &Running, base: u8) -> Result<bool, Throw> {
        for (offset, what) in [(0, "initial value"), (1, "limit"), (2, "step")] {
            let Some(number) = self.to_number(self.register(running, base + offset)) else {
                return Err(self.raise(&format!("'for' {what} must be a number")));
            };
            self.set_register(base + offset, Value::Integer(number));
        }
        let [first, _, _] = self.for_state(running, base);
        Ok(self.for_step(running, base, first))
    }

    fn for_state(&self, running: &Running, base: u8) -> [i64; 3] {
        [0, 1, 2].map(|offset| match self.register(running, base + offset) {
            Value::Integer(number) => number,
            _ => 0,
        })
    }

    /// Whether the loop goes through its body once more.
    fn for_loop(&mut self, running: &Running, base: u8) -> bool {
        let [last, _, step] = self.for_state(running, base);
        // As in OpenZFS, numbers wrap around here too.
        self.for_step(running, base, last.wrapping_add(step))
    }

    fn for_step(&mut self, running: &Running, base: u8, number: i64) -> bool {
        let [_, limit, step] = self.for_state(running, base);
        let is_inside = match step > 0 {
            true => number <= limit,
            false => limit <= number,
        };
        if !is_inside {
            return false;
        }
        self.set_register(base, Value::Integer(number));
        self.set_register(base + 3, Value::Integer(number));
        true
    }
}
