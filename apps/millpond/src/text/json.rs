//! JSON output: one line, members in a fixed order, numbers as strings unless `--json-int` is given.

use crate::command::Parsed;
use crate::session::Failure;
use serde_json::{Map, Value};

/// How JSON values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// `-p`, or implied by `--json-int`: exact values.
    pub is_exact: bool,
    /// `--json-int`: values of digits only are written as numbers.
    pub has_numbers: bool,
}

impl Style {
    /// Parses `-p` and `--json-int`, and rejects options that require `-j`.
    pub fn read(parsed: &Parsed) -> Result<Self, Failure> {
        for option in ["json-int", "json-flat-vdevs", "json-pool-key-guid"] {
            if parsed.has(option) && !parsed.has("j") {
                return Err(Failure::Usage(format!(
                    "'--{option}' only works with '-j' option"
                )));
            }
        }
        let has_numbers = parsed.has("json-int");
        Ok(Self {
            is_exact: parsed.has("p") || has_numbers,
            has_numbers,
        })
    }

    /// The value of a member that may be a number.
    pub fn value(self, text: &str) -> Value {
        if self.has_numbers
            && !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = text.parse::<u64>()
        {
            return Value::from(number);
        }
        Value::from(text)
    }

    /// An exact number in every style.
    pub fn digits(self, number: u64) -> Value {
        self.value(&number.to_string())
    }
}

/// The header of every document.
pub fn document(command: &str) -> Map<String, Value> {
    let mut version = Map::new();
    version.insert("command".into(), command.into());
    version.insert("vers_major".into(), 0.into());
    version.insert("vers_minor".into(), 1.into());
    let mut document = Map::new();
    document.insert("output_version".into(), version.into());
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_text_of_digits_that_fits_becomes_a_number() {
        let style = Style {
            is_exact: true,
            has_numbers: true,
        };
        assert_eq!(style.value("18446744073709551615"), Value::from(u64::MAX));
        for text in ["", "-", "1.00", "on", "18446744073709551616"] {
            assert_eq!(style.value(text), Value::from(text));
        }
        assert_eq!(Style::default().value("5"), Value::from("5"));
    }
}
