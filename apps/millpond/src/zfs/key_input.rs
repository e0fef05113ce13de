//! Where keys come from: a prompt, standard input, or a file.

use super::lookup;
use crate::session::Session;
use millpond_control::Secret;
use millpond_engine::{KeyFormat, is_key_location};
use millpond_service::{read_key, read_key_file};
use rustix::fd::AsFd;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;
use zeroize::Zeroizing;

/// A key longer than this is no key; one byte more than a raw key has is enough to tell.
const RAW_BYTES: usize = 33;
const LINE_BYTES_MAX: usize = millpond_control::KEY_BYTES_MAX;

/// What a key is for.
#[derive(Debug, Clone, Copy)]
pub enum Purpose<'n> {
    /// The present key of this dataset.
    Load(&'n str),
    /// The key of a new dataset.
    Create,
    /// The new key of this dataset.
    Change(&'n str),
}

/// Where a key comes from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'l> {
    /// `prompt` or a URI.
    pub location: &'l str,
    /// Whether the user named it. A location from a pool is not trusted: only a regular file is read then.
    pub is_given: bool,
    pub format: KeyFormat,
}

/// The format that a number or word stands for.
pub fn format_of(text: &str) -> Option<KeyFormat> {
    let mut all = (0..=3).filter_map(KeyFormat::from_number);
    all.find(|format| format.name() == text || format.number().to_string() == text)
}

/// Whether a key would be asked for at a terminal.
pub fn is_asked(location: &str) -> bool {
    location == "prompt" && std::io::stdin().is_terminal()
}

/// Reads a key.
pub fn read(
    session: &mut Session,
    source: Source<'_>,
    purpose: Purpose<'_>,
) -> Result<Zeroizing<Vec<u8>>, String> {
    millpond_daemon::hide_memory();
    let mut bytes = match source.location {
        "prompt" if is_asked("prompt") => return ask(source.format, purpose),
        "prompt" => {
            let _ = session.out.flush();
            from_input(source.format)?
        }
        place => match place.strip_prefix("file://") {
            None if place.contains("://") => return Err("URI scheme is not supported".into()),
            None => return Err("Invalid keylocation".into()),
            Some(path) => from_file(Path::new(path), source.is_given)?,
        },
    };
    if source.format != KeyFormat::Raw {
        // The key is the first line.
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            bytes.truncate(end);
        }
    }
    Ok(bytes)
}

fn from_file(path: &Path, is_given: bool) -> Result<Zeroizing<Vec<u8>>, String> {
    let key = match is_given {
        // A user who names the file may read from a pipe.
        true => File::open(path).and_then(|mut file| read_key(&mut file)),
        false => read_key_file(path),
    };
    key.map_err(|error| format!("Failed to open key material file: {error}"))
}

/// Reads one key from standard input, and leaves what follows for the next one. The program's buffer of standard
/// input, which is never wiped, is not used.
fn from_input(format: KeyFormat) -> Result<Zeroizing<Vec<u8>>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let mut input = File::from(input.map_err(failed)?);
    let mut bytes = Zeroizing::new(Vec::with_capacity(LINE_BYTES_MAX));
    let most = match format {
        KeyFormat::Raw => RAW_BYTES,
        _ => LINE_BYTES_MAX,
    };
    while bytes.len() < most {
        let mut byte = Zeroizing::new([0]);
        match input.read(byte.as_mut_slice()) {
            Ok(0) => break,
            Ok(_) if *byte == *b"\n" && format != KeyFormat::Raw => break,
            Ok(_) => bytes.push(byte[0]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(bytes)
}

fn ask(format: KeyFormat, purpose: Purpose<'_>) -> Result<Zeroizing<Vec<u8>>, String> {
    let what = match format {
        KeyFormat::Hex => "hex key",
        KeyFormat::Passphrase => "passphrase",
        _ => return Err("Cannot enter raw keys on the terminal".into()),
    };
    let (is_new, whose) = match purpose {
        Purpose::Load(name) => (false, format!(" for '{name}'")),
        Purpose::Create => (true, String::new()),
        Purpose::Change(name) => (true, format!(" for '{name}'")),
    };
    let failed = |error: std::io::Error| format!("cannot ask for the key: {error}");
    if !is_new {
        return crate::prompt::ask(&format!("Enter {what}{whose}:")).map_err(failed);
    }
    let first = crate::prompt::ask(&format!("Enter new {what}{whose}:")).map_err(failed)?;
    let second = crate::prompt::ask(&format!("Re-enter new {what}{whose}:")).map_err(failed)?;
    match *first == *second {
        true => Ok(first),
        false => Err("Provided keys do not match.".into()),
    }
}

/// Reads the key of a dataset that is to be created, if it becomes an encryption root. `parent` is the name of the
/// dataset above it.
pub fn of_new_dataset(
    session: &mut Session,
    parent: Option<&str>,
    pairs: &[(String, String)],
    is_dry: bool,
) -> Result<Option<Secret>, String> {
    let value = |wanted: &str| {
        let found = pairs.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let own = |wanted: &str| value(wanted).filter(|value| *value != "none");
    let above = match parent {
        Some(parent) => lookup::one(session, parent, &["encryptionroot"])
            .ok()
            .flatten(),
        None => None,
    };
    let root_above = above
        .as_ref()
        .and_then(|above| lookup::text(above, "encryptionroot"));
    let has_root_above = root_above.is_some_and(|root| root != "-");
    let is_on = value("encryption").map_or(has_root_above, |value| value != "off");
    let (format, location) = (own("keyformat"), own("keylocation"));
    let has_own = format.is_some() || location.is_some() || own("pbkdf2iters").is_some();
    if !is_on {
        return match has_own {
            true => Err("Encryption must be turned on to set encryption properties.".into()),
            false => Ok(None),
        };
    }
    let Some(format) = format.and_then(format_of) else {
        return match has_own || !has_root_above {
            true => Err("Keyformat required for new encryption root.".into()),
            false => Ok(None),
        };
    };
    if own("pbkdf2iters").is_some() && format != KeyFormat::Passphrase {
        return Err("Cannot specify pbkdf2iters with a non-passphrase keyformat.".into());
    }
    let location = location.unwrap_or("prompt");
    if !is_key_location(location) {
        return Err("invalid keylocation".into());
    }
    if is_dry {
        return Ok(None);
    }
    let source = Source {
        location,
        is_given: true,
        format,
    };
    Ok(Some(Secret::new(&read(session, source, Purpose::Create)?)))
}
