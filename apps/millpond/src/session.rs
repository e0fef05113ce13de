//! What a command is run with, and how it can end.

use jiff::tz::TimeZone;
use millpond::control::{Change, Control, ImportablePool, Keep};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Everything that a command may touch.
pub struct Session<'a> {
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
    /// Opens the pools, at the first question; a usage error opens nothing.
    pub pools: &'a dyn OpenControl,
    /// The surroundings.
    pub environment: &'a Environment,
}

/// Something that can be asked for an open [`Control`], any number of times.
pub trait OpenControl {
    /// The open pools. The error is a whole message for people.
    fn control(&self) -> Result<&dyn Control, String>;

    /// Whoever changes pools. The error is a whole message for people.
    fn change(&self) -> Result<&dyn Change, String> {
        Err("millpond: pools are not changed here".into())
    }

    /// Whoever keeps pools open. The error is a whole message for people.
    fn keep(&self) -> Result<&dyn Keep, String> {
        Err(NOBODY_KEEPS.into())
    }

    /// Pools that could be imported from these folders, or, if none is named, from where
    /// [`OpenControl::control`] looks.
    fn importable(&self, folders: &[String]) -> Result<Vec<ImportablePool>, String> {
        let _ = folders;
        self.control()?
            .importable()
            .map_err(|error| error.to_string())
    }

    /// Pools of a cache file that could be imported. The error is a whole message for people.
    fn importable_in_cache_file(&self, file: &str) -> Result<Vec<ImportablePool>, String> {
        Err(format!("millpond: {file}: cache files are not read here"))
    }
}

/// Why something cannot be done with pools that are opened for one command.
const NOBODY_KEEPS: &str = "millpond: this needs pools that stay open: leave out the -d before the \
    command (and MILLPOND_SEARCH), so that the daemon does it";

/// What a command's output depends on besides pools and arguments.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The time zone that dates are shown in.
    pub zone: TimeZone,
    /// The clock: seconds since 1970.
    pub clock: fn() -> u64,
    /// Waits, between two rounds of a command that repeats itself.
    pub pause: fn(Duration),
    /// Environment variables that matter here.
    pub variables: BTreeMap<String, String>,
    /// The program that shows pages of the manual.
    pub man: PathBuf,
    /// Lines of the terminal that output goes to, after which heads of tables come again; `None` if it goes elsewhere.
    pub screen_lines: Option<usize>,
    /// Names of users by number.
    pub users: BTreeMap<u64, String>,
    /// Names of groups by number.
    pub groups: BTreeMap<u64, String>,
}

impl Environment {
    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Whether a switch among the variables is on: a number above 0, `yes`, `on` or `true`.
    pub fn is_on(&self, name: &str) -> bool {
        self.variables.get(name).is_some_and(|value| {
            value.parse::<u64>().map_or_else(
                |_| {
                    ["yes", "on", "true"]
                        .iter()
                        .any(|word| value.eq_ignore_ascii_case(word))
                },
                |number| number > 0,
            )
        })
    }
}

/// A command that could not do all it was asked.
#[derive(Debug)]
pub enum Failure {
    /// It was asked wrongly: this line (none if empty), then how to ask, status 2.
    Usage(String),
    /// It was asked wrongly, and this is the whole text about it, status 2.
    Complaint(String),
    /// It said what it had to say; this is the status.
    Status(u8),
    /// This line, status 1.
    Refused(String),
    /// Its own output could not be written.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

/// A command's end: its status.
pub type Ending = Result<u8, Failure>;

impl Session<'_> {
    /// The open pools.
    pub fn control(&self) -> Result<&dyn Control, Failure> {
        self.pools.control().map_err(Failure::Refused)
    }

    /// Whoever keeps pools open.
    pub fn keep(&self) -> Result<&dyn Keep, Failure> {
        self.pools.keep().map_err(Failure::Refused)
    }

    /// Whoever changes pools.
    pub fn change(&self) -> Result<&dyn Change, Failure> {
        self.pools.change().map_err(Failure::Refused)
    }
}
