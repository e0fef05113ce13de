//! Writes messages in the order in which they come, and in plain words.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

/// Standard output, which standard error must not overtake.
#[derive(Clone)]
pub struct SharedOutput(Rc<RefCell<dyn Write>>);

impl SharedOutput {
    /// Shares an output.
    pub fn new(out: impl Write + 'static) -> Self {
        Self(Rc::new(RefCell::new(out)))
    }
}

impl Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// Standard error. A line comes after everything that was written to standard output before it, and errors of the
/// system in it have no numbers.
pub struct ErrorOutput<W: Write> {
    before: SharedOutput,
    out: W,
    /// The begin of a line.
    line: Vec<u8>,
}

impl<W: Write> ErrorOutput<W> {
    /// Writes to `out`, after what was written to `before`.
    pub fn new(before: SharedOutput, out: W) -> Self {
        Self {
            before,
            out,
            line: vec![],
        }
    }

    /// Writes the first bytes of the line.
    fn put(&mut self, end: usize) -> io::Result<()> {
        // Who reads standard output may be gone. That is told when the command ends.
        let _ = self.before.flush();
        let rest = self.line.split_off(end);
        let text = std::mem::replace(&mut self.line, rest);
        self.out.write_all(&plain(&text))
    }
}

impl<W: Write> Write for ErrorOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if let Some(last) = self.line.iter().rposition(|byte| *byte == b'\n') {
            self.put(last + 1)?;
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.put(self.line.len())?;
        self.out.flush()
    }
}

impl<W: Write> Drop for ErrorOutput<W> {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// The text without the numbers that Rust adds to errors of the system: ` (os error 13)`.
#[must_use]
pub fn plain(text: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b" (os error ";
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(MARK.len()).position(|part| part == MARK) {
        let (before, after) = rest.split_at(at);
        let number = &after[MARK.len()..];
        let digits = number.iter().take_while(|byte| byte.is_ascii_digit());
        let digits = digits.count();
        plain.extend_from_slice(before);
        rest = match number.get(digits) {
            Some(b')') if digits > 0 => &number[digits + 1..],
            _ => {
                plain.extend_from_slice(MARK);
                number
            }
        };
    }
    plain.extend_from_slice(rest);
    plain
}

/// The system's text for an error, without its number.
#[must_use]
pub fn words_of(error: &io::Error) -> String {
    String::from_utf8_lossy(&plain(error.to_string().as_bytes())).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both outputs of a program in one file.
    #[derive(Clone, Default)]
    struct Both(Rc<RefCell<Vec<u8>>>);

    impl Write for Both {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_in_the_order_in_which_they_were_written() {
        let both = Both::default();
        let mut out = SharedOutput::new(io::BufWriter::new(both.clone()));
        let mut err = ErrorOutput::new(out.clone(), both.clone());
        out.write_all(b"one\n").unwrap();
        err.write_all(b"two").unwrap();
        out.write_all(b"three\n").unwrap();
        err.write_all(b", four\nfive").unwrap();
        out.write_all(b"six\n").unwrap();
        drop((err, out));
        let text = String::from_utf8(both.0.take()).unwrap();
        assert_eq!(text, "one\nthree\ntwo, four\nsix\nfive");
    }

    #[test]
    fn errors_of_the_system_have_no_numbers() {
        for (text, wanted) in [
            (
                "a: Permission denied (os error 13)\n",
                "a: Permission denied\n",
            ),
            ("x (os error 2): y (os error 20)", "x: y"),
            ("(os error 2", "(os error 2"),
            (" (os error )", " (os error )"),
            (" (os error 12", " (os error 12"),
        ] {
            assert_eq!(String::from_utf8(plain(text.as_bytes())).unwrap(), wanted);
        }
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(words_of(&error), "No such file or directory");
    }
}
