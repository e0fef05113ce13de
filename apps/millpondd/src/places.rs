//! Where state and socket lie.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The two folders of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// What is kept: cache file, host id, record of mounts, lock, log.
    pub state: PathBuf,
    /// Where the socket is.
    pub runtime: PathBuf,
}

/// The system's daemon, that of root.
const SYSTEM_STATE: &str = "/var/lib/millpond";
const SYSTEM_RUNTIME: &str = "/run/millpond";

impl Places {
    /// Everything in one folder.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self {
            state: folder.to_owned(),
            runtime: folder.to_owned(),
        }
    }

    /// Root's.
    #[must_use]
    pub fn of_system() -> Self {
        Self {
            state: SYSTEM_STATE.into(),
            runtime: SYSTEM_RUNTIME.into(),
        }
    }

    /// Those of the daemon that this process would be: `MILLPOND_DIR` if set, else root's, else the
    /// XDG directories of the user.
    #[must_use]
    pub fn own() -> Self {
        let user = rustix::process::geteuid();
        Self::of(user.is_root(), &|name| std::env::var_os(name))
    }

    /// The same from a user and an environment.
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
        // Never in /tmp: whoever comes first has a name there. A user without a home has root's daemon or none.
        let Some(state) = state else {
            return Self::of_system();
        };
        let runtime = given("XDG_RUNTIME_DIR").map(|folder| folder.join("millpond"));
        Self {
            runtime: runtime.unwrap_or_else(|| state.clone()),
            state,
        }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("socket")
    }

    /// Where figures are told to Prometheus.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.runtime.join("metrics.sock")
    }

    /// The cache file.
    #[must_use]
    pub fn cache_file(&self) -> PathBuf {
        self.state.join("zpool.cache")
    }

    /// What the daemon says when it has no terminal.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(is_root: bool, pairs: &[(&str, &str)]) -> Places {
        Places::of(is_root, &|name| {
            let mut pairs = pairs.iter();
            pairs.find(|(n, _)| *n == name).map(|(_, v)| v.into())
        })
    }

    #[test]
    fn a_folder_given_holds_everything() {
        let places = of(true, &[("MILLPOND_DIR", "/m")]);
        assert_eq!(places, Places::in_folder(Path::new("/m")));
    }

    #[test]
    fn root_uses_the_system_and_others_their_own_folders() {
        assert_eq!(of(true, &[("HOME", "/root")]), Places::of_system());
        let places = of(
            false,
            &[("HOME", "/home/a"), ("XDG_RUNTIME_DIR", "/run/user/1")],
        );
        assert_eq!(places.state, Path::new("/home/a/.local/state/millpond"));
        assert_eq!(places.socket(), Path::new("/run/user/1/millpond/socket"));
        assert_eq!(of(false, &[]), Places::of_system());
        assert_eq!(of(false, &[("HOME", "relative")]), Places::of_system());
    }
}
