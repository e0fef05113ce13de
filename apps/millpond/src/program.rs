//! Turns the process arguments into a command.
//!
//! Selects the program, locates the pools and reads the environment.

use crate::session::{Environment, OpenControl, Session};
use crate::text::terminal::{Escaping, set_shown};
use jiff::tz::TimeZone;
use millpond_control::{Change, Control, ImportablePool, SearchPaths, Service};
use millpond_engine::Search;
use millpond_env::{Env, host};
use millpond_rpc::Client;
use millpond_service::{LocalChanges, LocalPools};
use rustix::event::{Timespec, poll};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Runs the program and returns its exit status.
pub fn run(arguments: &[OsString]) -> ExitCode {
    run_as(arguments).unwrap_or_else(ExitCode::from)
}

/// Runs the program; `Ok` carries the daemon's own exit status.
fn run_as(arguments: &[OsString]) -> Result<ExitCode, u8> {
    let mut words: Vec<String> = arguments
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if words.is_empty() {
        words.push("millpond".into());
    }
    let called = words.remove(0);
    let name = Path::new(&called)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let mut folders = Vec::new();
    let program = match name.as_deref() {
        Some(name @ ("zpool" | "zfs")) => name.to_string(),
        _ => {
            if let Err(message) = take_folders(&mut words, &mut folders) {
                eprintln!("millpond: {message}");
                return Err(2);
            }
            if words.is_empty() {
                words.push("--help".into());
            }
            words.remove(0)
        }
    };
    if program == "daemon" {
        let words = words.into_iter().map(OsString::from).collect();
        return Ok(millpond_daemon::run(words));
    }
    if folders.is_empty()
        && let Some(folder) = std::env::var_os("MILLPOND_SEARCH")
    {
        folders.push(PathBuf::from(folder));
    }
    let is_pools_own = matches!(program.as_str(), "zpool" | "zfs");
    let mut out: Box<dyn Write> = match is_pools_own && io::stdout().is_terminal() {
        true => {
            set_shown(true);
            Box::new(BufWriter::new(Escaping::new(io::stdout().lock())))
        }
        // The `millpond` commands escape names themselves, and one of them draws on the terminal.
        false => Box::new(BufWriter::new(io::stdout().lock())),
    };
    // Standard error stays unlocked: other threads draw progress there.
    let mut err: Box<dyn Write> = match io::stderr().is_terminal() {
        true => Box::new(Escaping::new(io::stderr())),
        false => Box::new(io::stderr()),
    };
    let pools: Box<dyn OpenControl> = match folders.is_empty() {
        true => Box::new(Held::default()),
        false => Box::new(Folders {
            folders,
            pools: OnceCell::new(),
            changes: OnceCell::new(),
        }),
    };
    let environment = surroundings();
    let mut session = Session {
        out: &mut out,
        err: &mut err,
        pools: pools.as_ref(),
        environment: &environment,
    };
    let ended = match program.as_str() {
        "zpool" => crate::zpool::run(&mut session, &words),
        "zfs" => crate::zfs::run(&mut session, &words),
        "help" => crate::verbs::run(&mut session, &["millpond".into(), "--help".into()]),
        _ => crate::verbs::run(&mut session, arguments),
    };
    match ended.and_then(|status| out.flush().map(|()| status)) {
        Ok(status) => Err(status),
        // The reader closed the pipe. This needs no message.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(1),
        Err(error) => {
            eprintln!("millpond: cannot write: {error}");
            Err(1)
        }
    }
}

/// Takes `-d DIR` and `-dDIR` options from the front of the words.
fn take_folders(words: &mut Vec<String>, folders: &mut Vec<PathBuf>) -> Result<(), String> {
    while let Some(rest) = words.first().and_then(|word| word.strip_prefix("-d")) {
        let rest = rest.to_string();
        words.remove(0);
        if !rest.is_empty() {
            folders.push(PathBuf::from(rest));
        } else if words.is_empty() {
            return Err("-d needs a folder".into());
        } else {
            folders.push(PathBuf::from(words.remove(0)));
        }
    }
    Ok(())
}

/// Access to the pools imported by the daemon. The daemon is started at the first request.
#[derive(Default)]
struct Held {
    client: OnceCell<Client>,
}

impl Held {
    fn client(&self) -> Result<&Client, String> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let itself = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("millpond"));
        let client = millpond_daemon::connect_or_start(&millpond_daemon::StateDirs::own(), &itself);
        let client = client.map_err(|error| format!("millpond: {error}"))?;
        Ok(self.client.get_or_init(|| client))
    }
}

/// Makes a path absolute, because the daemon runs in another directory.
pub(crate) fn absolute(path: &str) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    path.to_string_lossy().into_owned()
}

