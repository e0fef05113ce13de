//! The compiler: one pass from source to instructions.

mod code;
mod expression;
mod function;
mod lexer;
mod scope;
mod statement;

use crate::api::Error;
use crate::heap::{Code, Function, Source};
use crate::value::{StringId, Value};
use crate::vm::{Lua, Throw, Upvalue};
use function::FunctionState;
use lexer::{Keyword, Lexer, Token};

/// How deep statements and expressions may be nested.
const LEVELS_MAX: usize = 200;
/// Bytes of a source, so that lines and positions fit into their fields.
const SOURCE_MAX: usize = 1 << 30;
/// Bytes of a chunk's name that messages show.
const NAME_MAX: usize = 60;

/// What ends the compilation early.
#[derive(Debug)]
pub(super) enum Problem {
    /// A message without the position.
    Syntax(String),
    Throw(Throw),
}

impl From<Throw> for Problem {
    fn from(throw: Throw) -> Self {
        Self::Throw(throw)
    }
}

impl Problem {
    fn near(message: &str, text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        Self::Syntax(format!("{message} near '{text}'"))
    }

    fn at_end(message: &str) -> Self {
        Self::Syntax(format!("{message} near <eof>"))
    }
}

type Parsed<T> = Result<T, Problem>;

/// The state of a compilation.
pub(super) struct Parser<'s, 'l, 'h> {
    pub(super) lua: &'l mut Lua<'h>,
    lexer: Lexer<'s>,
    token: Token,
    /// The text and the line of the token.
    text: &'s [u8],
    line: u32,
    /// The token after it, if it was looked at.
    ahead: Option<(Token, &'s [u8], u32)>,
    /// The line of the token before.
    line_before: u32,
    functions: Vec<FunctionState>,
    levels: usize,
    source: Source,
    environment: StringId,
}

/// Compiles a program to a function that takes its arguments as `...`.
pub(crate) fn compile(lua: &mut Lua<'_>, source: &[u8], name: &str) -> Result<Value, Error> {
    let position: Source = shown_name(name).into();
    if source.len() > SOURCE_MAX {
        return Err(Error::Memory);
    }
    let environment = match lua.intern(b"_ENV") {
        Ok(name) => name,
        Err(_) => return Err(Error::Memory),
    };
    let mut parser = Parser {
        lua,
        lexer: Lexer::new(source),
        token: Token::End,
        text: &[],
        line: 1,
        ahead: None,
        line_before: 1,
        functions: Vec::new(),
        levels: 0,
        source: position,
        environment,
    };
    match parser.program() {
        Ok(function) => Ok(function),
        Err(Problem::Syntax(message)) => {
            let line = parser.lexer.line;
            Err(Error::Syntax(format!(
                "{}:{line}: {message}",
                parser.source
            )))
        }
        Err(Problem::Throw(Throw::Instructions)) => Err(Error::Instructions),
        Err(Problem::Throw(Throw::Stopped)) => Err(Error::Stopped),
        Err(Problem::Throw(Throw::Memory | Throw::Error(_))) => Err(Error::Memory),
    }
}

/// The name of a program as messages show it.
fn shown_name(name: &str) -> String {
    if let Some(name) = name.strip_prefix(['=', '@']) {
        return name.to_owned();
    }
    let first = name.lines().next().unwrap_or_default();
    let cut: String = first.chars().take(NAME_MAX - 15).collect();
    let dots = if cut.len() < name.len() { "..." } else { "" };
    format!("[string \"{cut}{dots}\"]")
}

