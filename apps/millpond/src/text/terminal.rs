//! Escapes output to a terminal, so that names and values from disks cannot send control sequences.

use millpond_env::sync::atomic::{AtomicBool, Ordering};
use std::borrow::Cow;
use std::io::{self, Write};

/// Whether standard output is a terminal. Set once at program start.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Sets whether values are written to a terminal.
pub fn set_shown(is_shown: bool) {
    IS_SHOWN.store(is_shown, Ordering::Relaxed);
}

/// Escapes line breaks in a value written to a terminal, so that it cannot forge a line.
///
/// Output to a pipe is unchanged.
pub fn one_line(value: &str) -> Cow<'_, str> {
    match IS_SHOWN.load(Ordering::Relaxed) {
        true => within_line(value),
        false => Cow::Borrowed(value),
    }
}

fn within_line(value: &str) -> Cow<'_, str> {
    match value.contains(['\n', '\t']) {
        true => Cow::Owned(value.replace('\n', "\\n").replace('\t', "\\t")),
        false => Cow::Borrowed(value),
    }
}

/// Whether a character is a control character, changes the text direction or joins its neighbours.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Appends the bytes of a character as `\xHH`.
pub fn put_hidden(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        // Writing to memory cannot fail.
        let _ = write!(out, "\\x{byte:02x}");
    }
}

/// Output to a terminal: everything except text, line breaks and tabs is written as `\xHH`.
pub struct Escaping<W> {
    out: W,
    /// The first bytes of a character that the next write completes.
    begun: Vec<u8>,
}

impl<W: Write> Escaping<W> {
    /// Wraps a terminal.
    pub fn new(out: W) -> Self {
        Self { out, begun: vec![] }
    }
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut bytes = std::mem::take(&mut self.begun);
        bytes.extend_from_slice(buffer);
        let mut text = Vec::with_capacity(bytes.len());
        let mut end = 0;
        for chunk in bytes.utf8_chunks() {
            end += chunk.valid().len() + chunk.invalid().len();
            for letter in chunk.valid().chars() {
                let mut space = [0; 4];
                let letter_bytes = letter.encode_utf8(&mut space).as_bytes();
                match letter {
                    '\n' | '\t' => text.extend_from_slice(letter_bytes),
                    letter if is_hidden(letter) => put_hidden(&mut text, letter_bytes),
                    _ => text.extend_from_slice(letter_bytes),
                }
            }
            let is_begun = end == bytes.len()
                && std::str::from_utf8(chunk.invalid())
                    .is_err_and(|error| error.error_len().is_none());
            match is_begun {
                true => self.begun = chunk.invalid().to_vec(),
                false => put_hidden(&mut text, chunk.invalid()),
            }
        }
        self.out.write_all(&text)?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_text_has_no_terminal_control_sequences() {
        let mut out = Escaping::new(vec![]);
        out.write_all(b"NAME\tx\n\x1b[2Ja\rb\x7f\x9b ").unwrap();
        out.write_all("é\u{9b}\u{202e}ü\n".as_bytes()).unwrap();
        let text = "NAME\tx\n\\x1b[2Ja\\x0db\\x7f\\x9b é\\xc2\\x9b\\xe2\\x80\\xaeü\n";
        assert_eq!(String::from_utf8(out.out).unwrap(), text);
    }

    #[test]
    fn split_utf8_characters_stay_whole() {
        let text = "aé漢\u{1f600}b\u{9b}\n";
        let mut out = Escaping::new(vec![]);
        for byte in text.as_bytes() {
            out.write_all(&[*byte]).unwrap();
        }
        out.write_all(b"\xe2\x80x").unwrap();
        let shown = "aé漢\u{1f600}b\\xc2\\x9b\n\\xe2\\x80x";
        assert_eq!(String::from_utf8(out.out).unwrap(), shown);
    }

    #[test]
    fn a_value_stays_in_its_line() {
        assert_eq!(within_line("a\nrpool\treadonly"), "a\\nrpool\\treadonly");
        assert_eq!(within_line("plain text"), "plain text");
    }
}
