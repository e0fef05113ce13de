//! What a person meets in everyday use: help, words for mistakes, pools that the daemon has imported, progress.

mod help;
#[path = "../support/stage.rs"]
mod stage;
