//! `zfs mount` and `zfs unmount`; also the messages of other commands about mounts.

use super::keys::{load_for, unload_one};
use super::lookup::{self, number, text};
use super::mount_helper::is_known;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::json;
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{DatasetQuery, MountInfo, MountProblem, MountRequest, Note};

const CAN_MOUNT_ON: u64 = 1;

fn file_systems() -> Kinds {
    Kinds::only(&[DatasetKind::Filesystem])
}

/// Mounts file systems, or lists mounted ones.
pub fn mount(session: &mut Session, parsed: &Parsed) -> Ending {
    let options: Vec<String> = parsed.values("o").map(str::to_owned).collect();
    let mut words = options.iter().flat_map(|words| words.split(','));
    let has_unknown = words.any(|word| !word.is_empty() && !is_known(word));
    let request = MountRequest {
        options,
        overlay: parsed.has("O"),
        force: parsed.has("f"),
        load_keys: parsed.has("l"),
        at: None,
    };
    if parsed.has("a") {
        if !parsed.operands.is_empty() {
            return Err(Failure::Usage("too many arguments".into()));
        }
        let roots = crate::zpool::known(session)?;
        return mount_all(session, &roots, &request);
    }
    match parsed.operands.as_slice() {
        [] => list(session, parsed.has("j")),
        [name] => {
            lookup::open(session, name, file_systems(), &[])?;
            if has_unknown {
                return Err(Failure::Refused(format!(
                    "cannot mount '{name}': Invalid argument"
                )));
            }
            if parsed.has("R") {
                return mount_all(session, std::slice::from_ref(name), &request);
            }
            if request.load_keys
                && let Err(reason) = load_for(session, name)
            {
                return Err(Failure::Refused(format!("Key load error: {reason}")));
            }
            let done = session.daemon()?.mount(name, &request);
            done.map_err(|why| Failure::Refused(not_mounted(name, &why)))?;
            Ok(0)
        }
        _ => Err(Failure::Usage("too many arguments".into())),
    }
}

/// Mounts every file system that is mounted automatically and is not mounted yet.
fn mount_all(session: &mut Session, roots: &[String], request: &MountRequest) -> Ending {
    let mut wanted = vec![];
    for root in roots {
        let words = [
            "mountpoint",
            "canmount",
            "mounted",
            "keystatus",
            "redacted",
            "inconsistent",
        ];
        let all = lookup::below(
            session,
            root,
            DatasetQuery::WHOLE_TREE,
            file_systems(),
            &words,
        )?;
        for info in all.unwrap_or_default() {
            let is_locked = number(&info, "keystatus") == Some(1);
            let is_redacted = number(&info, "redacted") == Some(1);
            let mountpoint = text(&info, "mountpoint").unwrap_or_default().to_owned();
            let is_wanted = number(&info, "canmount") == Some(CAN_MOUNT_ON)
                && number(&info, "mounted") != Some(1)
                && mountpoint.starts_with('/')
                && (!is_locked || request.load_keys)
                && (!is_redacted || request.force)
                // Its receive was interrupted: there are no files yet.
                && number(&info, "inconsistent") != Some(1);
            if is_wanted {
                wanted.push((mountpoint, info.name));
            }
        }
    }
    // Parents before their children.
    wanted.sort_by(|(a, _), (b, _)| a.split('/').cmp(b.split('/')));
    let mut status = 0;
    for (_, name) in wanted {
        if request.load_keys
            && let Err(reason) = load_for(session, &name)
        {
            writeln!(session.err, "Key load error: {reason}")?;
            status = 1;
            continue;
        }
        match session.daemon()?.mount(&name, request) {
            Ok(()) | Err(MountProblem::Already) => {}
            Err(why) => {
                writeln!(session.err, "{}", not_mounted(&name, &why))?;
                status = 1;
            }
        }
    }
    Ok(status)
}

/// Mounts what became mountable in a pool that was just imported.
pub fn mount_pool(session: &mut Session, pool: &str, options: &[String]) -> Ending {
    let request = MountRequest {
        options: options.to_vec(),
        ..MountRequest::default()
    };
    mount_all(session, &[pool.to_owned()], &request)
}

fn list(session: &mut Session, is_json: bool) -> Ending {
    let to_error = |error: millpond_control::ControlError| Failure::Refused(error.to_string());
    let mounts = session.daemon()?.mounts().map_err(to_error)?;
    if is_json {
        let mut all = serde_json::Map::new();
        for mount in mounts {
            let entry = serde_json::json!({
                "filesystem": mount.dataset,
                "mountpoint": mount.mountpoint,
            });
            all.insert(mount.dataset, entry);
        }
        let mut document = json::document("zfs mount");
        document.insert("datasets".into(), all.into());
        writeln!(session.out, "{}", serde_json::Value::from(document))?;
        return Ok(0);
    }
    for mount in mounts {
        writeln!(session.out, "{:<30}  {}", mount.dataset, mount.mountpoint)?;
    }
    Ok(0)
}

