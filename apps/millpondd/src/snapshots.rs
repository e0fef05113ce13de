//! Changes of snapshots that programs ask for with directories in `.zfs/snapshot`.
//!
//! Page `docs/mount.md`, "Snapshots".

use crate::daemon::Daemon;
use crate::handler::RequestHandler;
use millpond_control::{
    ChangeError, DatasetChange, Failure, MountProblem, PoolChange, Request, Service,
};
use millpond_engine::{
    Caller, FileError, NAME_BYTES_MAX, Refusal, SnapshotChange, SnapshotControl, TransactionError,
};
use millpond_env::sync::Weak;
use millpond_env::{Tunable, thread};
use millpond_rpc::Access;
use std::time::Duration;

/// How long a program waits while other file systems are mounted or unmounted.
const MOUNTS_WAIT_MAX: Duration = Duration::from_secs(5);

/// Makes them as requests of the program's user, with the rules, the history and the events of the commands.
pub(crate) struct SnapshotRequests(Weak<Daemon>);

impl SnapshotRequests {
    pub(crate) fn new(daemon: Weak<Daemon>) -> Self {
        Self(daemon)
    }
}

impl SnapshotControl for SnapshotRequests {
    fn change(
        &self,
        dataset: &str,
        caller: &Caller,
        change: SnapshotChange<'_>,
    ) -> Result<(), FileError> {
        let daemon = self.0.upgrade().ok_or(FileError::AccessDenied)?;
        let done = match daemon.env.tunables.is_on(Tunable::AdminSnapshot) {
            true => changed(&daemon, dataset, caller, change),
            false => Err(FileError::AccessDenied),
        };
        // The last owner of the daemon waits for the threads of its mounts, and this is one of them.
        let _ = thread::spawn("snapshot-request", move || drop(daemon));
        done
    }
}

fn changed(
    daemon: &Daemon,
    dataset: &str,
    caller: &Caller,
    change: SnapshotChange<'_>,
) -> Result<(), FileError> {
    let full = |name: &[u8]| -> Result<String, FileError> {
        let name = std::str::from_utf8(name).map_err(|_| FileError::SnapshotName)?;
        let full = format!("{dataset}@{name}");
        match full.len() > NAME_BYTES_MAX {
            true => Err(FileError::NameTooLong),
            false => Ok(full),
        }
    };
    let (change, command) = match change {
        SnapshotChange::Create { name } => {
            let name = full(name)?;
            let command = format!("zfs snapshot {name}");
            let (names, properties) = (vec![name], vec![]);
            (DatasetChange::Snapshot { names, properties }, command)
        }
        SnapshotChange::Rename { from, to } => {
            let (from, to) = (full(from)?, full(to)?);
            let command = format!("zfs rename {from} {to}");
            let change = DatasetChange::Rename {
                from,
                to,
                recursively: false,
                mount: true,
            };
            (change, command)
        }
        SnapshotChange::Destroy { name } => {
            let name = full(name)?;
            let command = format!("zfs destroy {name}");
            let (names, defer) = (vec![name], false);
            (DatasetChange::DestroySnapshots { names, defer }, command)
        }
    };
    let pool = dataset.split('/').next().unwrap_or(dataset).to_owned();
    let request = Request::Change {
        pool,
        changes: vec![PoolChange::Dataset(change)],
        command,
    };
    let (user, access) = who(caller);
    let handler = RequestHandler::new(daemon, &user, access).with_limit(MOUNTS_WAIT_MAX);
    match handler.call(&request) {
        Ok(_) => Ok(()),
        Err(Failure::ChangeFailure(failure)) => Err(error(failure.error)),
        Err(other) => Err(suspended(crate::words::of_failure(&other))),
    }
}

/// The program's user as one who makes a request, and with which rights.
///
/// Root inside a container is not root here: it lacks the capability, or has it in another user namespace only.
fn who(caller: &Caller) -> (millpond_rpc::Caller, Access) {
    let user = millpond_rpc::Caller {
        user: caller.uid,
        group: caller.gid,
        groups: caller.groups.clone(),
        process: 0,
    };
    let own_user = rustix::process::geteuid().as_raw();
    let access = match caller.uid {
        0 if !caller.is_privileged => Access::Delegated,
        _ => Access::of(&user, own_user),
    };
    (user, access)
}

fn suspended(reason: String) -> FileError {
    FileError::Transaction(TransactionError::Suspended { reason })
}

/// The error number that a program gets.
fn error(error: ChangeError) -> FileError {
    match error {
        ChangeError::Denied => FileError::NotPermitted,
        ChangeError::DatasetName { .. } => FileError::SnapshotName,
        ChangeError::NoSuchDataset(_) => FileError::NotFound,
        ChangeError::ReadOnlyPool(_) => TransactionError::ReadOnly.into(),
        ChangeError::Mounted { why, .. } => match why {
            MountProblem::Denied => FileError::NotPermitted,
            _ => FileError::Busy,
        },
        ChangeError::Busy => FileError::Busy,
        ChangeError::Refused { why, .. } => match why {
            Refusal::Exists => FileError::Exists,
            Refusal::NameTooLong => FileError::NameTooLong,
            // A clone of the snapshot exists.
            Refusal::HasClones => FileError::Exists,
            Refusal::IsHeld | Refusal::Busy | Refusal::Inconsistent => FileError::Busy,
            Refusal::LimitReached | Refusal::OverQuota => TransactionError::Quota.into(),
            Refusal::NoSpace => TransactionError::NoSpace.into(),
            Refusal::NotPermitted => FileError::NotPermitted,
            other => suspended(other.to_string()),
        },
        other => suspended(crate::words::of_change(&other)),
    }
}
