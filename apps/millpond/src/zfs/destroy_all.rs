//! Destroys trees of datasets as far as that is possible.

use super::change_text::failure;
use super::destroy::snapshot_refusal;
use super::lookup::{one, pool_of, text};
use crate::session::{Ending, Failure, Session};
use millpond_control::{ChangeError, ChangeFailure, DatasetChange, PoolChange};
use millpond_engine::Refusal;
use std::collections::BTreeSet;

/// What a command destroys.
pub struct Doomed {
    /// Datasets and snapshots, dependents first.
    pub tree: Vec<String>,
    /// Snapshots that are destroyed afterwards, all or none.
    pub snapshots: Vec<String>,
    /// Whether snapshots that are in use are only marked.
    pub defer: bool,
}

impl Doomed {
    fn changes(&self) -> Vec<PoolChange> {
        let mut changes: Vec<PoolChange> = all_of(self.tree.clone()).into_iter().collect();
        if !self.snapshots.is_empty() {
            changes.push(PoolChange::Dataset(DatasetChange::DestroySnapshots {
                names: self.snapshots.clone(),
                defer: self.defer,
            }));
        }
        changes
    }

    fn has(&self, name: &str) -> bool {
        let mut all = self.tree.iter().chain(&self.snapshots);
        all.any(|one| one == name)
    }
}

/// One change that destroys these datasets; `None` if there are none.
pub fn all_of(names: Vec<String>) -> Option<PoolChange> {
    let is_any = !names.is_empty();
    is_any.then_some(PoolChange::Dataset(DatasetChange::DestroyInOrder { names }))
}

/// Destroys what can be destroyed. What cannot be, with what it depends on, stays, and the status is 1.
///
/// # Errors
/// If the snapshots that are destroyed together cannot be, or the reason is not that of one dataset.
pub fn destroy(session: &mut Session, mut doomed: Doomed, name: &str, line: &str) -> Ending {
    let mut status = 0;
    loop {
        let changes = doomed.changes();
        if changes.is_empty() {
            return Ok(status);
        }
        let done = session.service()?.change(pool_of(name), &changes, line);
        let Err(failed) = done else {
            return Ok(status);
        };
        let is_of_tree = failed.done == 0 && !doomed.tree.is_empty();
        let which = match is_of_tree {
            true => dataset_of(session, &failed.error)?,
            false => None,
        };
        let named = which.as_deref().unwrap_or(name);
        let refused = refusal(&failed, &doomed, named, is_of_tree);
        match (which.filter(|which| doomed.has(which)), refused) {
            (Some(which), Failure::Refused(text)) => {
                writeln!(session.err, "{text}")?;
                status = 1;
                keep(session, &mut doomed, &which)?;
            }
            (_, refused) => return Err(refused),
        }
    }
}

fn refusal(failed: &ChangeFailure, doomed: &Doomed, which: &str, is_of_tree: bool) -> Failure {
    let is_held = matches!(
        &failed.error,
        ChangeError::Refused {
            why: Refusal::IsHeld,
            ..
        }
    );
    match is_held || !is_of_tree {
        true => Failure::Refused(snapshot_refusal(&failed.error, &doomed.snapshots)),
        false => failure(&format!("cannot destroy '{which}'"), failed),
    }
}

/// The dataset that a change failed for.
fn dataset_of(session: &Session, error: &ChangeError) -> Result<Option<String>, Failure> {
    let mountpoint = match error {
        ChangeError::Refused { name, .. } | ChangeError::NoSuchDataset(name) => {
            return Ok(Some(name.clone()));
        }
        ChangeError::Mounted { mountpoint, .. } => mountpoint,
        _ => return Ok(None),
    };
    let mounts = session.daemon()?.mounts();
    let mounts = mounts.map_err(|error| Failure::Refused(error.to_string()))?;
    let found = mounts
        .into_iter()
        .find(|mount| mount.mountpoint == *mountpoint);
    Ok(found.map(|mount| mount.dataset))
}

/// Takes out what stays because of a dataset, and what is destroyed already.
fn keep(session: &Session, doomed: &mut Doomed, which: &str) -> Result<(), Failure> {
    let mut kept = BTreeSet::new();
    let mut next = vec![which.to_owned()];
    while let Some(name) = next.pop() {
        if !doomed.has(&name) || !kept.insert(name.clone()) {
            continue;
        }
        if let Some((head, _)) = name.split_once('@') {
            next.push(head.to_owned());
            continue;
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            next.push(parent.to_owned());
        }
        let origin = one(session, &name, &["origin"])?;
        let origin = origin.as_ref().and_then(|info| text(info, "origin"));
        next.extend(origin.map(str::to_owned));
    }
    // They are destroyed in order: if the first one is gone, so are all before the one that failed.
    let is_begun = match doomed.tree.first() {
        Some(first) => one(session, first, &[])?.is_none(),
        None => false,
    };
    if is_begun {
        let at = doomed.tree.iter().position(|name| name == which);
        doomed.tree.drain(..at.unwrap_or(0));
    }
    doomed.tree.retain(|name| !kept.contains(name));
    doomed.snapshots.retain(|name| !kept.contains(name));
    Ok(())
}
