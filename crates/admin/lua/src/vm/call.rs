//! Calls and returns.

use super::frame::{Boundary, Frame, Return};
use super::index::Origin;
use super::{Args, DEPTH_MAX, Event, Flow, Lua, Throw};
use crate::heap::{Code, HostBody, NativeRun, Proto};
use crate::value::{FunctionId, Value};
use std::cell::RefCell;
use std::rc::Rc;

impl<'h> Lua<'h> {
    pub(super) fn set_register(&mut self, register: u8, value: Value) {
        let base = self.exec.frames.last().map_or(0, |frame| frame.base);
        self.exec.values[base + usize::from(register)] = value;
    }

    /// Calls the value at a place of the stack with the arguments behind it.
    ///
    /// A function of the program becomes the frame on top; others run at once.
    pub(super) fn begin_call(
        &mut self,
        place: usize,
        mut count: usize,
        result: Return,
    ) -> Result<Flow, Throw> {
        let function = match self.exec.values[place] {
            Value::Function(function) => function,
            other => {
                count += 1;
                self.insert_call_handler(place, count - 1, other)?
            }
        };
        match self.heap.function(function).code.clone() {
            Code::Lua(proto) => {
                self.enter(function, proto, place, count, result)?;
                Ok(Flow::Frame)
            }
            Code::Native(native) => {
                self.enter_native(function, place, count, result)?;
                let args = Args {
                    base: place + 1,
                    count,
                };
                match native.run {
                    NativeRun::Plain(run) => self.run_native(|lua| run(lua, args)),
                    NativeRun::Resume => self.resume_argument(args),
                    NativeRun::Wrapped => self.resume_wrapped(function, args),
                    NativeRun::Yield => self.yield_values(args),
                }
            }
            Code::Host(_, body) => {
                self.enter_native(function, place, count, result)?;
                self.run_native(|lua| lua.run_host(&body, place + 1, count))
            }
        }
    }

    /// Puts the handler of `__call` below the value that was called.
    fn insert_call_handler(
        &mut self,
        place: usize,
        count: usize,
        value: Value,
    ) -> Result<FunctionId, Throw> {
        let handler = self.metamethod(value, Event::Call);
        let Value::Function(function) = handler else {
            let origin = self.origin_of_callee(place);
            return Err(self.type_error("call", value, origin));
        };
        let end = place + 1 + count;
        self.exec.top = self.exec.top.max(end);
        self.ensure_stack(end + 1)?;
        self.exec.values.copy_within(place..end, place + 1);
        self.exec.values[place] = handler;
        self.exec.top = self.exec.top.max(end + 1);
        Ok(function)
    }

    /// Enters a function of the program.
    fn enter(
        &mut self,
        function: FunctionId,
        proto: Rc<Proto>,
        place: usize,
        count: usize,
        result: Return,
    ) -> Result<(), Throw> {
        let parameters = usize::from(proto.parameters);
        let varargs = if proto.is_vararg {
            count.saturating_sub(parameters)
        } else {
            0
        };
        let begin = place + 1;
        let base = if proto.is_vararg {
            begin + count
        } else {
            begin
        };
        let top = base + usize::from(proto.registers);
        self.exec.top = self.exec.top.max(begin + count);
        self.ensure_stack(top)?;
        self.ensure_frame()?;
        let given = count.min(parameters);
        if proto.is_vararg {
            // The extra arguments stay where they are: right below the registers.
            self.exec.values.copy_within(begin..begin + given, base);
        }
        self.exec.values[base + given..base + parameters].fill(Value::Nil);
        self.exec.top = top;
        self.exec.frames.push(Frame {
            function,
            proto: Some(proto),
            place,
            base,
            next: 0,
            varargs,
            result,
            is_tail: false,
        });
        Ok(())
    }

