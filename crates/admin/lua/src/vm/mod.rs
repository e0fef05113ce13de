//! The virtual machine.

mod call;
mod coroutine;
mod frame;
mod index;
mod memory;
mod names;
mod op;
mod operate;
mod run;
mod traceback;

pub(crate) use frame::{Stack, Status, Thread, Upvalue};
pub(crate) use index::Event;
pub(crate) use op::{ALL, Arithmetic, Comparison, FIRST_CONSTANT, Op, Operand};

use crate::api::Limits;
use crate::heap::Heap;
use crate::value::{StringId, TableId, ThreadId, Value};
use std::cell::RefCell;

/// What ends the work of a function early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Throw {
    /// An error with its value, which `coroutine.resume` catches.
    Error(Value),
    /// The memory limit was reached.
    Memory,
    /// The instruction limit was reached.
    Instructions,
    /// The host wants the program to stop.
    Stopped,
}

/// What the loop does after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// With the next instruction of the same frame.
    Next,
    /// With the frame that is on top now.
    Frame,
    /// Not at all: the results that native code waits for are there.
    Exit,
}

/// The arguments of a native function: values on the stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Args {
    pub(crate) base: usize,
    pub(crate) count: usize,
}

/// Calls of functions by native code within each other, in units of stack.
pub(crate) const DEPTH_MAX: usize = 200;

/// An interpreter with the objects of its program.
pub struct Lua<'h> {
    pub(crate) heap: Heap<'h>,
    /// The stack of the running coroutine.
    pub(crate) exec: Stack,
    pub(crate) current: ThreadId,
    pub(crate) main: ThreadId,
    /// Values that native code holds.
    pub(crate) roots: RefCell<Vec<Value>>,
    pub(crate) globals: TableId,
    /// The metatable of all strings.
    pub(crate) string_metatable: Option<TableId>,
    /// The names of the metamethods.
    events: Vec<StringId>,
    pub(crate) limits: Limits,
    pub(crate) instructions: u64,
    /// The count of instructions at which limits are looked at.
    check_at: u64,
    pub(crate) stop: Option<Box<dyn Fn() -> bool + 'h>>,
    /// How deep native code calls functions that call native code, in units of stack.
    pub(crate) depth: usize,
    /// Coroutines that wait for one that they resumed.
    resumes: usize,
    /// Set while there are objects that nothing refers to yet.
    pub(crate) is_collection_paused: bool,
    /// The value of the last error.
    pub(crate) thrown: Value,
    /// The stack when the error that is on its way was raised.
    pub(crate) traceback: Option<String>,
    /// The last error that the host was given: its text and its value.
    pub(crate) in_flight: Option<(String, Value)>,
    /// Collects at each request for memory, so that tests find values that nothing keeps alive.
    #[cfg(test)]
    pub(crate) is_stressed: bool,
}

impl<'h> Lua<'h> {
    /// An interpreter without its library.
    pub(crate) fn bare(limits: Limits) -> Result<Self, Throw> {
        let mut heap = Heap::new();
        let main = heap.add_thread(Thread {
            stack: Stack::default(),
            status: Status::Running,
            resumer: None,
        });
        let globals = heap.add_table();
        let mut lua = Self {
            heap,
            exec: Stack::default(),
            current: main,
            main,
            roots: RefCell::default(),
            globals,
            string_metatable: None,
            events: Vec::new(),
            limits,
            instructions: 0,
            check_at: 0,
            stop: None,
            depth: 0,
            resumes: 0,
            is_collection_paused: true,
            thrown: Value::Nil,
            traceback: None,
            in_flight: None,
            #[cfg(test)]
            is_stressed: false,
        };
        for event in Event::ALL {
            let name = lua.intern(event.name().as_bytes())?;
            lua.events.push(name);
        }
        lua.heap.mode_name = Some(lua.events[Event::Mode as usize]);
        Ok(lua)
    }

    /// Looks at the limits, after every few thousand instructions.
    pub(crate) fn check_limits(&mut self) -> Result<(), Throw> {
        self.instructions += self.heap.probes.take() as u64 / 8;
        if self.instructions >= self.limits.instructions {
            return Err(Throw::Instructions);
        }
        if self.stop.as_ref().is_some_and(|is_stopped| is_stopped()) {
            return Err(Throw::Stopped);
        }
        let next = self.instructions + CHECK_INTERVAL;
        self.check_at = next.min(self.limits.instructions);
        Ok(())
    }

    /// Forgets when the limits were looked at.
    pub(crate) fn reset_check(&mut self) {
        self.check_at = 0;
    }

    /// Counts work of native code as instructions.
    pub(crate) fn work(&mut self, units: usize) -> Result<(), Throw> {
        self.instructions = self.instructions.saturating_add(units as u64);
        if self.instructions >= self.check_at {
            self.check_limits()?;
        }
        Ok(())
    }
}

/// Instructions between two looks at the limits.
const CHECK_INTERVAL: u64 = 4096;

#[cfg(test)]
mod tests;
