//! Commands about snapshots and bookmarks: `snapshot`, `rollback`, `bookmark`, `hold`, `holds`, `release`.

use super::assign::{Assignment, understood, values};
use super::change_text::{failure, reason};
use super::lookup::{self, below, head_of, heads, one, pool_of, text};
use super::names;
use crate::command::Parsed;
use crate::progress::show_change;
use crate::session::{Ending, Failure, Session};
use crate::text::{columns::pad_right, date};
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{ChangeError, DatasetChange, DatasetInfo, DatasetQuery, PoolChange};
use millpond_engine::Refusal;

fn only_snapshots() -> Kinds {
    Kinds::only(&[DatasetKind::Snapshot])
}

fn usage<T>() -> Result<T, Failure> {
    Err(Failure::Usage(String::new()))
}

/// Takes snapshots.
pub fn snapshot(session: &mut Session, parsed: &Parsed) -> Ending {
    let words = parsed.values("o");
    let pairs = understood(words).map_err(Failure::Refused)?;
    if parsed.operands.is_empty() {
        return Err(Failure::Usage("missing snapshot argument".into()));
    }
    let mut all: Vec<String> = vec![];
    for name in &parsed.operands {
        if !name.contains('@') {
            return usage();
        }
        let action = format!("cannot create snapshot '{name}'");
        let refuse = |reason: &str| Failure::Refused(format!("{action}: {reason}"));
        names::check(name, only_snapshots()).map_err(|reason| refuse(&reason))?;
        if name.contains('%') {
            return Err(refuse("invalid character % in name"));
        }
        let head = head_of(name);
        let tail = &name[head.len()..];
        let depth = if parsed.has("r") {
            DatasetQuery::WHOLE_TREE
        } else {
            0
        };
        let Some(found) = below(session, head, depth, heads(), &[])? else {
            let text = format!("cannot open '{head}': dataset does not exist");
            return Err(Failure::Usage(text));
        };
        for info in found {
            let full = format!("{}{tail}", info.name);
            if !all.contains(&full) {
                all.push(full);
            }
        }
    }
    let mut known = vec![];
    for (name, value) in &pairs {
        let refuse = |text: &str| Failure::Refused(format!("cannot create snapshots : {text}"));
        let fits = Assignment::understand(name, value)
            .ok()
            .filter(|one| one.check_for(DatasetKind::Snapshot).is_ok());
        let Some(one) = fits else {
            return Err(refuse("this property can not be modified for snapshots"));
        };
        known.push(one);
    }
    let first = all.first().cloned().unwrap_or_default();
    let pool = pool_of(&first).to_owned();
    if all.iter().any(|name| pool_of(name) != pool) {
        return Err(Failure::Refused(SEVERAL_POOLS.into()));
    }
    let change = PoolChange::Dataset(DatasetChange::Snapshot {
        names: all.clone(),
        properties: values(&known),
    });
    let done = session.service()?.change(&pool, &[change], &parsed.line);
    let Err(failed) = done else { return Ok(0) };
    let text = match &failed.error {
        ChangeError::Refused {
            why: Refusal::SameDatasetTwice,
            ..
        } => SEVERAL_POOLS.to_owned(),
        // A full pool refuses all of them, by its own name.
        ChangeError::Refused { name, .. } if name.contains('@') => {
            let text = format!("cannot create snapshot '{name}': {}", reason(&failed.error));
            if all.len() > 1 {
                format!("{text}\nno snapshots were created")
            } else {
                text
            }
        }
        other => format!("cannot create snapshots : {}", reason(other)),
    };
    Err(Failure::Refused(text))
}

/// The error for snapshots in several pools, with the same text as for duplicates.
const SEVERAL_POOLS: &str = "cannot create snapshots : multiple snapshots of same fs not allowed\n\
                             no snapshots were created";

