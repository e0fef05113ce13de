//! The permissions that each request needs. A request without a rule here does not compile.

use millpond_control::properties::{PropertyName, by_name};
use millpond_control::{
    DatasetChange, DiffQuery, OwnerKind, PermissionGrant, PermissionHolder, PermissionReach,
    PoolChange, ReceiveNaming, ReceiveStream, Request, SendStream, Value, Values,
};
use std::collections::BTreeSet;

/// Where a permission is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// At the dataset, or at that of the snapshot or bookmark.
    Here,
    /// At every descendant.
    Below,
    /// At the dataset and at every descendant.
    Tree,
    /// At its parent.
    Parent,
    /// At the dataset; at its parent if it does not exist.
    HereOrParent,
    /// At the dataset when it will have been created.
    New,
    /// At the dataset of its origin.
    Origin,
}

/// A permission that a request needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    dataset: String,
    permission: String,
    /// Another permission that is enough.
    or: Option<&'static str>,
    scope: Scope,
}

impl Need {
    pub(crate) fn new(dataset: &str, permission: impl Into<String>, scope: Scope) -> Self {
        Self {
            dataset: dataset.to_owned(),
            permission: permission.into(),
            or: None,
            scope,
        }
    }
    /// The full name of a dataset, snapshot or bookmark.
    pub(crate) fn dataset(&self) -> &str {
        &self.dataset
    }
    #[cfg(test)]
    pub(crate) fn permission(&self) -> String {
        match self.or {
            Some(other) => format!("{} or {other}", self.permission),
            None => self.permission.clone(),
        }
    }
    /// Whether these permissions are enough.
    pub(crate) fn is_met_by(&self, permissions: &BTreeSet<String>) -> bool {
        permissions.contains(&self.permission)
            || self.or.is_some_and(|other| permissions.contains(other))
    }
    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }
}

/// All permissions that something needs; `None` if only the superuser may do it.
type Needs = Option<Vec<Need>>;

pub(crate) fn here(dataset: &str, permissions: &[&str]) -> Vec<Need> {
    let needs = permissions.iter();
    needs
        .map(|name| Need::new(dataset, *name, Scope::Here))
        .collect()
}

fn at_each(datasets: &[String], permissions: &[&str]) -> Needs {
    let needs = datasets.iter();
    Some(needs.flat_map(|name| here(name, permissions)).collect())
}

/// What a request needs.
pub(crate) fn needs(request: &Request) -> Needs {
    match request {
        Request::Pools {}
        | Request::Pool { .. }
        | Request::VdevProperties { .. }
        | Request::Holds { .. }
        | Request::SpaceByOwner { .. }
        | Request::Permissions { .. }
        | Request::DeleteQueue { .. }
        | Request::Mounts {}
        | Request::About {}
        | Request::ArcStatistics {}
        | Request::ImportProgress {}
        | Request::ChangeProgress { .. }
        | Request::Tunables {}
        | Request::Datasets { .. } => Some(vec![]),
        Request::Device { .. }
        | Request::CreatePool { .. }
        | Request::CheckAdd { .. }
        | Request::ClearLabels { .. }
        | Request::Importable { .. }
        | Request::Import { .. }
        // mount(2) and umount(2) are the superuser's.
        | Request::Mount { .. }
        | Request::Unmount { .. }
        | Request::Events { .. }
        | Request::ClearEvents {}
        | Request::SetTunable { .. }
        // It may change any dataset of the pool.
        | Request::RunProgram { .. }
        // What the state refers to takes space for as long as it is kept.
        | Request::KeepState { .. }
        | Request::History { .. } => None,
        // A command without changes would only be a record in the history.
        Request::Change { changes, .. } if changes.is_empty() => None,
        Request::Change { changes, .. } => all(changes.iter().map(of_change)),
        Request::LoadKey { dataset, .. } | Request::UnloadKey { dataset } => {
            Some(here(dataset, &["load-key"]))
        }
        Request::Send { request } | Request::SendPlan { request } => Some(of_send(request)),
        Request::Receive { request, .. } => of_receive(request),
        Request::Diff { query } => {
            let DiffQuery { from, to } = query;
            at_each(&[from.clone(), to.clone()], &["diff"])
        }
    }
}

/// All of several needs.
fn all(parts: impl Iterator<Item = Needs>) -> Needs {
    let parts: Option<Vec<Vec<Need>>> = parts.collect();
    Some(parts?.into_iter().flatten().collect())
}

