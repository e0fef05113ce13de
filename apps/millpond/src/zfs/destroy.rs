//! `zfs destroy`.

use super::change_text::{failure, reason};
use super::lookup::{self, below, head_of, heads, number, one, pool_of, text};
use super::names;
use crate::command::Parsed;
use crate::progress::show_change;
use crate::session::{Ending, Failure, Session};
use crate::text::number as numbers;
use millpond_control::properties::{DatasetKind, Kinds};
use millpond_control::{ChangeError, DatasetChange, DatasetInfo, DatasetQuery, PoolChange};
use millpond_engine::Refusal;
use std::collections::{BTreeMap, BTreeSet};

/// Destroys datasets, snapshots or a bookmark.
pub fn run(session: &mut Session, parsed: &Parsed) -> Ending {
    let name = match parsed.operands.as_slice() {
        [] => return Err(Failure::Usage("missing dataset argument".into())),
        [name] => name,
        _ => return Err(Failure::Usage("too many arguments".into())),
    };
    if name.contains('#') {
        return bookmark(session, parsed, name);
    }
    if name.contains('@') {
        return snapshots(session, parsed, name);
    }
    dataset(session, parsed, name)
}

fn bookmark(session: &mut Session, parsed: &Parsed, name: &str) -> Ending {
    if parsed.has("r") || parsed.has("R") {
        writeln!(session.err, "recursive is not supported with bookmark")?;
        return Err(Failure::Status(255));
    }
    let action = format!("cannot destroy '{name}'");
    names::check(name, Kinds::ALL)
        .map_err(|reason| Failure::Refused(format!("{action}: {reason}")))?;
    if one(session, name, &[])?.is_none() {
        let text = format!("bookmark '{name}' does not exist.");
        return Err(Failure::Refused(text));
    }
    let change = PoolChange::Dataset(DatasetChange::Destroy {
        name: name.to_owned(),
    });
    let done = session
        .service()?
        .change(pool_of(name), &[change], &parsed.line);
    done.map_err(|failed| failure(&action, &failed))?;
    Ok(0)
}

/// Prints what is to be destroyed, if the options ask for it.
fn tell(session: &mut Session, parsed: &Parsed, name: &str) -> std::io::Result<()> {
    // A partially received dataset is hidden and is destroyed with its target.
    if name.contains('%') {
        return Ok(());
    }
    if parsed.has("p") {
        return writeln!(session.out, "destroy\t{name}");
    }
    if parsed.has("v") {
        let verb = if parsed.has("n") { "would" } else { "will" };
        return writeln!(session.out, "{verb} destroy {name}");
    }
    Ok(())
}

fn tell_space(session: &mut Session, parsed: &Parsed, bytes: u64) -> std::io::Result<()> {
    if parsed.has("p") {
        return writeln!(session.out, "reclaim\t{bytes}");
    }
    if parsed.has("v") {
        let verb = if parsed.has("n") { "would" } else { "will" };
        return writeln!(session.out, "{verb} reclaim {}", numbers::bytes(bytes));
    }
    Ok(())
}

/// Selects the snapshots of `@a,b%c`, all of one dataset, in the order of their creation.
fn chosen<'a>(all: &'a [DatasetInfo], spec: &str) -> Vec<&'a DatasetInfo> {
    let short = |info: &DatasetInfo| info.name.split_once('@').map(|(_, s)| s.to_owned());
    let at = |name: &str| {
        all.iter()
            .position(|info| short(info).as_deref() == Some(name))
    };
    let mut found = BTreeSet::new();
    for part in spec.split(',') {
        match part.split_once('%') {
            None => found.extend(at(part)),
            Some((first, last)) => {
                let from = if first.is_empty() { Some(0) } else { at(first) };
                let to = if last.is_empty() {
                    all.len().checked_sub(1)
                } else {
                    at(last)
                };
                if let (Some(from), Some(to)) = (from, to) {
                    found.extend(from..=to);
                }
            }
        }
    }
    found.into_iter().filter_map(|at| all.get(at)).collect()
}

