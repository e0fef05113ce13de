//! Starts, suspends and cancels activities on leaves.

use super::{LeafActivity, Work, leaf_position::LeafPosition, leaves_of, phase};
use crate::PoolError;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_device::DiscardSupport;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_ondisk::{Guid, ObjectId};
use millpond_vdev::VdevConfig;

/// How to trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrimOptions {
    /// The most bytes of a leaf in a second; 0 for no limit.
    pub rate_bytes: u64,
    /// Whether the device erases all copies.
    pub is_secure: bool,
}

/// What to do about an activity on a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityAction {
    /// Start it, or resume it if it is suspended. The options are those of a trim. A trim that is resumed keeps its rate
    /// unless another is given, and starts anew if it is to be secure and was not.
    Start(TrimOptions),
    /// Stop it; its progress stays.
    Suspend,
    /// Stop it, and forget its progress.
    Cancel,
    /// Forget that it was done.
    Reset,
}

/// Why an activity on a leaf does not change. The texts are those of `zpool initialize` and `zpool trim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActivityRefusal {
    /// The pool has no such leaf.
    #[error("no such device in pool")]
    NoSuchLeaf,
    /// It runs.
    #[error("{}", match .0 {
        LeafActivity::Initialize => "currently initializing",
        LeafActivity::Trim => "currently trimming",
    })]
    Active(LeafActivity),
    /// It does not run.
    #[error("{}", match .0 {
        LeafActivity::Initialize => "there is no active initialization",
        LeafActivity::Trim => "there is no active trim",
    })]
    NotActive(LeafActivity),
    /// The leaf is out of use.
    #[error("the device is not in use; bring it back with 'zpool online'")]
    Unavailable,
    /// The device cannot discard, or not securely.
    #[error("trim operations are not supported by this device")]
    NoDiscards,
    /// The leaf has no place to store the progress, or lies in a vdev whose free space is not mapped to leaves.
    #[error("operation not supported on this type of pool")]
    Unsupported,
}

/// A change of state: the new state, its words in the history, and its event.
struct Step {
    work: Work,
    text: &'static str,
    event: &'static str,
}

impl Step {
    /// What an action makes of the work.
    fn of(
        activity: LeafActivity,
        action: ActivityAction,
        old: &Work,
    ) -> Result<Self, ActivityRefusal> {
        let fresh = Work::default();
        let (work, text, event) = match (action, old.phase) {
            (ActivityAction::Start(_) | ActivityAction::Reset, phase::ACTIVE) => {
                return Err(ActivityRefusal::Active(activity));
            }
            (ActivityAction::Start(new), phase::SUSPENDED)
                if old.options.is_secure || !new.is_secure =>
            {
                let options = TrimOptions {
                    rate_bytes: match new.rate_bytes {
                        0 => old.options.rate_bytes,
                        rate => rate,
                    },
                    ..old.options
                };
                let work = Work {
                    phase: phase::ACTIVE,
                    leaf_bytes: old.leaf_bytes,
                    options,
                    ..fresh
                };
                (work, " activated", "trim_resume")
            }
            (ActivityAction::Start(options), _) => {
                let work = Work {
                    phase: phase::ACTIVE,
                    options,
                    ..fresh
                };
                (work, " activated", "trim_start")
            }
            (ActivityAction::Suspend, phase::ACTIVE) => {
                let work = Work {
                    phase: phase::SUSPENDED,
                    ..*old
                };
                (work, " suspended", "trim_suspend")
            }
            (ActivityAction::Cancel, phase::ACTIVE | phase::SUSPENDED) => {
                let work = Work {
                    phase: phase::CANCELED,
                    ..fresh
                };
                (work, " canceled", "trim_cancel")
            }
            (ActivityAction::Suspend | ActivityAction::Cancel, _) => {
                return Err(ActivityRefusal::NotActive(activity));
            }
            (ActivityAction::Reset, _) => (fresh, "", ""),
        };
        Ok(Self { work, text, event })
    }
}

