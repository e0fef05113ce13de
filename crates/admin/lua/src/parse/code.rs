//! Expressions whose value is not in a register yet, and the instructions that bring it there.

use super::{Parsed, Parser};
use crate::value::{StringId, Value};
use crate::vm::{ALL, FIRST_CONSTANT, Op, Operand};

/// Registers of a function; the last ones are left for calls.
const REGISTERS_MAX: usize = 249;
/// Instructions between two looks at the memory limit.
const GRANT_INTERVAL: usize = 1024;

/// An expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exp {
    Nil,
    Boolean(bool),
    Number(i64),
    String(StringId),
    /// A local variable.
    Local(u8),
    /// A value in a register that nothing else uses.
    Temporary(u8),
    Upvalue(u8),
    /// A field of a shared variable.
    Field {
        upvalue: u8,
        key: Operand,
    },
    Index {
        table: u8,
        key: Operand,
    },
    /// The results of a call instruction.
    Call(usize),
    /// The values of an instruction for `...`.
    Varargs(usize),
    /// The result of an instruction whose register is not chosen yet.
    Pending(usize),
}

impl Parser<'_, '_, '_> {
    /// Adds an instruction with the line of the last token.
    pub(super) fn emit(&mut self, op: Op) -> Parsed<usize> {
        let line = self.line_before;
        let function = self.function();
        function.code.push(op);
        function.lines.push(line);
        let at = function.code.len() - 1;
        if at.is_multiple_of(GRANT_INTERVAL) {
            let bytes = function.bytes();
            self.lua.grant(bytes)?;
            self.lua.work(GRANT_INTERVAL / 64)?;
        }
        Ok(at)
    }

    /// Says that the last instruction belongs to another line.
    pub(super) fn set_line(&mut self, at: usize, line: u32) {
        self.function().lines[at] = line;
    }

    /// Takes registers; the first one is returned.
    pub(super) fn reserve(&mut self, count: usize) -> Parsed<u8> {
        let function = self.function();
        let first = function.free;
        if first + count > REGISTERS_MAX {
            return Err(self.problem("function or expression too complex"));
        }
        function.free = first + count;
        function.registers = function.registers.max(function.free);
        Ok(first as u8)
    }

    fn release_register(&mut self, register: usize) {
        let function = self.function();
        if register >= function.active.len() && register < function.free {
            function.free = register;
        }
    }

    fn release_operand(&mut self, operand: Operand) {
        if operand < FIRST_CONSTANT {
            self.release_register(operand.into());
        }
    }

    /// Releases two operands, the last one first.
    pub(super) fn release_operands(&mut self, left: Operand, right: Operand) {
        for operand in [left.max(right), left.min(right)] {
            self.release_operand(operand);
        }
    }

    pub(super) fn release(&mut self, exp: Exp) {
        if let Exp::Temporary(register) = exp {
            self.release_register(register.into());
        }
    }

    /// Makes an expression one value.
    pub(super) fn single(&mut self, exp: Exp) -> Parsed<Exp> {
        Ok(match exp {
            Exp::Upvalue(upvalue) => Exp::Pending(self.emit(Op::GetUpvalue { to: 0, upvalue })?),
            Exp::Field { upvalue, key } => {
                self.release_operand(key);
                Exp::Pending(self.emit(Op::GetField {
                    to: 0,
                    upvalue,
                    key,
                })?)
            }
            Exp::Index { table, key } => {
                self.release_operands(table.into(), key);
                Exp::Pending(self.emit(Op::Get { to: 0, table, key })?)
            }
            Exp::Call(at) => {
                self.set_count(at, 1);
                match self.function().code[at] {
                    Op::Call { base, .. } => Exp::Temporary(base),
                    _ => Exp::Nil,
                }
            }
            Exp::Varargs(at) => {
                self.set_count(at, 1);
                Exp::Pending(at)
            }
            other => other,
        })
    }

    /// Sets how many values a call or `...` gives.
    pub(super) fn set_count(&mut self, at: usize, wanted: u8) {
        match &mut self.function().code[at] {
            Op::Call { results, .. } => *results = wanted,
            Op::Varargs { count, .. } => *count = wanted,
            _ => {}
        }
    }

    /// Puts all values of a call or `...` on top; whether the expression is one.
    pub(super) fn open_list(&mut self, exp: Exp) -> Parsed<bool> {
        match exp {
            Exp::Call(at) => self.set_count(at, ALL),
            Exp::Varargs(at) => {
                self.set_count(at, ALL);
                let register = self.reserve(1)?;
                self.set_target(at, register);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets the register of an instruction's result.
    pub(super) fn set_target(&mut self, at: usize, register: u8) {
        match &mut self.function().code[at] {
            Op::GetUpvalue { to, .. }
            | Op::GetField { to, .. }
            | Op::Get { to, .. }
            | Op::Arithmetic { to, .. }
            | Op::Negate { to, .. }
            | Op::Not { to, .. }
            | Op::Length { to, .. }
            | Op::Concat { to, .. }
            | Op::Compare { to, .. }
            | Op::Closure { to, .. }
            | Op::Varargs { to, .. } => *to = register,
            _ => {}
        }
    }

    /// Brings a value into a register.
    pub(super) fn place_in(&mut self, exp: Exp, to: u8) -> Parsed<()> {
        let exp = self.single(exp)?;
        match exp {
            Exp::Nil => {
                self.emit(Op::Nil { to, count: 1 })?;
            }
            Exp::Boolean(value) => {
                self.emit(Op::Boolean { to, value })?;
            }
            Exp::Number(number) => self.load_constant(Value::Integer(number), to)?,
            Exp::String(string) => self.load_constant(Value::String(string), to)?,
            Exp::Local(from) | Exp::Temporary(from) if from != to => {
                self.emit(Op::Move { to, from })?;
            }
            Exp::Pending(at) => self.set_target(at, to),
            _ => {}
        }
        Ok(())
    }

    fn load_constant(&mut self, value: Value, to: u8) -> Parsed<()> {
        let constant = self.function().constant(value);
        self.emit(Op::Constant { to, constant })?;
        Ok(())
    }

    /// Brings a value into the next register.
    pub(super) fn place_next(&mut self, exp: Exp) -> Parsed<u8> {
        let exp = self.single(exp)?;
        self.release(exp);
        let register = self.reserve(1)?;
        self.place_in(exp, register)?;
        Ok(register)
    }

    /// Brings a value into any register.
    pub(super) fn place_any(&mut self, exp: Exp) -> Parsed<u8> {
        match self.single(exp)? {
            Exp::Local(register) | Exp::Temporary(register) => Ok(register),
            other => self.place_next(other),
        }
    }

    /// Makes a value an operand: a constant if possible.
    pub(super) fn operand_of(&mut self, exp: Exp) -> Parsed<Operand> {
        let value = match exp {
            Exp::Nil => Value::Nil,
            Exp::Boolean(value) => Value::Boolean(value),
            Exp::Number(number) => Value::Integer(number),
            Exp::String(string) => Value::String(string),
            other => return Ok(self.place_any(other)?.into()),
        };
        let constant = self.function().constant(value);
        match u16::try_from(constant)
            .ok()
            .and_then(|place| place.checked_add(FIRST_CONSTANT))
        {
            Some(operand) => Ok(operand),
            None => Ok(self.place_any(exp)?.into()),
        }
    }

    /// Stores a value in a variable.
    pub(super) fn store(&mut self, variable: Exp, exp: Exp) -> Parsed<()> {
        match variable {
            Exp::Local(register) => {
                let exp = self.single(exp)?;
                self.release(exp);
                self.place_in(exp, register)?;
            }
            Exp::Upvalue(upvalue) => {
                let from = self.place_any(exp)?;
                self.emit(Op::SetUpvalue { upvalue, from })?;
                self.release_register(from.into());
            }
            Exp::Field { upvalue, key } => {
                let value = self.operand_of(exp)?;
                self.emit(Op::SetField {
                    upvalue,
                    key,
                    value,
                })?;
                self.release_operand(value);
            }
            Exp::Index { table, key } => {
                let value = self.operand_of(exp)?;
                self.emit(Op::Set { table, key, value })?;
                self.release_operand(value);
            }
            _ => {}
        }
        Ok(())
    }

    /// A jump whose target is not known yet.
    pub(super) fn jump(&mut self) -> Parsed<usize> {
        self.emit(Op::Jump {
            close: 0,
            target: 0,
        })
    }

    /// A jump that is taken if the condition is not true. Nothing is emitted for a condition that always is.
    pub(super) fn jump_if_false(&mut self, condition: Exp) -> Parsed<Option<usize>> {
        if matches!(
            condition,
            Exp::Boolean(true) | Exp::Number(_) | Exp::String(_)
        ) {
            return Ok(None);
        }
        let register = self.place_any(condition)?;
        self.release_register(register.into());
        let at = self.emit(Op::JumpIf {
            register,
            is: false,
            target: 0,
        })?;
        Ok(Some(at))
    }

    /// Sets the target of a jump to the next instruction.
    pub(super) fn patch_here(&mut self, at: Option<usize>) {
        let here = self.function().here();
        if let Some(at) = at {
            self.function().patch(at, here);
        }
    }
}
