//! The commands that begin with `zpool`.

mod attach;
mod change_text;
mod checkpoint;
mod commands;
mod condition_text;
mod create;
mod dedup;
mod device_state;
mod events;
mod every;
mod get;
pub(crate) mod groups;
mod history;
mod import;
mod import_list;
mod import_progress;
mod iostat;
mod layout;
mod leaf_activity;
mod list;
mod manage;
mod property;
mod remove;
mod replication_text;
mod scan_text;
mod scripts;
mod scrub;
mod split;
mod status;
mod status_json;
mod upgrade;
mod usage;
mod vdev_name;
mod vdev_note;
mod wait;

pub(crate) use change_text::pool_reason as reason;
pub use commands::COMMANDS;
pub(crate) use manage::known;
pub(crate) use wait::LOOK_EVERY;

use crate::family::Family;
use crate::session::Session;
use std::io;

/// The commands, as the help of `millpond` describes them.
pub(crate) const FAMILY: Family = Family {
    program: "zpool",
    listing: usage::LISTING,
    commands: commands::COMMANDS,
    usage_of: usage::of,
};

/// Runs `zpool` with the arguments that follow its name, and returns the exit status.
pub fn run(session: &mut Session, arguments: &[String]) -> io::Result<u8> {
    // For tests of intent logs. As with OpenZFS, no list or page has it.
    if let [word, name] = arguments
        && word == "freeze"
    {
        let ending = manage::freeze(session, name);
        return crate::finish(session, ending, |_, _| Ok(()));
    }
    FAMILY.run(session, arguments)
}

/// The usage of all commands, and which of them are not implemented. For the manual page.
pub fn listing() -> String {
    FAMILY.list()
}

/// The message for a missing pool, or for a name that no pool can have.
pub(crate) fn no_such_pool(name: &str) -> String {
    let reason = match create::check_name(name) {
        // Pools that are older than the rule can have such a name.
        Err(reason) if reason != "name is reserved" => reason,
        _ => "no such pool".into(),
    };
    format!("cannot open '{name}': {reason}")
}

#[cfg(test)]
mod tests {
    use super::no_such_pool;

    #[test]
    fn names_that_no_pool_can_have_are_told_from_missing_pools() {
        for (name, reason) in [
            ("tank", "no such pool"),
            // An older pool may have such a name.
            ("mirror1", "no such pool"),
            ("1tank", "name must begin with a letter"),
            ("tank/a", "invalid character '/' in pool name"),
        ] {
            assert_eq!(
                no_such_pool(name),
                format!("cannot open '{name}': {reason}")
            );
        }
    }
}
