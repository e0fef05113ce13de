//! `zfs load-key` and `zfs unload-key`.

use super::lookup::{self, heads, text};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{DatasetInfo, DatasetQuery, KeyProblem, Secret};
use millpond_service::{read_key, read_key_file};
use rustix::fd::AsFd;
use std::fs::File;
use std::path::Path;
use zeroize::Zeroizing;

/// Exit status on failure.
const FAILED: u8 = 255;
const WORDS: [&str; 4] = ["encryptionroot", "keylocation", "keyformat", "keystatus"];
/// `keyformat` of raw keys.
const RAW: u64 = 1;

/// Loads keys into the imported pools.
pub fn load(session: &mut Session, parsed: &Parsed) -> Ending {
    let only_check = parsed.has("n");
    each(session, parsed, "loaded", |session, root| {
        let location = parsed.value("L").map(str::to_owned);
        let is_given = location.is_some();
        let location = location.or_else(|| text(root, "keylocation").map(str::to_owned));
        if text(root, "encryptionroot").is_none_or(|own| own == "-") {
            return Err(format!("'{}' is not encrypted.", root.name));
        }
        let is_loaded = lookup::number(root, "keystatus") == Some(0)
            || text(root, "keystatus") == Some("available");
        if is_loaded && !only_check {
            return Err(format!("Key already loaded for '{}'.", root.name));
        }
        let is_raw = lookup::number(root, "keyformat") == Some(RAW)
            || text(root, "keyformat") == Some("raw");
        let location = (location.as_deref(), is_given);
        let key = key_from(session, &root.name, location, is_raw)?;
        let daemon = session.pools.daemon()?;
        daemon
            .load_key(&root.name, &Secret::new(&key), only_check)
            .map_err(words)
    })
}

/// Unloads keys.
pub fn unload(session: &mut Session, parsed: &Parsed) -> Ending {
    each(session, parsed, "unloaded", |session, root| {
        if text(root, "encryptionroot").is_none_or(|own| own == "-") {
            return Err(format!("'{}' is not encrypted.", root.name));
        }
        let daemon = session.pools.daemon()?;
        daemon.unload_key(&root.name).map_err(words)
    })
}

fn words(problem: KeyProblem) -> String {
    match problem {
        KeyProblem::NoSuchDataset => "dataset does not exist".into(),
        KeyProblem::Denied => "permission denied".into(),
        KeyProblem::Text(text) => text,
        other => format!("{other:?}"),
    }
}

fn each(
    session: &mut Session,
    parsed: &Parsed,
    done: &str,
    mut run: impl FnMut(&mut Session, &DatasetInfo) -> Result<(), String>,
) -> Ending {
    let verb = done.trim_end_matches("ed");
    let roots = match parsed.operands.as_slice() {
        [] if parsed.has("a") => crate::zpool::known(session)?,
        [name] if !parsed.has("a") => vec![name.clone()],
        [] => {
            return Err(Failure::Usage(
                "Missing dataset argument or -a option".into(),
            ));
        }
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    let is_one = !parsed.has("a") && !parsed.has("r");
    let mut chosen = vec![];
    for root in &roots {
        if is_one {
            chosen.push(lookup::open(session, root, heads(), &WORDS)?);
            continue;
        }
        lookup::open(session, root, heads(), &[])?;
        let all = lookup::below(session, root, DatasetQuery::WHOLE_TREE, heads(), &WORDS)?;
        let is_root = |info: &DatasetInfo| text(info, "encryptionroot") == Some(info.name.as_str());
        chosen.extend(all.unwrap_or_default().into_iter().filter(is_root));
    }
    let mut failed = 0;
    for info in &chosen {
        if let Err(reason) = run(session, info) {
            writeln!(session.err, "Key {verb} error: {reason}")?;
            failed += 1;
        }
    }
    if !is_one {
        let good = chosen.len() - failed;
        writeln!(
            session.out,
            "{good} / {} key(s) successfully {done}",
            chosen.len()
        )?;
    }
    match failed {
        0 => Ok(0),
        _ => Err(Failure::Status(FAILED)),
    }
}

/// Reads the key from its location, or from standard input.
///
/// A location not given on the command line comes from the pool and is not trusted.
fn key_from(
    session: &mut Session,
    dataset: &str,
    (location, is_given): (Option<&str>, bool),
    is_raw: bool,
) -> Result<Zeroizing<Vec<u8>>, String> {
    millpond_daemon::hide_memory();
    let mut bytes = match location {
        None | Some("prompt") => {
            if let Some(asked) = crate::verbs::ask_for_key(dataset) {
                return asked;
            }
            let _ = session.out.flush();
            // Bypasses the program's buffer of standard input, which is never wiped.
            let input = std::io::stdin().as_fd().try_clone_to_owned();
            let key = input.and_then(|input| read_key(&mut File::from(input)));
            key.map_err(|error| error.to_string())?
        }
        Some(place) => match place.strip_prefix("file://") {
            None if place.contains("://") => return Err("URI scheme is not supported".into()),
            None => return Err("Invalid keylocation".into()),
            Some(path) => {
                let fail = |error: std::io::Error| {
                    let words = error.to_string();
                    let words = words
                        .split(" (os error")
                        .next()
                        .unwrap_or_default()
                        .to_owned();
                    format!("Failed to open key material file: {words}")
                };
                let path = Path::new(path);
                match is_given {
                    // A user who names the file may read from a pipe.
                    true => File::open(path).and_then(|mut file| read_key(&mut file)),
                    false => read_key_file(path),
                }
                .map_err(fail)?
            }
        },
    };
    if !is_raw {
        // The key is the first line.
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            bytes.truncate(end);
        }
    }
    Ok(bytes)
}
