//! Makes the datasets here those that a package describes: snapshots and datasets that the sender does not have any more
//! are destroyed if that was asked for, and renamed ones get their new names.

use super::Run;
use super::package::{Described, Package};
use super::problem::{of_dataset, of_engine, parent_of};
use super::target::{found, top_of};
use super::user::UserChange;
use crate::Error;
use millpond_dataset::{Dataset, DestroyOptions, PropertyValue};
use millpond_receive::{ReceiveProblem, ReceiveStep};
use std::collections::BTreeSet;

/// A name that was busy may be free after other changes. There are no more rounds than this.
const ROUNDS_MAX: usize = 64;
/// How many temporary names are tried.
const TEMPORARY_NAMES_MAX: usize = 1000;
/// The property that says where a key is found.
const KEY_LOCATION: &str = "keylocation";

/// A change of the datasets here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Destroy(String),
    Rename(String, String),
    Promote(String),
}

impl Wanted {
    fn name(&self) -> &str {
        match self {
            Self::Destroy(name) | Self::Rename(name, _) | Self::Promote(name) => name,
        }
    }
}

/// A snapshot's name and properties.
type Redescribed = (String, Vec<(String, PropertyValue)>);

impl Run<'_> {
    /// Compares what is here with the package, and changes it until nothing more can be done.
    pub(super) fn reconcile(&mut self, package: &Package) -> Result<(), ReceiveProblem> {
        let is_meant = package.is_recursive && package.has_source && !self.request.is_dry;
        if !is_meant {
            return Ok(());
        }
        let root = top_of(self.request, &package.top);
        // What was done and is wanted again would be so for ever: a held snapshot is only marked for destruction.
        let mut done: Vec<Wanted> = vec![];
        // What has lost its snapshots is not known any more as what the sender destroyed.
        let mut kept: Vec<Wanted> = vec![];
        for _ in 0..ROUNDS_MAX {
            let wanted = self.differences(package, &root);
            let wanted = wanted.map_err(|error| of_engine(error, &root))?;
            let fresh = wanted.into_iter().filter(|one| !done.contains(one));
            let fresh: Vec<Wanted> = fresh.filter(|one| !kept.contains(one)).collect();
            let round = kept.drain(..).chain(fresh);
            let (made, failed): (Vec<_>, Vec<_>) = round.partition(|one| self.change(one));
            // What stood in the way may be gone: a clone, what was below it, another one of its name.
            if made.is_empty() && !self.make_way(&failed)? {
                break;
            }
            let is_destroyed = |one: &Wanted| matches!(one, Wanted::Destroy(_));
            kept.extend(failed.into_iter().filter(is_destroyed));
            done.extend(made);
        }
        self.describe_present(package, &root)
    }

    /// Gives the snapshots that are here already the properties that the package has for them.
    fn describe_present(&mut self, package: &Package, root: &str) -> Result<(), ReceiveProblem> {
        let changed = self.redescribed(package, root);
        for (name, properties) in changed.map_err(|error| of_engine(error, root))? {
            let received = self.allowed(&name, &properties);
            if !received.is_empty() {
                let set = (self.pool.datasets()).receive_snapshot_properties(&name, &received);
                set.map_err(|error| of_dataset(error, &name))?;
            }
        }
        Ok(())
    }

    /// The snapshots for which the package has other properties, with these.
    fn redescribed(&self, package: &Package, root: &str) -> Result<Vec<Redescribed>, Error> {
        let view = self.pool.committed()?;
        let mut changed = vec![];
        let with_any = |described: &&Described| {
            let mut snapshots = described.snapshots.iter();
            snapshots.any(|one| !one.properties.is_empty())
        };
        if !package
            .datasets
            .iter()
            .any(|described| with_any(&described))
        {
            return Ok(changed);
        }
        for dataset in view.datasets() {
            let dataset = dataset?.inner().clone();
            if !is_within(dataset.name(), root) || dataset.name().contains('%') {
                continue;
            }
            let snapshots = dataset.snapshots()?;
            let Some(described) = described_by(package, &snapshots).filter(with_any) else {
                continue;
            };
            for snapshot in &snapshots {
                let mut known = described.snapshots.iter();
                let Some(known) = known.find(|known| known.guid == snapshot.guid().0) else {
                    continue;
                };
                let own = snapshot.own_properties()?;
                let mut properties = known.properties.iter();
                if properties.any(|(name, value)| own.received(name) != Some(value)) {
                    changed.push((snapshot.name().to_owned(), known.properties.clone()));
                }
            }
        }
        Ok(changed)
    }

    /// Gives temporary names to datasets that take each other's names. Returns whether there are any.
    fn make_way(&mut self, failed: &[Wanted]) -> Result<bool, ReceiveProblem> {
        let moves = failed.iter().filter_map(|one| match one {
            Wanted::Rename(from, to) if !from.contains('@') => Some((from, to)),
            _ => None,
        });
        let moves: Vec<(&String, &String)> = moves.collect();
        let mut taken: BTreeSet<&String> = moves.iter().map(|(from, _)| *from).collect();
        let mut is_any = false;
        for (from, to) in moves {
            if from != to && taken.contains(to) {
                let temporary = self.temporary_name(from)?;
                if self.change(&Wanted::Rename(from.clone(), temporary)) {
                    taken.remove(from);
                    is_any = true;
                }
            }
        }
        Ok(is_any)
    }

    /// A name beside that of a dataset which no dataset has.
    fn temporary_name(&self, dataset: &str) -> Result<String, ReceiveProblem> {
        let failed = |error| of_engine(error, dataset);
        let view = self.pool.committed().map_err(failed)?;
        let (parent, process) = (parent_of(dataset), std::process::id());
        for number in 1..TEMPORARY_NAMES_MAX {
            let name = format!("{parent}/recv-{process}-{number}");
            if found(&view, &name).map_err(failed)?.is_none() {
                return Ok(name);
            }
        }
        Err(ReceiveProblem::Busy(dataset.to_owned()))
    }

    /// Makes a change, and says whether that was possible. It is shown in any case.
    fn change(&mut self, wanted: &Wanted) -> bool {
        let is_allowed = self.may_change(wanted);
        let datasets = self.pool.datasets();
        let head = wanted.name().split('@').next().unwrap_or_default();
        let is_head = head == wanted.name();
        // The device of a snapshot must go before it, too.
        let moved = match wanted {
            Wanted::Promote(_) => None,
            Wanted::Destroy(name) => Some(name.as_str()),
            Wanted::Rename(..) => is_head.then_some(head),
        };
        if is_allowed && moved.is_some_and(|name| self.watch.before_moving(name).is_err()) {
            return false;
        }
        let step = match wanted {
            Wanted::Destroy(name) => {
                let defer = DestroyOptions { defer: !is_head };
                ReceiveStep::Destroyed {
                    name: name.clone(),
                    is_done: is_allowed && datasets.destroy(name, defer).is_ok(),
                }
            }
            Wanted::Rename(from, to) => ReceiveStep::Renamed {
                from: from.clone(),
                to: to.clone(),
                is_done: is_allowed && datasets.rename(from, to).is_ok(),
            },
            Wanted::Promote(name) => ReceiveStep::Promoted {
                name: name.clone(),
                is_done: is_allowed && datasets.promote(name).is_ok(),
            },
        };
        if is_allowed && moved.is_some() {
            self.watch.after_moving();
        }
        let is_done = matches!(
            step,
            ReceiveStep::Destroyed { is_done: true, .. }
                | ReceiveStep::Renamed { is_done: true, .. }
                | ReceiveStep::Promoted { is_done: true, .. }
        );
        self.steps.push(step);
        is_done
    }

    fn differences(&self, package: &Package, root: &str) -> Result<Vec<Wanted>, Error> {
        let view = self.pool.committed()?;
        let mut wanted = vec![];
        if found(&view, root)?.is_none() {
            return Ok(wanted);
        }
        // A promotion moves snapshots to another dataset, so it comes first.
        let promotions = promotions(&view, package, root)?;
        if !promotions.is_empty() {
            return Ok(promotions);
        }
        for dataset in view.datasets() {
            let dataset = dataset?.inner().clone();
            // What is being received is hidden.
            if is_within(dataset.name(), root) && !dataset.name().contains('%') {
                self.of_dataset(package, root, &dataset, &mut wanted)?;
            }
        }
        // Names become free first, and those below a dataset go before it.
        let is_head = |one: &Wanted| matches!(one, Wanted::Destroy(name) if !name.contains('@'));
        let (mut heads, others): (Vec<_>, Vec<_>) = wanted.into_iter().partition(is_head);
        heads.sort_by(|a, b| b.name().cmp(a.name()));
        let is_destroyed = |one: &Wanted| matches!(one, Wanted::Destroy(_));
        let (mut wanted, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_destroyed);
        wanted.extend(heads.into_iter().chain(others));
        Ok(wanted)
    }

    fn of_dataset(
        &self,
        package: &Package,
        root: &str,
        dataset: &Dataset,
        wanted: &mut Vec<Wanted>,
    ) -> Result<(), Error> {
        let snapshots = dataset.snapshots()?;
        let Some(described) = described_by(package, &snapshots) else {
            let has_any = !snapshots.is_empty() && dataset.name() != root;
            if self.request.is_forced && has_any {
                let snapshots = snapshots.iter().rev();
                wanted.extend(snapshots.map(|one| Wanted::Destroy(one.name().to_owned())));
                wanted.push(Wanted::Destroy(dataset.name().to_owned()));
            }
            return Ok(());
        };
        for snapshot in &snapshots {
            let known = described
                .snapshots
                .iter()
                .find(|known| known.guid == snapshot.guid().0);
            let name = snapshot.name().to_owned();
            match known {
                // What the package has in another dataset may be the only copy here, and what its streams begin from.
                None if self.request.is_forced && package.snapshot(snapshot.guid().0).is_none() => {
                    wanted.push(Wanted::Destroy(name));
                }
                Some(known) if snapshot.snapshot_name() != Some(&known.name) => {
                    let to = format!("{}@{}", dataset.name(), known.name);
                    wanted.push(Wanted::Rename(name, to));
                }
                _ => {}
            }
        }
        if dataset.name() != root
            && let Some(to) = self.new_name(package, root, (described, dataset.name()))?
            && to != dataset.name()
        {
            wanted.push(Wanted::Rename(dataset.name().to_owned(), to));
        }
        Ok(())
    }

    /// Gives the datasets of a recursive package the encryption roots and keys that they had at the sender, and roots the
    /// place of their keys. Those for which that fails keep what they have here.
    pub(super) fn set_roots(&mut self, package: &Package) -> Result<(), ReceiveProblem> {
        // Later streams of one dataset leave the place of its key as it is here.
        let is_meant = package.is_recursive || !package.has_source;
        if !package.is_raw || !is_meant || self.request.is_dry {
            return Ok(());
        }
        let root = top_of(self.request, &package.top);
        let found = self.roots_below(package, &root);
        let mut found = found.map_err(|error| of_engine(error, &root))?;
        found.retain(|(name, _)| self.may(&UserChange::ChangeKey(name)));
        let roots: Vec<(String, bool)> = (found.iter())
            .map(|(name, described)| (name.clone(), described.is_encryption_root || *name == root))
            .collect();
        let datasets = self.pool.datasets();
        let set = match package.is_recursive {
            true => {
                let set = datasets.set_sent_roots(&roots, &self.sent_keys);
                set.map_err(|error| of_dataset(error, &root))?
            }
            false => roots.into_iter().map(|(name, _)| name).collect(),
        };
        let excluded = &self.request.excluded;
        if excluded.iter().any(|name| name == KEY_LOCATION) {
            return Ok(());
        }
        for (name, described) in found {
            if !described.is_encryption_root || !set.contains(&name) {
                continue;
            }
            let location = described.properties.into_iter().flatten();
            let is_meant = |(property, value): &(String, PropertyValue)| {
                property == KEY_LOCATION && self.may(&UserChange::Set(&name, property, Some(value)))
            };
            let location: Vec<_> = location.filter(is_meant).collect();
            // Where a key is found may mean nothing on this system.
            let _ = datasets.set_properties(&name, &location);
        }
        Ok(())
    }

    /// The encrypted datasets that a package describes, parents first.
    fn roots_below(
        &self,
        package: &Package,
        root: &str,
    ) -> Result<Vec<(String, Described)>, Error> {
        let view = self.pool.committed()?;
        let mut found = vec![];
        for dataset in view.datasets() {
            let dataset = dataset?.inner().clone();
            if !is_within(dataset.name(), root) || !dataset.is_encrypted()? {
                continue;
            }
            let snapshots = dataset.snapshots()?;
            if let Some(described) = described_by(package, &snapshots) {
                found.push((dataset.name().to_owned(), described.clone()));
            }
        }
        Ok(found)
    }

    /// The name that a dataset should have: below the dataset here that has the parent's snapshot. If several have it, below
    /// the one that is above its present name.
    pub(super) fn new_name(
        &self,
        package: &Package,
        root: &str,
        (described, present): (&Described, &str),
    ) -> Result<Option<String>, Error> {
        let last = described.name.rsplit('/').next().unwrap_or_default();
        if described.parent_snapshot == 0 || described.name == package.top {
            return Ok(None);
        }
        let view = self.pool.committed()?;
        let mut name = None;
        for dataset in view.datasets() {
            let dataset = dataset?.inner().clone();
            if !is_within(dataset.name(), root) || dataset.name().contains('%') {
                continue;
            }
            let is_above = dataset.name() == parent_of(present);
            if !is_above && name.is_some() {
                continue;
            }
            let mut snapshots = dataset.snapshots()?.into_iter();
            if snapshots.any(|one| one.guid().0 == described.parent_snapshot) {
                name = Some(format!("{}/{last}", dataset.name()));
                if is_above {
                    break;
                }
            }
        }
        Ok(name)
    }

    /// The dataset that has a snapshot with this guid: in the tree `root` that the package is about here, or beside it if
    /// it was renamed to a place there. With force nothing outside `root` is looked at, because its newer snapshots
    /// would be destroyed.
    pub(super) fn holder_of(
        &self,
        view: &crate::View,
        package: &Package,
        root: &str,
        guid: u64,
    ) -> Result<Option<String>, Error> {
        let (mut outside, mut copies) = (vec![], vec![]);
        let has_root = found(view, root)?.is_some();
        for dataset in view.datasets() {
            let dataset = dataset?.inner().clone();
            let name = dataset.name();
            // What is being received is hidden.
            if !is_within(name, parent_of(root)) || name.contains('%') {
                continue;
            }
            let snapshots = dataset.snapshots()?;
            let is_holder = snapshots.iter().any(|one| one.guid().0 == guid);
            if is_within(name, root) {
                if is_holder {
                    return Ok(Some(name.to_owned()));
                }
                continue;
            }
            if is_holder {
                outside.push(name.to_owned());
            }
            let is_top = |one: &Dataset| {
                let described = package.dataset_of(one.guid().0);
                described.is_some_and(|one| one.name == package.top)
            };
            if snapshots.iter().any(is_top) {
                copies.push(name.to_owned());
            }
        }
        if self.request.is_forced {
            return Ok(None);
        }
        // Another copy of the tree has its own of everything. A single one in place of `root` is `root`, renamed.
        if !has_root && copies.len() == 1 {
            copies.clear();
        }
        let is_own = |name: &String| !copies.iter().any(|copy| is_within(name, copy));
        Ok(outside.into_iter().find(is_own))
    }
}

