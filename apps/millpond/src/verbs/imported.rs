//! Pools that the daemon has imported, for commands that read devices themselves.
//!
//! Such a command asks the daemon for the pool's devices and for a state to read. The daemon does not overwrite what the
//! state refers to until the command ends.

use millpond_control::{ControlError, Failure, PoolInfo, Request, Service};
use millpond_daemon::StateDirs;
use millpond_engine::{Search, Txg};
use millpond_env::sync::{Receiver, bounded};
use millpond_env::thread;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A pool that the daemon has imported.
pub struct Imported {
    /// The pool.
    pub info: PoolInfo,
    daemon: millpond_rpc::Client,
}

/// The pools of the daemon, if one runs. None is started.
pub fn all() -> Vec<PoolInfo> {
    let Some(daemon) = millpond_daemon::connect(&StateDirs::own()) else {
        return vec![];
    };
    let names = daemon.pools().unwrap_or_default();
    let pools = names.iter().filter_map(|name| daemon.pool(name).ok());
    pools.collect()
}

/// The imported pool with this name or guid.
pub fn find(called: &str) -> Option<Imported> {
    let daemon = millpond_daemon::connect(&StateDirs::own())?;
    let names = daemon.pools().ok()?;
    let info = match names.iter().any(|name| name == called) {
        true => daemon.pool(called).ok()?,
        false => {
            let guid: u64 = called.parse().ok()?;
            let mut pools = names.iter().filter_map(|name| daemon.pool(name).ok());
            pools.find(|info| info.guid == guid)?
        }
    };
    Some(Imported { info, daemon })
}

impl Imported {
    /// A search for this pool only, in its own devices.
    pub fn search(&self) -> Search {
        let mut paths = vec![];
        let mut below = vec![&self.info.root];
        while let Some(vdev) = below.pop() {
            let path = vdev.path.as_ref().filter(|path| path.starts_with('/'));
            paths.extend(path.map(PathBuf::from));
            below.extend(&vdev.children);
        }
        Search::new(paths)
    }

    /// Where its root file system is mounted.
    pub fn mountpoint(&self) -> Option<String> {
        let mounts = self.daemon.mounts().ok()?;
        let mut own = mounts.into_iter();
        own.find(|mount| mount.dataset == self.info.name)
            .map(|mount| mount.mountpoint)
    }

    /// What to do instead, where a command would have to change the pool.
    pub fn why_not_changed(&self) -> String {
        let name = &self.info.name;
        let mounted = match self.mountpoint() {
            Some(path) => format!("its files are below {path}"),
            None => format!("zfs mount {name} shows its files"),
        };
        let volumes = format!("/dev/zvol/{name}");
        let volumes = match Path::new(&volumes).is_dir() {
            true => format!(", its volumes in {volumes}"),
            false => String::new(),
        };
        format!(
            "'{name}' is imported by the daemon: {mounted}{volumes}\n\
             with -d this command changes pools that are not imported: zpool export {name}"
        )
    }

    /// Keeps the last committed state for as long as the result lives.
    ///
    /// # Errors
    /// Why the daemon does not do that.
    pub fn keep(self) -> Result<Kept, ControlError> {
        let other = |error: &dyn std::fmt::Display| ControlError::Io(error.to_string());
        let (mut ours, theirs) = UnixStream::pair().map_err(|error| other(&error))?;
        let (answer, answered) = bounded(1);
        let request = Request::KeepState {
            pool: self.info.name,
        };
        let daemon = self.daemon;
        let waiting = thread::spawn("keep-state", move || {
            let reply = daemon.transfer(&request, theirs.into(), &|| false);
            // The receiver is gone after the txg was read.
            let _ = answer.send(reply.map(|_| ()));
        });
        waiting.map_err(|error| other(&error))?;
        match txg_line(&mut ours) {
            Some(txg) => Ok(Kept { txg, daemon: ours }),
            None => Err(refusal(&answered)),
        }
    }
}

fn refusal(answered: &Receiver<Result<(), Failure>>) -> ControlError {
    match answered.recv() {
        Ok(Err(failure)) => failure.into(),
        _ => ControlError::Io("the daemon ended".into()),
    }
}

fn txg_line(from: &mut UnixStream) -> Option<Txg> {
    let mut line = String::new();
    let mut byte = [0];
    while from.read(&mut byte).ok()? == 1 && byte != *b"\n" {
        line.push(char::from(byte[0]));
    }
    line.parse().ok().map(Txg)
}

/// A state that the daemon keeps.
#[derive(Debug)]
pub struct Kept {
    /// Its txg.
    pub txg: Txg,
    daemon: UnixStream,
}

impl Kept {
    /// Whether the daemon still keeps it. If not, blocks that it refers to may have been overwritten.
    pub fn is_kept(&self) -> bool {
        let mut daemon = &self.daemon;
        // The daemon sends nothing more: what can be read is the end.
        let read = daemon
            .set_nonblocking(true)
            .and_then(|()| daemon.read(&mut [0]));
        matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}