/// Unmounts file systems.
pub fn unmount(session: &mut Session, parsed: &Parsed) -> Ending {
    let to_error = |error: millpond_control::ControlError| Failure::Refused(error.to_string());
    let force = parsed.has("f");
    if parsed.has("a") {
        if !parsed.operands.is_empty() {
            return Err(Failure::Usage("too many arguments".into()));
        }
        let mounts = session.daemon()?.mounts().map_err(to_error)?;
        let mut status = 0;
        let roots = roots_of(session, parsed, mounts.iter().map(|mount| &mount.dataset))?;
        for mount in mounts.iter().rev() {
            match session.daemon()?.unmount(&mount.dataset, force) {
                Ok(()) | Err((_, MountProblem::NotMounted)) => {}
                Err((at, why)) => {
                    writeln!(session.err, "{}", not_unmounted(&at, &why))?;
                    status = 1;
                }
            }
        }
        return unload(session, &roots, status);
    }
    let word = match parsed.operands.as_slice() {
        [] => return Err(Failure::Usage("missing filesystem argument".into())),
        [word] => word,
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    let dataset = if word.starts_with('/') {
        let mounts = session.daemon()?.mounts().map_err(to_error)?;
        let found = mounts.iter().rev().find(|mount| mount.mountpoint == *word);
        let Some(MountInfo { dataset, .. }) = found else {
            return Err(Failure::Refused(
                match std::path::Path::new(word).exists() {
                    true => format!("cannot unmount '{word}': not a ZFS filesystem"),
                    false => format!(
                        "cannot open '{word}': No such file or directory\n\
                     warning: {word} not in/proc/self/mounts\n\
                     {word}: No such file or directory"
                    ),
                },
            ));
        };
        dataset.clone()
    } else {
        lookup::open(session, word, file_systems(), &[])?;
        word.clone()
    };
    let roots = roots_of(session, parsed, std::iter::once(&dataset))?;
    let done = session.daemon()?.unmount(&dataset, force);
    done.map_err(|(at, why)| Failure::Refused(not_unmounted(&at, &why)))?;
    unload(session, &roots, 0)
}

/// With `-u`: the encryption roots among datasets that are to be unmounted.
fn roots_of<'n>(
    session: &Session,
    parsed: &Parsed,
    names: impl Iterator<Item = &'n String>,
) -> Result<Vec<String>, Failure> {
    let mut roots = vec![];
    if parsed.has("u") {
        for name in names {
            let info = lookup::one(session, name, &["encryptionroot"])?;
            if info.is_some_and(|info| text(&info, "encryptionroot") == Some(name)) {
                roots.push(name.clone());
            }
        }
    }
    Ok(roots)
}

fn unload(session: &mut Session, roots: &[String], mut status: u8) -> Ending {
    for root in roots {
        if let Err(reason) = unload_one(session, root) {
            writeln!(session.err, "Key unload error: {reason}")?;
            status = 1;
        }
    }
    Ok(status)
}

/// The message for a file system that could not be mounted.
fn not_mounted(dataset: &str, why: &MountProblem) -> String {
    let reason = match why {
        MountProblem::Legacy => "legacy mountpoint\nuse mount(8) to mount this filesystem".into(),
        MountProblem::Busy => "mountpoint or dataset is busy".into(),
        other => other.to_string(),
    };
    format!("cannot mount '{dataset}': {reason}")
}

/// The message for a file system that could not be unmounted.
pub fn not_unmounted(at: &str, why: &MountProblem) -> String {
    let reason = match why {
        MountProblem::Legacy => {
            "legacy mountpoint\nuse umount(8) to unmount this filesystem".into()
        }
        other => other.to_string(),
    };
    format!("cannot unmount '{at}': {reason}")
}

/// Prints the parts of a change that were not completed.
pub fn tell_notes(session: &mut Session, notes: &[Note]) -> std::io::Result<()> {
    for note in notes {
        let line = match note {
            Note::NotMounted { dataset, why, .. } => not_mounted(dataset, why),
            Note::NoActivity { leaf, why } => format!("cannot work on '{leaf}': {why}"),
            Note::StillMounted {
                mountpoint, why, ..
            } => not_unmounted(mountpoint, why),
            Note::CacheFile { path, why } => crate::warned::not_written(path, why),
        };
        writeln!(session.err, "{line}")?;
    }
    Ok(())
}
