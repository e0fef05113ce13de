//! The collector: marks what can be reached, and removes the rest.

use super::{Code, END, Function, Heap, Object, Table};
use crate::value::{StringId, TableId, UpvalueId, Value};
use crate::vm::{Stack, Upvalue};
use std::rc::Rc;

/// Rounds in which values of weak keys are searched for references to other weak keys. Later ones stay alive until
/// the next collection, so that a chain of such keys does not take quadratic time.
const ROUNDS_MAX: usize = 16;

/// What a weak table does not keep alive.
#[derive(Clone, Copy)]
pub(super) struct Weak {
    keys: bool,
    values: bool,
}

impl Heap<'_> {
    /// Starts a collection. The caller marks the roots, then calls [`Heap::finish_collection`].
    pub(crate) fn begin_collection(&mut self) {
        self.epoch += 1;
        if let Some(name) = self.mode_name {
            self.strings.mark(name.0);
        }
    }

    /// Marks a value as reachable.
    pub(crate) fn mark(&self, value: Value) {
        match value {
            Value::Nil | Value::Boolean(_) | Value::Integer(_) => {}
            Value::String(id) => {
                self.strings.mark(id.0);
            }
            Value::Table(id) => {
                if self.tables.mark(id.0) {
                    self.gray.borrow_mut().push(Object::Table(id));
                }
            }
            Value::Function(id) => {
                if self.functions.mark(id.0) {
                    self.gray.borrow_mut().push(Object::Function(id));
                }
            }
            Value::Thread(id) => {
                if self.threads.mark(id.0) {
                    self.gray.borrow_mut().push(Object::Thread(id));
                }
            }
        }
    }

    /// Marks what a stack has, and clears what is left above its end.
    pub(crate) fn mark_stack(&self, stack: &mut Stack) {
        clear_above_top(stack);
        self.mark_frames(stack);
    }

    fn mark_frames(&self, stack: &Stack) {
        let top = stack.top.min(stack.values.len());
        for value in &stack.values[..top] {
            self.mark(*value);
        }
        for frame in &stack.frames {
            self.mark(Value::Function(frame.function));
        }
        for (_, upvalue) in &stack.open {
            self.mark_upvalue(*upvalue);
        }
    }

    /// Marks everything that the roots reach and removes the rest. Returns the objects that were looked at.
    pub(crate) fn finish_collection(&mut self) -> usize {
        self.propagate();
        self.mark_values_of_weak_keys();
        self.clear_weak();
        let work = self.strings.count()
            + self.tables.count()
            + self.functions.count()
            + self.upvalues.count()
            + self.used / 256;
        self.close_upvalues_of_lost_threads();
        for (_, thread) in self.threads.iter_mut() {
            clear_above_top(&mut thread.stack);
        }
        self.sweep();
        work
    }

    fn propagate(&self) {
        loop {
            let object = self.gray.borrow_mut().pop();
            match object {
                Some(Object::Table(id)) => self.mark_table(id),
                Some(Object::Function(id)) => self.mark_function(self.function(id)),
                Some(Object::Thread(id)) => {
                    let thread = self.threads.get(id.0);
                    self.mark_frames(&thread.stack);
                    if let Some(resumer) = thread.resumer {
                        self.mark(Value::Thread(resumer));
                    }
                }
                None => return,
            }
        }
    }

    fn mark_table(&self, id: TableId) {
        let table = self.table(id);
        if let Some(metatable) = table.metatable {
            self.mark(Value::Table(metatable));
        }
        let weak = self.weakness(table);
        if let Some(weak) = weak {
            self.weak.borrow_mut().push((id, weak));
        }
        let Weak { keys, values } = weak.unwrap_or(Weak {
            keys: false,
            values: false,
        });
        if !values {
            for value in table.array() {
                self.mark(*value);
            }
        }
        for (key, value) in table.entries() {
            if *value == Value::Nil {
                continue;
            }
            if !keys || matches!(key, Value::String(_)) {
                self.mark(*key);
            }
            if !values && (!keys || self.is_alive(*key)) || matches!(value, Value::String(_)) {
                self.mark(*value);
            }
        }
    }

    /// Which references of a table are weak.
    fn weakness(&self, table: &Table) -> Option<Weak> {
        let mode = self.get(table.metatable?, Value::String(self.mode_name?));
        let Value::String(mode) = mode else {
            return None;
        };
        let mode = self.bytes(mode);
        let weak = Weak {
            keys: mode.contains(&b'k'),
            values: mode.contains(&b'v'),
        };
        (weak.keys || weak.values).then_some(weak)
    }

    fn mark_function(&self, function: &Function<'_>) {
        for value in &function.state {
            self.mark(*value);
        }
        for upvalue in &function.upvalues {
            self.mark_upvalue(*upvalue);
        }
        let Code::Lua(proto) = &function.code else {
            return;
        };
        let mut protos = vec![Rc::clone(proto)];
        while let Some(proto) = protos.pop() {
            if proto.epoch.replace(self.epoch) == self.epoch {
                continue;
            }
            let names = proto.captures.iter().map(|(name, _)| *name);
            for name in names.chain(proto.locals.iter().map(|local| local.name)) {
                self.mark(Value::String(name));
            }
            for constant in &proto.constants {
                self.mark(*constant);
            }
            protos.extend(proto.protos.iter().cloned());
        }
    }

    fn mark_upvalue(&self, id: UpvalueId) {
        if !self.upvalues.mark(id.0) {
            return;
        }
        match self.upvalues.get(id.0) {
            Upvalue::Closed(value) => self.mark(*value),
            // The running thread's stack is elsewhere, and marked as a root.
            Upvalue::Open { thread, index } => {
                let stack = &self.threads.get(thread.0).stack;
                if let Some(value) = stack.values.get(*index) {
                    self.mark(*value);
                }
            }
        }
    }

    /// Whether a value is not an object that the collection will remove.
    fn is_alive(&self, value: Value) -> bool {
        match value {
            Value::Nil | Value::Boolean(_) | Value::Integer(_) | Value::String(_) => true,
            Value::Table(id) => self.tables.is_marked(id.0),
            Value::Function(id) => self.functions.is_marked(id.0),
            Value::Thread(id) => self.threads.is_marked(id.0),
        }
    }

    /// A value of a weak key is alive if the key is.
    fn mark_values_of_weak_keys(&self) {
        for round in 0.. {
            let tables = self.weak.borrow().clone();
            let before = tables.len();
            for (id, weak) in &tables {
                if weak.values {
                    continue;
                }
                for (key, value) in self.table(*id).entries() {
                    if self.is_alive(*key) || round >= ROUNDS_MAX && *value != Value::Nil {
                        self.mark(*key);
                        self.mark(*value);
                    }
                }
            }
            let is_done = self.gray.borrow().is_empty() && before == self.weak.borrow().len();
            self.propagate();
            if is_done {
                return;
            }
        }
    }

    /// Removes the entries of weak tables whose keys or values will be removed.
    fn clear_weak(&mut self) {
        for (id, weak) in self.weak.take() {
            let mut table = std::mem::take(self.table_mut(id));
            if weak.values {
                for value in table.array_mut() {
                    if !self.is_alive(*value) {
                        *value = Value::Nil;
                    }
                }
            }
            for position in 0..table.entries().len() {
                let (key, value) = table.entries()[position];
                if !self.is_alive(key) || !self.is_alive(value) {
                    table.remove_entry(position);
                }
            }
            *self.table_mut(id) = table;
        }
    }

    /// Closures may outlive the coroutine whose variables they share.
    fn close_upvalues_of_lost_threads(&mut self) {
        for id in self.threads.unmarked() {
            let stack = &mut self.threads.get_mut(id).stack;
            for (index, upvalue) in std::mem::take(&mut stack.open) {
                let value = stack.values[index];
                *self.upvalues.get_mut(upvalue.0) = Upvalue::Closed(value);
            }
        }
    }

    fn sweep(&mut self) {
        let mut freed = 0;
        self.strings
            .sweep(|text| freed += Self::string_bytes(text.bytes.len()));
        self.tables
            .sweep(|table| freed += Self::table_bytes() + table.bytes());
        self.functions
            .sweep(|function| freed += Self::function_bytes(&function));
        self.threads
            .sweep(|thread| freed += Self::thread_bytes() + thread.stack.bytes());
        self.upvalues.sweep(|_| freed += Self::upvalue_bytes());
        self.used -= freed.min(self.used);
        self.buckets.fill(END);
        if !self.buckets.is_empty() {
            self.link_strings();
        }
    }

    /// Marks a name that the interpreter itself needs.
    pub(crate) fn mark_name(&self, name: StringId) {
        self.strings.mark(name.0);
    }
}

/// Clears what calls left above the end of a stack: a later frame covers it without writing to it first, and marks it
/// although the objects were removed.
fn clear_above_top(stack: &mut Stack) {
    let top = stack.top.min(stack.values.len());
    stack.values[top..].fill(Value::Nil);
}
