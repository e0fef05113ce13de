//! Heads that are open for changes: the contents of file systems and volumes, written with every txg.

pub(crate) mod admission;
mod claim;
pub(crate) mod features;
pub(crate) mod head;
pub(crate) mod initializer;
pub(crate) mod lending;
pub(crate) mod log;
pub(crate) mod new_contents;
pub(crate) mod open;
pub(crate) mod raw_header;
pub(crate) mod settings;
pub(crate) mod sink;
pub(crate) mod space;
pub(crate) mod write;
