//! `zpool import`.

use super::change_text::{self, Verb};
use super::create::check_altroot;
use super::{import_list, import_progress};
use crate::command::Parsed;
use crate::program::absolute;
use crate::search_paths;
use crate::session::{Ending, Failure, Session};
use crate::text::date;
use crate::text::terminal::one_line;
use crate::zfs::tell_notes;
use millpond_control::{
    ChangeError, ImportError, ImportRequest, ImportablePool, RewindRequest, SearchPaths,
};
use std::path::{Path, PathBuf};

/// Lists the pools that can be imported, or imports pools.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    if (parsed.has("n") || parsed.has("X")) && !parsed.has("F") {
        return Err(Failure::Usage("-n or -X only meaningful with -F".into()));
    }
    if parsed.operands.len() > 2 {
        return Err(Failure::Usage("too many arguments".into()));
    }
    let is_all = parsed.has("a");
    if is_all && !parsed.operands.is_empty() {
        return Err(Failure::Usage("too many arguments".into()));
    }
    let folders: Vec<String> = parsed.values("d").map(str::to_owned).collect();
    if !is_all && parsed.operands.is_empty() {
        let listed = found(session, parsed, &folders)?;
        let listed: Vec<&ImportablePool> = listed.iter().collect();
        if listed.is_empty() {
            writeln!(session.err, "no pools available to import")?;
            tell_problems(session, parsed)?;
        }
        import_list::print(session, &listed)?;
        return Ok(0);
    }
    let request = match request(parsed, &folders) {
        Ok(request) => request,
        Err(line) => {
            // An unknown property is only reported.
            writeln!(session.err, "{line}")?;
            return Ok(0);
        }
    };
    let mut properties = request.properties.iter();
    if let Some((_, altroot)) = properties.find(|(name, _)| name == "altroot") {
        check_altroot(altroot).map_err(Failure::Refused)?;
    }
    if let Some(word) = parsed.operands.first() {
        let request = ImportRequest {
            pool: word.clone(),
            new_name: parsed.operands.get(1).cloned(),
            ..request
        };
        if let Some(name) = &request.new_name
            && let Err(reason) = super::create::check_name(name)
        {
            return Err(Failure::Refused(format!(
                "cannot import '{name}': {reason}"
            )));
        }
        return import(session, parsed, &request, word);
    }
    let all = found(session, parsed, &folders)?;
    if all.is_empty() {
        writeln!(session.err, "no pools available to import")?;
        tell_problems(session, parsed)?;
        return Ok(0);
    }
    let mut status = 0;
    for pool in all {
        let request = ImportRequest {
            pool: pool.info.guid.to_string(),
            ..request.clone()
        };
        match import(session, parsed, &request, &pool.info.name) {
            Ok(one) => status = status.max(one),
            Err(Failure::Refused(text)) => {
                writeln!(session.err, "{text}")?;
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    Ok(status)
}

/// Says why nothing can be in the places that the options name. OpenZFS does not.
fn tell_problems(session: &mut Session, parsed: &Parsed) -> std::io::Result<()> {
    let folders: Vec<PathBuf> = parsed.values("d").map(PathBuf::from).collect();
    let mut problems = search_paths::problems(&folders);
    let cache_file = parsed.value("c").map(Path::new);
    problems.extend(cache_file.and_then(search_paths::cache_file_problem));
    for problem in problems {
        writeln!(session.err, "millpond: {problem}")?;
    }
    Ok(())
}

/// The pools of the requested kind, destroyed or not.
fn found(
    session: &Session,
    parsed: &Parsed,
    folders: &[String],
) -> Result<Vec<ImportablePool>, Failure> {
    let search = match parsed.value("c") {
        Some(file) => SearchPaths {
            paths: vec![],
            cache_file: Some(absolute(file)),
        },
        None => SearchPaths {
            paths: searched(session, folders)
                .iter()
                .map(|folder| absolute(folder))
                .collect(),
            cache_file: None,
        },
    };
    let found = session.service()?.importable(&search);
    let mut found = found.map_err(|error| Failure::Refused(reason(&error)))?;
    found.retain(|pool| pool.is_destroyed == parsed.has("D"));
    Ok(found)
}

/// The directories to search: those given, otherwise those of the environment.
fn searched(session: &Session, folders: &[String]) -> Vec<String> {
    if !folders.is_empty() {
        return folders.to_vec();
    }
    let variables = &session.environment.variables;
    let path = variables.get("ZPOOL_IMPORT_PATH").map(String::as_str);
    let folders = path.unwrap_or_default().split(':');
    folders
        .filter(|f| !f.is_empty())
        .map(str::to_owned)
        .collect()
}

fn request(parsed: &Parsed, folders: &[String]) -> Result<ImportRequest, String> {
    let mut properties: Vec<(String, String)> = vec![];
    let mut mount_options: Vec<String> = vec![];
    for (option, value) in &parsed.options {
        let value = value.as_deref().unwrap_or_default();
        match option.as_str() {
            "R" => properties.push(("altroot".into(), value.to_owned())),
            "o" => {
                let Some((name, value)) = value.split_once('=') else {
                    mount_options.push(value.to_owned());
                    continue;
                };
                let known = super::property::PoolProperty::by_name(name);
                let known = known.filter(|known| !known.text().contains(':'));
                let Some(known) = known else {
                    return Err(format!(
                        "property '{name}' is not a valid pool or vdev property"
                    ));
                };
                properties.push((known.text().to_owned(), value.to_owned()));
            }
            _ => {}
        }
    }
    let rewind = match parsed.value("T").map(str::parse) {
        // As in OpenZFS, a pool that needs no rewind is imported. A pool that needs one is not.
        _ if parsed.has("n") => RewindRequest::Never,
        Some(Ok(txg)) => RewindRequest::ToTxg(txg),
        Some(Err(_)) => return Err("the txg behind -T is a number".into()),
        None if parsed.has("rewind-to-checkpoint") => RewindRequest::Checkpoint,
        None if parsed.has("X") => RewindRequest::Extreme,
        None if parsed.has("F") => RewindRequest::Recent,
        None => RewindRequest::Never,
    };
    Ok(ImportRequest {
        search: SearchPaths {
            paths: folders.iter().map(|folder| absolute(folder)).collect(),
            cache_file: parsed.value("c").map(absolute),
        },
        destroyed: parsed.has("D"),
        force: parsed.has("f"),
        without_logs: parsed.has("m"),
        rewind,
        properties,
        mount_options,
        mount: !parsed.has("N"),
        load_keys: parsed.has("l"),
        is_name_temporary: parsed.has("t"),
        ..ImportRequest::default()
    })
}

/// Whether `-n` forbids what `-T` or `--rewind-to-checkpoint` asks for.
fn asks_for_old_state_only(parsed: &Parsed) -> bool {
    parsed.has("n") && (parsed.value("T").is_some() || parsed.has("rewind-to-checkpoint"))
}

pub(super) fn import(
    session: &mut Session,
    parsed: &Parsed,
    request: &ImportRequest,
    word: &str,
) -> Ending {
    let mut request = request.clone();
    if request.search.paths.is_empty() && request.search.cache_file.is_none() {
        let folders = searched(session, &[]);
        request.search.paths = folders.iter().map(|folder| absolute(folder)).collect();
    }
    let daemon = session.daemon()?;
    // Importing the newest state instead would overwrite the one that is asked for.
    if asks_for_old_state_only(parsed)
        && !daemon.pools().is_ok_and(|all| all.contains(&request.pool))
    {
        return Err(Failure::Refused(format!(
            "cannot import '{word}': -n cannot be combined with -T or --rewind-to-checkpoint"
        )));
    }
    let shown = import_progress::show(session, &request.pool);
    let imported = daemon.import(&request, &parsed.line);
    drop(shown);
    let imported = match imported {
        Ok(imported) => imported,
        Err(error) => return refused(session, parsed, &request, word, &error),
    };
    if let Some(why) = &imported.read_only_because {
        writeln!(
            session.err,
            "millpond: '{}' was imported read-only: {why}",
            imported.name
        )?;
    }
    if let Some(why) = &imported.foreign_because
        && request.mount
        && !has_no_rights(&request.mount_options)
    {
        writeln!(
            session.err,
            "millpond: '{}': {why}; set-user-ID programs and device files in it work here. If you do \
             not trust it, export it and import it with -o nosuid,nodev",
            imported.name
        )?;
    }
    if request.load_keys {
        let (loaded, tried) = imported.keys;
        let asked = match loaded < tried {
            true => crate::zfs::load_asked(session, &imported.name)?,
            false => 0,
        };
        let loaded = loaded + asked;
        writeln!(session.out, "{loaded} / {tried} keys successfully loaded")?;
        if asked > 0 && request.mount {
            crate::zfs::mount_pool(session, &imported.name, &request.mount_options)?;
        }
    }
    if imported.notes.is_empty() {
        return Ok(0);
    }
    tell_notes(session, &imported.notes)?;
    writeln!(
        session.err,
        "Import was successful, but unable to mount some datasets"
    )?;
    Ok(1)
}

/// Whether mount options disable set-user-ID bits and device files.
fn has_no_rights(options: &[String]) -> bool {
    let mut words: Vec<&str> = options.iter().flat_map(|words| words.split(',')).collect();
    words.retain(|word| !word.is_empty());
    let last = |yes: &[&str], no: &[&str]| {
        let mut given = words.iter().rev();
        given
            .find(|word| yes.contains(word) || no.contains(word))
            .is_some_and(|word| no.contains(word))
    };
    last(&["suid", "setuid"], &["nosuid", "nosetuid"])
        && last(&["dev", "devices"], &["nodev", "nodevices"])
}

fn refused(
    session: &mut Session,
    parsed: &Parsed,
    request: &ImportRequest,
    word: &str,
    error: &ImportError,
) -> Ending {
    let action = match &request.new_name {
        Some(new) if !matches!(error, ImportError::NoSuchPool) => {
            format!("cannot import '{word}' as '{new}'")
        }
        _ => format!("cannot import '{word}'"),
    };
    match error {
        ImportError::Features(features) => {
            writeln!(
                session.out,
                "This pool uses the following feature(s) not supported by this system:"
            )?;
            for (name, description) in features {
                match description.as_deref().filter(|text| !text.is_empty()) {
                    Some(text) => writeln!(session.out, "\t{name} ({text})")?,
                    None => writeln!(session.out, "\t{name}")?,
                }
            }
        }
        ImportError::MissingLogs(paths) => {
            writeln!(
                session.out,
                "The devices below are missing or corrupted, use '-m' to import the pool anyway:"
            )?;
            for path in paths {
                writeln!(session.out, "\t    {path} [log]")?;
            }
            writeln!(session.out)?;
        }
        ImportError::Unreadable(_) if parsed.has("n") => {
            writeln!(
                session.out,
                "\tNo older state was tried, because of -n. Without it, 'zpool import -F'\n\t\
                 may import the pool, and discards its last transactions."
            )?;
        }
        // The pool may be whole, although OpenZFS advises to destroy it.
        ImportError::MissingDevices => {
            writeln!(
                session.out,
                "\tAttach the missing devices and try again; 'zpool import' shows which\n\t\
                 they are. Name the folder that holds them with -d."
            )?;
        }
        ImportError::Unreadable(_) => {
            writeln!(
                session.out,
                "\tDestroy and re-create the pool from\n\ta backup source."
            )?;
        }
        _ => {}
    }
    if matches!(error, ImportError::NoSuchPool) {
        writeln!(session.err, "{action}: {}", reason(error))?;
        tell_problems(session, parsed)?;
        return Ok(1);
    }
    let reason = match error {
        ImportError::InUseElsewhere {
            hostname,
            hostid,
            time_s,
        } => format!(
            "pool was previously in use from another system.\n\
             Last accessed by {} (hostid={hostid:x}) at {}\n\
             The pool can be imported, use 'zpool import -f' to import the pool.",
            hostname.as_deref().unwrap_or("<unknown>"),
            date::ctime(*time_s, &session.environment.zone)
        ),
        ImportError::NeedsHostid => {
            let text = format!(
                "Cannot import '{word}': pool has the multihost property on and the\n\
                 system's hostid is not set. Set a unique hostid with the zgenhostid(8) command."
            );
            return Err(Failure::Refused(text));
        }
        ImportError::DamagedLabels => format!(
            "{}\n\tIt can be read: zpool import -o readonly=on {word}",
            reason(error)
        ),
        ImportError::Change(error @ ChangeError::Compatibility(_)) => {
            let reason = change_text::reason(Verb::Other, error);
            let text = format!("cannot import pool '{word}': {reason}");
            return Err(Failure::Refused(text));
        }
        other => reason(other),
    };
    Err(Failure::Refused(format!("{action}: {reason}")))
}

/// The reason for a failed import, as it follows the action.
fn reason(error: &ImportError) -> String {
    match error {
        ImportError::NoSuchPool => "no such pool available".into(),
        ImportError::Ambiguous => {
            "more than one matching pool\nimport by numeric ID instead".into()
        }
        ImportError::NameTaken => "a pool with that name already exists\n\
             use the form 'zpool import <pool | id> <newpool>' to give it a new name"
            .into(),
        ImportError::ImportedElsewhere { hostid, hostname } => format!(
            "pool is imported on {} (hostid: {hostid:#x})\n\
             Export the pool on the other system, then run 'zpool import'.",
            hostname.as_deref().unwrap_or("unknown")
        ),
        ImportError::Features(_) => "unsupported version or feature".into(),
        ImportError::Version => "pool is formatted using an unsupported ZFS version".into(),
        ImportError::MissingLogs(_) => "one or more devices is currently unavailable".into(),
        ImportError::MissingDevices => "no such pool or dataset".into(),
        ImportError::Busy(_) => "one or more devices are already in use\n".into(),
        ImportError::CacheFile(text)
        | ImportError::Copies(text)
        | ImportError::OlderVdevs(text) => text.clone(),
        ImportError::DamagedLabels => "the checksums of the labels of its devices are wrong".into(),
        ImportError::Unreadable(why) => format!("I/O error\n({why})"),
        ImportError::Change(error) => change_text::reason(Verb::Other, error),
        ImportError::BadName { name, why } => format!(
            "'{}' is not a valid name: {why}\n\tA pool can be given another by its guid: zpool import GUID NAME.\n\t\
             What is in the pool can be read with -N -o readonly=on.",
            one_line(name)
        ),
        ImportError::Denied => "permission denied".into(),
        // The callers show these two with what to do.
        ImportError::InUseElsewhere { hostname, .. } => format!(
            "pool was last used by {}",
            hostname.as_deref().unwrap_or("another system")
        ),
        ImportError::NeedsHostid => "the system's hostid is not set".into(),
        _ => "it cannot be imported".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_asks_for_no_rewind() {
        let rewind = |options: &[(&str, Option<&str>)]| {
            let own = |(name, value): &(&str, Option<&str>)| {
                ((*name).to_owned(), value.map(str::to_owned))
            };
            let parsed = Parsed {
                options: options.iter().map(own).collect(),
                ..Parsed::default()
            };
            let rewind = request(&parsed, &[]).map(|request| request.rewind);
            (rewind, asks_for_old_state_only(&parsed))
        };
        assert_eq!(rewind(&[("F", None)]), (Ok(RewindRequest::Recent), false));
        let dry = [
            &[("F", None), ("n", None)][..],
            &[("F", None), ("X", None), ("n", None)],
        ];
        for options in dry {
            assert_eq!(
                rewind(options),
                (Ok(RewindRequest::Never), false),
                "{options:?}"
            );
        }
        for wanted in [("T", Some("5")), ("rewind-to-checkpoint", None)] {
            assert!(rewind(&[("F", None), ("n", None), wanted]).1, "{wanted:?}");
        }
    }
}
