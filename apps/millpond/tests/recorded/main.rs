//! What OpenZFS answers in single cases, as recorded: through the built programs and a daemon.

mod datasets;
mod keys;
mod new_pools;
mod pools;
#[path = "../support/stage.rs"]
mod stage;

use stage::Stage;

/// Runs a line in which `@` is no image.
fn plain(stage: &Stage, line: &str) -> (String, i32) {
    let done = stage.command(line, false).output().unwrap();
    let text = String::from_utf8([done.stderr, done.stdout].concat()).unwrap();
    (text, done.status.code().unwrap())
}