/// Rolls back a dataset.
pub fn rollback(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("too many arguments".into()));
    };
    let target = lookup::open(session, name, only_snapshots(), &[])?;
    let head = head_of(name);
    let kinds = only_snapshots().with(DatasetKind::Bookmark);
    let own = below(session, head, 1, kinds, &["clones", "createtxg"])?.unwrap_or_default();
    let is_newer =
        |info: &&DatasetInfo| head_of(&info.name) == head && info.created_txg > target.created_txg;
    let newer: Vec<DatasetInfo> = own.iter().filter(is_newer).cloned().collect();
    let action = format!("cannot rollback to '{name}'");
    let listed = |title: &str, names: Vec<String>| {
        let mut lines = format!("{action}: {title}");
        for name in names {
            lines.push_str(&format!("\n{name}"));
        }
        Failure::Refused(lines)
    };
    let (may_destroy, with_clones) = (parsed.has("r") || parsed.has("R"), parsed.has("R"));
    if !newer.is_empty() && !may_destroy {
        let mut names: Vec<String> = newer.iter().map(|info| info.name.clone()).collect();
        if names.len() > ROLLBACK_NAMES_MAX {
            names.truncate(ROLLBACK_NAMES_MAX);
            names.push("Output limited to 32 snapshots/bookmarks".into());
        }
        let title = "more recent snapshots or bookmarks exist\n\
                     use '-r' to force deletion of the following snapshots and bookmarks:";
        return Err(listed(title, names));
    }
    let mut clones = vec![];
    for info in &newer {
        let words = text(info, "clones").unwrap_or_default();
        let words = words
            .split(',')
            .filter(|word| !word.is_empty() && *word != "-");
        clones.extend(words.map(str::to_owned));
    }
    if !clones.is_empty() && !with_clones {
        let title = "clones of previous snapshots exist\n\
                     use '-R' to force deletion of the following clones and dependents:";
        return Err(listed(title, clones));
    }
    let mut gone = vec![];
    for clone in &clones {
        super::destroy::plan_tree(session, clone, &mut gone)?;
    }
    let is_bookmark = |info: &&DatasetInfo| info.kind == DatasetKind::Bookmark;
    let snapshots = newer.iter().rev().filter(|info| !is_bookmark(info));
    gone.extend(snapshots.map(|info| info.name.clone()));
    let mut changes = vec![];
    if !newer.is_empty() {
        changes.push(PoolChange::Dataset(DatasetChange::DestroyInOrder {
            names: gone,
            before_rollback: Some(name.clone()),
        }));
    }
    for info in newer.iter().rev().filter(is_bookmark) {
        changes.push(PoolChange::Dataset(DatasetChange::Destroy {
            name: info.name.clone(),
        }));
    }
    changes.push(PoolChange::Dataset(DatasetChange::Rollback {
        snapshot: name.clone(),
    }));
    let shown = show_change(session, pool_of(name));
    let done = session
        .service()?
        .change(pool_of(name), &changes, &parsed.line);
    drop(shown);
    let changed = done.map_err(|failed| failure(&action, &failed))?;
    super::tell_notes(session, &changed.notes)?;
    Ok(u8::from(!changed.notes.is_empty()))
}

/// Maximum number of snapshots and bookmarks listed.
const ROLLBACK_NAMES_MAX: usize = 32;

/// Creates a bookmark.
pub fn bookmark(session: &mut Session, parsed: &Parsed) -> Ending {
    let [source, name, rest @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing bookmark argument".into()));
    };
    if !rest.is_empty() {
        return Err(Failure::Usage("too many arguments".into()));
    }
    if !source.contains(['@', '#']) {
        let text = format!("invalid source name '{source}': must contain a '@' or '#'");
        return Err(Failure::Usage(text));
    }
    if !name.contains('#') {
        let text = format!("invalid bookmark name '{name}': must contain a '#'");
        return Err(Failure::Usage(text));
    }
    let (mut source, mut name) = (source.clone(), name.clone());
    match (source.starts_with(['@', '#']), name.starts_with('#')) {
        (true, true) => {
            let text = "either source or bookmark must be specified as full dataset paths";
            session.err.write_all(text.as_bytes())?;
            return usage_after(session);
        }
        (true, false) => source = format!("{}{source}", head_of(&name)),
        (false, true) => name = format!("{}{name}", head_of(&source)),
        (false, false) => {}
    }
    let action = format!("cannot create bookmark '{name}'");
    names::check(&name, Kinds::only(&[DatasetKind::Bookmark]))
        .map_err(|reason| Failure::Refused(format!("{action}: {reason}")))?;
    if one(session, &source, &[])?.is_none() {
        let text = format!("cannot open '{source}': dataset does not exist");
        return Err(Failure::Usage(text));
    }
    let pool = pool_of(&source).to_owned();
    let change = PoolChange::Dataset(DatasetChange::Bookmark { source, name });
    let done = session.service()?.change(&pool, &[change], &parsed.line);
    done.map_err(|failed| match &failed.error {
        ChangeError::Refused {
            why: Refusal::FeatureDisabled,
            ..
        } => Failure::Refused(format!("{action}: bookmark feature not enabled")),
        _ => failure(&action, &failed),
    })?;
    Ok(0)
}

/// Prints the usage directly after the error.
fn usage_after(session: &mut Session) -> Ending {
    session
        .err
        .write_all(super::usage::of("bookmark").as_bytes())?;
    Err(Failure::Status(2))
}

