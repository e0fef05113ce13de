//! The program `millpond`, which is also `zpool` and `zfs` under those names.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    millpond_cli::start(std::env::args_os().collect())
}
