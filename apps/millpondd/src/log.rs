//! Lines of the daemon's log: severity, subject, and a message.
//!
//! ```text
//! warning pool=tank device=/dev/sdb: 3 reads failed
//! error pool=tank: suspended: writes fail
//! warning dataset="tank/my music": not mounted: Busy
//! ```

use std::fmt::{self, Write};

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something cannot be used, or is lost.
    Error,
    /// Something failed, but operation continues.
    Warning,
    /// Something has returned to normal.
    Notice,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Notice => "notice",
        }
    }

    /// The syslog severity, which a service manager reads from the start of a line.
    #[must_use]
    pub fn severity(self) -> u8 {
        match self {
            Level::Error => 3,
            Level::Warning => 4,
            Level::Notice => 5,
        }
    }
}

/// A line of the log. Names in it come from disks; they are escaped, so that they can end neither the line
/// nor their quotation marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    level: Level,
    names: Vec<(&'static str, String)>,
    text: String,
}

impl Line {
    /// A line without a subject.
    #[must_use]
    pub fn new(level: Level, text: impl Into<String>) -> Self {
        Self {
            level,
            names: vec![],
            text: text.into(),
        }
    }

    /// Adds a pool as subject.
    #[must_use]
    pub fn pool(self, name: &str) -> Self {
        self.about("pool", name)
    }

    /// Adds a device as subject.
    #[must_use]
    pub fn device(self, name: &str) -> Self {
        self.about("device", name)
    }

    /// Adds a dataset as subject.
    #[must_use]
    pub fn dataset(self, name: &str) -> Self {
        self.about("dataset", name)
    }

    /// Adds a file as subject, in a pool or on the system.
    #[must_use]
    pub fn file(self, name: &str) -> Self {
        self.about("file", name)
    }

    fn about(mut self, what: &'static str, name: &str) -> Self {
        self.names.push((what, name.to_owned()));
        self
    }

    /// The severity.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.level.word())?;
        for (what, name) in &self.names {
            write!(f, " {what}=")?;
            put(f, name)?;
        }
        f.write_str(": ")?;
        // The message may also contain names of devices and files.
        for character in self.text.chars() {
            put_character(f, character)?;
        }
        Ok(())
    }
}

/// Writes a name, in quotation marks if it has special characters.
fn put(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    let is_plain = |c: char| c.is_alphanumeric() || "/_-.@#+%,~<>".contains(c);
    if !name.is_empty() && name.chars().all(is_plain) {
        return f.write_str(name);
    }
    f.write_char('"')?;
    for character in name.chars() {
        match character {
            '"' | '\\' => write!(f, "\\{character}")?,
            other => put_character(f, other)?,
        }
    }
    f.write_char('"')
}

/// Escapes control characters, and characters that change the writing direction. Thus an entry stays on one
/// line and is displayed in the order in which it was written.
fn put_character(f: &mut fmt::Formatter<'_>, character: char) -> fmt::Result {
    let turns = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match character {
        '\n' => f.write_str("\\n"),
        c if c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}') => {
            write!(f, "\\u{{{:x}}}", u32::from(c))
        }
        other => f.write_char(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_level_names_and_a_sentence() {
        let line = Line::new(Level::Warning, "3 reads failed");
        let line = line.pool("tank").device("/dev/disk/by-id/ata-X_1:2");
        let text = "warning pool=tank device=\"/dev/disk/by-id/ata-X_1:2\": 3 reads failed";
        assert_eq!(line.to_string(), text);
        let line = Line::new(Level::Error, "gone")
            .dataset("tank/fs@a")
            .file("<0x1>");
        assert_eq!(line.to_string(), "error dataset=tank/fs@a file=<0x1>: gone");
        let line = Line::new(Level::Notice, "resumed");
        assert_eq!(line.to_string(), "notice: resumed");
        assert!(Level::Error.severity() < Level::Notice.severity());
    }

    #[test]
    fn no_name_and_no_reason_leaves_its_place() {
        let name = "a\" error: \\\n\x1b[2J\u{202e}ü";
        let line = Line::new(Level::Notice, "x\ny\u{9b}").file(name).pool("");
        let text =
            "notice file=\"a\\\" error: \\\\\\n\\u{1b}[2J\\u{202e}ü\" pool=\"\": x\\ny\\u{9b}";
        assert_eq!(line.to_string(), text);
    }
}