/// The tag and the snapshots of `hold` and `release`; with `-r` also snapshots of the same name below.
fn tagged(
    session: &mut Session,
    parsed: &Parsed,
    verb: &str,
) -> Result<(String, Vec<String>), Failure> {
    let [tag, names @ ..] = parsed.operands.as_slice() else {
        return usage();
    };
    if names.is_empty() {
        return usage();
    }
    let mut all = vec![];
    for name in names {
        let Some((head, short)) = name.split_once('@') else {
            return Err(Failure::Refused(format!("'{name}' is not a snapshot")));
        };
        let missing = || {
            Failure::Refused(format!(
                "cannot {verb} snapshot '{name}': dataset does not exist"
            ))
        };
        if parsed.has("r") {
            let whole = DatasetQuery::WHOLE_TREE;
            let found = below(session, head, whole, only_snapshots(), &[])?.ok_or_else(missing)?;
            let named =
                |info: &&DatasetInfo| info.name.rsplit_once('@').map(|(_, s)| s) == Some(short);
            all.extend(found.iter().filter(named).map(|info| info.name.clone()));
        } else {
            one(session, name, &[])?.ok_or_else(missing)?;
            all.push(name.clone());
        }
        if all.is_empty() {
            return Err(missing());
        }
    }
    Ok((tag.clone(), all))
}

/// Holds snapshots.
pub fn hold(session: &mut Session, parsed: &Parsed) -> Ending {
    let (tag, names) = tagged(session, parsed, "hold")?;
    let first = names.first().cloned().unwrap_or_default();
    let change = PoolChange::Dataset(DatasetChange::Hold { names, tag });
    let done = session
        .service()?
        .change(pool_of(&first), &[change], &parsed.line);
    done.map_err(|failed| {
        if let ChangeError::Refused {
            why: Refusal::OldPool,
            ..
        } = &failed.error
        {
            return Failure::Refused(format!("cannot hold: {}", Refusal::OldPool));
        }
        let name = refused_name(&failed.error).unwrap_or(first.clone());
        failure(&format!("cannot hold snapshot '{name}'"), &failed)
    })?;
    Ok(0)
}

/// Releases snapshots.
pub fn release(session: &mut Session, parsed: &Parsed) -> Ending {
    let (tag, names) = tagged(session, parsed, "release hold from")?;
    let first = names.first().cloned().unwrap_or_default();
    let change = PoolChange::Dataset(DatasetChange::Release { names, tag });
    let done = session
        .service()?
        .change(pool_of(&first), &[change], &parsed.line);
    done.map_err(|failed| {
        let name = refused_name(&failed.error).unwrap_or(first.clone());
        failure(
            &format!("cannot release hold from snapshot '{name}'"),
            &failed,
        )
    })?;
    Ok(0)
}

fn refused_name(error: &ChangeError) -> Option<String> {
    match error {
        ChangeError::Refused { name, .. } => Some(name.clone()),
        _ => None,
    }
}

/// Lists the holds of snapshots.
pub fn holds(session: &mut Session, parsed: &Parsed) -> Ending {
    if parsed.operands.is_empty() {
        return usage();
    }
    let mut rows: Vec<(String, String, String)> = vec![];
    let mut complaints = vec![];
    for name in &parsed.operands {
        let Some((head, short)) = name.split_once('@') else {
            complaints.push(format!("'{name}' is not a snapshot"));
            continue;
        };
        let depth = if parsed.has("r") {
            DatasetQuery::WHOLE_TREE
        } else {
            1
        };
        let found = below(session, head, depth, only_snapshots(), &[])?.unwrap_or_default();
        let named = found.iter().filter(|info| match parsed.has("r") {
            true => info.name.rsplit_once('@').map(|(_, s)| s) == Some(short),
            false => info.name == *name,
        });
        let mut is_there = false;
        for info in named {
            is_there = true;
            let holds = session.service()?.holds(&info.name);
            let holds = holds.map_err(|error| {
                Failure::Refused(format!("cannot open '{}': {error}", info.name))
            })?;
            for (tag, time_s) in holds {
                let time = match parsed.has("p") {
                    true => time_s.to_string(),
                    false => date::minutes(time_s, &session.environment.zone),
                };
                rows.push((info.name.clone(), tag, time));
            }
        }
        if !is_there {
            complaints.push(format!("cannot open '{name}': dataset does not exist"));
        }
    }
    if parsed.has("H") {
        for (name, tag, time) in &rows {
            writeln!(session.out, "{name}\t{tag}\t{time}")?;
        }
    } else {
        // Titles do not count for the column width.
        let names = rows.iter().map(|(name, _, _)| name.len()).max();
        let tags = rows.iter().map(|(_, tag, _)| tag.len()).max().unwrap_or(0);
        let names = names.unwrap_or_else(|| {
            parsed.operands.iter().map(String::len).max().unwrap_or(0)
                * usize::from(complaints.is_empty())
        });
        let line = |name: &str, tag: &str, time: &str| {
            let mut text = String::new();
            pad_right(&mut text, name, names);
            text.push_str("  ");
            pad_right(&mut text, tag, tags);
            format!("{text}  {time}")
        };
        writeln!(session.out, "{}", line("NAME", "TAG", "TIMESTAMP"))?;
        for (name, tag, time) in &rows {
            writeln!(session.out, "{}", line(name, tag, time))?;
        }
    }
    if complaints.is_empty() {
        return Ok(0);
    }
    for complaint in complaints {
        writeln!(session.err, "{complaint}")?;
    }
    writeln!(session.err, "no datasets available")?;
    Ok(1)
}
