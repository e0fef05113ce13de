//! Writes output item by item, as lines or as one JSON array.

use crate::session::Session;
use serde_json::Value;
use std::io;

/// Writes items as they arrive, without collecting them.
pub struct Items<'a, 'b> {
    session: &'a mut Session<'b>,
    is_json: bool,
    count: u64,
    failures: u64,
}

impl<'a, 'b> Items<'a, 'b> {
    /// Starts the output. `head` is written before text items.
    pub fn begin(session: &'a mut Session<'b>, is_json: bool, head: &str) -> io::Result<Self> {
        if is_json {
            write!(session.out, "[")?;
        } else if !head.is_empty() {
            writeln!(session.out, "{head}")?;
        }
        Ok(Self {
            session,
            is_json,
            count: 0,
            failures: 0,
        })
    }

    /// Writes one item in the requested form. A text item gets its line end here.
    pub fn item(
        &mut self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        if self.is_json {
            let lead = if self.count == 0 { "\n" } else { ",\n" };
            write!(self.session.out, "{lead}{}", json())?;
        } else {
            writeln!(self.session.out, "{}", plain(text().trim_end()))?;
        }
        self.count += 1;
        Ok(())
    }

    /// Reports on standard error an item that cannot be shown. The command then ends with a failure.
    pub fn failure(&mut self, error: impl std::fmt::Display) -> io::Result<()> {
        self.failures += 1;
        writeln!(self.session.err, "millpond: {error}")
    }

    /// Number of items written.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Ends the output and returns the exit status.
    pub fn end(self) -> io::Result<u8> {
        if self.is_json {
            writeln!(self.session.out, "\n]")?;
        }
        Ok(u8::from(self.failures > 0))
    }
}

/// Removes everything that could move the cursor of a terminal. Labels and names are untrusted.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|letter| match letter {
            '\n' => letter,
            _ if letter.is_control() => '\u{fffd}',
            _ => letter,
        })
        .collect()
}

/// Hundredths of a per cent as `12.34`.
pub fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}

/// Indents each line of a text.
pub fn indented(text: &str, blanks: usize) -> String {
    text.lines()
        .map(|line| format!("{:blanks$}{line}\n", ""))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_never_written() {
        assert_eq!(
            plain("a\n\u{1b}[2J\r\u{9b}b"),
            "a\n\u{fffd}[2J\u{fffd}\u{fffd}b"
        );
    }

    #[test]
    fn every_line_is_indented() {
        assert_eq!(indented("a\nb\n", 2), "  a\n  b\n");
        assert_eq!(hundredths(9), "0.09");
        assert_eq!(hundredths(10_000), "100.00");
    }
}