fn snapshots(session: &mut Session, parsed: &Parsed, name: &str) -> Ending {
    let (head, spec) = name.split_once('@').unwrap_or((name, ""));
    lookup::open(session, head, heads(), &[])?;
    let is_recursive = parsed.has("r") || parsed.has("R");
    let depth = if is_recursive {
        DatasetQuery::WHOLE_TREE
    } else {
        1
    };
    let words = ["used", "clones", "userrefs"];
    let only = Kinds::only(&[DatasetKind::Snapshot]);
    let all = below(session, head, depth, only, &words)?.unwrap_or_default();
    let mut groups: Vec<Vec<DatasetInfo>> = vec![];
    for info in all {
        match groups.last_mut() {
            Some(group) if group.first().map(|i| head_of(&i.name)) == Some(head_of(&info.name)) => {
                group.push(info);
            }
            _ => groups.push(vec![info]),
        }
    }
    let wanted = |group: &&Vec<DatasetInfo>| {
        is_recursive
            || group
                .first()
                .is_some_and(|info| head_of(&info.name) == head)
    };
    let mut found: Vec<DatasetInfo> = groups
        .iter()
        .filter(wanted)
        .flat_map(|group| chosen(group, spec))
        .cloned()
        .collect();
    if found.is_empty() {
        return Err(Failure::Refused(
            "could not find any snapshots to destroy; check snapshot names.".into(),
        ));
    }
    let mut gone = vec![];
    let clones: Vec<String> = found.iter().flat_map(clones_of).collect();
    if !clones.is_empty() && parsed.has("R") {
        for clone in &clones {
            plan_tree(session, clone, &mut gone)?;
        }
    } else if !clones.is_empty() && !parsed.has("d") {
        for info in &found {
            tell(session, parsed, &info.name)?;
        }
        let which = found.iter().find(|info| !clones_of(info).is_empty());
        let which = which.map_or(name, |info| info.name.as_str());
        let mut text = format!(
            "cannot destroy '{which}': snapshot has dependent clones\n\
             use '-R' to destroy the following datasets:"
        );
        for clone in &clones {
            text.push_str(&format!("\n{clone}"));
        }
        return Err(Failure::Refused(text));
    }
    // A clone may be below the dataset, with a snapshot of the same name.
    found.retain(|info| !gone.contains(&info.name));
    for name in gone.iter().chain(found.iter().map(|info| &info.name)) {
        tell(session, parsed, name)?;
    }
    let bytes = found.iter().filter_map(|info| number(info, "used"));
    tell_space(session, parsed, bytes.fold(0, u64::saturating_add))?;
    if parsed.has("n") {
        return Ok(0);
    }
    let names: Vec<String> = found.iter().map(|info| info.name.clone()).collect();
    let change = match gone.is_empty() {
        true => PoolChange::Dataset(DatasetChange::DestroySnapshots {
            names,
            defer: parsed.has("d"),
        }),
        // The clones are destroyed only if the snapshots can be, too. With `-R`, `-d` has no effect.
        false => {
            gone.extend(names);
            PoolChange::Dataset(DatasetChange::DestroyInOrder {
                names: gone,
                before_rollback: None,
            })
        }
    };
    let changes = [change];
    let shown = show_change(session, pool_of(name));
    let done = session
        .service()?
        .change(pool_of(name), &changes, &parsed.line);
    drop(shown);
    match done {
        Ok(_) => Ok(0),
        Err(failed) => Err(Failure::Refused(snapshot_refusal(&failed.error, &found))),
    }
}

/// The reason why snapshots are not destroyed.
fn snapshot_refusal(error: &ChangeError, asked: &[DatasetInfo]) -> String {
    let first = asked.first().map_or("", |info| info.name.as_str());
    match error {
        ChangeError::Refused {
            name,
            why: Refusal::IsHeld,
        } => format!(
            "cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders."
        ),
        ChangeError::Refused {
            name,
            why: Refusal::HasClones,
        } => format!("cannot destroy snapshot {name}: snapshot is cloned"),
        ChangeError::Denied => format!("cannot destroy snapshots: {}", reason(error)),
        ChangeError::Refused { name, .. } if name.contains('@') => {
            format!("cannot destroy snapshot {name}: {}", reason(error))
        }
        ChangeError::Refused { name, .. } => {
            format!("cannot destroy '{name}': {}", reason(error))
        }
        other => format!("cannot destroy snapshot {first}: {}", reason(other)),
    }
}

fn clones_of(info: &DatasetInfo) -> Vec<String> {
    let words = text(info, "clones").unwrap_or_default();
    let words = words
        .split(',')
        .filter(|word| !word.is_empty() && *word != "-");
    words.map(str::to_owned).collect()
}

/// Adds a dataset and everything that depends on it, including clones elsewhere.
///
/// The order is one in which they can be destroyed.
pub fn plan_tree(session: &Session, root: &str, gone: &mut Vec<String>) -> Result<(), Failure> {
    let mut known: BTreeSet<String> = gone.iter().cloned().collect();
    add_tree(session, root, gone, &mut known)
}

fn add_tree(
    session: &Session,
    root: &str,
    gone: &mut Vec<String>,
    known: &mut BTreeSet<String>,
) -> Result<(), Failure> {
    let tree = dependents(session, root)?;
    for info in &tree {
        for clone in clones_of(info) {
            // A clone that is an ancestor of the tree is destroyed with the tree's ancestors, not before
            // the tree.
            if !known.contains(&clone) && !is_within(root, &clone) {
                add_tree(session, &clone, gone, known)?;
            }
        }
    }
    for name in tree.into_iter().map(|info| info.name) {
        if known.insert(name.clone()) {
            gone.push(name);
        }
    }
    if known.insert(root.to_owned()) {
        gone.push(root.to_owned());
    }
    Ok(())
}

