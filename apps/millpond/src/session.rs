//! The context that a command runs in, and the ways it can end.

use jiff::tz::TimeZone;
use millpond_control::Service;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Everything that a command may use.
pub struct Session<'a> {
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
    /// Opens the pools at the first query. A usage error opens nothing.
    pub pools: &'a dyn OpenService,
    /// The process environment.
    pub environment: &'a Environment,
}

/// Provides the service that answers requests, any number of times.
pub trait OpenService {
    /// Returns the service. The error is a complete message for the user.
    fn service(&self) -> Result<&dyn Service, String>;

    /// Returns the service if it keeps pools imported. The error is a complete message for the user.
    fn daemon(&self) -> Result<&dyn Service, String> {
        Err(NEEDS_DAEMON.into())
    }

    /// A second connection to the running daemon, to ask it while it answers a long request.
    fn second(&self) -> Option<Box<dyn Service + Send>> {
        None
    }
}

/// The error for a request that needs the daemon, when pools are opened for one command only.
const NEEDS_DAEMON: &str = "millpond: this command needs the daemon: run it without -d and with \
    MILLPOND_SEARCH unset";

/// Everything except pools and arguments that a command's output depends on.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The time zone that dates are shown in.
    pub zone: TimeZone,
    /// The clock: seconds since 1970.
    pub clock: fn() -> u64,
    /// Waits between two iterations of a repeating command.
    pub pause: fn(Duration),
    /// The environment variables that commands read.
    pub variables: BTreeMap<String, String>,
    /// The program that shows manual pages.
    pub man: PathBuf,
    /// Lines of the terminal on standard output; table headers repeat after this many.
    ///
    /// `None` if output is not a terminal.
    pub screen_lines: Option<usize>,
    /// User names by uid.
    pub users: BTreeMap<u64, String>,
    /// Group names by gid.
    pub groups: BTreeMap<u64, String>,
}

impl Environment {
    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Whether a variable is set to a number above 0, `yes`, `on` or `true`.
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

/// The ways a command can fail.
#[derive(Debug)]
pub enum Failure {
    /// A usage error: prints this line (none if empty), then the usage text; status 2.
    Usage(String),
    /// A usage error with its complete message; status 2.
    Complaint(String),
    /// The command has printed its messages and ends with this status.
    Status(u8),
    /// The command failed with this message; status 1.
    Refused(String),
    /// The command's output could not be written.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

/// The result of a command: its exit status or a failure.
pub type Ending = Result<u8, Failure>;

impl Session<'_> {
    /// The service that answers requests.
    pub fn service(&self) -> Result<&dyn Service, Failure> {
        self.pools.service().map_err(Failure::Refused)
    }

    /// The service, if it keeps pools imported.
    pub fn daemon(&self) -> Result<&dyn Service, Failure> {
        self.pools.daemon().map_err(Failure::Refused)
    }
}
