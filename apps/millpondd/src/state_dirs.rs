//! Paths of the state directory and the socket.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The directories of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDirs {
    /// The state directory: cache file, host id, record of mounts, lock, log.
    pub state: PathBuf,
    /// The directory of the socket.
    pub runtime: PathBuf,
}

/// The directories of root's daemon.
const SYSTEM_STATE: &str = "/var/lib/millpond";
const SYSTEM_RUNTIME: &str = "/run/millpond";

impl StateDirs {
    /// Uses one directory for everything.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self {
            state: folder.to_owned(),
            runtime: folder.to_owned(),
        }
    }

    /// The paths of root's daemon.
    #[must_use]
    pub fn of_system() -> Self {
        Self {
            state: SYSTEM_STATE.into(),
            runtime: SYSTEM_RUNTIME.into(),
        }
    }

    /// The paths for a daemon of this process's user: `MILLPOND_DIR` if set, else root's directories for
    /// root, else the XDG directories of the user.
    #[must_use]
    pub fn own() -> Self {
        let user = rustix::process::geteuid();
        Self::of(user.is_root(), &|name| std::env::var_os(name))
    }

    /// Computes the paths from a user and an environment.
    #[must_use]
    pub fn of(is_root: bool, variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let given = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from).filter(|path| path.is_absolute())
        };
        if let Some(folder) = given("MILLPOND_DIR") {
            return Self::in_folder(&folder);
        }
        if is_root {
            return Self::of_system();
        }
        let state = given("XDG_STATE_HOME")
            .or_else(|| given("HOME").map(|home| home.join(".local/state")))
            .map(|folder| folder.join("millpond"));
        // Never /tmp, where any user can create the name first. A user without a home directory uses root's
        // daemon or none.
        let Some(state) = state else {
            return Self::of_system();
        };
        let runtime = given("XDG_RUNTIME_DIR").map(|folder| folder.join("millpond"));
        Self {
            runtime: runtime.unwrap_or_else(|| state.clone()),
            state,
        }
    }

    /// The path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("socket")
    }

    /// The path of the socket for Prometheus metrics.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.runtime.join("metrics.sock")
    }

    /// The path of the cache file.
    #[must_use]
    pub fn cache_file(&self) -> PathBuf {
        self.state.join("zpool.cache")
    }

    /// The path of the log of a daemon without a terminal.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }
}

/// Where default mount points are: below the home directory of an ordinary user, who may not write to `/`. `None` for root,
/// and for a user without a home directory.
#[must_use]
pub fn home_for_mounts() -> Option<String> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let is_there = home.is_absolute() && home.is_dir() && home != Path::new("/");
    let home = home.into_os_string().into_string().ok()?;
    is_there.then(|| home.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(is_root: bool, pairs: &[(&str, &str)]) -> StateDirs {
        StateDirs::of(is_root, &|name| {
            let mut pairs = pairs.iter();
            pairs.find(|(n, _)| *n == name).map(|(_, v)| v.into())
        })
    }

    #[test]
    fn a_given_folder_contains_all_state() {
        let dirs = of(true, &[("MILLPOND_DIR", "/m")]);
        assert_eq!(dirs, StateDirs::in_folder(Path::new("/m")));
    }

    #[test]
    fn root_uses_the_system_and_others_their_own_folders() {
        assert_eq!(of(true, &[("HOME", "/root")]), StateDirs::of_system());
        let dirs = of(
            false,
            &[("HOME", "/home/a"), ("XDG_RUNTIME_DIR", "/run/user/1")],
        );
        assert_eq!(dirs.state, Path::new("/home/a/.local/state/millpond"));
        assert_eq!(dirs.socket(), Path::new("/run/user/1/millpond/socket"));
        assert_eq!(of(false, &[]), StateDirs::of_system());
        assert_eq!(of(false, &[("HOME", "relative")]), StateDirs::of_system());
    }
}
