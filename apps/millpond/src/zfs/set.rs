//! `zfs set` and `zfs inherit`.

use super::assign::{Assignment, Meaning, owner_number, understood, values};
use super::change_text::reason;
use super::lookup::{self, below, number, pool_of};
use super::volume;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::text::number as numbers;
use millpond_control::properties::Edit;
use millpond_control::properties::{DatasetKind, Kinds, PropertyName, by_name};
use millpond_control::{
    ChangeError, DatasetChange, DatasetInfo, DatasetQuery, Note, OwnerQuota, PoolChange, Value,
    VdevClass,
};
use millpond_engine::Refusal;

/// Sets properties of datasets.
pub fn set(session: &mut Session, parsed: &Parsed) -> Ending {
    let is_assignment = |word: &&String| word.contains('=');
    let words = parsed.operands.iter().take_while(is_assignment);
    let count = words.clone().count();
    let names = &parsed.operands[count..];
    if count == 0 {
        // Like OpenZFS: every word counts as a dataset, so there is nothing to set.
        let mut status = 0;
        for name in names {
            match lookup::open(session, name, Kinds::ALL, &[]) {
                Ok(_) => {}
                Err(Failure::Refused(text)) => {
                    writeln!(session.err, "{text}")?;
                    status = 1;
                }
                Err(other) => return Err(other),
            }
        }
        return Ok(status);
    }
    if names.is_empty() {
        return Err(Failure::Usage("missing dataset name(s)".into()));
    }
    let pairs = match understood(words.map(String::as_str)) {
        Ok(pairs) => pairs,
        Err(line) => {
            writeln!(session.err, "{line}")?;
            return Err(Failure::Status(255));
        }
    };
    let mut targets = vec![];
    let wanted = [
        "volsize",
        "volblocksize",
        "refreservation",
        "reservation",
        "version",
    ];
    for name in names {
        let kinds = lookup::heads().with(DatasetKind::Snapshot);
        targets.push(lookup::open(session, name, kinds, &wanted)?);
    }
    if pairs.iter().any(|(name, _)| name == "special_small_blocks") {
        warn_without_special(session, pool_of(&targets[0].name))?;
    }
    // All changes of one pool are made together: the pool is opened once, and its history gets one record.
    let mut changes: Vec<(String, Vec<(String, PoolChange)>)> = vec![];
    for target in &targets {
        let name = &target.name;
        let planned = match plan_one(session, target, &pairs, !parsed.has("u"))? {
            Ok(planned) => planned,
            Err(reason) => return refused(session, name, &reason),
        };
        let pool = pool_of(name).to_owned();
        let planned = planned.into_iter().map(|change| (name.clone(), change));
        match changes.iter_mut().find(|(known, _)| *known == pool) {
            Some((_, all)) => all.extend(planned),
            None => changes.push((pool, planned.collect())),
        }
    }
    let mut status = 0;
    for (pool, changes) in changes {
        let (names, changes): (Vec<String>, Vec<PoolChange>) = changes.into_iter().unzip();
        if changes.is_empty() {
            continue;
        }
        let done = session.service()?.change(&pool, &changes, &parsed.line);
        if let Ok(changed) = &done {
            super::tell_notes(session, &changed.notes)?;
            let is_not_mounted = |note: &Note| matches!(note, Note::NotMounted { .. });
            if changed.notes.iter().any(is_not_mounted) {
                let text = "property may be set but unable to remount filesystem";
                writeln!(session.err, "{text}")?;
            }
            status |= u8::from(!changed.notes.iter().all(is_not_mounted));
        }
        if let Err(failed) = done {
            let reason = match &failed.error {
                ChangeError::Refused {
                    why: Refusal::NoSpace,
                    ..
                } => "size is greater than available space".into(),
                other => reason(other),
            };
            let name = names.get(failed.done).unwrap_or(&pool).clone();
            return refused(session, &name, &reason);
        }
    }
    Ok(status)
}

fn refused(session: &mut Session, name: &str, reason: &str) -> Ending {
    writeln!(session.err, "cannot set property for '{name}': {reason}")?;
    Err(Failure::Status(255))
}

