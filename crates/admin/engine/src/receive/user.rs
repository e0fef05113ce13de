//! Users who receive without being the superuser.

use super::Run;
use super::recursive::Wanted;
use millpond_dataset::{Creator, PropertyValue};
use millpond_receive::{ReceiveProblem, ReceiveStep};
use std::fmt;

/// The reason that is given for a property that the user may not set.
const DENIED: &str = "permission denied";

/// A user who receives a stream without being the superuser.
#[derive(Clone)]
pub struct ReceivingUser<'u> {
    /// The user.
    pub creator: Creator,
    /// Says what the user may do.
    pub rights: &'u (dyn UserRights + 'u),
}

/// What a user may do in a pool.
pub trait UserRights: Sync {
    /// Whether the user may make a change, as the datasets are now.
    fn may(&self, change: &UserChange<'_>) -> bool;
}

/// A change that a receive makes, and that needs permission. Names are full ones.
#[derive(Debug, Clone, PartialEq)]
pub enum UserChange<'c> {
    /// Receives a stream into a dataset, which may be new.
    Receive(&'c str),
    /// Begins a dataset with a snapshot.
    Clone(&'c str),
    /// Destroys a dataset or snapshot.
    Destroy(&'c str),
    /// Renames a dataset or snapshot.
    Rename(&'c str, &'c str),
    /// Promotes a clone.
    Promote(&'c str),
    /// Holds a snapshot.
    Hold(&'c str),
    /// Gives a dataset another encryption root.
    ChangeKey(&'c str),
    /// Sets a property of a dataset or snapshot, or keeps its received value from taking effect, which is `None`.
    Set(&'c str, &'c str, Option<&'c PropertyValue>),
}

impl fmt::Debug for ReceivingUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivingUser")
            .field("creator", &self.creator)
            .finish_non_exhaustive()
    }
}

impl Run<'_> {
    /// Whether the user may make a change. The superuser may.
    pub(super) fn may(&self, change: &UserChange<'_>) -> bool {
        let user = self.request.user.as_ref();
        user.is_none_or(|user| user.rights.may(change))
    }

    /// Refuses a change that the user may not make.
    pub(super) fn check_allowed(&self, change: &UserChange<'_>) -> Result<(), ReceiveProblem> {
        match self.may(change) {
            true => Ok(()),
            false => Err(ReceiveProblem::Denied),
        }
    }

    pub(super) fn may_change(&self, wanted: &Wanted) -> bool {
        self.may(&match wanted {
            Wanted::Destroy(name) => UserChange::Destroy(name),
            Wanted::Rename(from, to) => UserChange::Rename(from, to),
            Wanted::Promote(name) => UserChange::Promote(name),
        })
    }

    /// The properties that the user may set. The others are reported.
    pub(super) fn allowed(
        &mut self,
        dataset: &str,
        properties: &[(String, PropertyValue)],
    ) -> Vec<(String, PropertyValue)> {
        let all = properties.iter().cloned();
        let (allowed, refused): (Vec<_>, Vec<_>) =
            all.partition(|(name, value)| self.may(&UserChange::Set(dataset, name, Some(value))));
        let refused = refused
            .into_iter()
            .map(|(property, _)| ReceiveStep::PropertyRefused {
                dataset: dataset.to_owned(),
                property,
                reason: DENIED.to_owned(),
            });
        self.steps.extend(refused);
        allowed
    }

    /// The properties of which the user may keep the received values from taking effect.
    pub(super) fn excludable<'n>(
        &self,
        dataset: &str,
        names: impl IntoIterator<Item = &'n String>,
    ) -> Vec<String> {
        let names = names.into_iter();
        let allowed = names.filter(|name| self.may(&UserChange::Set(dataset, name, None)));
        allowed.cloned().collect()
    }
}
