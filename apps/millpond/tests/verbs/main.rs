//! The verbs of `millpond`, run as a person runs them, on pools that OpenZFS made and recorded.

mod copies;
mod golden;
mod host_tree;
mod into;
mod messages;
mod prompt;
mod reading;
mod terminal;
mod untrusted;
mod upgrade;
