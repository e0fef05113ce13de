//! The commands that begin with `zfs`.

mod collect;
mod commands;
mod get;
mod list;
mod names;
mod order;
mod shown;
mod usage;

use crate::session::Session;
use std::io;

pub(crate) use get::json_value;
pub(crate) use shown::{shape_width, source as source_word};

/// Runs `zfs` with the arguments after its name and returns its status.
pub fn run(session: &mut Session, arguments: &[String]) -> io::Result<u8> {
    let Some((word, rest)) = arguments.split_first() else {
        session.err.write_all(b"missing command\n")?;
        session.err.write_all(usage::LISTING.as_bytes())?;
        return Ok(2);
    };
    match word.as_str() {
        "-?" | "--help" => {
            session.out.write_all(usage::LISTING.as_bytes())?;
            return Ok(0);
        }
        "-V" | "--version" => return crate::version::run(session, "zfs", false),
        "help" => return crate::manual::run(session, "zfs", rest),
        _ => {}
    }
    let Some(command) = commands::COMMANDS
        .iter()
        .find(|command| command.is_named(word))
    else {
        writeln!(session.err, "unrecognized command '{word}'")?;
        session.err.write_all(usage::LISTING.as_bytes())?;
        return Ok(2);
    };
    let ending = command.run("zfs", session, rest);
    crate::finish(session, ending, |session, message| {
        if !message.is_empty() {
            writeln!(session.err, "{message}")?;
        }
        session.err.write_all(usage::of(command.name).as_bytes())
    })
}

/// Whether `word` could be the name of a user property.
pub(crate) fn is_user_property(word: &str) -> bool {
    use millpond_dataset::properties::{PropertyName, by_name};
    word.contains(':') && matches!(by_name(word), Some(PropertyName::User(_)))
}
