//! Stacks of coroutines: registers and frames.

use crate::heap::{Proto, VALUE_BYTES};
use crate::value::{FunctionId, ThreadId, UpvalueId, Value};
use std::rc::Rc;

/// A variable that closures share.
pub(crate) enum Upvalue {
    /// It is still a register of a stack.
    Open {
        thread: ThreadId,
        index: usize,
    },
    Closed(Value),
}

/// What happens with the results of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Return {
    /// Native code waits for them: the loop ends.
    Exit,
    /// The function of a coroutine: they go to the one that resumed it.
    Finish,
    /// They replace the function: this number of them, or all.
    Replace(Option<u8>),
    /// The first one goes to a register of the calling frame.
    Register(u8),
    /// Whether the first one is true goes to a register.
    Truth { register: u8, negate: bool },
    /// Nothing.
    Discard,
}

/// A call that has not returned.
pub(crate) struct Frame {
    pub(crate) function: FunctionId,
    /// The code, for functions of the program.
    pub(crate) proto: Option<Rc<Proto>>,
    /// The place of the function on the stack.
    pub(crate) place: usize,
    /// The first register.
    pub(crate) base: usize,
    /// The next instruction.
    pub(crate) next: usize,
    /// Arguments beyond the parameters; they lie below `base`.
    pub(crate) varargs: usize,
    pub(crate) result: Return,
    /// Whether it replaced the frame that called it.
    pub(crate) is_tail: bool,
}

/// The stack of a coroutine.
#[derive(Default)]
pub(crate) struct Stack {
    pub(crate) values: Vec<Value>,
    pub(crate) frames: Vec<Frame>,
    /// Shared variables that are still registers, by their place.
    pub(crate) open: Vec<(usize, UpvalueId)>,
    /// The end of what is in use.
    pub(crate) top: usize,
    /// The end of a list of values whose length only the last call or `...` knows.
    pub(crate) list_end: usize,
    /// Calls that native code waits for.
    pub(crate) boundaries: Vec<Boundary>,
}

/// What was on a stack before native code called a function.
pub(crate) struct Boundary {
    pub(crate) frames: usize,
    /// The place of the function that was called.
    pub(crate) place: usize,
}

impl Stack {
    /// The bytes that the lists use.
    pub(crate) fn bytes(&self) -> usize {
        self.values.capacity() * VALUE_BYTES
            + self.frames.capacity() * size_of::<Frame>()
            + self.open.capacity() * size_of::<(usize, UpvalueId)>()
    }
}

/// What a coroutine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Suspended,
    Running,
    /// It resumed another one.
    Normal,
    Dead,
}

/// A coroutine. The stack of the running one is in [`crate::vm::Lua`].
pub(crate) struct Thread {
    pub(crate) stack: Stack,
    pub(crate) status: Status,
    pub(crate) resumer: Option<ThreadId>,
}