impl Pool {
    /// Starts, suspends or cancels an activity on leaves. The new states are stored when this returns. Returns the leaves
    /// of which the state does not change, with the reasons.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn change_leaf_activity(
        &self,
        leaves: &[Guid],
        activity: LeafActivity,
        action: ActivityAction,
    ) -> Result<Vec<(Guid, ActivityRefusal)>, PoolError> {
        let refused = self.sync_task(|ctx| {
            let mut refused = vec![];
            for leaf in leaves {
                if let Err(refusal) = ctx.change_activity(*leaf, activity, action)? {
                    refused.push((*leaf, refusal));
                }
            }
            Ok(refused)
        })?;
        self.activities.changed.notify_all();
        Ok(refused)
    }

    /// Forgets what was to be done on leaves that an administrator gave up.
    pub(crate) fn cancel_activities(&self, leaves: &[Guid]) -> Result<(), PoolError> {
        for activity in LeafActivity::ALL {
            if self.is_leaf_active(activity) {
                self.change_leaf_activity(leaves, activity, ActivityAction::Cancel)?;
            }
        }
        Ok(())
    }
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn change_activity(
        &self,
        leaf: Guid,
        activity: LeafActivity,
        action: ActivityAction,
    ) -> Result<Result<(), ActivityRefusal>, PoolError> {
        let root = self.pool.state.read().config.root.clone();
        let found = leaves_of(&root).into_iter().find(|one| one.guid == leaf);
        let Some(config) = found else {
            return Ok(Err(ActivityRefusal::NoSuchLeaf));
        };
        let zap = config.zap_leaf.and_then(ObjectId::some);
        let (Some(zap), Some(_)) = (
            zap,
            LeafPosition::of(&self.pool.store.topology().tree, leaf),
        ) else {
            return Ok(Err(ActivityRefusal::Unsupported));
        };
        if let ActivityAction::Start(options) = action
            && let Err(refusal) = self.may_start(leaf, activity, options)
        {
            return Ok(Err(refusal));
        }
        let control = &self.pool.activities;
        let mut state = control.state.lock();
        let old = state.work.get(&(activity, zap)).copied();
        let mut step = match Step::of(activity, action, &old.unwrap_or_default()) {
            Ok(step) => step,
            Err(refusal) => return Ok(Err(refusal)),
        };
        state.serial += 1;
        step.work.serial = state.serial;
        state.work.insert((activity, zap), step.work);
        drop(state);
        self.store_activity(activity, zap, &step.work, true)?;
        if action == ActivityAction::Reset {
            self.note_activity(config, &format!("un{}", activity.verb()), "")?;
        } else {
            self.note_activity(config, activity.verb(), step.text)?;
        }
        // The system knows no events of initializations.
        if activity == LeafActivity::Trim && !step.event.is_empty() {
            self.note_scan(step.event);
        }
        Ok(Ok(()))
    }

    fn may_start(
        &self,
        leaf: Guid,
        activity: LeafActivity,
        options: TrimOptions,
    ) -> Result<(), ActivityRefusal> {
        let device = self.pool.activity_device(leaf);
        let device = device.ok_or(ActivityRefusal::Unavailable)?;
        let can = |support: DiscardSupport| match options.is_secure {
            true => support.secure,
            false => support.plain,
        };
        match activity == LeafActivity::Initialize || device.discard_support().is_some_and(can) {
            true => Ok(()),
            false => Err(ActivityRefusal::NoDiscards),
        }
    }

    pub(super) fn store_activity(
        &self,
        activity: LeafActivity,
        zap: ObjectId,
        work: &Work,
        is_new_phase: bool,
    ) -> Result<(), PoolError> {
        let keys = activity.keys();
        if is_new_phase {
            self.set_table_number(zap, keys.state, work.phase)?;
            self.set_table_number(zap, keys.action_time, self.now_s())?;
            if activity == LeafActivity::Trim {
                self.set_table_number(zap, vdev_key::TRIM_RATE, work.options.rate_bytes)?;
                self.set_table_number(zap, vdev_key::TRIM_PARTIAL, 0)?;
                let is_secure = u64::from(work.options.is_secure);
                self.set_table_number(zap, vdev_key::TRIM_SECURE, is_secure)?;
            }
        }
        self.set_table_number(zap, keys.offset, work.leaf_bytes)
    }

    pub(super) fn note_activity(
        &self,
        leaf: &VdevConfig,
        verb: &str,
        text: &str,
    ) -> Result<(), PoolError> {
        let path = leaf.path.clone().unwrap_or_default();
        self.history(&HistoryEvent::of_pool(verb, format!("vdev={path}{text}")))
    }
}
