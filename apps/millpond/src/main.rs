//! The program `millpond`, which also runs as `zpool` and `zfs` when called by those names.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    millpond_cli::start(std::env::args_os().collect())
}
