//! `string.format`.

use crate::value::Value;
use crate::vm::{Args, Lua, Throw};

/// A conversion: what stands between `%` and its letter.
#[derive(Default)]
struct Conversion {
    is_left: bool,
    has_plus: bool,
    has_space: bool,
    has_prefix: bool,
    has_zeros: bool,
    width: usize,
    precision: Option<usize>,
}

pub(super) fn format(lua: &mut Lua<'_>, args: Args) -> Result<usize, Throw> {
    let template = lua.string_arg(args, 1)?;
    let length = lua.heap.bytes(template).len();
    let (mut text, mut granted) = (Vec::new(), 0);
    let (mut place, mut number) = (0, 1);
    while place < length {
        let byte = lua.heap.bytes(template)[place];
        place += 1;
        if byte != b'%' {
            text.push(byte);
            continue;
        }
        if lua.heap.bytes(template).get(place) == Some(&b'%') {
            text.push(b'%');
            place += 1;
            continue;
        }
        number += 1;
        let rest = &lua.heap.bytes(template)[place..];
        let (conversion, used) = match Conversion::parse(rest) {
            Ok(parsed) => parsed,
            Err(message) => return Err(lua.fail(message)),
        };
        place += used;
        let letter = lua.heap.bytes(template).get(place).copied();
        place += 1;
        conversion.append(lua, args, number, letter, &mut text)?;
        lua.check_buffer(&text, &mut granted)?;
    }
    lua.push_string(&text)?;
    Ok(1)
}

impl Conversion {
    /// Parses flags, width and precision. Returns the bytes that they take.
    fn parse(text: &[u8]) -> Result<(Self, usize), &'static str> {
        let mut conversion = Self::default();
        let is_flag = |byte: &&u8| b"-+ #0".contains(*byte);
        let flags = text.iter().take_while(is_flag).count();
        if flags > 5 {
            return Err("invalid format (repeated flags)");
        }
        for flag in &text[..flags] {
            match flag {
                b'-' => conversion.is_left = true,
                b'+' => conversion.has_plus = true,
                b' ' => conversion.has_space = true,
                b'#' => conversion.has_prefix = true,
                _ => conversion.has_zeros = true,
            }
        }
        let mut place = flags;
        let digits = |place: &mut usize| {
            let begin = *place;
            let mut value = 0;
            while let Some(digit @ b'0'..=b'9') = text.get(*place)
                && *place < begin + 2
            {
                value = value * 10 + usize::from(digit - b'0');
                *place += 1;
            }
            value
        };
        conversion.width = digits(&mut place);
        if text.get(place) == Some(&b'.') {
            place += 1;
            conversion.precision = Some(digits(&mut place));
        }
        if text.get(place).is_some_and(u8::is_ascii_digit) {
            return Err("invalid format (width or precision too long)");
        }
        Ok((conversion, place))
    }

    /// Appends an argument.
    fn append(
        &self,
        lua: &mut Lua<'_>,
        args: Args,
        number: usize,
        letter: Option<u8>,
        text: &mut Vec<u8>,
    ) -> Result<(), Throw> {
        if number > args.count {
            return Err(lua.argument_error(number, "no value"));
        }
        match letter {
            Some(b'c') => {
                let byte = lua.integer_arg(args, number)? as u8;
                self.pad(text, b"", &[byte]);
            }
            Some(b'd' | b'i') => {
                let value = lua.integer_arg(args, number)?;
                let sign: &[u8] = match value {
                    ..0 => b"-",
                    _ if self.has_plus => b"+",
                    _ if self.has_space => b" ",
                    _ => b"",
                };
                self.append_digits(text, sign, value.unsigned_abs().to_string());
            }
            Some(letter @ (b'u' | b'o' | b'x' | b'X')) => {
                let value = lua.integer_arg(args, number)? as u64;
                let digits = match letter {
                    b'u' => value.to_string(),
                    b'o' => format!("{value:o}"),
                    b'x' => format!("{value:x}"),
                    _ => format!("{value:X}"),
                };
                let prefix: &[u8] = match letter {
                    b'x' if self.has_prefix => b"0x",
                    b'X' if self.has_prefix => b"0X",
                    b'o' if self.has_prefix && value != 0 => b"0",
                    _ => b"",
                };
                self.append_digits(text, prefix, digits);
            }
            Some(b'q') => {
                let string = lua.string_arg(args, number)?;
                append_quoted(text, lua.heap.bytes(string));
            }
            Some(b's') => {
                let value = lua.any(args, number)?;
                let Value::String(string) = lua.describe(value)? else {
                    return Err(lua.fail("'tostring' must return a string"));
                };
                let bytes = lua.heap.bytes(string);
                let length = self.precision.unwrap_or(usize::MAX).min(bytes.len());
                self.pad(text, b"", &bytes[..length]);
            }
            Some(letter) => {
                let letter = char::from(letter);
                return Err(lua.fail(&format!("invalid option '%{letter}' to 'format'")));
            }
            // What follows is cut off, as in OpenZFS.
            None => return Err(lua.fail("invalid option '%")),
        }
        Ok(())
    }

    fn append_digits(&self, text: &mut Vec<u8>, prefix: &[u8], digits: String) {
        let mut least = self.precision.unwrap_or(1);
        // As in OpenZFS, also with a precision.
        if self.has_zeros && !self.is_left {
            least = least.max(self.width.saturating_sub(prefix.len()));
        }
        let zeros = least.saturating_sub(digits.len());
        let digits = "0".repeat(zeros) + &digits;
        self.pad(text, prefix, digits.as_bytes());
    }

    /// Appends text that fills at least the width.
    fn pad(&self, text: &mut Vec<u8>, prefix: &[u8], content: &[u8]) {
        let missing = self.width.saturating_sub(prefix.len() + content.len());
        let spaces = std::iter::repeat_n(b' ', missing);
        if !self.is_left {
            text.extend(spaces.clone());
        }
        text.extend_from_slice(prefix);
        text.extend_from_slice(content);
        if self.is_left {
            text.extend(spaces);
        }
    }
}

/// Appends a string in quotes, so that Lua can read it again.
fn append_quoted(text: &mut Vec<u8>, bytes: &[u8]) {
    text.push(b'"');
    for (place, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' | b'\\' | b'\n' => text.extend_from_slice(&[b'\\', *byte]),
            0 | 1..32 | 127 => {
                // A digit that follows must not be read as part of the number.
                let digits = match bytes.get(place + 1) {
                    Some(b'0'..=b'9') => format!("\\{byte:03}"),
                    _ => format!("\\{byte}"),
                };
                text.extend_from_slice(digits.as_bytes());
            }
            _ => text.push(*byte),
        }
    }
    text.push(b'"');
}
