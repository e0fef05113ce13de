//! Local variables, shared variables, blocks and labels.

use super::code::Exp;
use super::function::{Active, Block, Goto, Label};
use super::{Parsed, Parser, Problem};
use crate::heap::{Capture, LocalName, Proto};
use crate::value::StringId;
use crate::vm::Op;
use std::cell::Cell;
use std::rc::Rc;

const LOCALS_MAX: usize = 200;
const UPVALUES_MAX: usize = 255;
/// Variables that are looked at for the price of one instruction.
const NAMES_PER_INSTRUCTION: usize = 64;

impl Parser<'_, '_, '_> {
    /// Puts variables in scope; their values are in the next registers.
    pub(super) fn declare(&mut self, names: &[StringId]) -> Parsed<()> {
        for name in names {
            let function = self.function();
            let register = function.active.len();
            if register >= LOCALS_MAX {
                return Err(self.limit("local variables", LOCALS_MAX));
            }
            let begin = function.here() as u32;
            function.active.push(Active {
                name: *name,
                local: function.locals.len(),
            });
            function.locals.push(LocalName {
                name: *name,
                register: register as u8,
                begin,
                end: u32::MAX,
            });
        }
        Ok(())
    }

    /// Checks the number of variables before the values of new ones are compiled.
    pub(super) fn check_locals(&mut self, more: usize) -> Parsed<()> {
        if self.function().active.len() + more > LOCALS_MAX {
            return Err(self.limit("local variables", LOCALS_MAX));
        }
        Ok(())
    }

    /// The variable of a name: local, shared or global.
    pub(super) fn variable(&mut self, name: StringId) -> Parsed<Exp> {
        if let Some(exp) = self.find_variable(name)? {
            return Ok(exp);
        }
        let environment = match self.find_variable(self.environment)? {
            Some(exp) => exp,
            // The whole program shares it.
            None => Exp::Upvalue(self.pass_down(1, self.environment, Capture::Upvalue(0))?),
        };
        if name == self.environment {
            return Ok(environment);
        }
        let key = self.operand_of(Exp::String(name))?;
        match environment {
            Exp::Upvalue(upvalue) => Ok(Exp::Field { upvalue, key }),
            other => {
                let table = self.place_any(other)?;
                Ok(Exp::Index { table, key })
            }
        }
    }

    fn find_variable(&mut self, name: StringId) -> Parsed<Option<Exp>> {
        let mut looked_at = 0;
        let mut found = None;
        for (depth, function) in self.functions.iter().enumerate().rev() {
            looked_at += function.active.len() + 1;
            let register = function.active.iter().rposition(|local| local.name == name);
            if let Some(register) = register {
                found = Some((depth, register));
                break;
            }
        }
        self.lua.work(looked_at / NAMES_PER_INSTRUCTION)?;
        let Some((depth, register)) = found else {
            return Ok(None);
        };
        if depth + 1 == self.functions.len() {
            return Ok(Some(Exp::Local(register as u8)));
        }
        let blocks = &mut self.functions[depth].blocks;
        if let Some(block) = blocks
            .iter_mut()
            .rev()
            .find(|block| block.outside <= register)
        {
            block.is_captured = true;
        }
        let place = self.pass_down(depth + 1, name, Capture::Local(register as u8))?;
        Ok(Some(Exp::Upvalue(place)))
    }

    /// Lets the functions from `depth` on share a variable. Returns its place in the last one.
    fn pass_down(&mut self, depth: usize, name: StringId, mut capture: Capture) -> Parsed<u8> {
        let mut place = 0;
        for depth in depth..self.functions.len() {
            place = self.functions[depth].capture(name, capture);
            if place >= UPVALUES_MAX {
                return Err(self.limit("upvalues", UPVALUES_MAX));
            }
            capture = Capture::Upvalue(place as u8);
        }
        Ok(place as u8)
    }

    pub(super) fn enter_block(&mut self, is_loop: bool) {
        let function = self.function();
        let block = Block {
            outside: function.active.len(),
            is_loop,
            breaks: Vec::new(),
            is_captured: false,
            labels_outside: function.labels.len(),
            gotos_outside: function.gotos.len(),
        };
        function.blocks.push(block);
    }

    /// Ends the scope of a block's variables and labels.
    pub(super) fn leave_block(&mut self) -> Parsed<()> {
        let Some(block) = self.function().blocks.pop() else {
            return Ok(());
        };
        if block.is_captured {
            let from = block.outside as u8;
            self.emit(Op::Close { from })?;
        }
        let function = self.function();
        let here = function.here();
        for active in function.active.drain(block.outside..) {
            function.locals[active.local].end = here as u32;
        }
        function.free = function.active.len();
        function.labels.truncate(block.labels_outside);
        for at in block.breaks {
            function.patch(at, here);
            function.patch_close(at, block.outside);
        }
        for goto in &mut function.gotos[block.gotos_outside..] {
            goto.active = goto.active.min(block.outside);
        }
        let lost = function.gotos.first();
        if let (Some(goto), true) = (lost, function.blocks.is_empty()) {
            let (name, line) = (goto.name, goto.line);
            let name = self.name_text(name);
            let message = format!("no visible label '{name}' for <goto> at line {line}");
            return Err(Problem::Syntax(message));
        }
        Ok(())
    }

    /// The statement `break`.
    pub(super) fn break_loop(&mut self) -> Parsed<()> {
        let line = self.line_before;
        let at = self.jump()?;
        let blocks = &mut self.function().blocks;
        match blocks.iter_mut().rev().find(|block| block.is_loop) {
            Some(block) => block.breaks.push(at),
            None => {
                let message = format!("<break> at line {line} not inside a loop");
                return Err(Problem::Syntax(message));
            }
        }
        Ok(())
    }

    /// A jump to a label.
    pub(super) fn goto(&mut self, name: StringId) -> Parsed<()> {
        let line = self.line_before;
        let at = self.jump()?;
        let function = self.function();
        if let Some(label) = function
            .labels
            .iter()
            .rev()
            .find(|label| label.name == name)
        {
            let (to, active) = (label.at, label.active);
            function.patch(at, to);
            function.patch_close(at, active);
            return Ok(());
        }
        let active = function.active.len();
        function.gotos.push(Goto {
            name,
            at,
            line,
            active,
        });
        Ok(())
    }

    /// Checks that a label is new in its block.
    pub(super) fn check_label(&mut self, name: StringId) -> Parsed<()> {
        let function = self.function();
        let first = function
            .blocks
            .last()
            .map_or(0, |block| block.labels_outside);
        let known = function.labels[first..]
            .iter()
            .find(|label| label.name == name);
        if let Some(line) = known.map(|label| label.line) {
            let name = self.name_text(name);
            let message = format!("label '{name}' already defined on line {line}");
            return Err(Problem::Syntax(message));
        }
        Ok(())
    }

    /// Adds a label, and completes the jumps of its block that wait for it.
    pub(super) fn add_label(&mut self, name: StringId, line: u32, is_last: bool) -> Parsed<()> {
        let function = self.function();
        let (outside, first) = function
            .blocks
            .last()
            .map_or((0, 0), |block| (block.outside, block.gotos_outside));
        // At the end of a block, its variables are not in scope any more.
        let active = if is_last {
            outside
        } else {
            function.active.len()
        };
        let at = function.here();
        function.labels.push(Label {
            name,
            at,
            line,
            active,
        });
        let waiting = function.gotos.split_off(first);
        for goto in waiting {
            if goto.name != name {
                function.gotos.push(goto);
                continue;
            }
            if goto.active < active {
                let local = function.active[goto.active].name;
                let (name, local) = (self.name_text(name), self.name_text(local));
                let line = goto.line;
                return Err(Problem::Syntax(format!(
                    "<goto {name}> at line {line} jumps into the scope of local '{local}'"
                )));
            }
            function.patch(goto.at, at);
            function.patch_close(goto.at, active);
        }
        Ok(())
    }

    /// Completes the function that is being compiled.
    pub(super) fn close_function(&mut self) -> Parsed<Rc<Proto>> {
        self.emit(Op::Return { base: 0, count: 0 })?;
        let Some(function) = self.functions.pop() else {
            return Err(Problem::Syntax("no function".into()));
        };
        let proto = Proto {
            code: function.code,
            lines: function.lines,
            constants: function.constants,
            protos: function.protos,
            captures: function.captures,
            locals: function.locals,
            parameters: function.parameters,
            is_vararg: function.is_vararg,
            registers: function.registers as u8,
            line: function.line,
            source: self.source.clone(),
            epoch: Cell::new(0),
        };
        self.lua.grant(proto.bytes())?;
        self.lua.heap.used += proto.bytes();
        Ok(Rc::new(proto))
    }
}
