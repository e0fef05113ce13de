//! Functions: of the program, of the library, and of the host.

use crate::api::Error;
use crate::value::{StringId, UpvalueId, Value};
use crate::vm::{Args, Lua, Op, Throw};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The name of a program as error messages show it.
pub(crate) type Source = Rc<str>;

/// Where a closure takes a shared variable from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capture {
    /// A register of the function that makes the closure.
    Local(u8),
    /// A shared variable of that function.
    Upvalue(u8),
}

/// A local variable for error messages.
pub(crate) struct LocalName {
    pub(crate) name: StringId,
    pub(crate) register: u8,
    /// The first instruction at which it is visible, and the first after its scope.
    pub(crate) begin: u32,
    pub(crate) end: u32,
}

/// The code of a function, shared by its closures.
pub(crate) struct Proto {
    pub(crate) code: Vec<Op>,
    /// The line of each instruction.
    pub(crate) lines: Vec<u32>,
    pub(crate) constants: Vec<Value>,
    pub(crate) protos: Vec<Rc<Proto>>,
    pub(crate) captures: Vec<(StringId, Capture)>,
    pub(crate) locals: Vec<LocalName>,
    pub(crate) parameters: u8,
    pub(crate) is_vararg: bool,
    /// Registers that the code uses.
    pub(crate) registers: u8,
    /// The line of `function`; 0 for a whole program.
    pub(crate) line: u32,
    pub(crate) source: Source,
    /// The collection that marked the constants last.
    pub(crate) epoch: Cell<u64>,
}

impl Proto {
    /// The bytes of the code, without the protos in it.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.code.len() * (size_of::<Op>() + size_of::<u32>())
            + self.constants.len() * size_of::<Value>()
            + self.locals.len() * size_of::<LocalName>()
            + self.captures.len() * size_of::<(StringId, Capture)>()
    }
}

/// A function of the library.
#[derive(Clone, Copy)]
pub(crate) struct Native {
    pub(crate) name: &'static str,
    pub(crate) run: NativeRun,
}

/// What a function of the library does. The results are on top of the stack; their number is returned.
#[derive(Clone, Copy)]
pub(crate) enum NativeRun {
    Plain(for<'a, 'h> fn(&'a mut Lua<'h>, Args) -> Result<usize, Throw>),
    Resume,
    /// A function that `coroutine.wrap` made. The state has the coroutine.
    Wrapped,
    Yield,
}

/// The body of a function of the host.
pub(crate) type HostBody<'h> = dyn FnMut(&mut Lua<'h>, &[Value]) -> Result<Vec<Value>, Error> + 'h;

/// What a function runs.
#[derive(Clone)]
pub(crate) enum Code<'h> {
    Lua(Rc<Proto>),
    Native(Native),
    Host(Rc<str>, Rc<RefCell<HostBody<'h>>>),
}

/// A function with what it carries.
pub(crate) struct Function<'h> {
    pub(crate) code: Code<'h>,
    pub(crate) upvalues: Box<[UpvalueId]>,
    /// Values that a function of the library keeps between calls.
    pub(crate) state: Vec<Value>,
}

impl Function<'_> {
    pub(crate) fn part_bytes(&self) -> usize {
        size_of_val(&*self.upvalues) + self.state.len() * size_of::<Value>()
    }
}
