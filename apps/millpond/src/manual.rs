//! `help`: shows a manual page.

use crate::family::Family;
use crate::session::Session;
use crate::text::errors::words_of;
use std::io;
use std::process::{Command, Stdio};

/// Runs man(1) on the page of a sub-command or topic and returns its status, or 255 if it cannot run.
///
/// Those pages are OpenZFS's. Where they are not installed, our page or the usage text takes their place.
pub fn run(session: &mut Session, family: &Family, words: &[String]) -> io::Result<u8> {
    let program = family.program;
    let topic = words.first().map(String::as_str);
    let page = match topic {
        None => program.to_string(),
        Some("properties" | "props") if program == "zfs" => "zfsprops".into(),
        Some("properties" | "props") => "zpoolprops".into(),
        Some("features") => "zpool-features".into(),
        Some("concepts") => format!("{program}concepts"),
        Some(topic) => format!("{program}-{topic}"),
    };
    let ours = format!("millpond-{program}");
    match is_there(session, &page) {
        Ok(true) => return show(session, &page),
        Ok(false) => {}
        Err(error) => {
            // The message has no line end, as in OpenZFS.
            write!(
                session.err,
                "couldn't run man program: {}",
                words_of(&error)
            )?;
            return Ok(255);
        }
    }
    match topic {
        None | Some("concepts") => match is_there(session, &ours) {
            Ok(true) => return show(session, &ours),
            _ => family.describe(session, &[])?,
        },
        Some("properties" | "props") => family.describe(session, &["get".to_owned()])?,
        Some("features") => {
            let words = ["upgrade", "-v"].map(str::to_owned);
            crate::zpool::run(session, &words)?
        }
        Some(name) if family.named(name).is_some() => family.describe(session, words)?,
        // man says that there is no such page.
        Some(_) => return show(session, &page),
    };
    writeln!(
        session.out,
        "\nThe manual page {page} of OpenZFS is not installed. What differs from it is in {ours}(8)."
    )?;
    Ok(0)
}

/// Whether man(1) has a page.
fn is_there(session: &Session, page: &str) -> io::Result<bool> {
    let found = Command::new(&session.environment.man)
        .args(["-w", page])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(found.success())
}

fn show(session: &mut Session, page: &str) -> io::Result<u8> {
    // What is printed here must not come after the page.
    session.out.flush()?;
    let status = Command::new(&session.environment.man).arg(page).status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(255))
}
