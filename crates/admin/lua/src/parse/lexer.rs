//! Tokens.

use super::Problem;
use crate::number;

/// A token without its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Name(Vec<u8>),
    String(Vec<u8>),
    Number(i64),
    Keyword(Keyword),
    /// A sign of one to three bytes.
    Sign(&'static str),
    /// A byte that begins no token.
    Unknown(u8),
    End,
}

macro_rules! keywords {
    ($($name:ident $text:literal),*) => {
        /// A reserved word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Keyword { $($name),* }

        impl Keyword {
            fn find(text: &[u8]) -> Option<Self> {
                $(if text == $text.as_bytes() { return Some(Self::$name); })*
                None
            }

            pub(super) fn text(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

keywords! {
    And "and", Break "break", Do "do", Else "else", Elseif "elseif", End "end", False "false", For "for",
    Function "function", Goto "goto", If "if", In "in", Local "local", Nil "nil", Not "not", Or "or",
    Repeat "repeat", Return "return", Then "then", True "true", Until "until", While "while"
}

/// The signs, longer ones before their beginnings.
const SIGNS: [&str; 27] = [
    "...", "..", ".", "==", "=", "<=", "<", ">=", ">", "~=", "::", ":", "+", "-", "*", "/", "%",
    "^", "#", "(", ")", "{", "}", "[", "]", ";", ",",
];

/// The source with a position in it.
pub(super) struct Lexer<'s> {
    source: &'s [u8],
    at: usize,
    pub(super) line: u32,
    /// Where the last token began.
    begin: usize,
}

impl<'s> Lexer<'s> {
    pub(super) fn new(source: &'s [u8]) -> Self {
        Self {
            source,
            at: 0,
            line: 1,
            begin: 0,
        }
    }

    /// The text of the last token, as it is in the source.
    pub(super) fn text(&self) -> &'s [u8] {
        &self.source[self.begin..self.at]
    }

    fn peek(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }

    fn rest(&self) -> &'s [u8] {
        &self.source[self.at..]
    }

    /// Goes beyond the end of a line, of one or two bytes.
    fn end_line(&mut self) {
        self.at += match self.rest() {
            [b'\r', b'\n', ..] | [b'\n', b'\r', ..] => 2,
            _ => 1,
        };
        self.line = self.line.saturating_add(1);
    }

    /// The next token.
    pub(super) fn next(&mut self) -> Result<Token, Problem> {
        loop {
            self.begin = self.at;
            match self.rest() {
                [] => return Ok(Token::End),
                [b'\n' | b'\r', ..] => self.end_line(),
                [b' ' | b'\t' | 11 | 12, ..] => self.at += 1,
                [b'-', b'-', ..] => {
                    self.at += 2;
                    self.skip_comment()?;
                }
                [b'[', ..] if self.long_level().is_some() => {
                    let level = self.long_level().unwrap_or(0);
                    return self.long_bracket(level, "string").map(Token::String);
                }
                [b'[', b'=', ..] => {
                    let equals = self.rest()[1..].iter().take_while(|byte| **byte == b'=');
                    self.at += 1 + equals.count();
                    return Err(self.problem("invalid long string delimiter"));
                }
                [quote @ (b'"' | b'\''), ..] => return self.string(*quote).map(Token::String),
                [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..] => return self.number(),
                [b'a'..=b'z' | b'A'..=b'Z' | b'_', ..] => return Ok(self.name()),
                _ => return Ok(self.sign()),
            }
        }
    }

    fn sign(&mut self) -> Token {
        let mut signs = SIGNS.iter().copied();
        if let Some(sign) = signs.find(|sign| self.rest().starts_with(sign.as_bytes())) {
            self.at += sign.len();
            return Token::Sign(sign);
        }
        let byte = self.peek().unwrap_or(0);
        self.at += 1;
        Token::Unknown(byte)
    }

    fn name(&mut self) -> Token {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        self.at += self.rest().iter().take_while(|byte| is_part(byte)).count();
        match Keyword::find(self.text()) {
            Some(keyword) => Token::Keyword(keyword),
            None => Token::Name(self.text().to_vec()),
        }
    }

    /// A number: a fraction and an exponent are read too, so that the message names them.
    fn number(&mut self) -> Result<Token, Problem> {
        let is_hexadecimal = matches!(self.rest(), [b'0', b'x' | b'X', ..]);
        let exponent = if is_hexadecimal { b'p' } else { b'e' };
        if is_hexadecimal {
            self.at += 2;
        }
        while let Some(byte) = self.peek() {
            if byte.to_ascii_lowercase() == exponent {
                self.at += 1;
                self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            } else if byte.is_ascii_hexdigit() || byte == b'.' {
                self.at += 1;
            } else {
                break;
            }
        }
        match number::parse_literal(self.text()) {
            Some(number) => Ok(Token::Number(number)),
            None => Err(self.problem("malformed number")),
        }
    }

    fn problem(&self, message: &str) -> Problem {
        Problem::near(message, self.text())
    }

    fn skip_comment(&mut self) -> Result<(), Problem> {
        if self.peek() == Some(b'[') {
            let begin = self.at;
            if let Some(level) = self.long_level() {
                self.long_bracket(level, "comment")?;
                return Ok(());
            }
            self.at = begin;
        }
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let length = self.rest().iter().take_while(|byte| !is_end(byte)).count();
        self.at += length;
        Ok(())
    }

    /// The number of `=` in the opening of a long bracket.
    fn long_level(&self) -> Option<usize> {
        let rest = self.rest().get(1..)?;
        let level = rest.iter().take_while(|byte| **byte == b'=').count();
        (rest.get(level) == Some(&b'[')).then_some(level)
    }

    fn long_bracket(&mut self, level: usize, what: &str) -> Result<Vec<u8>, Problem> {
        self.at += level + 2;
        let mut content = Vec::new();
        if matches!(self.peek(), Some(b'\n' | b'\r')) {
            self.end_line();
        }
        loop {
            match self.rest() {
                [] => return Err(Problem::at_end(&format!("unfinished long {what}"))),
                [b']', rest @ ..]
                    if rest.len() > level
                        && rest[..level].iter().all(|byte| *byte == b'=')
                        && rest[level] == b']' =>
                {
                    self.at += level + 2;
                    return Ok(content);
                }
                [b'\n' | b'\r', ..] => {
                    content.push(b'\n');
                    self.end_line();
                }
                [byte, ..] => {
                    content.push(*byte);
                    self.at += 1;
                }
            }
        }
    }

    fn string(&mut self, quote: u8) -> Result<Vec<u8>, Problem> {
        self.at += 1;
        let mut content = Vec::new();
        loop {
            match self.peek() {
                None => return Err(Problem::at_end("unfinished string")),
                Some(b'\n' | b'\r') => return Err(self.problem("unfinished string")),
                Some(b'\\') => self.escape(&mut content)?,
                Some(byte) => {
                    self.at += 1;
                    if byte == quote {
                        return Ok(content);
                    }
                    content.push(byte);
                }
            }
        }
    }

    fn escape(&mut self, content: &mut Vec<u8>) -> Result<(), Problem> {
        let begin = self.at;
        self.at += 1;
        let byte = self.peek();
        let simple = match byte {
            Some(b'a') => 7,
            Some(b'b') => 8,
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'v') => 11,
            Some(b'f') => 12,
            Some(b'r') => b'\r',
            Some(quoted @ (b'\\' | b'"' | b'\'')) => quoted,
            Some(b'\n' | b'\r') => {
                content.push(b'\n');
                self.end_line();
                return Ok(());
            }
            Some(b'x') => return self.hexadecimal_escape(begin, content),
            Some(b'0'..=b'9') => return self.decimal_escape(begin, content),
            Some(b'z') => {
                self.at += 1;
                while let Some(byte) = self.peek().filter(|byte| number::is_space(*byte)) {
                    match byte {
                        b'\n' | b'\r' => self.end_line(),
                        _ => self.at += 1,
                    }
                }
                return Ok(());
            }
            // The end of the source is reported as such.
            None => return Ok(()),
            Some(_) => return Err(self.escape_problem(begin, "invalid escape sequence")),
        };
        content.push(simple);
        self.at += 1;
        Ok(())
    }

    fn escape_problem(&self, begin: usize, message: &str) -> Problem {
        let end = (self.at + 1).min(self.source.len());
        Problem::near(message, &self.source[begin..end])
    }

    fn hexadecimal_escape(&mut self, begin: usize, content: &mut Vec<u8>) -> Result<(), Problem> {
        let mut value = 0;
        for _ in 0..2 {
            self.at += 1;
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.escape_problem(begin, "hexadecimal digit expected"));
            };
            value = value * 16 + digit;
        }
        self.at += 1;
        content.push(value as u8);
        Ok(())
    }

    fn decimal_escape(&mut self, begin: usize, content: &mut Vec<u8>) -> Result<(), Problem> {
        let mut value = 0;
        for _ in 0..3 {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(10)) else {
                break;
            };
            value = value * 10 + digit;
            self.at += 1;
        }
        match u8::try_from(value) {
            Ok(byte) => content.push(byte),
            Err(_) => {
                let shown = &self.source[begin..self.at];
                return Err(Problem::near("decimal escape too large", shown));
            }
        }
        Ok(())
    }
}
