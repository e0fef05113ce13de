//! Memory: every object is granted before it is made.

use super::{Lua, Throw};
use crate::heap::{Function, Growth, Heap};
use crate::value::{FunctionId, StringId, TableId, Value};

/// Registers of one coroutine.
const STACK_MAX: usize = 1_000_000;
/// Registers that a native function may use without asking.
const NATIVE_REGISTERS: usize = 20;
/// Bytes that a native function copies for the price of one instruction.
const BYTES_PER_INSTRUCTION: usize = 32;

impl<'h> Lua<'h> {
    /// Makes sure that the program may use these bytes in addition. Removes unreachable objects if needed.
    pub(crate) fn grant(&mut self, bytes: usize) -> Result<(), Throw> {
        let wanted = self.heap.used.saturating_add(bytes);
        let limit = self.limits.memory_bytes;
        let is_due = wanted > limit.min(self.heap.threshold);
        #[cfg(test)]
        let is_due = is_due || self.is_stressed;
        if is_due && !self.is_collection_paused {
            let work = self.collect();
            // The cost of other collections is in proportion to what was allocated.
            if wanted > limit {
                self.work(work / 16)?;
            }
        }
        if self.heap.used.saturating_add(bytes) > limit {
            return Err(Throw::Memory);
        }
        Ok(())
    }

    /// Removes what cannot be reached. Returns how many objects were looked at.
    pub(crate) fn collect(&mut self) -> usize {
        self.heap.begin_collection();
        for name in &self.events {
            self.heap.mark_name(*name);
        }
        self.heap.mark(Value::Table(self.globals));
        if let Some(table) = self.string_metatable {
            self.heap.mark(Value::Table(table));
        }
        self.heap.mark(Value::Thread(self.main));
        self.heap.mark(Value::Thread(self.current));
        if let Some(resumer) = self.heap.threads.get(self.current.0).resumer {
            self.heap.mark(Value::Thread(resumer));
        }
        self.heap.mark(self.thrown);
        if let Some((_, value)) = &self.in_flight {
            self.heap.mark(*value);
        }
        for value in self.roots.borrow().iter() {
            self.heap.mark(*value);
        }
        self.heap.mark_stack(&mut self.exec);
        let work = self.heap.finish_collection();
        self.heap.threshold = (self.heap.used * 2).max(self.heap.threshold.min(1 << 18));
        work
    }

    /// Keeps a value alive until the native function that runs returns.
    pub(crate) fn keep(&self, value: Value) -> Value {
        self.roots.borrow_mut().push(value);
        value
    }

    /// The string with these bytes. Nothing keeps it alive yet.
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> Result<StringId, Throw> {
        let hash = self.heap.hash_bytes(bytes);
        if let Some(id) = self.heap.find_string(bytes, hash) {
            return Ok(id);
        }
        self.work(bytes.len() / BYTES_PER_INSTRUCTION)?;
        self.grant(Heap::string_bytes(bytes.len()))?;
        Ok(self.heap.add_string(bytes.into(), hash))
    }

    /// The string with these bytes, kept alive until the native function returns.
    pub(crate) fn new_string(&mut self, bytes: &[u8]) -> Result<Value, Throw> {
        let id = self.intern(bytes)?;
        Ok(self.keep(Value::String(id)))
    }

    /// A new table, kept alive until the native function returns.
    pub(crate) fn new_table(&mut self) -> Result<TableId, Throw> {
        let id = self.make_table()?;
        self.keep(Value::Table(id));
        Ok(id)
    }

    /// A new table. Nothing keeps it alive yet.
    pub(crate) fn make_table(&mut self) -> Result<TableId, Throw> {
        self.grant(Heap::table_bytes())?;
        Ok(self.heap.add_table())
    }

    /// A new function. Nothing keeps it alive yet.
    pub(crate) fn make_function(&mut self, function: Function<'h>) -> Result<FunctionId, Throw> {
        self.grant(Heap::function_bytes(&function))?;
        Ok(self.heap.add_function(function))
    }

