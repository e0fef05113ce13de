//! The state of a function that is being compiled.

use crate::heap::{Capture, LocalName};
use crate::value::{StringId, Value};
use crate::vm::Op;
use std::collections::HashMap;
use std::rc::Rc;

/// A local variable in scope; its register is its position in the list.
pub(super) struct Active {
    pub(super) name: StringId,
    /// Its entry among the names for messages.
    pub(super) local: usize,
}

/// A block of statements.
pub(super) struct Block {
    /// Local variables outside of the block.
    pub(super) outside: usize,
    pub(super) is_loop: bool,
    /// Jumps to the end of the loop.
    pub(super) breaks: Vec<usize>,
    /// Whether a closure shares a variable of the block.
    pub(super) is_captured: bool,
    pub(super) labels_outside: usize,
    pub(super) gotos_outside: usize,
}

/// A label that can be seen.
pub(super) struct Label {
    pub(super) name: StringId,
    pub(super) at: usize,
    pub(super) line: u32,
    /// Local variables in scope at the label.
    pub(super) active: usize,
}

/// A jump to a label that was not seen yet.
pub(super) struct Goto {
    pub(super) name: StringId,
    pub(super) at: usize,
    pub(super) line: u32,
    /// Local variables in scope both at the jump and where the label may be.
    pub(super) active: usize,
}

/// A function that is being compiled.
pub(super) struct FunctionState {
    pub(super) code: Vec<Op>,
    pub(super) lines: Vec<u32>,
    pub(super) constants: Vec<Value>,
    constant_places: HashMap<Value, u32>,
    pub(super) protos: Vec<Rc<crate::heap::Proto>>,
    pub(super) captures: Vec<(StringId, Capture)>,
    pub(super) locals: Vec<LocalName>,
    pub(super) active: Vec<Active>,
    /// The first register that is not in use.
    pub(super) free: usize,
    pub(super) registers: usize,
    pub(super) blocks: Vec<Block>,
    pub(super) labels: Vec<Label>,
    pub(super) gotos: Vec<Goto>,
    pub(super) parameters: u8,
    pub(super) is_vararg: bool,
    pub(super) line: u32,
}

impl FunctionState {
    pub(super) fn new(line: u32) -> Self {
        Self {
            code: Vec::new(),
            lines: Vec::new(),
            constants: Vec::new(),
            constant_places: HashMap::new(),
            protos: Vec::new(),
            captures: Vec::new(),
            locals: Vec::new(),
            active: Vec::new(),
            free: 0,
            registers: 2,
            blocks: Vec::new(),
            labels: Vec::new(),
            gotos: Vec::new(),
            parameters: 0,
            is_vararg: false,
            line,
        }
    }

    /// The position of the next instruction.
    pub(super) fn here(&self) -> usize {
        self.code.len()
    }

    /// The bytes that the parts use.
    pub(super) fn bytes(&self) -> usize {
        self.code.len() * (size_of::<Op>() + size_of::<u32>())
            + self.constants.len() * 3 * size_of::<Value>()
            + self.locals.len() * size_of::<LocalName>()
    }

    /// The place of a constant.
    pub(super) fn constant(&mut self, value: Value) -> u32 {
        let next = self.constants.len() as u32;
        let place = *self.constant_places.entry(value).or_insert(next);
        if place == next {
            self.constants.push(value);
        }
        place
    }

    /// The place of a shared variable, which is added if the function has not used it yet.
    pub(super) fn capture(&mut self, name: StringId, capture: Capture) -> usize {
        let known = self
            .captures
            .iter()
            .position(|(_, known)| *known == capture);
        known.unwrap_or_else(|| {
            self.captures.push((name, capture));
            self.captures.len() - 1
        })
    }

    /// Sets the instruction that a jump continues at.
    pub(super) fn patch(&mut self, at: usize, to: usize) {
        let to = to as u32;
        match &mut self.code[at] {
            Op::Jump { target, .. }
            | Op::JumpIf { target, .. }
            | Op::ForPrepare { target, .. }
            | Op::ForLoop { target, .. }
            | Op::IteratorLoop { target, .. } => *target = to,
            _ => {}
        }
    }

    /// Makes a jump leave the scope of all but the first `active` variables.
    pub(super) fn patch_close(&mut self, at: usize, active: usize) {
        if let Op::Jump { close, .. } = &mut self.code[at] {
            *close = active as u8 + 1;
        }
    }
}
