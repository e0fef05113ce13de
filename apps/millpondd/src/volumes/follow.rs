//! The effects of changes on the devices of volumes.

use super::{InUse, Volumes, pool_of};
use crate::mounts::{Receiving, is_of};
use millpond_control::{ChangeError, DatasetChange, PoolChange, ReceiveProblem};
use millpond_engine::{ReceiveWatch, Refusal};
use millpond_service::{ImportedPools, Step};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Follows the changes of one pool.
pub(crate) struct FollowVolumes<'a> {
    volumes: &'a Volumes,
    pools: &'a ImportedPools,
    pool: &'a str,
    /// The volume that is rolled back at the end. It has no device until then.
    withheld: Option<String>,
    /// The snapshots that the change under way may destroy because they were marked for it.
    due: RefCell<Vec<String>>,
}

/// The effect of a change on devices.
enum Effect<'c> {
    Nothing,
    /// The devices of the dataset and of all below it are detached before. Some come back afterwards.
    Goes(&'c str),
    /// The same, of these datasets only.
    AllGo(&'c [String]),
    /// The device of this volume is detached before, and comes back.
    RolledBack(&'c str),
    /// What programs have written is written back before.
    Kept(&'c [String]),
    /// Devices at and below this dataset may appear, change or go afterwards. With the flag, what programs have written
    /// is written back before.
    Changes(&'c str, bool),
}

fn effect<'c>(change: &'c PoolChange, pool: &'c str) -> Effect<'c> {
    let is_followed = |name: &str| matches!(name, "volmode" | "snapdev" | "volsize" | "readonly");
    let change = match change {
        PoolChange::Destroy | PoolChange::Export => return Effect::Goes(pool),
        PoolChange::Dataset(change) => change,
        _ => return Effect::Nothing,
    };
    match change {
        DatasetChange::CreateVolume { name, .. } | DatasetChange::Clone { name, .. } => {
            Effect::Changes(name, false)
        }
        DatasetChange::Destroy { name } if !name.contains('#') => Effect::Goes(name),
        DatasetChange::DestroyInOrder { names, .. }
        | DatasetChange::DestroySnapshots { names, .. } => Effect::AllGo(names),
        // The devices stay, and their links move. Those of snapshots may come to belong to another dataset.
        DatasetChange::Rename { .. } | DatasetChange::Promote { .. } => {
            Effect::Changes(pool, false)
        }
        DatasetChange::Rollback { snapshot } => Effect::RolledBack(volume_of(snapshot)),
        DatasetChange::Snapshot { names, .. } => Effect::Kept(names),
        DatasetChange::Set {
            name, properties, ..
        } if properties.iter().any(|(name, _)| is_followed(name)) => Effect::Changes(name, true),
        DatasetChange::Inherit { name, property, .. } if is_followed(property) => {
            Effect::Changes(name, true)
        }
        _ => Effect::Nothing,
    }
}

impl<'a> FollowVolumes<'a> {
    pub(crate) fn new(volumes: &'a Volumes, pools: &'a ImportedPools, pool: &'a str) -> Self {
        Self {
            volumes,
            pools,
            pool,
            withheld: None,
            due: RefCell::default(),
        }
    }

    /// Detaches the device of a volume that is rolled back, before the changes that precede it destroy newer snapshots and
    /// clones. It comes back when `self` is dropped.
    ///
    /// # Errors
    /// If the device is in use.
    pub(crate) fn prepare(&mut self, changes: &[PoolChange]) -> Result<(), ChangeError> {
        let Some(PoolChange::Dataset(DatasetChange::Rollback { snapshot })) = changes.last() else {
            return Ok(());
        };
        let volume = volume_of(snapshot);
        let withheld = self.volumes.withhold(volume);
        withheld.map_err(|InUse(name)| ChangeError::Refused {
            name,
            why: Refusal::Busy,
        })?;
        self.withheld = Some(volume.to_owned());
        Ok(())
    }

    /// Applies the effects of a step of a change, and those that `other` has.
    ///
    /// # Errors
    /// If a device that must go is in use, and the errors of `other`. All devices are then as before.
    pub(crate) fn around(
        &self,
        step: Step<'_>,
        other: &mut dyn FnMut(Step<'_>) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeError> {
        match step {
            Step::Before(change) => {
                self.before(change)?;
                other(step).inspect_err(|_| self.failed(change))
            }
            Step::Failed(change) => {
                let done = other(step);
                self.failed(change);
                done
            }
            Step::After(change) => {
                let done = other(step);
                self.after(change);
                done
            }
        }
    }

    fn before(&self, change: &PoolChange) -> Result<(), ChangeError> {
        (self.volumes).check_devices(self.pools, self.pool, change)?;
        for name in self.due_with(change) {
            // A device that a program has open keeps its snapshot, which then stays marked for destruction.
            let _ = self.volumes.release(&|device| device == name);
            self.due.borrow_mut().push(name);
        }
        let released = match effect(change, self.pool) {
            Effect::Goes(root) => self.volumes.release_below(root),
            Effect::AllGo(names) => {
                let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
                self.volumes.release(&|name| names.contains(name))
            }
            Effect::RolledBack(volume) => self.volumes.release(&|name| name == volume),
            Effect::Kept(names) => {
                let volumes = volumes_of(names);
                self.volumes.flush(&|name| volumes.contains(name));
                Ok(())
            }
            Effect::Changes(root, true) => {
                self.volumes.flush(&|name| is_of(name, root));
                Ok(())
            }
            Effect::Nothing | Effect::Changes(_, false) => Ok(()),
        };
        released.map_err(|InUse(name)| {
            self.restore();
            match change.leaves() {
                true => ChangeError::Busy,
                false => ChangeError::Refused {
                    name,
                    why: Refusal::Busy,
                },
            }
        })
    }

    /// The snapshots that are destroyed with a change, because they were marked for it: those of which a hold is released,
    /// and those of which a clone goes.
    fn due_with(&self, change: &PoolChange) -> Vec<String> {
        let PoolChange::Dataset(change) = change else {
            return vec![];
        };
        let (names, is_release): (&[String], bool) = match change {
            DatasetChange::Release { names, .. } => (names, true),
            DatasetChange::Destroy { name } => (std::slice::from_ref(name), false),
            DatasetChange::DestroyInOrder { names, .. } => (names, false),
            _ => return vec![],
        };
        let live = self.pools.get(self.pool);
        let view = live.as_ref().and_then(|pool| pool.live()?.committed().ok());
        let Some(view) = view else { return vec![] };
        let mut due = vec![];
        for name in names {
            let Ok(dataset) = view.dataset(name) else {
                continue;
            };
            let snapshot = match is_release {
                true => Some(dataset),
                false => dataset.origin().ok().flatten(),
            };
            let marked = snapshot.filter(|one| one.is_marked_for_destruction());
            due.extend(marked.map(|one| one.name().to_owned()));
        }
        due
    }

    /// Attaches again what was detached for a change that was not made.
    fn restore(&self) {
        self.volumes.follow(self.pools, self.pool);
    }

    /// Attaches again the devices of snapshots that were due, but are still there: another hold or clone keeps them.
    fn follow_due(&self) {
        for name in self.due.take() {
            self.volumes.follow(self.pools, volume_of(&name));
        }
    }

    fn failed(&self, change: &PoolChange) {
        self.follow_due();
        let effect = effect(change, self.pool);
        if matches!(
            effect,
            Effect::Goes(_) | Effect::AllGo(_) | Effect::RolledBack(_)
        ) {
            self.restore();
        }
    }

    fn after(&self, change: &PoolChange) {
        self.follow_due();
        match effect(change, self.pool) {
            Effect::Nothing => {}
            Effect::Goes(root) | Effect::RolledBack(root) | Effect::Changes(root, _) => {
                self.volumes.follow(self.pools, root);
            }
            // Snapshots that are only marked for destruction are still there.
            Effect::AllGo(names) | Effect::Kept(names) => {
                let volumes = volumes_of(names);
                for name in self.volumes.names_in(&volumes) {
                    self.volumes.follow(self.pools, &name);
                }
            }
        }
    }
}

impl Drop for FollowVolumes<'_> {
    fn drop(&mut self) {
        if let Some(volume) = self.withheld.take() {
            self.volumes.allow(&volume);
            self.volumes.follow(self.pools, &volume);
        }
    }
}

fn volume_of(snapshot: &str) -> &str {
    snapshot.split('@').next().unwrap_or(snapshot)
}

/// The datasets of snapshots.
fn volumes_of(names: &[String]) -> BTreeSet<&str> {
    let heads = names.iter().filter_map(|name| name.split_once('@'));
    heads.map(|(head, _)| head).collect()
}

/// Follows the receive of a stream: the mounts with `mounts`, and the devices of volumes.
pub(crate) struct ReceivingVolumes<'w, 'a> {
    mounts: &'w mut Receiving<'a>,
    volumes: &'a Volumes,
    pools: &'a ImportedPools,
    /// The datasets whose devices may come back.
    released: BTreeSet<String>,
}

impl<'w, 'a> ReceivingVolumes<'w, 'a> {
    pub(crate) fn new(
        mounts: &'w mut Receiving<'a>,
        volumes: &'a Volumes,
        pools: &'a ImportedPools,
    ) -> Self {
        Self {
            mounts,
            volumes,
            pools,
            released: BTreeSet::new(),
        }
    }

    fn release(&mut self, dataset: &str, root: &str) -> Result<(), ReceiveProblem> {
        self.released.insert(root.to_owned());
        let released = self.volumes.release_below(dataset);
        released.map_err(|InUse(name)| {
            self.restore();
            ReceiveProblem::Busy(name)
        })
    }

    /// After the stream, which may have brought snapshots that are shown.
    pub(crate) fn finish(&mut self, name: &str) {
        let name = name.split('@').next().unwrap_or(name);
        self.volumes.follow(self.pools, name);
    }

    fn restore(&mut self) {
        for root in std::mem::take(&mut self.released) {
            self.volumes.follow(self.pools, &root);
        }
    }
}

impl ReceiveWatch for ReceivingVolumes<'_, '_> {
    fn before_replacing(&mut self, dataset: &str) -> Result<(), ReceiveProblem> {
        self.release(dataset, dataset)?;
        let ready = self.mounts.before_replacing(dataset);
        ready.inspect_err(|_| self.restore())
    }

    fn after_replacing(&mut self, is_done: bool) {
        self.mounts.after_replacing(is_done);
        self.restore();
    }

    fn before_moving(&mut self, dataset: &str) -> Result<(), ReceiveProblem> {
        // It may have another name afterwards.
        self.release(dataset, pool_of(dataset))?;
        let ready = self.mounts.before_moving(dataset);
        ready.inspect_err(|_| self.restore())
    }

    fn after_moving(&mut self) {
        self.mounts.after_moving();
        self.restore();
    }

    fn created(&mut self, dataset: &str) {
        self.mounts.created(dataset);
        self.volumes.follow(self.pools, dataset);
    }
}

impl Drop for ReceivingVolumes<'_, '_> {
    fn drop(&mut self) {
        self.restore();
    }
}
