//! What people see at a terminal: names and values from disks cannot speak to it.

use millpond_env::sync::atomic::{AtomicBool, Ordering};
use std::borrow::Cow;
use std::io::{self, Write};

/// Whether standard output is a terminal. Set once, when the program begins.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Says that values go to a terminal.
pub fn set_shown(is_shown: bool) {
    IS_SHOWN.store(is_shown, Ordering::Relaxed);
}

/// A value within its line. A line break would begin a line that nobody has written; in a pipe it stays what it is.
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

/// Control characters, and those that turn the direction of writing or join what follows.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Puts a letter's bytes as `\xHH`.
pub fn put_hidden(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        // Memory takes everything.
        let _ = write!(out, "\\x{byte:02x}");
    }
}

/// Output to a terminal: everything but text, line breaks and tabulators is written as `\xHH`.
pub struct Escaping<W> {
    out: W,
    /// The beginning of a letter whose rest comes with the next write.
    begun: Vec<u8>,
}

impl<W: Write> Escaping<W> {
    /// Around a terminal.
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
    fn nothing_that_is_printed_speaks_to_a_terminal() {
        let mut out = Escaping::new(vec![]);
        out.write_all(b"NAME\tx\n\x1b[2Ja\rb\x7f\x9b ").unwrap();
        out.write_all("é\u{9b}\u{202e}ü\n".as_bytes()).unwrap();
        let text = "NAME\tx\n\\x1b[2Ja\\x0db\\x7f\\x9b é\\xc2\\x9b\\xe2\\x80\\xaeü\n";
        assert_eq!(String::from_utf8(out.out).unwrap(), text);
    }

    #[test]
    fn letters_that_come_in_pieces_stay_whole() {
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