pub(crate) fn of_change(change: &PoolChange) -> Needs {
    match change {
        // A change of nothing would only be a record in the history.
        PoolChange::Dataset(change) => of_dataset(change).filter(|needs| !needs.is_empty()),
        PoolChange::Add(_)
        | PoolChange::Destroy
        | PoolChange::Export
        | PoolChange::Set { .. }
        | PoolChange::SetVdev { .. }
        | PoolChange::Upgrade { .. }
        | PoolChange::Reguid { .. }
        | PoolChange::Sync { .. }
        | PoolChange::Freeze
        | PoolChange::KeepCacheFile
        | PoolChange::PruneDedup(_)
        | PoolChange::PrefetchDedup
        | PoolChange::Clear { .. }
        | PoolChange::Offline { .. }
        | PoolChange::Online { .. }
        | PoolChange::Reopen { .. }
        | PoolChange::Attach(_)
        | PoolChange::Detach { .. }
        | PoolChange::Split(_)
        | PoolChange::RemoveAuxiliary { .. }
        | PoolChange::RemoveLog { .. }
        | PoolChange::RemoveData { .. }
        | PoolChange::CancelRemoval
        | PoolChange::EstimateRemoval { .. }
        | PoolChange::TakeCheckpoint
        | PoolChange::DiscardCheckpoint
        | PoolChange::FinishDiscard
        | PoolChange::Scrub(_)
        | PoolChange::Resilver
        | PoolChange::FinishScan
        | PoolChange::LeafActivity { .. }
        | PoolChange::FinishLeafActivity(_)
        | PoolChange::Abandon => None,
    }
}

fn of_dataset(change: &DatasetChange) -> Needs {
    match change {
        DatasetChange::CreateFileSystem {
            name, properties, ..
        }
        | DatasetChange::CreateVolume {
            name, properties, ..
        } => of_new(name, properties),
        DatasetChange::Clone {
            snapshot,
            name,
            properties,
            ..
        } => {
            let mut needs = here(snapshot, &["clone"]);
            needs.extend(of_new(name, properties)?);
            Some(needs)
        }
        DatasetChange::ChangeKey {
            name, properties, ..
        } => {
            let may_be = |(name, value): &(String, Value)| is_harmless(name, Some(value));
            properties
                .iter()
                .all(may_be)
                .then(|| here(name, &["change-key"]))
        }
        DatasetChange::InheritKey { name } => Some(here(name, &["change-key"])),
        DatasetChange::Snapshot { names, properties } => {
            let mut needs = at_each(names, &["snapshot"])?;
            for name in names {
                needs.extend(of_properties(name, properties, Scope::Here)?);
            }
            Some(needs)
        }
        DatasetChange::Destroy { name } if name.contains('#') => Some(here(name, &["destroy"])),
        // Giving up a receive destroys what was received.
        DatasetChange::Destroy { name } | DatasetChange::AbortReceive { name } => {
            Some(here(name, &["destroy", "mount"]))
        }
        DatasetChange::DestroyInOrder {
            names,
            before_rollback: Some(snapshot),
        } => {
            let mut needs = here(snapshot, &["rollback"]);
            if !names.is_empty() {
                needs.extend(at_each(names, &["destroy", "mount"])?);
            }
            Some(needs)
        }
        DatasetChange::DestroyInOrder { names, .. }
        | DatasetChange::DestroySnapshots { names, .. } => at_each(names, &["destroy", "mount"]),
        DatasetChange::Rename {
            from,
            to,
            recursively,
            ..
        } => Some(of_rename(from, to, *recursively)),
        DatasetChange::Promote { name } => {
            let mut needs = here(name, &["promote", "mount"]);
            needs.push(Need::new(name, "promote", Scope::Origin));
            Some(needs)
        }
        DatasetChange::Rollback { snapshot } => Some(here(snapshot, &["rollback"])),
        DatasetChange::Bookmark { source, name } => {
            at_each(&[source.clone(), name.clone()], &["bookmark"])
        }
        DatasetChange::Redact { .. } => None,
        DatasetChange::Hold { names, .. } => at_each(names, &["hold"]),
        DatasetChange::Release { names, .. } => at_each(names, &["release"]),
        DatasetChange::Set {
            name, properties, ..
        } => of_properties(name, properties, Scope::Here),
        DatasetChange::SetOwnerQuota { name, quota } => {
            Some(here(name, &[owner_quota(quota.owners, quota.of_objects)]))
        }
        // A value that came with a stream, or a mount point of the parent, is not the user's choice.
        DatasetChange::Inherit {
            to_received: true, ..
        } => None,
        DatasetChange::Inherit { name, property, .. } => {
            Some(vec![of_property(name, property, None, Scope::Here)?])
        }
        DatasetChange::Allow { name, grants } => all(grants.iter().map(|g| of_grant(name, g))),
        DatasetChange::Unallow {
            name,
            recursively,
            removals,
        } => {
            let mut needs = all(removals.iter().map(|grant| of_grant(name, grant)))?;
            if *recursively {
                needs.iter_mut().for_each(|need| need.scope = Scope::Tree);
            }
            Some(needs)
        }
    }
}

fn owner_quota(owners: OwnerKind, of_objects: bool) -> &'static str {
    match (owners, of_objects) {
        (OwnerKind::User, false) => "userquota",
        (OwnerKind::User, true) => "userobjquota",
        (OwnerKind::Group, false) => "groupquota",
        (OwnerKind::Group, true) => "groupobjquota",
        (OwnerKind::Project, false) => "projectquota",
        (OwnerKind::Project, true) => "projectobjquota",
    }
}

