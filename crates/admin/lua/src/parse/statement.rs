//! Statements.

use super::code::Exp;
use super::lexer::{Keyword, Token};
use super::{Parsed, Parser};
use crate::value::StringId;
use crate::vm::{ALL, Op};

impl Parser<'_, '_, '_> {
    /// Whether the current token ends a block.
    fn ends_block(&self, with_until: bool) -> bool {
        match &self.token {
            Token::End => true,
            Token::Keyword(Keyword::Else | Keyword::Elseif | Keyword::End) => true,
            Token::Keyword(Keyword::Until) => with_until,
            _ => false,
        }
    }

    /// The statements of a block.
    pub(super) fn statements(&mut self) -> Parsed<()> {
        while !self.ends_block(true) {
            if self.is_keyword(Keyword::Return) {
                return self.statement();
            }
            self.statement()?;
        }
        Ok(())
    }

    fn block(&mut self) -> Parsed<()> {
        self.enter_block(false);
        self.statements()?;
        self.leave_block()
    }

    fn statement(&mut self) -> Parsed<()> {
        self.enter_level()?;
        let line = self.line;
        match &self.token {
            Token::Sign(";") => self.advance()?,
            Token::Sign("::") => self.label_statement()?,
            Token::Keyword(keyword) => match keyword {
                Keyword::If => self.if_statement(line)?,
                Keyword::While => self.while_statement(line)?,
                Keyword::Do => {
                    self.advance()?;
                    self.block()?;
                    self.expect_closing("end", "do", line)?;
                }
                Keyword::For => self.for_statement(line)?,
                Keyword::Repeat => self.repeat_statement(line)?,
                Keyword::Function => self.function_statement(line)?,
                Keyword::Local => {
                    self.advance()?;
                    if self.accept_keyword(Keyword::Function)? {
                        self.local_function()?;
                    } else {
                        self.local_statement()?;
                    }
                }
                Keyword::Return => self.return_statement()?,
                Keyword::Break => {
                    self.advance()?;
                    self.break_loop()?;
                }
                Keyword::Goto => {
                    self.advance()?;
                    let name = self.name()?;
                    self.goto(name)?;
                }
                _ => self.expression_statement()?,
            },
            _ => self.expression_statement()?,
        }
        let function = self.function();
        function.free = function.active.len();
        self.leave_level();
        Ok(())
    }

    fn label_statement(&mut self) -> Parsed<()> {
        let mut names: Vec<(StringId, u32)> = Vec::new();
        // Labels and semicolons at the end of a block do nothing.
        while self.is_sign("::") || self.is_sign(";") {
            if self.accept(";")? {
                continue;
            }
            self.advance()?;
            let name = self.name()?;
            names.push((name, self.line_before));
            self.check_label(name)?;
            if names[..names.len() - 1]
                .iter()
                .any(|(known, _)| *known == name)
            {
                let (name, line) = (self.name_text(name), self.line_before);
                let message = format!("label '{name}' already defined on line {line}");
                return Err(super::Problem::Syntax(message));
            }
            self.expect("::")?;
        }
        let is_last = self.ends_block(false);
        for (name, line) in names {
            self.add_label(name, line, is_last)?;
        }
        Ok(())
    }

    fn if_statement(&mut self, line: u32) -> Parsed<()> {
        let mut ends = Vec::new();
        loop {
            // After `if` or `elseif`.
            self.advance()?;
            let condition = self.expression()?;
            self.expect_keyword(Keyword::Then)?;
            let skip = self.jump_if_false(condition)?;
            self.block()?;
            let has_more = matches!(self.token, Token::Keyword(Keyword::Else | Keyword::Elseif));
            if has_more {
                ends.push(self.jump()?);
            }
            self.patch_here(skip);
            if !self.is_keyword(Keyword::Elseif) {
                break;
            }
        }
        if self.accept_keyword(Keyword::Else)? {
            self.block()?;
        }
        self.expect_closing("end", "if", line)?;
        for end in ends {
            self.patch_here(Some(end));
        }
        Ok(())
    }

    fn while_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let begin = self.function().here();
        let condition = self.expression()?;
        let exit = self.jump_if_false(condition)?;
        self.expect_keyword(Keyword::Do)?;
        self.enter_block(true);
        self.block()?;
        let back = self.jump()?;
        self.function().patch(back, begin);
        self.expect_closing("end", "while", line)?;
        self.patch_here(exit);
        self.leave_block()
    }

    fn repeat_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let begin = self.function().here();
        self.enter_block(true);
        self.enter_block(false);
        self.statements()?;
        self.expect_closing("until", "repeat", line)?;
        // The condition sees the variables of the block.
        let condition = self.expression()?;
        let register = self.place_any(condition)?;
        let exit = self.emit(Op::JumpIf {
            register,
            is: true,
            target: 0,
        })?;
        let outside = self
            .function()
            .blocks
            .last()
            .map_or(0, |block| block.outside);
        let back = self.jump()?;
        self.function().patch(back, begin);
        self.function().patch_close(back, outside);
        self.patch_here(Some(exit));
        self.leave_block()?;
        self.leave_block()
    }

    fn for_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let first = self.name()?;
        self.enter_block(true);
        match &self.token {
            Token::Sign("=") => self.numeric_for(first, line)?,
            Token::Sign(",") | Token::Keyword(Keyword::In) => self.generic_for(first, line)?,
            _ => return Err(self.expected("'=' or 'in'")),
        }
        self.leave_block()
    }

    /// Names for the registers that a loop uses itself.
    fn hidden(&mut self, names: [&str; 3]) -> Parsed<[StringId; 3]> {
        let mut ids = [self.environment; 3];
        for (id, name) in ids.iter_mut().zip(names) {
            *id = self.lua.intern(name.as_bytes())?;
        }
        Ok(ids)
    }

    fn numeric_for(&mut self, name: StringId, line: u32) -> Parsed<()> {
        self.advance()?;
        let base = self.function().free as u8;
        for part in 0..3 {
            let has_part = match part {
                0 => true,
                1 => {
                    self.expect(",")?;
                    true
                }
                _ => self.accept(",")?,
            };
            let exp = match has_part {
                true => self.expression()?,
                false => Exp::Number(1),
            };
            self.place_next(exp)?;
        }
        let hidden = self.hidden(["(for index)", "(for limit)", "(for step)"])?;
        self.declare(&hidden)?;
        self.expect_keyword(Keyword::Do)?;
        let prepare = self.emit(Op::ForPrepare { base, target: 0 })?;
        self.set_line(prepare, line);
        let body = self.function().here();
        self.loop_body(&[name])?;
        self.expect_closing("end", "for", line)?;
        let target = body as u32;
        let at = self.emit(Op::ForLoop { base, target })?;
        self.set_line(at, line);
        self.patch_here(Some(prepare));
        Ok(())
    }

    /// The block of a loop, with its variables.
    fn loop_body(&mut self, names: &[StringId]) -> Parsed<()> {
        self.enter_block(false);
        self.check_locals(names.len())?;
        self.reserve(names.len())?;
        self.declare(names)?;
        self.statements()?;
        self.leave_block()
    }

    fn generic_for(&mut self, first: StringId, line: u32) -> Parsed<()> {
        let mut names = vec![first];
        while self.accept(",")? {
            names.push(self.name()?);
            self.check_locals(names.len())?;
        }
        self.expect_keyword(Keyword::In)?;
        let line_in = self.line;
        let base = self.function().free as u8;
        let (last, count) = self.expression_list()?;
        self.adjust(last, count, 3)?;
        // A call of the iterator needs three registers.
        self.reserve(3)?;
        self.function().free -= 3;
        let hidden = self.hidden(["(for generator)", "(for state)", "(for control)"])?;
        self.declare(&hidden)?;
        self.expect_keyword(Keyword::Do)?;
        let prepare = self.jump()?;
        let body = self.function().here();
        self.loop_body(&names)?;
        self.expect_closing("end", "for", line)?;
        self.patch_here(Some(prepare));
        let results = names.len() as u8;
        let at = self.emit(Op::IteratorCall { base, results })?;
        self.set_line(at, line_in);
        let target = body as u32;
        let at = self.emit(Op::IteratorLoop { base, target })?;
        self.set_line(at, line_in);
        Ok(())
    }

    /// Makes `wanted` values of a list of expressions.
    fn adjust(&mut self, last: Exp, count: usize, wanted: usize) -> Parsed<()> {
        let missing = (wanted + 1).saturating_sub(count);
        match last {
            Exp::Call(at) => {
                self.set_count(at, missing as u8);
                // The first result is in the register of the function.
                match missing {
                    0 => self.function().free -= 1,
                    more => {
                        self.reserve(more - 1)?;
                    }
                }
            }
            Exp::Varargs(at) => {
                self.set_count(at, missing as u8);
                let to = self.reserve(missing)?;
                self.set_target(at, to);
            }
            other => {
                self.place_next(other)?;
                if missing > 1 {
                    let count = missing as u8 - 1;
                    let to = self.reserve(missing - 1)?;
                    self.emit(Op::Nil { to, count })?;
                }
            }
        }
        if count > wanted {
            // What is too much was computed, and is dropped.
            let function = self.function();
            function.free -=
                count - wanted - usize::from(matches!(last, Exp::Call(_) | Exp::Varargs(_)));
        }
        Ok(())
    }

    fn function_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let name = self.name()?;
        let mut variable = self.variable(name)?;
        let mut is_method = false;
        while !is_method && (self.is_sign(".") || self.is_sign(":")) {
            is_method = self.is_sign(":");
            let table = self.place_any(variable)?;
            variable = self.field_of(table)?;
        }
        let body = self.function_body(is_method, line)?;
        self.store(variable, body)?;
        let at = self.function().here() - 1;
        self.set_line(at, line);
        Ok(())
    }

    fn local_function(&mut self) -> Parsed<()> {
        let line = self.line_before;
        let name = self.name()?;
        // The function itself can see the variable.
        self.declare(&[name])?;
        let register = self.reserve(1)?;
        let body = self.function_body(false, line)?;
        self.place_in(body, register)
    }

    fn local_statement(&mut self) -> Parsed<()> {
        let mut names = Vec::new();
        loop {
            names.push(self.name()?);
            self.check_locals(names.len())?;
            if !self.accept(",")? {
                break;
            }
        }
        if self.accept("=")? {
            let (last, count) = self.expression_list()?;
            self.adjust(last, count, names.len())?;
        } else {
            let to = self.reserve(names.len())?;
            let count = names.len() as u8;
            self.emit(Op::Nil { to, count })?;
        }
        self.declare(&names)
    }

    fn return_statement(&mut self) -> Parsed<()> {
        self.advance()?;
        let base = self.function().active.len() as u8;
        if self.ends_block(true) || self.is_sign(";") {
            self.emit(Op::Return { base: 0, count: 0 })?;
        } else {
            let (last, count) = self.expression_list()?;
            if let (Exp::Call(at), 1) = (last, count) {
                self.make_tail_call(at);
            }
            if self.open_list(last)? {
                self.emit(Op::Return { base, count: ALL })?;
            } else if count == 1 {
                let base = self.place_any(last)?;
                self.emit(Op::Return { base, count: 1 })?;
            } else {
                self.place_next(last)?;
                let count = count as u8;
                self.emit(Op::Return { base, count })?;
            }
        }
        self.accept(";")?;
        Ok(())
    }

    fn make_tail_call(&mut self, at: usize) {
        if let Op::Call {
            base, arguments, ..
        } = self.function().code[at]
        {
            self.function().code[at] = Op::TailCall { base, arguments };
        }
    }

    /// A call or an assignment.
    fn expression_statement(&mut self) -> Parsed<()> {
        let first = self.suffixed_expression()?;
        if self.is_sign("=") || self.is_sign(",") {
            return self.assignment(first);
        }
        match first {
            Exp::Call(at) => {
                self.set_count(at, 0);
                Ok(())
            }
            _ => Err(self.problem("syntax error")),
        }
    }

    fn assignment(&mut self, first: Exp) -> Parsed<()> {
        let mut targets = vec![first];
        self.check_target(first)?;
        while self.accept(",")? {
            let target = self.suffixed_expression()?;
            self.check_target(target)?;
            self.resolve_conflict(&mut targets, target)?;
            targets.push(target);
            if self.levels + targets.len() > super::LEVELS_MAX {
                return Err(self.limit("C levels", super::LEVELS_MAX));
            }
        }
        self.expect("=")?;
        let wanted = targets.len();
        let (last, count) = self.expression_list()?;
        let mut targets = targets.into_iter().rev();
        if count == wanted {
            // The last value goes to its variable at once.
            if let Some(target) = targets.next() {
                let last = self.single(last)?;
                self.store(target, last)?;
            }
        } else {
            self.adjust(last, count, wanted)?;
        }
        for target in targets {
            let register = self.function().free as u8 - 1;
            self.store(target, Exp::Temporary(register))?;
            self.function().free = register.into();
        }
        Ok(())
    }

    fn check_target(&self, target: Exp) -> Parsed<()> {
        match target {
            Exp::Local(_) | Exp::Upvalue(_) | Exp::Field { .. } | Exp::Index { .. } => Ok(()),
            _ => Err(self.problem("syntax error")),
        }
    }

    /// Copies a variable that is assigned to while targets before it use its old value.
    fn resolve_conflict(&mut self, targets: &mut [Exp], target: Exp) -> Parsed<()> {
        let mut copy = None;
        for other in targets {
            match (target, other) {
                (Exp::Local(local), Exp::Index { table, key }) => {
                    if *table != local && *key != u16::from(local) {
                        continue;
                    }
                    let register = match copy {
                        Some(register) => register,
                        None => {
                            let register = self.reserve(1)?;
                            self.emit(Op::Move {
                                to: register,
                                from: local,
                            })?;
                            register
                        }
                    };
                    copy = Some(register);
                    if *table == local {
                        *table = register;
                    }
                    if *key == u16::from(local) {
                        *key = register.into();
                    }
                }
                (Exp::Upvalue(upvalue), other) => {
                    let Exp::Field {
                        upvalue: used, key, ..
                    } = *other
                    else {
                        continue;
                    };
                    if used != upvalue {
                        continue;
                    }
                    let table = self.reserve(1)?;
                    self.emit(Op::GetUpvalue { to: table, upvalue })?;
                    *other = Exp::Index { table, key };
                }
                _ => {}
            }
        }
        Ok(())
    }
}
