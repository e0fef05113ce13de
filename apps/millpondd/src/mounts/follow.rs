//! What changes of datasets do to mounts: some are in the way, some come back elsewhere.

use super::settings::Settings;
use super::{Mounts, is_within};
use millpond::control::{ChangeError, Changed, DatasetChange, HeldPools, PoolChange, Step};

/// What one command's changes do to mounts.
pub struct Follow<'a> {
    mounts: &'a Mounts,
    pools: &'a HeldPools,
    pool: &'a str,
    /// What was taken away for the change that is being made.
    taken: Vec<String>,
}

/// What a change asks of mounts.
enum Effect<'c> {
    Nothing,
    /// Everything at and below is in the way.
    InTheWay(&'c str),
    /// The same, and it comes back under another name.
    Renamed(&'c str, &'c str),
    /// The same, and it comes back if it still is to be mounted, with everything that has its mount
    /// point from there.
    Moved(&'c str),
    /// It may be mounted now.
    New(&'c str),
    /// Open file systems at and below should look at their properties again.
    Settings(&'c str),
}

fn effect<'c>(change: &'c PoolChange, pool: &'c str) -> Effect<'c> {
    let moves = |property: &str| matches!(property, "mountpoint" | "canmount");
    match change {
        PoolChange::Destroy | PoolChange::Export => Effect::InTheWay(pool),
        PoolChange::Dataset(change) => match change {
            DatasetChange::CreateFileSystem { name, mount, .. }
            | DatasetChange::Clone { name, mount, .. }
                if *mount =>
            {
                Effect::New(name)
            }
            DatasetChange::Destroy { name } if !name.contains(['#', '@']) => Effect::InTheWay(name),
            DatasetChange::Rename { from, to, .. } if !from.contains('@') => {
                Effect::Renamed(from, to)
            }
            DatasetChange::Rollback { snapshot } => {
                Effect::Moved(snapshot.split('@').next().unwrap_or(snapshot))
            }
            DatasetChange::Set {
                name,
                properties,
                mount,
            } => match *mount && properties.iter().any(|(name, _)| moves(name)) {
                true => Effect::Moved(name),
                false => Effect::Settings(name),
            },
            DatasetChange::Inherit { name, property, .. } => match moves(property) {
                true => Effect::Moved(name),
                false => Effect::Settings(name),
            },
            _ => Effect::Nothing,
        },
        _ => Effect::Nothing,
    }
}

impl<'a> Follow<'a> {
    /// For the changes of one pool.
    pub fn new(mounts: &'a Mounts, pools: &'a HeldPools, pool: &'a str) -> Self {
        Self {
            mounts,
            pools,
            pool,
            taken: vec![],
        }
    }

    /// Before, after, or instead of a change.
    ///
    /// # Errors
    /// [`ChangeError::Mounted`] if something that is in the way is in use; everything is mounted as it
    /// was then.
    pub fn step(&mut self, step: Step<'_>, changed: &mut Changed) -> Result<(), ChangeError> {
        match step {
            Step::Before(change) => {
                self.taken.clear();
                let root = match effect(change, self.pool) {
                    Effect::InTheWay(root) | Effect::Renamed(root, _) | Effect::Moved(root) => root,
                    _ => return Ok(()),
                };
                let taken = self.mounts.take_away(root, false, &mut self.taken);
                taken.map_err(|(mountpoint, why)| {
                    self.bring_back();
                    ChangeError::Mounted { mountpoint, why }
                })
            }
            Step::Failed(_) => {
                self.bring_back();
                Ok(())
            }
            Step::After(change) => {
                let notes = match effect(change, self.pool) {
                    Effect::Nothing | Effect::InTheWay(_) => vec![],
                    Effect::Renamed(from, to) => {
                        let taken = std::mem::take(&mut self.taken);
                        let is_back = |one: &Settings| {
                            let old = one
                                .dataset
                                .strip_prefix(to)
                                .map(|rest| format!("{from}{rest}"));
                            old.is_some_and(|old| taken.contains(&old))
                        };
                        self.mounts.mount_some(self.pools, to, &is_back)
                    }
                    Effect::Moved(root) => {
                        let taken = std::mem::take(&mut self.taken);
                        self.mounts.mount_some(self.pools, root, &|one| {
                            taken.contains(&one.dataset)
                                || one.dataset == root
                                || one.mountpoint_from == root
                        })
                    }
                    Effect::New(name) => self.mounts.mount_some(self.pools, name, &|_| true),
                    Effect::Settings(root) => {
                        self.refresh(root);
                        vec![]
                    }
                };
                changed.notes.extend(notes);
                Ok(())
            }
        }
    }

    fn bring_back(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        // Errors here are those of the change that is being given up.
        let _ = self
            .mounts
            .mount_some(self.pools, self.pool, &|one| taken.contains(&one.dataset));
    }

    fn refresh(&self, root: &str) {
        let Some(live) = self
            .pools
            .get(self.pool)
            .and_then(|pool| pool.live().cloned())
        else {
            return;
        };
        for mount in self.mounts.list() {
            if is_within(&mount.dataset, root) {
                // Opening what is open makes it look at its properties.
                let _ = live.file_system(&mount.dataset);
            }
        }
    }
}
