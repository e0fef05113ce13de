//! `zfs create` and `zfs clone`.

use super::assign::{Assignment, check_together, understood, values};
use super::change_text::failure;
use super::key_input::of_new_dataset;
use super::lookup::{self, one, pool_of};
use super::names;
use super::set::owner_quotas;
use super::volume;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::size;
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{ChangeError, DatasetChange, MountProblem, Note, PoolChange, Value};
use millpond_engine::Refusal;
use millpond_env::Tunable;

/// Creates a file system or volume.
pub fn create(session: &mut Session, parsed: &Parsed) -> Ending {
    let mut volume_size = None;
    for (option, value) in &parsed.options {
        if option == "V" {
            let text = value.as_deref().unwrap_or_default();
            let bytes = size::parse(text).map_err(|reason| {
                Failure::Refused(format!("bad volume size '{text}': {reason}"))
            })?;
            volume_size = Some(bytes);
        }
    }
    let assignments = parsed.values("o");
    let mut pairs = understood(assignments).map_err(Failure::Refused)?;
    if volume_size.is_none() && (parsed.has("s") || parsed.has("b")) {
        let text = "'-s' and '-b' can only be used when creating a volume";
        return Err(Failure::Usage(text.into()));
    }
    if let Some(block) = parsed.value("b") {
        // Printed as a number, unlike a value of `-o`.
        let bytes = size::parse(block).map(|bytes| bytes.to_string());
        pairs.push(("volblocksize".into(), bytes.unwrap_or(block.to_owned())));
    }
    let name = match parsed.operands.as_slice() {
        [] => return Err(Failure::Usage("missing filesystem argument".into())),
        [name] => name,
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    let action = format!("cannot create '{name}'");
    let refuse = |reason: &str| Failure::Refused(format!("{action}: {reason}"));
    let kind = match volume_size {
        Some(_) => DatasetKind::Volume,
        None => DatasetKind::Filesystem,
    };
    check_new_name(name, kind).map_err(|reason| refuse(&reason))?;
    let mut assignments = vec![];
    for (name, value) in &pairs {
        let known = Assignment::understand(name, value).map_err(|reason| refuse(&reason))?;
        known
            .check_for_new(kind)
            .map_err(|reason| refuse(&reason))?;
        assignments.push(known);
    }
    let quotas = owner_quotas(session, name, &assignments).map_err(|reason| refuse(&reason))?;
    check_together(&pairs).map_err(|reason| refuse(&reason))?;
    let given = pairs.clone();
    let mut changes = make_ancestors(session, name, parsed.has("p"), &action)?;
    if one(session, name, &[])?.is_some() {
        if parsed.has("p") {
            return Ok(0);
        }
        return Err(refuse("dataset already exists"));
    }
    let mut properties = values(&assignments);
    // What `-n` and `-v` print. Numbers chosen by the program are in digits.
    let mut shown: Vec<(String, String)> = vec![];
    if let Some(bytes) = volume_size {
        if bytes == 0 {
            return Err(refuse("volume size cannot be zero"));
        }
        let plan = volume::plan(session, name, bytes, &assignments, parsed.has("s"))?;
        properties.retain(|(name, _)| name != "refreservation");
        properties.push(("volsize".into(), Value::Number(plan.size_bytes)));
        shown.push(("volsize".into(), plan.size_bytes.to_string()));
        shown.extend(pairs.iter().cloned());
        if let Some((property, bytes)) = plan.reservation {
            properties.retain(|(name, _)| name != property);
            properties.push((property.into(), Value::Number(bytes)));
            shown.retain(|(name, _)| name != property);
            shown.push((property.into(), bytes.to_string()));
        }
        if let Some(warning) = plan.warning {
            writeln!(session.err, "{warning}")?;
        }
    } else {
        shown = pairs;
    }
    // With `-p` also if none is missing, as OpenZFS does.
    tell(session, parsed, name, parsed.has("p"), &shown)?;
    let parent = name.rsplit_once('/').map(|(parent, _)| parent);
    let key = of_new_dataset(session, parent, &given, parsed.has("n"));
    let key = key.map_err(|reason| refuse(&reason))?;
    if parsed.has("n") {
        return Ok(0);
    }
    let name = name.clone();
    changes.push(PoolChange::Dataset(match kind {
        DatasetKind::Volume => DatasetChange::CreateVolume {
            name,
            properties,
            key,
        },
        _ => DatasetChange::CreateFileSystem {
            name,
            properties,
            mount: !parsed.has("u"),
            key,
        },
    }));
    changes.extend(quotas);
    run(session, parsed, &changes, &action)
}

/// Creates a clone of a snapshot.
pub fn clone(session: &mut Session, parsed: &Parsed) -> Ending {
    let [source, name] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("too many arguments".into()));
    };
    let assignments = parsed.values("o");
    let pairs = understood(assignments).map_err(Failure::Refused)?;
    let origin = lookup::open(
        session,
        source,
        Kinds::only(&[DatasetKind::Snapshot]),
        &["volsize"],
    )?;
    let action = format!("cannot create '{name}'");
    let refuse = |reason: &str| Failure::Refused(format!("{action}: {reason}"));
    let kind = match lookup::number(&origin, "volsize") {
        Some(size) if size > 0 => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    };
    check_new_name(name, kind).map_err(|reason| refuse(&reason))?;
    if pool_of(name) != pool_of(source) {
        return Err(refuse("source and target pools differ"));
    }
    let mut changes = make_ancestors(session, name, parsed.has("p"), &action)?;
    if one(session, name, &[])?.is_some() {
        if parsed.has("p") {
            return Ok(0);
        }
        return Err(refuse("dataset already exists"));
    }
    let mut known = vec![];
    for (name, value) in &pairs {
        let one = Assignment::understand(name, value).map_err(|reason| refuse(&reason))?;
        one.check_for(kind).map_err(|reason| refuse(&reason))?;
        known.push(one);
    }
    let quotas = owner_quotas(session, name, &known).map_err(|reason| refuse(&reason))?;
    let mut properties = values(&known);
    if known.iter().any(Assignment::is_auto) {
        let size_bytes = lookup::number(&origin, "volsize").unwrap_or(0);
        properties.push(volume::of_clone(session, source, name, size_bytes, &known)?);
    }
    changes.push(PoolChange::Dataset(DatasetChange::Clone {
        snapshot: source.clone(),
        name: name.clone(),
        properties,
        mount: !parsed.has("u"),
    }));
    changes.extend(quotas);
    run(session, parsed, &changes, &action)
}

