//! The program `millpondd`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    millpond_daemon::run(std::env::args_os().skip(1).collect())
}
