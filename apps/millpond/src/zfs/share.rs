//! `zfs share` and `zfs unshare`. File systems are not served over the network yet: those that should be are refused by name.

use super::lookup::{self, text};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{DatasetInfo, DatasetQuery};

const WORDS: [&str; 3] = ["sharenfs", "sharesmb", "mountpoint"];

fn file_systems() -> Kinds {
    Kinds::only(&[DatasetKind::Filesystem])
}

/// Whether a property says that the file system is shared.
fn is_wanted(info: &DatasetInfo) -> bool {
    let is_on = |name| text(info, name).is_some_and(|value| value != "off");
    is_on("sharenfs") || is_on("sharesmb")
}

fn not_served(info: &DatasetInfo) -> String {
    let at = text(info, "mountpoint").unwrap_or("its mount point");
    format!(
        "cannot share '{}': Millpond does not serve file systems over NFS or SMB; share {at} with exports(5) or smb.conf(5)",
        info.name
    )
}

/// Shares a file system, or with `-a` all whose properties say so.
pub fn share(session: &mut Session, parsed: &Parsed) -> Ending {
    if !parsed.has("a") {
        let info = one(
            session,
            parsed,
            "missing filesystem argument (specify -a for all)",
        )?;
        return Err(Failure::Refused(match is_wanted(&info) {
            true => not_served(&info),
            false => legacy(
                &info.name,
                "share",
                ", or set the sharenfs or sharesmb property",
            ),
        }));
    }
    if !parsed.operands.is_empty() {
        return Err(Failure::Usage("too many arguments".into()));
    }
    let mut status = 0;
    for root in crate::zpool::known(session)? {
        let depth = DatasetQuery::WHOLE_TREE;
        let all = lookup::below(session, &root, depth, file_systems(), &WORDS)?;
        for info in all.unwrap_or_default() {
            let is_mounted_by_property =
                text(&info, "mountpoint").is_some_and(|path| path.starts_with('/'));
            if is_wanted(&info) && is_mounted_by_property {
                writeln!(session.err, "{}", not_served(&info))?;
                status = 1;
            }
        }
    }
    Ok(status)
}

/// Ends sharing. Nothing is shared, so `-a` has nothing to do.
pub fn unshare(session: &mut Session, parsed: &Parsed) -> Ending {
    if parsed.has("a") {
        return match parsed.operands.is_empty() {
            true => Ok(0),
            false => Err(Failure::Usage("too many arguments".into())),
        };
    }
    let info = one(session, parsed, "missing filesystem argument")?;
    Err(Failure::Refused(match is_wanted(&info) {
        true => format!("cannot unshare '{}': not currently shared", info.name),
        false => legacy(&info.name, "unshare", ""),
    }))
}

fn one(session: &Session, parsed: &Parsed, missing: &str) -> Result<DatasetInfo, Failure> {
    match parsed.operands.as_slice() {
        [] => Err(Failure::Usage(missing.into())),
        [name] => lookup::open(session, name, file_systems(), &WORDS),
        _ => Err(Failure::Usage("too many arguments".into())),
    }
}

fn legacy(name: &str, verb: &str, more: &str) -> String {
    format!(
        "cannot {verb} '{name}': legacy share\nuse exports(5) or smb.conf(5) to {verb} this filesystem{more}"
    )
}