/// Whether a dataset is `root` or one below it.
fn is_within(name: &str, root: &str) -> bool {
    let rest = name.strip_prefix(root);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What a package says of a dataset with these snapshots. A promotion at the sender may have given older ones to another
/// dataset, so the latest one decides.
fn described_by<'p>(package: &'p Package, snapshots: &[Dataset]) -> Option<&'p Described> {
    let mut latest_first = snapshots.iter().rev();
    latest_first.find_map(|snapshot| package.dataset_of(snapshot.guid().0))
}

/// The clones that were promoted at the sender: there they have no origin, or an older one.
fn promotions(view: &crate::View, package: &Package, root: &str) -> Result<Vec<Wanted>, Error> {
    let mut wanted = vec![];
    for dataset in view.datasets() {
        let dataset = dataset?.inner().clone();
        if !is_within(dataset.name(), root) || dataset.name().contains('%') {
            continue;
        }
        let Some(origin) = dataset.origin()? else {
            continue;
        };
        let snapshots = dataset.snapshots()?;
        let described = described_by(package, &snapshots);
        let Some(described) = described.filter(|one| one.origin != origin.guid().0) else {
            continue;
        };
        // The origin here belongs to the dataset at the sender.
        let is_own = described
            .snapshots
            .iter()
            .any(|one| one.guid == origin.guid().0);
        if is_own {
            wanted.push(Wanted::Promote(dataset.name().to_owned()));
        }
    }
    Ok(wanted)
}