    fn enter_native(
        &mut self,
        function: FunctionId,
        place: usize,
        count: usize,
        result: Return,
    ) -> Result<(), Throw> {
        let top = place + 1 + count;
        self.exec.top = self.exec.top.max(top);
        self.ensure_native(top)?;
        self.ensure_frame()?;
        self.exec.top = top;
        self.exec.frames.push(Frame {
            function,
            proto: None,
            place,
            base: place + 1,
            next: 0,
            varargs: 0,
            result,
            is_tail: false,
        });
        Ok(())
    }

    /// Runs the native function of the frame on top, and returns from it.
    fn run_native(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<usize, Throw>,
    ) -> Result<Flow, Throw> {
        let kept = self.roots.borrow().len();
        let outcome = run(self);
        self.roots.borrow_mut().truncate(kept);
        let count = outcome?;
        let from = self.exec.top - count;
        self.leave(from, count)
    }

    fn run_host(
        &mut self,
        body: &RefCell<HostBody<'h>>,
        base: usize,
        count: usize,
    ) -> Result<usize, Throw> {
        let Ok(mut body) = body.try_borrow_mut() else {
            return Err(self.fail("the function is running already"));
        };
        let arguments = self.exec.values[base..base + count].to_vec();
        match body(self, &arguments) {
            Ok(results) => {
                for value in &results {
                    self.push(*value)?;
                }
                Ok(results.len())
            }
            Err(error) => Err(self.throw_of(error)),
        }
    }

    /// Removes the frame on top and passes its results on.
    pub(super) fn leave(&mut self, from: usize, count: usize) -> Result<Flow, Throw> {
        let Some(frame) = self.exec.frames.pop() else {
            return Ok(Flow::Exit);
        };
        self.deliver(frame.result, frame.place, from, count)
    }

    fn deliver(
        &mut self,
        result: Return,
        place: usize,
        from: usize,
        count: usize,
    ) -> Result<Flow, Throw> {
        let first = match count {
            0 => Value::Nil,
            _ => self.exec.values[from],
        };
        match result {
            Return::Exit => {
                self.exec.values.copy_within(from..from + count, place);
                self.exec.top = place + count;
                self.exec.boundaries.pop();
                return Ok(Flow::Exit);
            }
            Return::Finish => return self.finish_thread(from, count),
            Return::Replace(None) => {
                self.exec.values.copy_within(from..from + count, place);
                self.restore_top();
                self.exec.list_end = place + count;
                self.exec.top = self.exec.top.max(place + count);
            }
            Return::Replace(Some(wanted)) => {
                let wanted = usize::from(wanted);
                let given = count.min(wanted);
                self.exec.values.copy_within(from..from + given, place);
                self.exec.values[place + given..place + wanted].fill(Value::Nil);
                self.restore_top();
            }
            Return::Register(register) => {
                self.restore_top();
                self.set_register(register, first);
            }
            Return::Truth { register, negate } => {
                self.restore_top();
                self.set_register(register, Value::Boolean(first.is_true() != negate));
            }
            Return::Discard => self.restore_top(),
        }
        Ok(Flow::Frame)
    }

    /// Sets the end of the stack to that of the frame on top, a function of the program.
    pub(super) fn restore_top(&mut self) {
        if let Some(frame) = self.exec.frames.last() {
            let registers = frame.proto.as_ref().map_or(0, |proto| proto.registers);
            self.exec.top = frame.base + usize::from(registers);
        }
    }

    /// Returns from the function of the program on top.
    pub(super) fn return_values(&mut self, from: usize, count: usize) -> Result<Flow, Throw> {
        if let Some(frame) = self.exec.frames.last() {
            self.close_upvalues(frame.base);
        }
        self.leave(from, count)
    }

