//! Coroutines: switching stacks, and shared variables.

use super::frame::{Return, Stack, Status, Thread, Upvalue};
use super::{Args, DEPTH_MAX, Flow, Lua, Throw};
use crate::heap::{Code, Heap, NativeRun};
use crate::value::{FunctionId, ThreadId, UpvalueId, Value};

impl Lua<'_> {
    /// A coroutine that will run a function.
    pub(crate) fn new_thread(&mut self, function: Value) -> Result<ThreadId, Throw> {
        self.grant(Heap::thread_bytes() + 4 * size_of::<Value>())?;
        let mut stack = Stack::default();
        stack.values.reserve_exact(1);
        stack.values.push(function);
        stack.top = 1;
        Ok(self.heap.add_thread(Thread {
            stack,
            status: Status::Suspended,
            resumer: None,
        }))
    }

    /// Makes a suspended coroutine the running one.
    fn switch_to(&mut self, target: ThreadId) {
        let current = self.current;
        self.heap.threads.get_mut(current.0).status = Status::Normal;
        let thread = self.heap.threads.get_mut(target.0);
        thread.status = Status::Running;
        thread.resumer = Some(current);
        self.resumes += 1;
        self.swap_stacks(target);
    }

    /// Makes the coroutine running again that resumed this one.
    fn switch_back(&mut self, status: Status) {
        let thread = self.heap.threads.get_mut(self.current.0);
        thread.status = status;
        if let Some(resumer) = thread.resumer.take() {
            self.heap.threads.get_mut(resumer.0).status = Status::Running;
            self.resumes -= 1;
            self.swap_stacks(resumer);
        }
    }

    fn swap_stacks(&mut self, target: ThreadId) {
        let own = std::mem::take(&mut self.exec);
        self.heap.threads.get_mut(self.current.0).stack = own;
        self.exec = std::mem::take(&mut self.heap.threads.get_mut(target.0).stack);
        self.current = target;
    }

    /// `coroutine.resume`; its frame is on top.
    pub(super) fn resume_argument(&mut self, args: Args) -> Result<Flow, Throw> {
        let first = match args.count {
            0 => Value::Nil,
            _ => self.exec.values[args.base],
        };
        let Value::Thread(target) = first else {
            return Err(self.argument_error(1, "coroutine expected"));
        };
        let rest = Args {
            base: args.base + 1,
            count: args.count - 1,
        };
        if let Some(message) = self.refusal(target) {
            let message = self.intern(message.as_bytes())?;
            self.push(Value::Boolean(false))?;
            self.push(Value::String(message))?;
            let from = self.exec.top - 2;
            return self.leave(from, 2);
        }
        self.resume(target, rest)
    }

    /// A function that `coroutine.wrap` made; its frame is on top.
    pub(super) fn resume_wrapped(
        &mut self,
        function: FunctionId,
        args: Args,
    ) -> Result<Flow, Throw> {
        let Some(Value::Thread(target)) = self.heap.function(function).state.first().copied()
        else {
            return Err(self.fail("cannot resume dead coroutine"));
        };
        match self.refusal(target) {
            Some(message) => Err(self.fail(message)),
            None => self.resume(target, args),
        }
    }

    /// Why a coroutine cannot be resumed.
    fn refusal(&self, target: ThreadId) -> Option<&'static str> {
        match self.heap.threads.get(target.0).status {
            Status::Suspended if self.resumes >= DEPTH_MAX => Some("C stack overflow"),
            Status::Suspended => None,
            Status::Dead => Some("cannot resume dead coroutine"),
            Status::Running | Status::Normal => Some("cannot resume non-suspended coroutine"),
        }
    }

    fn resume(&mut self, target: ThreadId, args: Args) -> Result<Flow, Throw> {
        let values = self.exec.values[args.base..args.base + args.count].to_vec();
        self.switch_to(target);
        let from = self.exec.top;
        // The arguments are on the stack of the resumer, which is marked too.
        self.ensure_native(from + values.len())?;
        self.exec.values[from..from + values.len()].copy_from_slice(&values);
        self.exec.top = from + values.len();
        if self.exec.frames.is_empty() {
            self.begin_call(0, values.len(), Return::Finish)
        } else {
            // The frame on top is that of `yield`.
            self.leave(from, values.len())
        }
    }

    /// `coroutine.yield`; its frame is on top.
    pub(super) fn yield_values(&mut self, args: Args) -> Result<Flow, Throw> {
        if self.current == self.main {
            return Err(self.raise("attempt to yield from outside a coroutine"));
        }
        if !self.exec.boundaries.is_empty() {
            return Err(self.raise("attempt to yield across a C-call boundary"));
        }
        let values = self.exec.values[args.base..args.base + args.count].to_vec();
        let yielder = self.current;
        self.switch_back(Status::Suspended);
        self.answer(yielder, true, &values)
    }

    /// The function of a coroutine has returned.
    pub(super) fn finish_thread(&mut self, from: usize, count: usize) -> Result<Flow, Throw> {
        let values = self.exec.values[from..from + count].to_vec();
        let finished = self.current;
        self.bury();
        self.answer(finished, true, &values)
    }

    /// Ends the running coroutine and makes its resumer the running one.
    fn bury(&mut self) {
        self.close_upvalues(0);
        self.heap.used -= self.exec.bytes().min(self.heap.used);
        self.exec = Stack::default();
        self.switch_back(Status::Dead);
    }

    /// Returns values from the call of `resume` or of a wrapped function on top.
    fn answer(
        &mut self,
        resumed: ThreadId,
        is_success: bool,
        values: &[Value],
    ) -> Result<Flow, Throw> {
        let kept = self.roots.borrow().len();
        self.keep(Value::Thread(resumed));
        for value in values {
            self.keep(*value);
        }
        let answered = self.push_answer(is_success, values);
        self.roots.borrow_mut().truncate(kept);
        let count = answered?;
        self.leave(self.exec.top - count, count)
    }

    fn push_answer(&mut self, is_success: bool, values: &[Value]) -> Result<usize, Throw> {
        let is_wrapped = self.is_wrapped();
        if !is_wrapped {
            self.push(Value::Boolean(is_success))?;
        }
        for value in values {
            self.push(*value)?;
        }
        Ok(values.len() + usize::from(!is_wrapped))
    }

    /// Whether the frame on top is that of a function made by `coroutine.wrap`.
    fn is_wrapped(&self) -> bool {
        let frame = self.exec.frames.last();
        frame.is_some_and(|frame| match &self.heap.function(frame.function).code {
            Code::Native(native) => matches!(native.run, NativeRun::Wrapped),
            _ => false,
        })
    }

    /// Ends the running coroutine because of an error. The resumer catches it, or gets it in turn.
    pub(super) fn abandon_thread(&mut self, throw: Throw) -> Result<Result<Flow, Throw>, Throw> {
        if self.current == self.main {
            return Err(throw);
        }
        let lost = self.current;
        self.bury();
        let Throw::Error(value) = throw else {
            return Ok(Err(throw));
        };
        if !self.is_wrapped() {
            return Ok(self.answer(lost, false, &[value]));
        }
        let Value::String(message) = value else {
            return Ok(Err(throw));
        };
        let message = self.heap.bytes(message).to_vec();
        Ok(Err(self.error_at(1, &message)))
    }

    /// The shared variable for a place of the running stack.
    pub(super) fn share(&mut self, index: usize) -> Result<UpvalueId, Throw> {
        let position = self.exec.open.partition_point(|(at, _)| *at < index);
        match self.exec.open.get(position) {
            Some((at, id)) if *at == index => return Ok(*id),
            _ => {}
        }
        let open = &self.exec.open;
        let more = match open.len() == open.capacity() {
            true => open.capacity().max(4),
            false => 0,
        };
        self.grant(Heap::upvalue_bytes() + more * size_of::<(usize, UpvalueId)>())?;
        let before = self.exec.bytes();
        self.exec.open.reserve_exact(more);
        self.heap.used += self.exec.bytes() - before;
        let thread = self.current;
        let id = self.heap.add_upvalue(Upvalue::Open { thread, index });
        self.exec.open.insert(position, (index, id));
        Ok(id)
    }

    /// Ends the sharing of places from `from` on: closures keep the values.
    pub(super) fn close_upvalues(&mut self, from: usize) {
        while let Some((index, id)) = self.exec.open.pop_if(|(index, _)| *index >= from) {
            let value = self.exec.values[index];
            *self.heap.upvalues.get_mut(id.0) = Upvalue::Closed(value);
        }
    }

    pub(super) fn upvalue(&self, id: UpvalueId) -> Value {
        match self.heap.upvalues.get(id.0) {
            Upvalue::Closed(value) => *value,
            Upvalue::Open { thread, index } if *thread == self.current => self.exec.values[*index],
            Upvalue::Open { thread, index } => self.heap.threads.get(thread.0).stack.values[*index],
        }
    }

    pub(super) fn set_upvalue(&mut self, id: UpvalueId, value: Value) {
        match self.heap.upvalues.get_mut(id.0) {
            Upvalue::Closed(place) => *place = value,
            Upvalue::Open { thread, index } => {
                let (thread, index) = (*thread, *index);
                if thread == self.current {
                    self.exec.values[index] = value;
                } else {
                    self.heap.threads.get_mut(thread.0).stack.values[index] = value;
                }
            }
        }
    }
}
