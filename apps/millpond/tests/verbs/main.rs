//! The commands of `millpond`, run as processes on pools that OpenZFS created and recorded.

mod copies;
mod encrypted_streams;
mod golden;
mod host_tree;
mod into;
mod messages;
mod older;
mod past;
mod plan;
mod prompt;
mod reading;
mod stored;
mod stream;
mod terminal;
mod untrusted;
mod upgrade;
mod verdict;
