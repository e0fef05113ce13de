//! Shared parts of the command tests.
//!
//! These are a fake set of pools, a way to run a command in this process, and recordings of the OpenZFS
//! programs.
#![allow(dead_code)] // each test program uses its part of this

pub mod history;
pub mod model;
pub mod recording;

use jiff::tz::TimeZone;
use millpond_cli::session::{Environment, OpenService, Session};
use millpond_control::{
    Changed, ControlError, DatasetChange, DatasetInfo, DatasetPermissions, DatasetQuery, Failure,
    HistoryRecord, ImportablePool, Item, PermissionGrant, PermissionHolder, PermissionReach,
    PoolChange, PoolInfo, Property, Reply, Request, Service, Wanted,
};
use millpond_dataset::properties::DatasetKind;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Simulated pools.
#[derive(Default)]
pub struct FakeService {
    pub pools: Vec<PoolInfo>,
    pub datasets: Vec<DatasetInfo>,
    pub history: BTreeMap<String, Vec<HistoryRecord>>,
    pub importable: Vec<ImportablePool>,
    pub vdev_properties: BTreeMap<u64, Vec<Property>>,
    /// Permissions by dataset, changed by requests.
    pub permissions: RefCell<BTreeMap<String, Granted>>,
}

/// Granted permissions: holder, reach and name.
pub type Granted = BTreeSet<(PermissionHolder, PermissionReach, String)>;

impl Service for FakeService {
    fn call(&self, request: &Request) -> Result<Reply, Failure> {
        Ok(match request {
            Request::Pools {} => {
                let names = self.pools.iter().map(|pool| pool.name.clone());
                Reply::Pools(names.collect())
            }
            Request::Pool { name } => Reply::Pool(self.pool_info(name)?),
            Request::VdevProperties { guid, .. } => {
                let properties = self.vdev_properties.get(guid).cloned();
                Reply::VdevProperties(properties.ok_or(ControlError::NoSuchVdev)?)
            }
            Request::Importable { .. } => Reply::Importable(self.importable.clone()),
            Request::Permissions { dataset } => Reply::Permissions(self.permissions_of(dataset)),
            Request::Change { changes, .. } => {
                changes
                    .iter()
                    .for_each(|change| self.change_permissions(change));
                Reply::Change(Changed::default())
            }
            _ => return Err(Failure::needs_daemon()),
        })
    }

    fn stream(
        &self,
        request: &Request,
        each: &mut dyn FnMut(Item) -> Result<(), ControlError>,
    ) -> Result<(), Failure> {
        match request {
            Request::Datasets { query } => {
                self.each_dataset(query, &mut |info| each(Item::Datasets(info)))?;
            }
            Request::History { pool } => {
                let records = self.history.get(pool).ok_or(ControlError::NoSuchPool)?;
                let mut records = records.iter().cloned();
                records.try_for_each(|record| each(Item::History(record)))?;
            }
            _ => return Err(Failure::needs_daemon()),
        }
        Ok(())
    }
}

impl FakeService {
    fn permissions_of(&self, dataset: &str) -> Vec<DatasetPermissions> {
        let all = self.permissions.borrow();
        let mut found = vec![];
        let mut at = Some(dataset);
        while let Some(name) = at {
            let mut grants: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
            for (holder, reach, permission) in all.get(name).into_iter().flatten() {
                let names = grants.entry((holder.clone(), *reach)).or_default();
                names.insert(permission.clone());
            }
            let grants = grants
                .into_iter()
                .map(|((holder, reach), permissions)| PermissionGrant {
                    holder,
                    reach,
                    permissions,
                });
            found.push(DatasetPermissions {
                dataset: name.to_owned(),
                grants: grants.collect(),
            });
            at = name.rsplit_once('/').map(|(parent, _)| parent);
        }
        found
    }

