//! What a user may do who receives a stream or package.

use super::needs::{Need, Scope, here, needs_of_stream, of_change, of_excluded};
use crate::imported::ImportedPools;
use millpond_control::{DatasetChange, PermissionSubject, PoolChange, ReceiveStream, Value};
use millpond_engine::{PropertyValue, UserChange, UserRights};

/// The rights of a user, as the pools are now.
pub struct ReceivingRights<'p> {
    pools: &'p ImportedPools,
    stream: &'p ReceiveStream,
    subject: &'p PermissionSubject,
}

impl ImportedPools {
    /// What a user who is not the superuser may do while receiving.
    #[must_use]
    pub fn receiving_rights<'p>(
        &'p self,
        stream: &'p ReceiveStream,
        subject: &'p PermissionSubject,
    ) -> ReceivingRights<'p> {
        ReceivingRights {
            pools: self,
            stream,
            subject,
        }
    }
}

impl ReceivingRights<'_> {
    /// What a change needs; `None` if only the superuser may make it.
    fn needs(&self, change: &UserChange<'_>) -> Option<Vec<Need>> {
        let own = |name: &str| name.to_owned();
        let change = match *change {
            UserChange::Receive(dataset) => {
                return Some(needs_of_stream(self.stream, dataset, Scope::HereOrParent));
            }
            UserChange::Clone(origin) => return Some(here(origin, &["clone"])),
            UserChange::ChangeKey(name) => return Some(here(name, &["change-key"])),
            UserChange::Set(name, property, None) => {
                let need = of_excluded(name, property, Scope::Here)?;
                return Some(need.into_iter().collect());
            }
            UserChange::Destroy(name) => DatasetChange::Destroy { name: own(name) },
            UserChange::Rename(from, to) => DatasetChange::Rename {
                from: own(from),
                to: own(to),
                recursively: false,
                mount: false,
            },
            UserChange::Promote(name) => DatasetChange::Promote { name: own(name) },
            UserChange::Hold(snapshot) => DatasetChange::Hold {
                names: vec![own(snapshot)],
                tag: String::new(),
            },
            UserChange::Set(name, property, Some(value)) => {
                let value = match value {
                    PropertyValue::Number(number) => Value::Number(*number),
                    PropertyValue::Text(text) => Value::Text(text.clone()),
                };
                DatasetChange::Set {
                    name: own(name),
                    properties: vec![(own(property), value)],
                    mount: false,
                }
            }
        };
        of_change(&PoolChange::Dataset(change))
    }
}

impl UserRights for ReceivingRights<'_> {
    fn may(&self, change: &UserChange<'_>) -> bool {
        let needs = self.needs(change);
        needs.is_some_and(|needs| self.pools.has_all(&needs, self.subject))
    }
}