    /// Sets a field without metamethods. The key is neither nil, nor does it die meanwhile.
    pub(crate) fn raw_set(
        &mut self,
        table: TableId,
        key: Value,
        value: Value,
    ) -> Result<(), Throw> {
        if self.heap.replace(table, key, value) || value == Value::Nil {
            return Ok(());
        }
        let growth = self.heap.table(table).growth(key);
        if !matches!(growth, Growth::None) {
            let kept = self.roots.borrow().len();
            for value in [Value::Table(table), key, value] {
                self.keep(value);
            }
            let bytes = self.heap.table(table).growth_bytes(&growth);
            let granted = self.grant(bytes);
            self.roots.borrow_mut().truncate(kept);
            granted?;
            self.heap.grow(table, &growth);
        }
        self.heap.insert(table, key, value);
        Ok(())
    }

    /// Sets items of a table from values of the stack. Nils among them keep their places, which the length shows.
    pub(crate) fn append_items(
        &mut self,
        table: TableId,
        first: u32,
        from: usize,
        count: usize,
    ) -> Result<(), Throw> {
        let length = self.heap.table(table).array().len();
        if length + 1 == first as usize {
            let growth = Growth::Array(length + count);
            let bytes = self.heap.table(table).growth_bytes(&growth);
            self.grant(bytes)?;
            self.heap.grow(table, &growth);
            // An item may have been set before as a field.
            for number in (i64::from(first)..).take(count) {
                if self.heap.table(table).entries().is_empty() {
                    break;
                }
                self.heap.replace(table, Value::Integer(number), Value::Nil);
            }
            let values = &self.exec.values[from..from + count];
            self.heap.table_mut(table).append(values);
            return Ok(());
        }
        for offset in 0..count {
            let key = Value::Integer(i64::from(first) + offset as i64);
            let value = self.exec.values[from + offset];
            self.raw_set(table, key, value)?;
        }
        Ok(())
    }

    /// Makes the stack long enough for `top` values.
    pub(crate) fn ensure_stack(&mut self, top: usize) -> Result<(), Throw> {
        if top <= self.exec.values.len() {
            return Ok(());
        }
        if top > STACK_MAX {
            return Err(self.raise("stack overflow"));
        }
        let length = (self.exec.values.len() * 2).max(top).clamp(64, STACK_MAX);
        let before = self.exec.bytes();
        let more = length - self.exec.values.capacity().min(length);
        self.grant(more * crate::heap::VALUE_BYTES)?;
        let missing = length - self.exec.values.len();
        self.exec.values.reserve_exact(missing);
        self.exec.values.resize(length, Value::Nil);
        self.heap.used += self.exec.bytes() - before;
        Ok(())
    }

    /// Makes space for one more frame.
    pub(super) fn ensure_frame(&mut self) -> Result<(), Throw> {
        let frames = &mut self.exec.frames;
        if frames.len() < frames.capacity() {
            return Ok(());
        }
        let more = frames.capacity().max(4);
        self.grant(more * size_of::<super::frame::Frame>())?;
        let before = self.exec.bytes();
        self.exec.frames.reserve_exact(more);
        self.heap.used += self.exec.bytes() - before;
        Ok(())
    }

    /// Prepares the stack for a native function with its arguments.
    pub(super) fn ensure_native(&mut self, top: usize) -> Result<(), Throw> {
        self.ensure_stack(top + NATIVE_REGISTERS)
    }

    /// Pushes a result of a native function.
    pub(crate) fn push(&mut self, value: Value) -> Result<(), Throw> {
        let top = self.exec.top;
        if top >= self.exec.values.len() {
            let kept = self.roots.borrow().len();
            self.keep(value);
            let ensured = self.ensure_stack(top + NATIVE_REGISTERS);
            self.roots.borrow_mut().truncate(kept);
            ensured?;
        }
        self.exec.values[top] = value;
        self.exec.top = top + 1;
        Ok(())
    }
}
