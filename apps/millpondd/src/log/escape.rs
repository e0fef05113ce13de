//! Escapes what comes from disks, so that it can end neither a line nor its quotation marks.

use std::fmt::{self, Write};

/// Writes a value, in quotation marks if it has special characters.
pub(super) fn value(out: &mut impl Write, value: &str) -> fmt::Result {
    let is_plain = |c: char| c.is_alphanumeric() || "/_-.@#+%,~<>".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return out.write_str(value);
    }
    out.write_char('"')?;
    for one in value.chars() {
        match one {
            '"' | '\\' => write!(out, "\\{one}")?,
            other => character(out, other)?,
        }
    }
    out.write_char('"')
}

/// Escapes control characters, and characters that change the writing direction. Thus an entry stays on one
/// line and is displayed in the order in which it was written.
pub(super) fn character(out: &mut impl Write, character: char) -> fmt::Result {
    let turns = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match character {
        '\n' => out.write_str("\\n"),
        c if c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}') => {
            write!(out, "\\u{{{:x}}}", u32::from(c))
        }
        other => out.write_char(other),
    }
}

/// Writes a message, which may contain names of devices and files.
pub(super) fn message(out: &mut impl Write, text: &str) -> fmt::Result {
    text.chars().try_for_each(|one| character(out, one))
}
