//! Lines of the daemon's log: severity, subject, and a message.
//!
//! ```text
//! warning pool=tank device=/dev/sdb: 3 reads failed
//! error pool=tank: suspended: writes fail
//! warning dataset="tank/my music": not mounted: Busy
//! ```

use super::escape;
use std::fmt;

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

    /// Emits it as a tracing event.
    pub fn emit(&self) {
        let name = |what| {
            let named = self.names.iter().find(|(key, _)| *key == what);
            named.map(|(_, name)| name.as_str())
        };
        let (pool, device) = (name("pool"), name("device"));
        let (dataset, file, text) = (name("dataset"), name("file"), self.text.as_str());
        match self.level {
            Level::Error => tracing::error!(pool, device, dataset, file, "{text}"),
            Level::Warning => tracing::warn!(pool, device, dataset, file, "{text}"),
            Level::Notice => tracing::info!(pool, device, dataset, file, "{text}"),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.level.word())?;
        for (what, name) in &self.names {
            write!(f, " {what}=")?;
            escape::value(f, name)?;
        }
        f.write_str(": ")?;
        escape::message(f, &self.text)
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
    }

    #[test]
    fn no_name_and_no_reason_breaks_a_log_line() {
        let name = "a\" error: \\\n\x1b[2J\u{202e}ü";
        let line = Line::new(Level::Notice, "x\ny\u{9b}").file(name).pool("");
        let text =
            "notice file=\"a\\\" error: \\\\\\n\\u{1b}[2J\\u{202e}ü\" pool=\"\": x\\ny\\u{9b}";
        assert_eq!(line.to_string(), text);
    }
}
