//! The commands that share a first word: `zpool …` and `zfs …`.

use crate::command::{Command, Run};
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
            "help" => return crate::manual::run(session, self, rest),
            _ => {}
        }
        let Some(command) = self.named(word) else {
            return self.refuse(session, word);
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

    /// Prints the usage of the command in the first word, or of all. Commands that are not implemented are marked.
    pub fn describe(&self, session: &mut Session, words: &[String]) -> io::Result<u8> {
        let Some(word) = words.first() else {
            session.out.write_all(self.list().as_bytes())?;
            return Ok(0);
        };
        let Some(command) = self.named(word) else {
            return self.refuse(session, word);
        };
        session
            .out
            .write_all((self.usage_of)(command.name).as_bytes())?;
        if is_unbuilt(command) {
            let (program, name) = (self.program, command.name);
            writeln!(session.out, "\nNot implemented yet: {program} {name}")?;
        }
        Ok(0)
    }

    /// The usage of all commands, and which of them are not implemented.
    pub fn list(&self) -> String {
        let missing: Vec<&str> = self.unbuilt().collect();
        match missing.is_empty() {
            true => self.listing.to_owned(),
            false => format!(
                "{}\nNot implemented yet: {}\n",
                self.listing,
                missing.join(", ")
            ),
        }
    }

    /// The command with this name.
    pub fn named(&self, word: &str) -> Option<&'static Command> {
        self.commands.iter().find(|command| command.is_named(word))
    }

    /// The commands that only check their arguments.
    pub fn unbuilt(&self) -> impl Iterator<Item = &'static str> {
        let commands = self.commands.iter();
        commands
            .filter(|command| is_unbuilt(command))
            .map(|command| command.name)
    }

    fn refuse(&self, session: &mut Session, word: &str) -> io::Result<u8> {
        writeln!(session.err, "unrecognized command '{word}'")?;
        session.err.write_all(self.listing.as_bytes())?;
        Ok(2)
    }
}

fn is_unbuilt(command: &Command) -> bool {
    matches!(command.run, Run::NotBuilt(_))
}
