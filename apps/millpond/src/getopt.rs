//! Option parsing with the rules of glibc's `getopt_long`, which scripts rely on.
//!
//! Options may follow operands, `--` ends them, letters may be combined, and a long option may be
//! abbreviated as long as it stays unambiguous. With [`IN_ORDER`] in the environment the first operand ends them.

use std::collections::VecDeque;

/// The environment variable with which no option follows an operand, as POSIX has it. Its value does not matter.
pub const IN_ORDER: &str = "POSIXLY_CORRECT";

/// The options of a command.
#[derive(Debug, Clone, Copy)]
pub struct OptionSet {
    /// Letters, each followed by `:` if it takes a value, and by `::` if the value may be missing at the end of the line.
    pub letters: &'static str,
    /// Long names and what each means: its own name, or a letter of one character.
    pub longs: &'static [Long],
}

/// A long option.
#[derive(Debug, Clone, Copy)]
pub struct Long {
    /// The name without the two dashes.
    pub name: &'static str,
    /// The name under which `Options::next` reports it.
    pub means: &'static str,
    /// Whether it takes a value.
    pub has_value: bool,
}

/// One option found: its letter (or the long option's meaning) and its value.
pub type Found = (String, Option<String>);

/// An option that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// An unknown letter (0 for an unknown long option).
    Unknown(char),
    /// An unknown or ambiguous long option, as given.
    UnknownLong(String),
    /// The letter's value is missing.
    MissingValue(char),
}

/// Iterates over the arguments of a command.
#[derive(Debug)]
pub struct Options {
    set: OptionSet,
    rest: VecDeque<String>,
    cluster: VecDeque<char>,
    operands: Vec<String>,
    is_in_order: bool,
}

impl Options {
    /// Starts at the argument after the command's name.
    pub fn new(set: OptionSet, arguments: &[String]) -> Self {
        Options {
            set,
            rest: arguments.iter().cloned().collect(),
            cluster: VecDeque::new(),
            operands: Vec::new(),
            is_in_order: false,
        }
    }

    /// Ends the options at the first operand.
    pub fn in_order(self, is_in_order: bool) -> Self {
        Options {
            is_in_order,
            ..self
        }
    }

    /// Returns the next option, skipping over operands.
    pub fn next_option(&mut self) -> Option<Result<Found, Refused>> {
        if let Some(letter) = self.cluster.pop_front() {
            return Some(self.letter(letter));
        }
        loop {
            let word = self.rest.pop_front()?;
            if word == "--" {
                self.operands.extend(self.rest.drain(..));
                return None;
            }
            if let Some(long) = word.strip_prefix("--") {
                return Some(self.long(long));
            }
            if word.len() > 1 && word.starts_with('-') {
                self.cluster = word.chars().skip(1).collect();
                let letter = self.cluster.pop_front()?;
                return Some(self.letter(letter));
            }
            self.operands.push(word);
            if self.is_in_order {
                self.operands.extend(self.rest.drain(..));
            }
        }
    }

    /// Returns the operands, once [`Options::next_option`] has returned `None`.
    pub fn operands(self) -> Vec<String> {
        self.operands
    }

    fn letter(&mut self, letter: char) -> Result<Found, Refused> {
        let at = self.set.letters.find(letter).filter(|_| letter != ':');
        let Some(at) = at else {
            return Err(Refused::Unknown(letter));
        };
        if !self.set.letters[at + letter.len_utf8()..].starts_with(':') {
            return Ok((letter.to_string(), None));
        }
        let attached: String = self.cluster.drain(..).collect();
        let value = if attached.is_empty() {
            self.rest.pop_front()
        } else {
            Some(attached)
        };
        match value {
            Some(value) => Ok((letter.to_string(), Some(value))),
            None if self.set.letters[at + letter.len_utf8()..].starts_with("::") => {
                Ok((letter.to_string(), None))
            }
            None => Err(Refused::MissingValue(letter)),
        }
    }

    fn long(&mut self, word: &str) -> Result<Found, Refused> {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word, None),
        };
        let exact = self.set.longs.iter().find(|long| long.name == name);
        let mut starts = self
            .set
            .longs
            .iter()
            .filter(|long| long.name.starts_with(name));
        let long = match (exact, starts.next(), starts.next()) {
            (Some(long), _, _) | (None, Some(long), None) => long,
            _ => return Err(Refused::UnknownLong(format!("--{word}"))),
        };
        if !long.has_value {
            return match attached {
                None => Ok((long.means.to_string(), None)),
                Some(_) => Err(Refused::UnknownLong(format!("--{word}"))),
            };
        }
        match attached.or_else(|| self.rest.pop_front()) {
            Some(value) => Ok((long.means.to_string(), Some(value))),
            None => Err(Refused::MissingValue(
                long.means.chars().next().unwrap_or('-'),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: OptionSet = OptionSet {
        letters: "Hpo:d:",
        longs: &[
            Long {
                name: "json",
                means: "j",
                has_value: false,
            },
            Long {
                name: "json-int",
                means: "json-int",
                has_value: false,
            },
        ],
    };

    fn walk(words: &[&str]) -> (Vec<Result<Found, Refused>>, Vec<String>) {
        let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
        let mut options = Options::new(SET, &words);
        let mut found = Vec::new();
        while let Some(option) = options.next_option() {
            found.push(option);
        }
        (found, options.operands())
    }

    fn flag(name: &str) -> Result<Found, Refused> {
        Ok((name.into(), None))
    }

    fn valued(name: &str, value: &str) -> Result<Found, Refused> {
        Ok((name.into(), Some(value.into())))
    }

    #[test]
    fn options_may_follow_operands_and_be_run_together() {
        let (found, operands) = walk(&["a", "-Hpoused", "b", "-d", "1", "--", "-p"]);
        assert_eq!(
            found,
            [flag("H"), flag("p"), valued("o", "used"), valued("d", "1")]
        );
        assert_eq!(operands, ["a", "b", "-p"]);
    }

    #[test]
    fn the_first_operand_can_end_the_options() {
        let words = ["-H", "a", "-p", "--", "b"].map(str::to_owned);
        let mut options = Options::new(SET, &words).in_order(true);
        assert_eq!(options.next_option(), Some(flag("H")));
        assert_eq!(options.next_option(), None);
        assert_eq!(options.operands(), ["a", "-p", "--", "b"]);
    }

    #[test]
    fn a_long_option_may_be_cut_short_while_it_stays_unambiguous() {
        let (found, _) = walk(&["--json", "--json-i"]);
        assert_eq!(found, [flag("j"), flag("json-int")]);
        assert_eq!(
            walk(&["--js"]).0,
            [Err(Refused::UnknownLong("--js".into()))]
        );
        assert_eq!(
            walk(&["--json=1"]).0,
            [Err(Refused::UnknownLong("--json=1".into()))]
        );
    }

    #[test]
    fn unknown_letters_and_missing_values_differ() {
        assert_eq!(walk(&["-Z"]).0, [Err(Refused::Unknown('Z'))]);
        assert_eq!(walk(&["-?"]).0, [Err(Refused::Unknown('?'))]);
        assert_eq!(walk(&["-:"]).0, [Err(Refused::Unknown(':'))]);
        assert_eq!(walk(&["-o"]).0, [Err(Refused::MissingValue('o'))]);
        assert_eq!(walk(&["-"]).1, ["-"]);
    }
}
