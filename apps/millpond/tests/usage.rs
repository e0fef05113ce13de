//! Usage errors, and commands on a machine without pools.
//!
//! The output must equal that of OpenZFS word for word.

mod support;

use support::recording;
use support::{FakeService, run};

/// Replays a session. Each command must match in every byte, or report that it is not implemented.
fn replay(name: &str) {
    let Some(session) = recording::session(name) else {
        return;
    };
    let (mut equal, mut not_built, mut elsewhere, mut all) = (0, 0, 0, 0);
    let mut different = Vec::new();
    for entry in &session {
        let Some(words) = recording::words(&entry.command) else {
            continue;
        };
        all += 1;
        let mut printed = run(&FakeService::default(), &words);
        printed.stdout = printed.stdout.replace(VERSION, "2.3.2-2~bpo12+2");
        if printed == entry.printed {
            equal += 1;
        } else if printed.stderr.ends_with(" is not implemented yet\n") && printed.status == 1 {
            not_built += 1;
        } else if printed.stderr.ends_with("with MILLPOND_SEARCH unset\n") && printed.status == 1 {
            // The test `sessions` replays these with the pools of a daemon.
            elsewhere += 1;
        } else {
            different.push((entry.command.clone(), entry.printed.clone(), printed));
        }
    }
    println!(
        "{name}: {equal} of {all} equal, {not_built} not implemented, {elsewhere} for the daemon"
    );
    for (command, theirs, ours) in different.iter().take(20) {
        println!("--- {command}\ntheirs: {theirs:?}\nours:   {ours:?}");
    }
    assert!(different.is_empty(), "{} of {all} differ", different.len());
}

const VERSION: &str = concat!("2.3.2-millpond-", env!("CARGO_PKG_VERSION"));

#[test]
fn every_usage_error_is_answered_as_openzfs_answers_it() {
    replay("usage.json");
}

#[test]
fn without_a_pool_every_command_prints_as_openzfs() {
    replay("nopool.json");
}
