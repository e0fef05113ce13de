//! The commands that begin with `zfs`.

mod allow;
mod assign;
mod change_text;
mod collect;
mod commands;
mod create;
mod destroy;
mod diff;
mod get;
mod heads;
mod key_input;
mod keys;
mod list;
mod lookup;
mod mount;
mod mount_helper;
mod names;
mod order;
mod paths;
mod program;
mod project;
mod receive;
mod redact;
mod rewrite;
mod send;
mod send_progress;
mod set;
mod share;
mod shown;
mod snapshots;
mod space;
mod upgrade;
mod usage;
mod volume;
mod wait;

use crate::family::Family;
use crate::session::Session;
use std::io;

pub(crate) use assign::{Assignment, check_together, compression_of, is_of_file_systems};
pub(crate) use change_text::property_words;
pub use commands::COMMANDS;
pub use diff::{Style as DiffStyle, put as put_difference};
pub(crate) use get::json_value;
pub(crate) use key_input::of_new_dataset;
pub(crate) use keys::load_asked;
pub(crate) use mount::{mount_pool, not_unmounted, tell_notes};
pub(crate) use mount_helper::run as run_mount_helper;
pub use send::token_text;
pub(crate) use set::quotas_among;
pub(crate) use shown::{shape_width, source as source_word};

/// The commands, as the help of `millpond` describes them.
pub(crate) const FAMILY: Family = Family {
    program: "zfs",
    listing: usage::LISTING,
    commands: commands::COMMANDS,
    usage_of: usage::of,
};

/// Runs `zfs` with the arguments that follow its name, and returns the exit status.
pub fn run(session: &mut Session, arguments: &[String]) -> io::Result<u8> {
    FAMILY.run(session, arguments)
}

/// The usage of all commands, and which of them are not implemented. For the manual page.
pub fn listing() -> String {
    FAMILY.list()
}

/// Whether `word` could be the name of a user property.
pub(crate) fn is_user_property(word: &str) -> bool {
    use millpond_control::properties::{PropertyName, by_name};
    word.contains(':') && matches!(by_name(word), Some(PropertyName::User(_)))
}