/// To create a dataset. Its size and block size belong to a volume itself.
fn of_new(name: &str, properties: &Values) -> Needs {
    let parent = |permission| Need::new(name, permission, Scope::Parent);
    let mut needs = vec![parent("create"), parent("mount")];
    let others = properties.iter();
    let others = others.filter(|(name, _)| !matches!(name.as_str(), "volsize" | "volblocksize"));
    let others: Values = others.cloned().collect();
    needs.extend(of_properties(name, &others, Scope::New)?);
    Some(needs)
}

fn of_properties(dataset: &str, properties: &Values, scope: Scope) -> Needs {
    let each = properties.iter();
    each.map(|(name, value)| of_property(dataset, name, Some(value), scope))
        .collect()
}

/// To set a property, or to inherit it.
fn of_property(dataset: &str, name: &str, value: Option<&Value>, scope: Scope) -> Option<Need> {
    let permission = match by_name(name)? {
        PropertyName::Native(property) => property.shape.name,
        PropertyName::User(_) => "userprop",
        PropertyName::PerOwner { .. } | PropertyName::WrittenSince { .. } => return None,
    };
    is_harmless(permission, value).then(|| Need::new(dataset, permission, scope))
}

/// Whether the superuser's daemon does nothing for a user, with this value, that the user could not do. It mounts file systems
/// when it starts, and reads keys from files.
fn is_harmless(property: &str, value: Option<&Value>) -> bool {
    let words: &[&str] = match property {
        "mountpoint" => &["none", "legacy"],
        "keylocation" => &["none", "prompt"],
        _ => return true,
    };
    let text = value.and_then(Value::text);
    text.is_some_and(|text| words.contains(&text))
}

fn of_rename(from: &str, to: &str, recursively: bool) -> Vec<Need> {
    let scope = match recursively {
        true => Scope::Tree,
        false => Scope::Here,
    };
    let need = |name| Need::new(from, name, scope);
    if from.contains('@') {
        // The new parent of a snapshot is its dataset, as before.
        return ["rename", "mount", "create"].map(need).into();
    }
    let mut needs = vec![need("rename"), need("mount")];
    needs.extend(["create", "mount"].map(|name| Need::new(to, name, Scope::Parent)));
    needs
}

fn of_send(request: &SendStream) -> Vec<Need> {
    let scope = match request.package.is_recursive {
        true => Scope::Tree,
        false => Scope::Here,
    };
    vec![Need::new(&request.name, "send", scope)]
}

/// Where permissions are needed to receive a stream. Names at the sender can decide what lies below the given one.
pub(crate) fn scope_of_received(request: &ReceiveStream) -> Scope {
    match request.naming {
        ReceiveNaming::Given => Scope::HereOrParent,
        ReceiveNaming::WithoutPool | ReceiveNaming::LastComponent => Scope::Tree,
    }
}

fn of_receive(request: &ReceiveStream) -> Needs {
    let scope = scope_of_received(request);
    let mut needs = needs_of_stream(request, &request.name, scope);
    if let Some(origin) = &request.origin {
        needs.extend(here(origin, &["clone"]));
    }
    needs.extend(of_properties(&request.name, &request.properties, scope)?);
    for name in &request.excluded {
        needs.extend(of_excluded(&request.name, name, scope)?);
    }
    Some(needs)
}

/// To receive one stream into a dataset.
pub(crate) fn needs_of_stream(request: &ReceiveStream, dataset: &str, scope: Scope) -> Vec<Need> {
    let need = |name: &str| Need::new(dataset, name, scope);
    let mut needs: Vec<Need> = ["receive", "mount", "create"].map(need).into();
    if !request.is_forced {
        needs[0].or = Some("receive:append");
    }
    needs
}

/// To keep a received value from taking effect, for that of the parent or the default: `None` if only the superuser may.
pub(crate) fn of_excluded(dataset: &str, name: &str, scope: Scope) -> Option<Option<Need>> {
    match of_property(dataset, name, None, scope) {
        None if name != "mountpoint" && name != "keylocation" => None,
        need => Some(need),
    }
}

/// To grant or remove permissions: those themselves, and `allow`, which cannot be granted further. Removing everything of a
/// holder is not named after a permission, so it is the superuser's.
fn of_grant(name: &str, grant: &PermissionGrant) -> Needs {
    if grant.permissions.is_empty() || grant.permissions.contains("allow") {
        return None;
    }
    let scope = match (&grant.holder, grant.reach) {
        (PermissionHolder::Set(_), _) => Scope::Tree,
        (PermissionHolder::Creator, _) => Scope::Below,
        (_, PermissionReach::Descendant) => Scope::Below,
        (_, PermissionReach::Local | PermissionReach::NotApplicable) => Scope::Here,
    };
    let allow = [Need::new(name, "allow", scope)];
    let permissions = grant.permissions.iter();
    let permissions = permissions.map(|permission| Need::new(name, permission.clone(), scope));
    Some(allow.into_iter().chain(permissions).collect())
}