impl Parser<'_, '_, '_> {
    fn program(&mut self) -> Parsed<Value> {
        self.functions.push(FunctionState::new(0));
        self.function().is_vararg = true;
        let environment = self.environment;
        self.function()
            .capture(environment, crate::heap::Capture::Local(0));
        self.advance()?;
        self.enter_block(false);
        self.statements()?;
        if self.token != Token::End {
            return Err(self.expected("<eof>"));
        }
        self.leave_block()?;
        let proto = self.close_function()?;
        let globals = Value::Table(self.lua.globals);
        self.lua.grant(crate::heap::Heap::upvalue_bytes())?;
        let upvalue = self.lua.heap.add_upvalue(Upvalue::Closed(globals));
        let function = self.lua.make_function(Function {
            code: Code::Lua(proto),
            upvalues: [upvalue].into(),
            state: Vec::new(),
        })?;
        Ok(Value::Function(function))
    }

    /// The function that is being compiled.
    fn function(&mut self) -> &mut FunctionState {
        let last = self.functions.len() - 1;
        &mut self.functions[last]
    }

    fn lex(&mut self) -> Parsed<Token> {
        self.lexer.next()
    }

    /// Goes to the next token.
    fn advance(&mut self) -> Parsed<()> {
        self.line_before = self.line;
        if let Some((token, text, line)) = self.ahead.take() {
            (self.token, self.text, self.line) = (token, text, line);
            return Ok(());
        }
        self.token = self.lex()?;
        self.text = self.lexer.text();
        self.line = self.lexer.line;
        Ok(())
    }

    /// The token after the current one.
    fn look_ahead(&mut self) -> Parsed<&Token> {
        if self.ahead.is_none() {
            let token = self.lex()?;
            self.ahead = Some((token, self.lexer.text(), self.lexer.line));
        }
        Ok(self.ahead.as_ref().map_or(&Token::End, |(token, ..)| token))
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.token, Token::Sign(found) if found == sign)
    }

    fn is_keyword(&self, keyword: Keyword) -> bool {
        self.token == Token::Keyword(keyword)
    }

    /// Goes beyond a sign, if it is there.
    fn accept(&mut self, sign: &str) -> Parsed<bool> {
        let is_there = self.is_sign(sign);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn accept_keyword(&mut self, keyword: Keyword) -> Parsed<bool> {
        let is_there = self.is_keyword(keyword);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn expect(&mut self, sign: &str) -> Parsed<()> {
        match self.accept(sign)? {
            true => Ok(()),
            false => Err(self.expected(&format!("'{sign}'"))),
        }
    }

    fn expect_keyword(&mut self, keyword: Keyword) -> Parsed<()> {
        match self.accept_keyword(keyword)? {
            true => Ok(()),
            false => Err(self.expected(&format!("'{}'", keyword.text()))),
        }
    }

    /// Expects the end of something that began in another line.
    fn expect_closing(&mut self, closing: &str, opening: &str, line: u32) -> Parsed<()> {
        let is_there = match &self.token {
            Token::Sign(sign) => *sign == closing,
            Token::Keyword(keyword) => keyword.text() == closing,
            _ => false,
        };
        if is_there {
            return self.advance();
        }
        let what = if line == self.line {
            format!("'{closing}'")
        } else {
            return Err(self.problem(&format!(
                "'{closing}' expected (to close '{opening}' at line {line})"
            )));
        };
        Err(self.expected(&what))
    }

    fn expected(&self, what: &str) -> Problem {
        self.problem(&format!("{what} expected"))
    }

    /// A message about the current token.
    fn problem(&self, message: &str) -> Problem {
        match self.token {
            Token::End => Problem::at_end(message),
            Token::Unknown(byte) if byte.is_ascii_control() => {
                Problem::Syntax(format!("{message} near char({byte})"))
            }
            _ => Problem::near(message, self.text),
        }
    }

    /// A message about a limit of the function that is being compiled.
    fn limit(&self, what: &str, limit: usize) -> Problem {
        let function = match self.functions.last().map_or(0, |function| function.line) {
            0 => "main function".to_owned(),
            line => format!("function at line {line}"),
        };
        self.problem(&format!("too many {what} (limit is {limit}) in {function}"))
    }

    /// Enters something that may be nested without end.
    fn enter_level(&mut self) -> Parsed<()> {
        self.levels += 1;
        if self.levels > LEVELS_MAX {
            return Err(self.limit("C levels", LEVELS_MAX));
        }
        Ok(())
    }

    fn leave_level(&mut self) {
        self.levels -= 1;
    }

    /// Expects a name.
    fn name(&mut self) -> Parsed<StringId> {
        let Token::Name(name) = &self.token else {
            return Err(self.expected("<name>"));
        };
        let name = self.lua.intern(name)?;
        self.advance()?;
        Ok(name)
    }

    fn name_text(&self, name: StringId) -> String {
        String::from_utf8_lossy(self.lua.heap.bytes(name)).into_owned()
    }
}
