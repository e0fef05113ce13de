//! `zfs upgrade`: lists file systems of older versions, and upgrades them.

use super::change_text::reason;
use super::lookup::{self, below, number, pool_of};
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{DatasetChange, DatasetInfo, DatasetQuery, PoolChange, PoolVersion, Value};

/// The newest version of file systems.
const VERSION: u64 = 5;

/// Lists versions, or upgrades file systems.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let usage = || Failure::Usage(String::new());
    let names = &parsed.operands;
    if parsed.has("v") {
        if parsed.has("a") || parsed.has("r") || !names.is_empty() {
            return Err(usage());
        }
        write!(session.out, "{VERSIONS}")?;
        return Ok(0);
    }
    let wanted = match parsed.value("V") {
        None | Some("current") => VERSION,
        Some(word) => {
            let number: Option<u64> = word.parse().ok();
            let known = number.filter(|number| (1..=VERSION).contains(number));
            known.ok_or_else(|| Failure::Usage(format!("invalid version {word}")))?
        }
    };
    let is_all = parsed.has("a");
    if is_all && !names.is_empty() {
        return Err(usage());
    }
    if names.is_empty() && !is_all {
        return match parsed.has("r") || parsed.has("V") {
            true => Err(usage()),
            false => list(session),
        };
    }
    let (targets, mut status) = targets(session, parsed)?;
    let mut current = 0u64;
    let mut old: Vec<String> = vec![];
    for info in targets {
        match number(&info, "version") {
            Some(version) if version > wanted => {
                writeln!(
                    session.out,
                    "{}: can not be downgraded; it is already at version {version}",
                    info.name
                )?;
                status = 1;
            }
            Some(version) if version < wanted => {
                let needed = PoolVersion::for_file_systems(wanted).0;
                if pool_version(session, pool_of(&info.name))? < needed {
                    writeln!(
                        session.out,
                        "{}: can not be upgraded; the pool version needs to first be upgraded\nto version {needed}\n",
                        info.name
                    )?;
                    status = 1;
                } else {
                    old.push(info.name);
                }
            }
            _ => current += 1,
        }
    }
    let raised = raise(session, &old, wanted, &parsed.line)?;
    status |= u8::from(raised < old.len());
    writeln!(session.out, "{raised} filesystems upgraded")?;
    if current > 0 {
        writeln!(session.out, "{current} filesystems already at this version")?;
    }
    Ok(status)
}

fn file_systems() -> Kinds {
    Kinds::only(&[DatasetKind::Filesystem])
}

/// The selected file systems without duplicates, and status 1 if a name does not exist.
fn targets(session: &mut Session, parsed: &Parsed) -> Result<(Vec<DatasetInfo>, u8), Failure> {
    let is_all = parsed.has("a");
    let names = match is_all {
        true => pools(session)?,
        false => parsed.operands.clone(),
    };
    let depth = match is_all || parsed.has("r") {
        true => DatasetQuery::WHOLE_TREE,
        false => 0,
    };
    let mut all: Vec<DatasetInfo> = vec![];
    let mut status = 0;
    for name in names {
        match lookup::open(session, &name, file_systems(), &[]) {
            Ok(_) => {}
            Err(Failure::Refused(text)) => {
                writeln!(session.err, "{text}")?;
                status = 1;
                continue;
            }
            Err(other) => return Err(other),
        }
        let found = below(session, &name, depth, file_systems(), &["version"])?;
        for info in found.unwrap_or_default() {
            if !all.iter().any(|known| known.name == info.name) {
                all.push(info);
            }
        }
    }
    Ok((all, status))
}

/// Upgrades the file systems, those of one pool together. Returns their number.
fn raise(
    session: &mut Session,
    names: &[String],
    wanted: u64,
    line: &str,
) -> Result<usize, Failure> {
    let mut raised = 0;
    let mut left = names;
    while let Some(first) = left.first() {
        let pool = pool_of(first);
        let count = left.iter().take_while(|name| pool_of(name) == pool).count();
        let changes: Vec<PoolChange> = left[..count]
            .iter()
            .map(|name| {
                PoolChange::Dataset(DatasetChange::Set {
                    name: name.clone(),
                    properties: vec![("version".into(), Value::Number(wanted))],
                    mount: true,
                })
            })
            .collect();
        match session.service()?.change(pool, &changes, line) {
            Ok(changed) => {
                super::tell_notes(session, &changed.notes)?;
                raised += count;
                left = &left[count..];
            }
            Err(failed) => {
                raised += failed.done.min(count);
                let at = failed.done.min(count - 1);
                writeln!(
                    session.err,
                    "cannot set property for '{}': {}",
                    left[at],
                    reason(&failed.error)
                )?;
                left = &left[at + 1..];
            }
        }
    }
    Ok(raised)
}

fn pools(session: &Session) -> Result<Vec<String>, Failure> {
    let pools = session.service()?.pools();
    pools.map_err(|error| Failure::Refused(error.to_string()))
}

fn pool_version(session: &Session, pool: &str) -> Result<u64, Failure> {
    let result = session.service()?.pool(pool);
    result
        .map(|info| info.version)
        .map_err(|error| Failure::Refused(error.to_string()))
}

fn list(session: &mut Session) -> Ending {
    let mut old = vec![];
    for pool in pools(session)? {
        let depth = DatasetQuery::WHOLE_TREE;
        let found = below(session, &pool, depth, file_systems(), &["version"])?;
        for info in found.unwrap_or_default() {
            if let Some(version) = number(&info, "version").filter(|version| *version < VERSION) {
                old.push((version, info.name));
            }
        }
    }
    write!(
        session.out,
        "This system is currently running ZFS filesystem version {VERSION}.\n\n"
    )?;
    if old.is_empty() {
        writeln!(
            session.out,
            "All filesystems are formatted with the current version."
        )?;
        return Ok(0);
    }
    write!(session.out, "{OUT_OF_DATE}")?;
    for (version, name) in old {
        writeln!(session.out, "{version:2}   {name}")?;
    }
    Ok(0)
}

const OUT_OF_DATE: &str = "\
The following filesystems are out of date, and can be upgraded.  After being
upgraded, these filesystems (and any 'zfs send' streams generated from
subsequent snapshots) will no longer be accessible by older software versions.


VER  FILESYSTEM
---  ------------
";

const VERSIONS: &str = "\
The following filesystem versions are supported:

VER  DESCRIPTION
---  --------------------------------------------------------
 1   Initial ZFS filesystem version
 2   Enhanced directory entries
 3   Case insensitive and filesystem user identifier (FUID)
 4   userquota, groupquota properties
 5   System attributes

For more information on a particular version, including supported releases,
see the ZFS Administration Guide.

";
