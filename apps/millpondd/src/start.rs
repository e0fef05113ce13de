//! The client side: connects to a daemon, and starts one if necessary.

use crate::state::{NOFOLLOW, StateError, take_folder};
use crate::state_dirs::StateDirs;
use millpond_rpc::Client;
use rustix::event::{Timespec, poll};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How long a command waits for a daemon to import its pools, in polls of 20 ms: two minutes.
const ROUNDS_MAX: u32 = 6_000;
/// How long to wait before restarting a daemon that exited because another one was running, in polls of 20
/// ms.
const RETRY_ROUNDS: u32 = 10;
/// A log larger than this is truncated at start, in bytes.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Paths at which the systemd unit may be installed.
const UNITS: [&str; 3] = [
    "/etc/systemd/system/millpondd.service",
    "/usr/local/lib/systemd/system/millpondd.service",
    "/usr/lib/systemd/system/millpondd.service",
];

/// Why no daemon is available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartFailure {
    /// Its program cannot be started.
    #[error("cannot start {}: {error}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another user could change its directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// Its directories cannot be used.
    #[error("cannot use {}: {error}; another folder can be given with MILLPOND_DIR", path.display())]
    Folder {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It exited at once.
    #[error("the daemon ended at once: {text}\nits log is {}", log.display())]
    Ended {
        /// Its last messages.
        text: String,
        /// Its log.
        log: PathBuf,
    },
    /// It does not respond.
    #[error("the daemon does not answer at {}; its log is {}", socket.display(), log.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// Its log.
        log: PathBuf,
    },
}

impl StartFailure {
    /// Whether this user cannot write to the folder that a daemon of theirs would need.
    #[must_use]
    pub fn has_no_folder(&self) -> bool {
        let (Self::Folder { error, .. } | Self::State(StateError::Io { error, .. })) = self else {
            return false;
        };
        let kind = error.kind();
        matches!(
            kind,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        )
    }
}

/// Connects to the daemon at the given paths. If none runs there, an ordinary user falls back to root's
/// daemon, unless `MILLPOND_DIR` is set.
#[must_use]
pub fn connect(dirs: &StateDirs) -> Option<Client> {
    if let Ok(client) = Client::connect(&dirs.socket()) {
        return Some(client);
    }
    let is_named = std::env::var_os("MILLPOND_DIR").is_some();
    match is_named || rustix::process::geteuid().is_root() {
        true => None,
        false => Client::connect(&StateDirs::of_system().socket()).ok(),
    }
}

/// Connects, and starts a daemon if necessary. It uses the service manager if the unit is installed,
/// otherwise runs `itself`, the running program, as `itself daemon`.
///
/// # Errors
/// [`StartFailure`].
pub fn connect_or_start(dirs: &StateDirs, itself: &Path) -> Result<Client, StartFailure> {
    if let Some(client) = connect(dirs) {
        return Ok(client);
    }
    let folder = |path: &Path, error| StartFailure::Folder {
        path: path.to_owned(),
        error,
    };
    take_folder(&dirs.state)?;
    let log = dirs.log();
    if fs::metadata(&log).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        let _ = fs::remove_file(&log);
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true).mode(0o644);
    let opened = options.custom_flags(NOFOLLOW).open(&log);
    let mut said = opened.map_err(|error| folder(&log, error))?;
    let mut said_before = said.seek(SeekFrom::End(0)).unwrap_or(0);
    let mut child = start(dirs, itself, &said)?;
    for _ in 0..ROUNDS_MAX {
        if let Some(client) = connect(dirs) {
            return Ok(client);
        }
        let has_ended = matches!(child.as_mut().map(Child::try_wait), Some(Ok(Some(_))));
        if has_ended {
            // Another command may have started a daemon at the same time.
            if let Some(client) = connect(dirs) {
                return Ok(client);
            }
            let mut text = String::new();
            let _ = said.seek(SeekFrom::Start(said_before));
            let _ = said.read_to_string(&mut text);
            if text.contains("another daemon") {
                // A daemon that is exiting still holds the lock. Its exit releases the lock, but starts no
                // other daemon.
                for _ in 0..RETRY_ROUNDS {
                    pause();
                    if let Some(client) = connect(dirs) {
                        return Ok(client);
                    }
                }
                said_before = said.seek(SeekFrom::End(0)).unwrap_or(0);
                child = start(dirs, itself, &said)?;
                continue;
            }
            let text = text.trim();
            let text = text.strip_prefix("millpondd: ").unwrap_or(text).to_owned();
            return Err(StartFailure::Ended { text, log });
        }
        pause();
    }
    Err(StartFailure::Silent {
        socket: dirs.socket(),
        log,
    })
}

fn start(dirs: &StateDirs, itself: &Path, log: &fs::File) -> Result<Option<Child>, StartFailure> {
    let is_system = *dirs == StateDirs::of_system();
    let has_unit = UNITS.iter().any(|unit| Path::new(unit).exists());
    if is_system && has_unit && Path::new("/run/systemd/system").is_dir() {
        let started = Command::new("systemctl")
            .args(["start", "millpondd.service"])
            .stdin(Stdio::null())
            .status();
        if started.is_ok_and(|status| status.success()) {
            return Ok(None);
        }
    }
    // The running binary rather than one beside it, so that both ends of the socket have the same version.
    let program = itself;
    let fail = |error| StartFailure::Program {
        program: program.to_owned(),
        error,
    };
    let (out, err) = (
        log.try_clone().map_err(fail)?,
        log.try_clone().map_err(fail)?,
    );
    let mut command = Command::new(program);
    command
        .arg("daemon")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err);
    Ok(Some(command.spawn().map_err(fail)?))
}

fn pause() {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let _ = poll(&mut [], Some(&timeout));
}
