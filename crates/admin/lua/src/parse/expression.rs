//! Expressions.

use super::code::Exp;
use super::function::FunctionState;
use super::lexer::{Keyword, Token};
use super::{Parsed, Parser};
use crate::value::StringId;
use crate::vm::{ALL, Arithmetic, Comparison, Op};

/// Items of a table constructor that are set by one instruction.
const ITEMS_AT_ONCE: u8 = 50;
/// The priority of operators with one operand.
const UNARY_PRIORITY: u8 = 8;

/// An operator with two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binary {
    Arithmetic(Arithmetic),
    /// A comparison, perhaps with the operands swapped.
    Compare(Comparison, bool),
    Concat,
    And,
    Or,
}

impl Parser<'_, '_, '_> {
    /// An expression.
    pub(super) fn expression(&mut self) -> Parsed<Exp> {
        self.sub_expression(0)
    }

    /// The operator of the current token, with its priorities to the left and to the right.
    fn binary(&self) -> Option<(Binary, u8, u8)> {
        let compare = |op, is_swapped| Some((Binary::Compare(op, is_swapped), 3, 3));
        let arithmetic = |op, priority| Some((Binary::Arithmetic(op), priority, priority));
        match &self.token {
            Token::Keyword(Keyword::Or) => Some((Binary::Or, 1, 1)),
            Token::Keyword(Keyword::And) => Some((Binary::And, 2, 2)),
            Token::Sign(sign) => match *sign {
                "<" => compare(Comparison::Less, false),
                ">" => compare(Comparison::Less, true),
                "<=" => compare(Comparison::LessEqual, false),
                ">=" => compare(Comparison::LessEqual, true),
                "==" => compare(Comparison::Equal, false),
                "~=" => compare(Comparison::NotEqual, false),
                // Operators that group from the right bind less to the right.
                ".." => Some((Binary::Concat, 5, 4)),
                "+" => arithmetic(Arithmetic::Add, 6),
                "-" => arithmetic(Arithmetic::Sub, 6),
                "*" => arithmetic(Arithmetic::Mul, 7),
                "/" => arithmetic(Arithmetic::Div, 7),
                "%" => arithmetic(Arithmetic::Mod, 7),
                "^" => Some((Binary::Arithmetic(Arithmetic::Pow), 10, 9)),
                _ => None,
            },
            _ => None,
        }
    }

    /// An expression of operators that bind more than `limit`.
    fn sub_expression(&mut self, limit: u8) -> Parsed<Exp> {
        self.enter_level()?;
        let mut left = match self.token {
            Token::Sign("-" | "#") | Token::Keyword(Keyword::Not) => self.unary()?,
            _ => self.simple_expression()?,
        };
        while let Some((op, left_priority, right_priority)) = self.binary() {
            if left_priority <= limit {
                break;
            }
            self.advance()?;
            let line = self.line_before;
            left = match op {
                Binary::And | Binary::Or => {
                    let register = self.place_next(left)?;
                    let at = self.emit(Op::JumpIf {
                        register,
                        is: op == Binary::Or,
                        target: 0,
                    })?;
                    self.release(Exp::Temporary(register));
                    let right = self.sub_expression(right_priority)?;
                    let right = self.place_next(right)?;
                    self.patch_here(Some(at));
                    Exp::Temporary(right)
                }
                _ => {
                    let left = self.operand_of(left)?;
                    let right = self.sub_expression(right_priority)?;
                    let right = self.operand_of(right)?;
                    self.release_operands(left, right);
                    let at = self.emit(match op {
                        Binary::Arithmetic(op) => Op::Arithmetic {
                            op,
                            to: 0,
                            left,
                            right,
                        },
                        Binary::Compare(op, false) => Op::Compare {
                            op,
                            to: 0,
                            left,
                            right,
                        },
                        Binary::Compare(op, true) => Op::Compare {
                            op,
                            to: 0,
                            left: right,
                            right: left,
                        },
                        _ => Op::Concat { to: 0, left, right },
                    })?;
                    self.set_line(at, line);
                    Exp::Pending(at)
                }
            };
        }
        self.leave_level();
        Ok(left)
    }

    fn unary(&mut self) -> Parsed<Exp> {
        let operator = self.token.clone();
        self.advance()?;
        let line = self.line_before;
        let operand = self.sub_expression(UNARY_PRIORITY)?;
        match (&operator, operand) {
            (Token::Sign("-"), Exp::Number(number)) => {
                return Ok(Exp::Number(number.wrapping_neg()));
            }
            (Token::Keyword(_), Exp::Nil | Exp::Boolean(false)) => return Ok(Exp::Boolean(true)),
            (Token::Keyword(_), Exp::Boolean(true) | Exp::Number(_) | Exp::String(_)) => {
                return Ok(Exp::Boolean(false));
            }
            _ => {}
        }
        let from = self.place_any(operand)?;
        self.release(Exp::Temporary(from));
        let at = self.emit(match operator {
            Token::Sign("-") => Op::Negate { to: 0, from },
            Token::Sign(_) => Op::Length { to: 0, from },
            _ => Op::Not { to: 0, from },
        })?;
        self.set_line(at, line);
        Ok(Exp::Pending(at))
    }

    fn simple_expression(&mut self) -> Parsed<Exp> {
        let exp = match &self.token {
            Token::Number(number) => Exp::Number(*number),
            Token::String(text) => Exp::String(self.lua.intern(text)?),
            Token::Keyword(Keyword::Nil) => Exp::Nil,
            Token::Keyword(Keyword::True) => Exp::Boolean(true),
            Token::Keyword(Keyword::False) => Exp::Boolean(false),
            Token::Sign("...") => {
                if !self.function().is_vararg {
                    return Err(self.problem("cannot use '...' outside a vararg function"));
                }
                self.advance()?;
                let at = self.emit(Op::Varargs { to: 0, count: 1 })?;
                return Ok(Exp::Varargs(at));
            }
            Token::Sign("{") => return self.table(),
            Token::Keyword(Keyword::Function) => {
                self.advance()?;
                let line = self.line_before;
                return self.function_body(false, line);
            }
            _ => return self.suffixed_expression(),
        };
        self.advance()?;
        Ok(exp)
    }

    fn primary_expression(&mut self) -> Parsed<Exp> {
        if let Token::Name(_) = self.token {
            let name = self.name()?;
            return self.variable(name);
        }
        if self.is_sign("(") {
            let line = self.line;
            self.advance()?;
            let exp = self.expression()?;
            self.expect_closing(")", "(", line)?;
            // Parentheses make one value of a list, and a value of a variable.
            return match self.single(exp)? {
                Exp::Local(register) => Ok(Exp::Temporary(self.place_next(Exp::Local(register))?)),
                other => Ok(other),
            };
        }
        Err(self.problem("unexpected symbol"))
    }

    /// A variable, a call, or an expression in parentheses, with what follows.
    pub(super) fn suffixed_expression(&mut self) -> Parsed<Exp> {
        let line = self.line;
        let mut exp = self.primary_expression()?;
        loop {
            exp = match &self.token {
                Token::Sign(".") => {
                    let table = self.place_any(exp)?;
                    self.field_of(table)?
                }
                Token::Sign("[") => {
                    let table = self.place_any(exp)?;
                    let key = self.bracketed_key()?;
                    let key = self.operand_of(key)?;
                    Exp::Index { table, key }
                }
                Token::Sign(":") => {
                    self.advance()?;
                    let name = self.name()?;
                    let object = self.place_any(exp)?;
                    let key = self.operand_of(Exp::String(name))?;
                    self.release_operands(object.into(), key);
                    let to = self.reserve(2)?;
                    self.emit(Op::Method { to, object, key })?;
                    self.call(to, line)?
                }
                Token::Sign("(" | "{") | Token::String(_) => {
                    let base = self.place_next(exp)?;
                    self.call(base, line)?
                }
                _ => return Ok(exp),
            };
        }
    }

    /// A field of the table in a register, after a dot or a colon.
    pub(super) fn field_of(&mut self, table: u8) -> Parsed<Exp> {
        self.advance()?;
        let name = self.name()?;
        let key = self.operand_of(Exp::String(name))?;
        Ok(Exp::Index { table, key })
    }

    fn bracketed_key(&mut self) -> Parsed<Exp> {
        self.advance()?;
        let key = self.expression()?;
        let key = self.single(key)?;
        // The value must be in its place before the next expression.
        let key = match key {
            Exp::Pending(_) => Exp::Temporary(self.place_next(key)?),
            other => other,
        };
        self.expect("]")?;
        Ok(key)
    }

    /// A call of the function in a register; a method's object is in the next one.
    fn call(&mut self, base: u8, line: u32) -> Parsed<Exp> {
        let mut is_open = false;
        match &self.token {
            Token::String(text) => {
                let text = self.lua.intern(text)?;
                self.advance()?;
                self.place_next(Exp::String(text))?;
            }
            Token::Sign("{") => {
                let table = self.table()?;
                self.place_next(table)?;
            }
            Token::Sign("(") => {
                let opened = self.line;
                self.advance()?;
                if !self.is_sign(")") {
                    let (last, _) = self.expression_list()?;
                    is_open = self.open_list(last)?;
                    if !is_open {
                        self.place_next(last)?;
                    }
                }
                self.expect_closing(")", "(", opened)?;
            }
            _ => return Err(self.problem("function arguments expected")),
        }
        let arguments = match is_open {
            true => ALL,
            false => (self.function().free - usize::from(base) - 1) as u8,
        };
        let at = self.emit(Op::Call {
            base,
            arguments,
            results: 1,
        })?;
        self.set_line(at, line);
        // One result takes the place of the function.
        self.function().free = usize::from(base) + 1;
        Ok(Exp::Call(at))
    }

    /// A list of expressions: all but the last are in registers. Returns the last one, and their number.
    pub(super) fn expression_list(&mut self) -> Parsed<(Exp, usize)> {
        let mut count = 1;
        let mut last = self.expression()?;
        while self.accept(",")? {
            self.place_next(last)?;
            last = self.expression()?;
            count += 1;
        }
        Ok((last, count))
    }

    /// A table constructor.
    fn table(&mut self) -> Parsed<Exp> {
        let line = self.line;
        let to = self.reserve(1)?;
        self.emit(Op::NewTable { to })?;
        self.advance()?;
        let (mut waiting, mut first) = (0, 1u32);
        while !self.is_sign("}") {
            let is_name = matches!(self.token, Token::Name(_));
            let free = self.function().free;
            if self.is_sign("[") {
                let key = self.bracketed_key()?;
                self.table_field(to, key)?;
                self.function().free = free;
            } else if is_name && *self.look_ahead()? == Token::Sign("=") {
                let name = self.name()?;
                self.table_field(to, Exp::String(name))?;
                self.function().free = free;
            } else {
                let item = self.expression()?;
                let is_last = !(self.is_sign(",") || self.is_sign(";"));
                // Only the very last item gives all its values.
                let ends_with_separator =
                    !is_last && matches!(self.look_ahead()?, Token::Sign("}"));
                if (is_last || ends_with_separator) && self.open_list(item)? {
                    let count = ALL;
                    self.emit(Op::SetItems {
                        base: to,
                        count,
                        first,
                    })?;
                    waiting = 0;
                    self.function().free = usize::from(to) + 1;
                } else {
                    self.place_next(item)?;
                    waiting += 1;
                }
            }
            if waiting == ITEMS_AT_ONCE {
                self.flush_items(to, &mut waiting, &mut first)?;
            }
            if !(self.accept(",")? || self.accept(";")?) {
                break;
            }
        }
        self.expect_closing("}", "{", line)?;
        self.flush_items(to, &mut waiting, &mut first)?;
        Ok(Exp::Temporary(to))
    }

    fn flush_items(&mut self, base: u8, waiting: &mut u8, first: &mut u32) -> Parsed<()> {
        if *waiting > 0 {
            self.emit(Op::SetItems {
                base,
                count: *waiting,
                first: *first,
            })?;
            *first += u32::from(*waiting);
            *waiting = 0;
            self.function().free = usize::from(base) + 1;
        }
        Ok(())
    }

    fn table_field(&mut self, table: u8, key: Exp) -> Parsed<()> {
        let key = self.operand_of(key)?;
        self.expect("=")?;
        let value = self.expression()?;
        self.store(Exp::Index { table, key }, value)
    }

    /// Parameters and body of a function. A method has the parameter `self`.
    pub(super) fn function_body(&mut self, is_method: bool, line: u32) -> Parsed<Exp> {
        self.functions.push(FunctionState::new(line));
        self.enter_block(false);
        let mut names: Vec<StringId> = Vec::new();
        if is_method {
            names.push(self.lua.intern(b"self")?);
        }
        self.expect("(")?;
        if !self.is_sign(")") {
            loop {
                if self.accept("...")? {
                    self.function().is_vararg = true;
                    break;
                }
                if !matches!(self.token, Token::Name(_)) {
                    return Err(self.expected("<name> or '...'"));
                }
                names.push(self.name()?);
                self.check_locals(names.len())?;
                if !self.accept(",")? {
                    break;
                }
            }
        }
        self.declare(&names)?;
        self.reserve(names.len())?;
        self.function().parameters = names.len() as u8;
        self.expect(")")?;
        self.statements()?;
        self.expect_closing("end", "function", line)?;
        self.leave_block()?;
        let proto = self.close_function()?;
        let function = self.function();
        function.protos.push(proto);
        let proto = function.protos.len() as u32 - 1;
        let at = self.emit(Op::Closure { to: 0, proto })?;
        Ok(Exp::Pending(at))
    }
}
