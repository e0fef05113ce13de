//! `zfs promote` and `zfs rename`.

use super::change_text::{failure, reason};
use super::create::make_ancestors;
use super::lookup::{self, below, head_of, heads, one, pool_of};
use super::names;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{ChangeError, DatasetChange, PoolChange};
use millpond_engine::Refusal;
use std::collections::BTreeSet;

/// Promotes a clone: swaps the roles of the clone and its origin.
pub fn promote(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("too many arguments".into()));
    };
    let info = lookup::open(session, name, heads(), &["origin"])?;
    let origin = lookup::text(&info, "origin").unwrap_or("-").to_owned();
    let change = PoolChange::Dataset(DatasetChange::Promote { name: name.clone() });
    let done = session
        .service()?
        .change(pool_of(name), &[change], &parsed.line);
    let Err(failed) = done else { return Ok(0) };
    let action = format!("cannot promote '{name}'");
    if let ChangeError::Refused {
        why: Refusal::SnapshotExists(snapshot),
        ..
    } = &failed.error
    {
        let snapshot = snapshot.rsplit('@').next().unwrap_or(snapshot);
        return Err(Failure::Refused(format!(
            "{action}: conflicting snapshot '{snapshot}' from parent '{origin}'"
        )));
    }
    Err(failure(&action, &failed))
}

/// Renames a dataset.
pub fn rename(session: &mut Session, parsed: &Parsed) -> Ending {
    let [from, to, rest @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("missing target dataset argument".into()));
    };
    if !rest.is_empty() {
        return Err(Failure::Usage("too many arguments".into()));
    }
    let (is_recursive, with_parents) = (parsed.has("r"), parsed.has("p"));
    if is_recursive && with_parents {
        let text = "-p and -r options are mutually exclusive";
        return Err(Failure::Usage(text.into()));
    }
    if is_recursive && !from.contains('@') {
        let text = "source dataset for recursive rename must be a snapshot";
        return Err(Failure::Usage(text.into()));
    }
    // Such as what an interrupted receive keeps beside its dataset.
    if from.contains('%') {
        let text = format!("cannot open '{from}': invalid character '%' in name");
        return Err(Failure::Refused(text));
    }
    let mut kinds = heads();
    if !with_parents && !parsed.has("u") {
        kinds = kinds.with(DatasetKind::Snapshot);
    }
    // With `-r`, the top dataset itself need not have the snapshot.
    let info = lookup::open(session, from, kinds, &[])?;
    if info.kind == DatasetKind::Snapshot {
        return rename_snapshot(session, parsed, from, to);
    }
    let to_refused = |reason: &str| Failure::Refused(format!("cannot rename to '{to}': {reason}"));
    names::check(to, Kinds::only(&[info.kind])).map_err(|reason| to_refused(&reason))?;
    if pool_of(from) != pool_of(to) && to.contains('/') {
        return Err(to_refused("datasets must be within same pool"));
    }
    let create = format!("cannot create '{to}'");
    if !to.contains('/') {
        return Err(Failure::Refused(format!("{create}: missing dataset name")));
    }
    if to
        .strip_prefix(from.as_str())
        .is_some_and(|rest| rest.starts_with('/'))
    {
        return Err(to_refused(
            "New dataset name cannot be a descendant of current dataset name",
        ));
    }
    let mut changes = make_ancestors(session, to, with_parents, &create)?;
    changes.push(PoolChange::Dataset(DatasetChange::Rename {
        from: from.clone(),
        to: to.clone(),
        recursively: false,
        mount: !parsed.has("u"),
    }));
    let done = session
        .service()?
        .change(pool_of(from), &changes, &parsed.line);
    let changed = done.map_err(|failed| failure(&format!("cannot rename '{from}'"), &failed))?;
    super::tell_notes(session, &changed.notes)?;
    Ok(u8::from(!changed.notes.is_empty()))
}

fn rename_snapshot(session: &mut Session, parsed: &Parsed, from: &str, to: &str) -> Ending {
    let head = head_of(from);
    let refuse =
        |to: &str, reason: &str| Failure::Refused(format!("cannot rename to '{to}': {reason}"));
    // The new snapshot name may omit its dataset.
    let full = match to.split_once('@') {
        Some((of, _)) if !of.is_empty() && of != head => {
            return Err(refuse(to, "snapshots must be part of same dataset"));
        }
        Some((_, name)) => format!("{head}@{name}"),
        None => format!("{head}@{to}"),
    };
    names::check(&full, Kinds::only(&[DatasetKind::Snapshot]))
        .map_err(|reason| refuse(to, &reason))?;
    let short = full.rsplit('@').next().unwrap_or_default();
    let is_recursive = parsed.has("r");
    if !is_recursive && one(session, &full, &[])?.is_some() {
        return Err(Failure::Refused(format!(
            "cannot rename '{from}': dataset already exists"
        )));
    }
    if is_recursive {
        let only = Kinds::only(&[DatasetKind::Snapshot]);
        let whole = millpond_control::DatasetQuery::WHOLE_TREE;
        let all = below(session, head, whole, only, &[])?.unwrap_or_default();
        // Datasets without a snapshot of the old name are left as they are.
        let old = from.rsplit('@').next().unwrap_or_default();
        let with = |wanted: &str| -> BTreeSet<&str> {
            let names = all.iter().filter_map(|info| info.name.rsplit_once('@'));
            let named = names.filter(|(_, name)| *name == wanted);
            named.map(|(dataset, _)| dataset).collect()
        };
        if !with(old).is_disjoint(&with(short)) {
            return Err(Failure::Refused(format!(
                "cannot rename '{from}': a child dataset already has a snapshot with the new name"
            )));
        }
    }
    let change = PoolChange::Dataset(DatasetChange::Rename {
        from: from.to_owned(),
        to: full,
        recursively: is_recursive,
        mount: true,
    });
    let done = session
        .service()?
        .change(pool_of(from), &[change], &parsed.line);
    done.map_err(|failed| {
        Failure::Refused(format!("cannot rename '{from}': {}", reason(&failed.error)))
    })?;
    Ok(0)
}