/// One change that destroys these datasets; `None` if there are none.
fn all_of(names: Vec<String>) -> Option<PoolChange> {
    let is_any = !names.is_empty();
    is_any.then_some(PoolChange::Dataset(DatasetChange::DestroyInOrder {
        names,
        before_rollback: None,
    }))
}

fn is_within(name: &str, root: &str) -> bool {
    let rest = head_of(name).strip_prefix(root);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns everything below a dataset in an order in which it can be destroyed.
///
/// Children with their descendants come first, then the dataset's own snapshots.
fn dependents(session: &Session, root: &str) -> Result<Vec<DatasetInfo>, Failure> {
    let kinds = heads().with(DatasetKind::Snapshot);
    let depth = DatasetQuery::WHOLE_TREE;
    let all = lookup::below_with_damaged(session, root, depth, kinds, &["clones", "origin"])?;
    let mut below_each: BTreeMap<String, Below> = BTreeMap::new();
    for info in all.unwrap_or_default() {
        let of = |name: &str| name.to_owned();
        if info.kind == DatasetKind::Snapshot {
            let own = below_each.entry(of(head_of(&info.name))).or_default();
            own.snapshots.push(info);
        } else if let Some((parent, _)) = info.name.rsplit_once('/') {
            let own = below_each.entry(of(parent)).or_default();
            own.children.push(info);
        }
    }
    let mut found = vec![];
    collect_below(&mut below_each, root, &mut found);
    Ok(found)
}

/// The direct dependents of a dataset.
#[derive(Default)]
struct Below {
    children: Vec<DatasetInfo>,
    snapshots: Vec<DatasetInfo>,
}

/// The recursion is not deeper than the dataset names.
fn collect_below(all: &mut BTreeMap<String, Below>, root: &str, found: &mut Vec<DatasetInfo>) {
    let Some(own) = all.remove(root) else { return };
    for child in own.children {
        collect_below(all, &child.name, found);
        found.push(child);
    }
    found.extend(own.snapshots);
}

fn dataset(session: &mut Session, parsed: &Parsed, name: &str) -> Ending {
    let (is_recursive, with_clones) = (parsed.has("r"), parsed.has("R"));
    if parsed.has("d") {
        let text = format!("cannot open '{name}': missing '@' delimiter in snapshot name");
        return Err(Failure::Refused(text));
    }
    let refuse = |reason: &str| Failure::Refused(format!("cannot open '{name}': {reason}"));
    names::check(name, heads()).map_err(|reason| refuse(&reason))?;
    let found = lookup::below_with_damaged(session, name, 0, heads(), &[])?;
    let info = found.and_then(|all| all.into_iter().find(|info| info.name == name));
    let info = info.ok_or_else(|| refuse("dataset does not exist"))?;
    let is_pool = !name.contains('/');
    if is_pool && !is_recursive && !with_clones {
        return Err(Failure::Refused(format!(
            "cannot destroy '{name}': operation does not apply to pools\n\
             use 'zfs destroy -r {name}' to destroy all datasets in the pool\n\
             use 'zpool destroy {name}' to destroy the pool itself"
        )));
    }
    let tree = dependents(session, name)?;
    let listed = |title: &str, names: &[String]| {
        let mut text = format!("cannot destroy '{name}': {} has {title}", info.kind.word());
        for name in names {
            text.push_str(&format!("\n{name}"));
        }
        Failure::Refused(text)
    };
    if !tree.is_empty() && !is_recursive && !with_clones {
        let names: Vec<String> = tree.into_iter().map(|info| info.name).collect();
        let title = "children\nuse '-r' to destroy the following datasets:";
        return Err(listed(title, &names));
    }
    let mut clones: Vec<String> = tree.iter().flat_map(clones_of).collect();
    clones.retain(|clone| !is_within(clone, name));
    if !clones.is_empty() && !with_clones {
        let title = "dependent clones\nuse '-R' to destroy the following datasets:";
        return Err(listed(title, &clones));
    }
    let mut gone = vec![];
    plan_tree(session, name, &mut gone)?;
    if is_pool {
        // The root itself is kept.
        gone.pop();
    }
    for name in &gone {
        tell(session, parsed, name)?;
    }
    if parsed.has("n") {
        return Ok(0);
    }
    let changes: Vec<PoolChange> = all_of(gone).into_iter().collect();
    let shown = show_change(session, pool_of(name));
    let done = session
        .service()?
        .change(pool_of(name), &changes, &parsed.line);
    drop(shown);
    let Err(failed) = done else { return Ok(0) };
    if let ChangeError::Refused {
        why: Refusal::IsHeld,
        ..
    } = &failed.error
    {
        return Err(Failure::Refused(snapshot_refusal(&failed.error, &[])));
    }
    let which = match &failed.error {
        ChangeError::Refused { name, .. } | ChangeError::NoSuchDataset(name) => name.as_str(),
        _ => name,
    };
    Err(failure(&format!("cannot destroy '{which}'"), &failed))
}
