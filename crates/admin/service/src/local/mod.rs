//! Requests answered by opening pools for one command.

mod changes;
mod freeing;
mod pools;

pub use changes::LocalChanges;
pub use pools::LocalPools;

use crate::device_facts;
use crate::imported::search_of;
use millpond_control::{ControlError, Failure, Item, Reply, Request, SearchPaths, Service};
use std::fs::File;
use std::os::fd::OwnedFd;

/// Answers the requests that need no process which keeps pools open.
pub struct LocalService {
    pools: LocalPools,
    changes: LocalChanges,
}

impl LocalService {
    /// Answers from these pools. Both parts must have the same search.
    #[must_use]
    pub fn new(pools: LocalPools, changes: LocalChanges) -> Self {
        Self { pools, changes }
    }

    /// The part that changes pools. Pools that are open for reading hold locks that conflict with writing.
    fn changes(&self) -> &LocalChanges {
        self.pools.forget();
        &self.changes
    }
}

impl Service for LocalService {
    fn call(&self, request: &Request) -> Result<Reply, Failure> {
        let pools = &self.pools;
        Ok(match request {
            Request::Pools {} => Reply::Pools(pools.names()),
            Request::Pool { name } => Reply::Pool(pools.pool(name)?),
            Request::VdevProperties { pool, guid } => {
                Reply::VdevProperties(pools.vdev_properties(pool, *guid)?)
            }
            Request::Holds { snapshot } => Reply::Holds(pools.holds(snapshot)?),
            Request::Permissions { dataset } => Reply::Permissions(pools.permissions(dataset)?),
            Request::SpaceByOwner { dataset, owners } => {
                Reply::SpaceByOwner(pools.space_by_owner(dataset, *owners)?)
            }
            Request::Importable { search } if *search == SearchPaths::default() => {
                Reply::Importable(pools.importable())
            }
            Request::Importable { search } => {
                let search = search_of(search, pools.hostid())?;
                Reply::Importable(LocalPools::search(&search).importable())
            }
            Request::Device { path } => Reply::Device(device_facts(path)?),
            Request::CreatePool { request, command } => {
                Reply::CreatePool(self.changes().create_pool(request, command)?)
            }
            Request::CheckAdd { pool, devices } => {
                Reply::CheckAdd(self.changes().check_add(pool, devices)?)
            }
            Request::Change {
                pool,
                changes,
                command,
            } => Reply::Change(self.changes().change(pool, changes, command)?),
            Request::ClearLabels { path, force } => {
                Reply::ClearLabels(self.changes().clear_labels(path, *force)?)
            }
            Request::SendPlan { request } => Reply::SendPlan(pools.send_plan(request)?),
            // No file system is mounted.
            Request::DeleteQueue { .. } => Reply::DeleteQueue(0),
            _ => return Err(Failure::needs_daemon()),
        })
    }

    fn transfer(
        &self,
        request: &Request,
        descriptor: OwnedFd,
        is_abandoned: &(dyn Fn() -> bool + Sync),
    ) -> Result<Reply, Failure> {
        match request {
            Request::Send { request } => {
                let output = File::from(descriptor);
                Ok(Reply::Send(self.pools.send(
                    request,
                    output,
                    is_abandoned,
                )?))
            }
            Request::Receive { request, command } => {
                let input = File::from(descriptor);
                let changes = self.changes();
                let received = changes.receive(request, command, input, is_abandoned)?;
                Ok(Reply::Receive(received))
            }
            Request::RunProgram { request, command } => {
                let script = File::from(descriptor);
                let changes = self.changes();
                let value = changes.run_program(request, command, script, is_abandoned)?;
                Ok(Reply::RunProgram(value))
            }
            _ => Err(Failure::other_reply()),
        }
    }

    fn stream(
        &self,
        request: &Request,
        each: &mut dyn FnMut(Item) -> Result<(), ControlError>,
    ) -> Result<(), Failure> {
        match request {
            Request::Datasets { query } => {
                let mut each = |info| each(Item::Datasets(info));
                self.pools.datasets(query, &mut each)?;
            }
            Request::History { pool } => {
                let mut each = |record| each(Item::History(record));
                self.pools.history(pool, &mut each)?;
            }
            Request::Diff { query } => {
                let mut each = |difference| each(Item::Diff(difference));
                self.pools.diff(query, &mut each)?;
            }
            _ => return Err(Failure::other_reply()),
        }
        Ok(())
    }
}