/// Plans the changes that set properties of one dataset.
///
/// The inner error is the reason why they cannot be set.
fn plan_one(
    session: &Session,
    target: &DatasetInfo,
    pairs: &[(String, String)],
    mount: bool,
) -> Result<Result<Vec<PoolChange>, String>, Failure> {
    let mut known = vec![];
    for (name, value) in pairs {
        let understood = Assignment::understand(name, value)
            .and_then(|one| one.check_for(target.kind).map(|()| one));
        match understood {
            Ok(one) => known.push(one),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    let name = target.name.clone();
    let mut changes = match owner_quotas(session, &name, &known) {
        Ok(changes) => changes,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut properties = values(&known);
    if let Err(reason) = mend_version(target, &mut properties) {
        return Ok(Err(reason));
    }
    match of_volume(session, target, &known)? {
        Ok(Some((property, bytes))) => {
            properties.retain(|(name, _)| name != property);
            properties.push((property.into(), Value::Number(bytes)));
        }
        Ok(None) => {}
        Err(reason) => return Ok(Err(reason)),
    }
    if !properties.is_empty() {
        changes.push(PoolChange::Dataset(DatasetChange::Set {
            name: name.clone(),
            properties,
            mount,
        }));
    }
    Ok(Ok(changes))
}

/// The changes that set the quotas of owners among these. The error is the end of a message.
pub(super) fn owner_quotas(
    session: &Session,
    name: &str,
    known: &[Assignment],
) -> Result<Vec<PoolChange>, String> {
    let quotas = quotas_among(session, known)?.into_iter();
    let change = |quota| {
        PoolChange::Dataset(DatasetChange::SetOwnerQuota {
            name: name.to_owned(),
            quota,
        })
    };
    Ok(quotas.map(change).collect())
}

/// The quotas of owners among these. The error is the end of a message.
pub(crate) fn quotas_among(
    session: &Session,
    known: &[Assignment],
) -> Result<Vec<OwnerQuota>, String> {
    let mut quotas = vec![];
    for one in known {
        let Meaning::OwnerQuota {
            owners,
            of_objects,
            owner,
            limit,
        } = &one.meaning
        else {
            continue;
        };
        let id = owner_number(session.environment, *owners, owner);
        let id = id.ok_or_else(|| format!("'{}' has an invalid user/group name", one.name))?;
        quotas.push(OwnerQuota {
            owners: *owners,
            of_objects: *of_objects,
            id,
            limit: *limit,
        });
    }
    Ok(quotas)
}

/// The version of a file system can only increase.
fn mend_version(target: &DatasetInfo, properties: &mut [(String, Value)]) -> Result<(), String> {
    let Some(at) = properties.iter().position(|(name, _)| name == "version") else {
        return Ok(());
    };
    let wanted = match &properties[at].1 {
        Value::Text(word) if word == "current" => 5,
        Value::Text(word) => word.parse().unwrap_or(0),
        Value::Number(number) => *number,
    };
    let now = number(target, "version").unwrap_or(5);
    if wanted < now {
        return Err(format!("Can not downgrade; already at version {now}"));
    }
    // The version that it has already is set too: that completes the accounting of owners.
    properties[at].1 = Value::Number(wanted);
    Ok(())
}

/// A property that reserves space, and the bytes.
type Reserved = (&'static str, u64);

/// Checks a new volume size. Returns the new reservation if it changes.
fn of_volume(
    session: &Session,
    target: &DatasetInfo,
    known: &[Assignment],
) -> Result<Result<Option<Reserved>, String>, Failure> {
    if target.kind != DatasetKind::Volume {
        return Ok(Ok(None));
    }
    let block = number(target, "volblocksize")
        .unwrap_or(volume::BLOCK_BYTES)
        .max(1);
    let old = number(target, "volsize").unwrap_or(0);
    let new = known
        .iter()
        .find_map(|one| match (&one.meaning, one.name.as_str()) {
            (Meaning::Native(_, Value::Number(bytes)), "volsize") => Some(*bytes),
            _ => None,
        });
    let is_auto = known
        .iter()
        .any(|one| matches!(one.meaning, Meaning::Auto(_)));
    if let Some(new) = new {
        if new == 0 {
            return Ok(Err("'volsize' cannot be zero".into()));
        }
        if !new.is_multiple_of(block) {
            let block = numbers::count(block);
            return Ok(Err(format!(
                "'volsize' must be a multiple of volume block size ({block})"
            )));
        }
    }
    if new.is_none() && !is_auto {
        return Ok(Ok(None));
    }
    let info = session.service()?.pool(pool_of(&target.name));
    let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
    let property = volume::reserving_property(&info);
    let reserved = number(target, property).unwrap_or(0);
    let needed = |size| volume::reservation(&info, size, block, 1);
    let is_followed = reserved != 0 && reserved == needed(old);
    let is_given = known
        .iter()
        .any(|one| one.name == "refreservation" && matches!(one.meaning, Meaning::Native(..)));
    if is_auto || (is_followed && !is_given) {
        return Ok(Ok(Some((property, needed(new.unwrap_or(old))))));
    }
    Ok(Ok(None))
}

fn warn_without_special(session: &mut Session, pool: &str) -> Result<(), Failure> {
    let info = session.service()?.pool(pool);
    let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
    let mut tops = info.root.children.iter();
    if !tops.any(|top| top.class == VdevClass::Special) {
        writeln!(
            session.err,
            "special_small_blocks: property requires a special device in the pool"
        )?;
    }
    Ok(())
}

/// Removes local values.
pub fn inherit(session: &mut Session, parsed: &Parsed) -> Ending {
    let [word, names @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing property argument".into()));
    };
    let to_received = parsed.has("S");
    let mut of = Kinds::ALL;
    let full = match by_name(word) {
        Some(PropertyName::User(name)) => name,
        Some(PropertyName::Native(property)) => {
            let name = property.shape.name;
            of = property.kinds;
            if property.shape.edit == Edit::Settable && !to_received {
                let mut text = format!("'{name}' property cannot be inherited");
                if matches!(
                    name,
                    "quota" | "refquota" | "reservation" | "refreservation"
                ) {
                    text.push_str(&format!(
                        "\nuse 'zfs set {name}=none' to clear\n\
                         use 'zfs inherit -S {name}' to revert to received value"
                    ));
                }
                return Err(Failure::Refused(text));
            }
            name.to_owned()
        }
        _ => return Err(Failure::Usage(format!("invalid property '{word}'"))),
    };
    let is_user = full.contains(':');
    let depth = match parsed.has("r") {
        true => DatasetQuery::WHOLE_TREE,
        false => 0,
    };
    let mut targets = vec![];
    for name in names {
        let kinds = lookup::heads().with(DatasetKind::Snapshot);
        let root = lookup::open(session, name, kinds, &[])?;
        if depth == 0 {
            targets.push(root);
        } else {
            let found = below(session, name, depth, kinds, &[])?.unwrap_or_default();
            // Below the named datasets, only those that can have the property.
            let fits = |info: &DatasetInfo| {
                let has_it = of.contains(info.kind) && info.kind != DatasetKind::Snapshot;
                is_user || has_it || info.name == *name
            };
            targets.extend(found.into_iter().filter(fits));
        }
    }
    let mut changes: Vec<(String, Vec<PoolChange>)> = vec![];
    for target in targets {
        let name = target.name;
        let fits = is_user || (of.contains(target.kind) && target.kind != DatasetKind::Snapshot);
        if !fits {
            return Err(Failure::Refused(format!(
                "cannot inherit {full} for '{name}': property doesn't apply to datasets of this type"
            )));
        }
        if full == "mlslabel" {
            return Err(Failure::Refused(format!(
                "cannot inherit {full} for '{name}': permission denied"
            )));
        }
        let pool = pool_of(&name).to_owned();
        let change = PoolChange::Dataset(DatasetChange::Inherit {
            name,
            property: full.clone(),
            to_received,
        });
        match changes.iter_mut().find(|(known, _)| *known == pool) {
            Some((_, all)) => all.push(change),
            None => changes.push((pool, vec![change])),
        }
    }
    for (pool, changes) in changes {
        let done = session.service()?.change(&pool, &changes, &parsed.line);
        if let Err(failed) = done {
            let name = changes.get(failed.done).and_then(|change| match change {
                PoolChange::Dataset(DatasetChange::Inherit { name, .. }) => Some(name.as_str()),
                _ => None,
            });
            let name = name.unwrap_or(&pool);
            return Err(Failure::Refused(format!(
                "cannot inherit {full} for '{name}': {}",
                reason(&failed.error)
            )));
        }
    }
    Ok(0)
}
