//! The commands that share a first word: `zpool …` and `zfs …`.

use crate::command::Command;
use crate::session::Session;
use std::io;

/// The commands of one program.
pub struct Family {
    /// The program, `zpool` or `zfs`.
    pub program: &'static str,
    /// The usage text of all commands.
    pub listing: &'static str,
    /// The commands.
    pub commands: &'static [Command],
    /// Returns the usage text of the named command.
    pub usage_of: fn(&str) -> String,
}

impl Family {
    /// Runs the command that the arguments name and returns its status.
    pub fn run(&self, session: &mut Session, arguments: &[String]) -> io::Result<u8> {
        let Some((word, rest)) = arguments.split_first() else {
            session.err.write_all(b"missing command\n")?;
            session.err.write_all(self.listing.as_bytes())?;
            return Ok(2);
        };
        match word.as_str() {
            "-?" | "--help" => {
                session.out.write_all(self.listing.as_bytes())?;
                return Ok(0);
            }
            "-V" | "--version" => return crate::version::run(session, self.program, false),
            "help" => return crate::manual::run(session, self.program, rest),
            _ => {}
        }
        let Some(command) = self.commands.iter().find(|command| command.is_named(word)) else {
            writeln!(session.err, "unrecognized command '{word}'")?;
            session.err.write_all(self.listing.as_bytes())?;
            return Ok(2);
        };
        let ending = command.run(self.program, session, rest);
        crate::finish(session, ending, |session, message| {
            if !message.is_empty() {
                writeln!(session.err, "{message}")?;
            }
            session
                .err
                .write_all((self.usage_of)(command.name).as_bytes())
        })
    }
}
