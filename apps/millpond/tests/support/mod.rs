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
    ControlError, DatasetInfo, DatasetQuery, Failure, HistoryRecord, ImportablePool, Item,
    PoolInfo, Property, Reply, Request, Service, Wanted,
};
use millpond_dataset::properties::DatasetKind;
use std::collections::BTreeMap;

/// Simulated pools.
#[derive(Default)]
pub struct FakeService {
    pub pools: Vec<PoolInfo>,
    pub datasets: Vec<DatasetInfo>,
    pub history: BTreeMap<String, Vec<HistoryRecord>>,
    pub importable: Vec<ImportablePool>,
    pub vdev_properties: BTreeMap<u64, Vec<Property>>,
}

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
        users: BTreeMap::from([(0, "root".to_string())]),
        groups: BTreeMap::from([(0, "root".to_string())]),
    }
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
