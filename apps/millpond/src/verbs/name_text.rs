//! Formats file names.
//!
//! Names are bytes: written raw to a pipe, and escaped on a terminal, where they could otherwise move the
//! cursor or change colours.

use crate::text::terminal::is_hidden;
use std::fmt::Write;

/// Escapes a name: everything except plain text becomes `\n`, `\t`, `\\` or `\xHH`.
pub fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\\' => text.push_str("\\\\"),
                letter if is_hidden(letter) => {
                    let mut bytes = [0; 4];
                    for byte in letter.encode_utf8(&mut bytes).bytes() {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
                letter => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The bytes of a name as printed.
pub fn shown(name: &[u8], is_terminal: bool) -> Vec<u8> {
    if is_terminal {
        escaped(name).into_bytes()
    } else {
        name.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_on_a_terminal_cannot_speak_to_the_terminal() {
        assert_eq!(escaped(b"a\x1b[31mb"), "a\\x1b[31mb");
        assert_eq!(escaped(b"\xff\\\n"), "\\xff\\\\\\n");
        assert_eq!(escaped("äé\u{202e}".as_bytes()), "äé\\xe2\\x80\\xae");
        assert_eq!(shown(b"\xff", false), b"\xff");
    }
}