    fn change_permissions(&self, change: &PoolChange) {
        let mut all = self.permissions.borrow_mut();
        match change {
            PoolChange::Dataset(DatasetChange::Allow { name, grants }) => {
                let own = all.entry(name.clone()).or_default();
                for grant in grants {
                    let names = grant.permissions.iter().cloned();
                    own.extend(names.map(|name| (grant.holder.clone(), grant.reach, name)));
                }
            }
            PoolChange::Dataset(DatasetChange::Unallow {
                name,
                recursively,
                removals,
            }) => {
                for (dataset, own) in all.iter_mut() {
                    let is_below = *recursively && dataset.starts_with(&format!("{name}/"));
                    if dataset != name && !is_below {
                        continue;
                    }
                    own.retain(|(holder, reach, permission)| {
                        !removals.iter().any(|grant| {
                            grant.holder == *holder
                                && grant.reach == *reach
                                && (grant.permissions.is_empty()
                                    || grant.permissions.contains(permission))
                        })
                    });
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn pool_info(&self, name: &str) -> Result<PoolInfo, ControlError> {
        self.pools
            .iter()
            .find(|p| p.name == name)
            .cloned()
            .ok_or(ControlError::NoSuchPool)
    }

    fn each_dataset(
        &self,
        query: &DatasetQuery,
        each: &mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        if !self.datasets.iter().any(|info| info.name == query.root) {
            return Err(ControlError::NoSuchDataset);
        }
        for info in &self.datasets {
            let Some(depth) = depth_below(&query.root, &info.name) else {
                continue;
            };
            if depth > query.depth || !query.kinds.contains(info.kind) {
                continue;
            }
            let mut info = info.clone();
            if let Wanted::Named(names) = &query.wanted {
                info.properties
                    .retain(|p| names.iter().any(|name| name.text() == p.name));
            }
            each(info)?;
        }
        Ok(())
    }
}

fn depth_below(root: &str, name: &str) -> Option<u32> {
    let rest = name.strip_prefix(root)?;
    if rest.is_empty() {
        return Some(0);
    }
    if !rest.starts_with(['/', '@', '#']) {
        return None;
    }
    u32::try_from(rest.matches(['/', '@', '#']).count()).ok()
}

impl OpenService for FakeService {
    fn service(&self) -> Result<&dyn Service, String> {
        Ok(self)
    }
}

/// The output and status of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    pub stdout: String,
    pub stderr: String,
    pub status: u8,
}

pub fn environment() -> Environment {
    Environment {
        zone: TimeZone::UTC,
        clock: || 1_795_260_000,
        pause: |_| {},
        variables: BTreeMap::new(),
        man: "/nonexistent/man".into(),
        screen_lines: None,
        users: named(&[(0, "root"), (1000, "alice"), (1001, "user1")]),
        groups: named(&[(0, "root"), (50, "staff")]),
    }
}

fn named(names: &[(u64, &str)]) -> BTreeMap<u64, String> {
    let names = names.iter();
    names.map(|(id, name)| (*id, (*name).to_owned())).collect()
}

/// Runs `zpool …` or `zfs …` in this process.
pub fn run(control: &FakeService, words: &[String]) -> Printed {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let environment = environment();
    let mut session = Session {
        out: &mut out,
        err: &mut err,
        pools: control,
        environment: &environment,
    };
    let status = match words[0].as_str() {
        "zpool" => millpond_cli::zpool::run(&mut session, &words[1..]),
        "zfs" => millpond_cli::zfs::run(&mut session, &words[1..]),
        other => panic!("not a program: {other}"),
    };
    Printed {
        status: status.expect("writing to memory"),
        stdout: String::from_utf8(out).expect("text"),
        stderr: String::from_utf8(err).expect("text"),
    }
}

pub fn kind_of(word: &str) -> DatasetKind {
    DatasetKind::ALL
        .into_iter()
        .find(|kind| kind.word() == word)
        .expect("a kind of dataset")
}
