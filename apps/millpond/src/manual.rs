//! `help`: shows a manual page.

use crate::family::Family;
use crate::session::Session;
use crate::text::errors::words_of;
use std::io;
use std::process::Command;

/// Runs man(1) on the page of a sub-command or topic and returns its status, or 255 if it cannot run.
pub fn run(session: &mut Session, family: &Family, words: &[String]) -> io::Result<u8> {
    let program = family.program;
    let page = match words.first().map(String::as_str) {
        None => program.to_string(),
        Some("properties" | "props") if program == "zfs" => "zfsprops".into(),
        Some("properties" | "props") => "zpoolprops".into(),
        Some("features") => "zpool-features".into(),
        Some("concepts") => format!("{program}concepts"),
        Some(topic) => format!("{program}-{topic}"),
    };
    match Command::new(&session.environment.man).arg(page).status() {
        Ok(status) => Ok(status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(255)),
        Err(error) => {
            // The message has no line end, as in OpenZFS.
            write!(
                session.err,
                "couldn't run man program: {}",
                words_of(&error)
            )?;
            Ok(255)
        }
    }
}