impl OpenControl for Held {
    fn control(&self) -> Result<&dyn Control, String> {
        Ok(self.client()?)
    }

    fn change(&self) -> Result<&dyn Change, String> {
        Ok(self.client()?)
    }

    fn keep(&self) -> Result<&dyn Service, String> {
        Ok(self.client()?)
    }

    fn importable(&self, folders: &[String]) -> Result<Vec<ImportablePool>, String> {
        self.importable_from(&SearchPaths {
            paths: folders.iter().map(|folder| absolute(folder)).collect(),
            cache_file: None,
        })
    }

    fn importable_in_cache_file(&self, file: &str) -> Result<Vec<ImportablePool>, String> {
        self.importable_from(&SearchPaths {
            paths: vec![],
            cache_file: Some(absolute(file)),
        })
    }
}

impl Held {
    fn importable_from(&self, places: &SearchPaths) -> Result<Vec<ImportablePool>, String> {
        let found = self.client()?.importable_from(places);
        found.map_err(|error| crate::zpool::import_reason(&error))
    }
}

/// The pools on devices and images in some directories. The first query searches the directories.
struct Folders {
    folders: Vec<PathBuf>,
    pools: OnceCell<LocalPools>,
    changes: OnceCell<LocalChanges>,
}

impl OpenControl for Folders {
    fn control(&self) -> Result<&dyn Control, String> {
        Ok(self.pools.get_or_init(|| search(&self.folders)))
    }

    fn change(&self) -> Result<&dyn Change, String> {
        self.control()?;
        // Pools that are open for reading hold locks that conflict with writing.
        if let Some(pools) = self.pools.get() {
            pools.forget();
        }
        Ok(self.changes.get_or_init(|| {
            let user = rustix::process::getuid().as_raw();
            LocalChanges::new(search_of(&self.folders), host::hostname(), user.into())
                .with_system(host::system())
        }))
    }

    fn importable(&self, folders: &[String]) -> Result<Vec<ImportablePool>, String> {
        let told = |error: millpond_control::ControlError| error.to_string();
        if !folders.is_empty() {
            return search(folders).importable().map_err(told);
        }
        self.control()?.importable().map_err(told)
    }

    fn importable_in_cache_file(&self, file: &str) -> Result<Vec<ImportablePool>, String> {
        search_cache_file(file)?
            .importable()
            .map_err(|error| error.to_string())
    }
}

fn search_cache_file(file: &str) -> Result<LocalPools, String> {
    let opened = Search::in_cache_file(Path::new(file));
    let mut search = opened.map_err(|error| match error {
        // The system's error text, without the number that Rust appends.
        millpond_engine::Error::CacheFile { reason, .. } => {
            let words = reason.split(" (os error").next().unwrap_or_default();
            format!("failed to open cache file: {words}")
        }
        other => other.to_string(),
    })?;
    search.hostid = hostid();
    Ok(LocalPools::search(&search))
}

fn search(folders: &[impl AsRef<Path>]) -> LocalPools {
    LocalPools::search(&search_of(folders))
}

fn search_of(folders: &[impl AsRef<Path>]) -> Search {
    let mut search = Search::new(folders.iter().map(AsRef::as_ref));
    search.hostid = hostid();
    search
}

/// Returns the host id from `/etc/hostid`, or 0 if there is none.
pub(crate) fn hostid() -> u64 {
    let bytes = std::fs::read("/etc/hostid").unwrap_or_default();
    bytes
        .first_chunk::<4>()
        .map_or(0, |word| u64::from(u32::from_ne_bytes(*word)))
}

fn surroundings() -> Environment {
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("ZPOOL_") || name.starts_with("ZFS_"))
        .collect();
    Environment {
        zone: TimeZone::system(),
        clock: now_s,
        pause,
        variables,
        man: PathBuf::from("man"),
        screen_lines: screen_lines(),
        users: names_in("/etc/passwd"),
        groups: names_in("/etc/group"),
    }
}

/// Returns the height of the terminal on standard output.
fn screen_lines() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    // One line is left for the prompt. A terminal that reports no height is not treated as a screen.
    (size.ws_row > 4).then(|| usize::from(size.ws_row) - 1)
}

fn now_s() -> u64 {
    Env::real().clock.wall_ns() / 1_000_000_000
}

/// Sleeps, by polling no descriptors with a timeout.
fn pause(time: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    // A signal may end the wait early; the next iteration then starts early.
    let _ = poll(&mut [], Some(&timeout));
}

/// Reads the names of users or groups, by id, from the system's file.
fn names_in(file: &str) -> BTreeMap<u64, String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let uid = fields.nth(1)?.parse().ok()?;
            Some((uid, name.to_string()))
        })
        .collect()
}