    /// Replaces the frame on top by a call.
    pub(super) fn tail_call(&mut self, place: usize, mut count: usize) -> Result<Flow, Throw> {
        let function = match self.exec.values[place] {
            Value::Function(function) => function,
            other => {
                count += 1;
                self.insert_call_handler(place, count - 1, other)?
            }
        };
        if !matches!(self.heap.function(function).code, Code::Lua(_)) {
            // The instruction behind this one returns the results.
            return self.begin_call(place, count, Return::Replace(None));
        }
        let Some(frame) = self.exec.frames.last() else {
            return Ok(Flow::Exit);
        };
        let (to, base, result) = (frame.place, frame.base, frame.result);
        self.close_upvalues(base);
        self.exec.values.copy_within(place..=place + count, to);
        self.exec.frames.pop();
        self.exec.top = to + 1 + count;
        let flow = self.begin_call(to, count, result)?;
        if let Some(frame) = self.exec.frames.last_mut() {
            frame.is_tail = true;
        }
        Ok(flow)
    }

    /// Calls a metamethod from an instruction.
    pub(super) fn call_handler(
        &mut self,
        handler: Value,
        arguments: &[Value],
        result: Return,
    ) -> Result<Flow, Throw> {
        let place = self.place_call(handler, arguments)?;
        self.begin_call(place, arguments.len(), result)
    }

    /// Puts a function and arguments on top of the stack.
    fn place_call(&mut self, function: Value, arguments: &[Value]) -> Result<usize, Throw> {
        let kept = self.roots.borrow().len();
        self.keep(function);
        for value in arguments {
            self.keep(*value);
        }
        let place = self.exec.top;
        let end = place + 1 + arguments.len();
        let ensured = self.ensure_stack(end);
        self.roots.borrow_mut().truncate(kept);
        ensured?;
        self.exec.values[place] = function;
        self.exec.values[place + 1..end].copy_from_slice(arguments);
        self.exec.top = end;
        Ok(place)
    }

    /// Calls a function from native code. The results are on the stack from the returned place on, up to the top.
    ///
    /// `weight` says how much of the stack of the thread the native code uses.
    pub(crate) fn call_value(
        &mut self,
        function: Value,
        arguments: &[Value],
        weight: usize,
    ) -> Result<usize, Throw> {
        if self.depth + weight > DEPTH_MAX {
            return Err(self.raise("C stack overflow"));
        }
        let place = self.place_call(function, arguments)?;
        let frames = self.exec.frames.len();
        self.exec.boundaries.push(Boundary { frames, place });
        self.depth += weight;
        let start = self.begin_call(place, arguments.len(), Return::Exit);
        let outcome = self.run(start);
        self.depth -= weight;
        outcome?;
        Ok(place)
    }

    /// Calls a function from native code for its first result.
    pub(crate) fn call_for_one(
        &mut self,
        function: Value,
        arguments: &[Value],
    ) -> Result<Value, Throw> {
        let place = self.call_value(function, arguments, 1)?;
        let value = match self.exec.top {
            top if top > place => self.exec.values[place],
            _ => Value::Nil,
        };
        self.exec.top = place;
        Ok(self.keep(value))
    }

    /// Removes frames after an error, up to native code that waits or a coroutine that catches it.
    pub(super) fn unwind(&mut self, mut throw: Throw) -> Result<Flow, Throw> {
        loop {
            if let Throw::Error(value) = throw {
                self.thrown = value;
            }
            if self.current == self.main && self.traceback.is_none() {
                self.traceback = Some(self.describe_stack());
            }
            if let Some(boundary) = self.exec.boundaries.pop() {
                self.close_upvalues(boundary.place);
                self.exec.frames.truncate(boundary.frames);
                self.exec.top = boundary.place;
                return Err(throw);
            }
            match self.abandon_thread(throw)? {
                Ok(flow) => return Ok(flow),
                Err(next) => throw = next,
            }
        }
    }

    /// Where the instruction on top has the function from that it calls.
    fn origin_of_callee(&self, place: usize) -> Origin {
        let Some((frame, op)) = self.current_op() else {
            return Origin::Unknown;
        };
        match op {
            super::Op::Call { base, .. } | super::Op::TailCall { base, .. }
                if frame.base + usize::from(base) == place =>
            {
                Origin::Operand(u16::from(base))
            }
            _ => Origin::Unknown,
        }
    }
}
