//! The commands that begin with `zpool`.

mod commands;
mod condition_text;
mod every;
mod get;
mod groups;
mod history;
mod import;
mod list;
mod property;
mod scan_text;
mod status;
mod status_json;
mod usage;
mod vdev_name;
mod vdev_note;

use crate::session::Session;
use std::io;

/// Runs `zpool` with the arguments after its name and returns its status.
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
        "-V" | "--version" => return crate::version::run(session, "zpool", false),
        "help" => return crate::manual::run(session, "zpool", rest),
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
    let ending = command.run("zpool", session, rest);
    crate::finish(session, ending, |session, message| {
        if !message.is_empty() {
            writeln!(session.err, "{message}")?;
        }
        session.err.write_all(usage::of(command.name).as_bytes())
    })
}

/// The line for a pool that is not there.
fn no_such_pool(name: &str) -> String {
    format!("cannot open '{name}': no such pool")
}