fn run(session: &mut Session, parsed: &Parsed, changes: &[PoolChange], action: &str) -> Ending {
    let pool = parsed.operands.last().map_or("", |name| pool_of(name));
    let done = session.service()?.change(pool, changes, &parsed.line);
    let changed = done.map_err(|failed| match &failed.error {
        // For new datasets the words of OpenZFS are shorter.
        ChangeError::Property { reason, .. } if reason.contains("must be upgraded to set") => {
            let words = "pool must be upgraded to set this property or value";
            Failure::Refused(format!("{action}: {words}"))
        }
        _ => failure(action, &failed),
    })?;
    if changed.notes.is_empty() {
        return Ok(0);
    }
    let is_denied = |note: &Note| {
        let Note::NotMounted { why, .. } = note else {
            return false;
        };
        *why == MountProblem::Denied
    };
    if changed.notes.iter().all(is_denied) {
        let text = "filesystem successfully created, but it may only be mounted by root";
        writeln!(session.err, "{text}")?;
        return Ok(1);
    }
    super::tell_notes(session, &changed.notes)?;
    writeln!(
        session.err,
        "filesystem successfully created, but not mounted"
    )?;
    Ok(1)
}

/// Checks whether a new dataset of this kind can have this name.
pub fn check_new_name(name: &str, kind: DatasetKind) -> Result<(), String> {
    names::check(name, Kinds::only(&[kind]))?;
    if name.contains('%') {
        return Err("invalid character % in name".into());
    }
    if !name.contains('/') {
        return Err("missing dataset name".into());
    }
    Ok(())
}

/// Returns the changes that create the missing ancestors of a new dataset, from the top.
///
/// Fails if they may not be created.
pub fn make_ancestors(
    session: &Session,
    name: &str,
    may_make: bool,
    action: &str,
) -> Result<Vec<PoolChange>, Failure> {
    let refuse = |reason: &str| Failure::Refused(format!("{action}: {reason}"));
    let pool = pool_of(name);
    if one(session, pool, &[])?.is_none() {
        return Err(refuse(&format!("no such pool '{pool}'")));
    }
    let mut missing = vec![];
    let mut at = name;
    while let Some((parent, _)) = at.rsplit_once('/') {
        if let Some(found) = one(session, parent, &[])? {
            if found.kind != DatasetKind::Filesystem {
                return Err(refuse("parent is not a filesystem"));
            }
            break;
        }
        missing.insert(0, parent.to_owned());
        at = parent;
    }
    // Checked before any of them is made: a dataset that is refused then would leave them behind.
    if !missing.is_empty() && name.matches('/').count() >= nesting_max(session) {
        return Err(refuse(&Refusal::TooDeep.to_string()));
    }
    if !missing.is_empty() && !may_make {
        return Err(refuse("parent does not exist"));
    }
    let make = |name| {
        PoolChange::Dataset(DatasetChange::CreateFileSystem {
            name,
            properties: vec![],
            mount: true,
            key: None,
        })
    };
    Ok(missing.into_iter().map(make).collect())
}

/// A dataset has fewer slashes in its name than this.
fn nesting_max(session: &Session) -> usize {
    let tunable = Tunable::MaxDatasetNesting;
    let all = session.service().ok().and_then(|it| it.tunables().ok());
    let mut all = all.into_iter().flatten();
    let set = all.find(|one| one.name == tunable.name());
    // Without a daemon it has its default.
    let max = set.map_or(tunable.default_value(), |one| one.value);
    usize::try_from(max).unwrap_or(usize::MAX)
}

/// Prints the output of `-n`, `-v` and `-P`.
fn tell(
    session: &mut Session,
    parsed: &Parsed,
    name: &str,
    has_ancestors: bool,
    properties: &[(String, String)],
) -> std::io::Result<()> {
    let is_dry = parsed.has("n");
    let is_for_programs = parsed.has("P");
    let out = &mut *session.out;
    if is_for_programs {
        if has_ancestors {
            writeln!(out, "create_ancestors\t{name}")?;
        }
        writeln!(out, "create\t{name}")?;
        for (name, value) in properties {
            writeln!(out, "property\t{name}\t{value}")?;
        }
    } else if parsed.has("v") {
        let verb = if is_dry { "would create" } else { "create" };
        if has_ancestors {
            writeln!(out, "{verb} ancestors of {name}")?;
        }
        writeln!(out, "{verb} {name}")?;
        for (name, value) in properties {
            writeln!(out, "\t{name}={value}")?;
        }
    }
    Ok(())
}
