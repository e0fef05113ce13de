//! `version`: the version that this program reports.

use crate::session::Session;
use crate::text::json;
use std::io;

/// Prints the OpenZFS release whose commands are implemented and our own version, in two lines.
pub fn run(session: &mut Session, program: &str, is_json: bool) -> io::Result<u8> {
    let (userland, kernel) = (format!("zfs-{VERSION}"), format!("zfs-kmod-{VERSION}"));
    if is_json {
        let mut document = json::document(&format!("{program} version"));
        let mut version = serde_json::Map::new();
        version.insert("userland".into(), userland.into());
        version.insert("kernel".into(), kernel.into());
        document.insert("zfs_version".into(), version.into());
        writeln!(session.out, "{}", serde_json::Value::Object(document))?;
    } else {
        writeln!(session.out, "{userland}\n{kernel}")?;
    }
    Ok(0)
}

/// Scripts parse the first part.
const VERSION: &str = concat!("2.3.2-millpond-", env!("CARGO_PKG_VERSION"));
