//! Turns the process arguments into a command.
//!
//! Selects the program, locates the pools and reads the environment.

use crate::getopt;
use crate::no_daemon::NoDaemon;
use crate::session::{Environment, OpenService, Session};
use crate::text::errors::{ErrorOutput, SharedOutput, words_of};
use crate::text::terminal::{Escaping, set_shown};
use crate::warned::Warned;
use jiff::tz::TimeZone;
use millpond_control::Service;
use millpond_engine::Search;
use millpond_env::{Env, host};
use millpond_service::{LocalChanges, LocalPools, LocalService};
use rustix::event::{Timespec, poll};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The name by which mount(8) calls this program.
const MOUNT_HELPER: &str = "mount.zfs";

/// Runs the program and returns its exit status. With `ZFS_ABORT` in the environment, `zpool` and `zfs` dump core instead.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let status = run_as(arguments).unwrap_or_else(ExitCode::from);
    let called = arguments.first().map(Path::new).and_then(Path::file_name);
    let takes_it = called.is_some_and(|name| name == "zpool" || name == "zfs");
    if takes_it && std::env::var_os("ZFS_ABORT").is_some() {
        std::process::abort();
    }
    status
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
        Some(name @ ("zpool" | "zfs" | MOUNT_HELPER)) => name.to_string(),
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
    // Folders of the environment may be there for other commands.
    let given = folders.clone();
    if folders.is_empty()
        && let Some(folder) = std::env::var_os("MILLPOND_SEARCH")
    {
        folders.push(PathBuf::from(folder));
    }
    let is_pools_own = matches!(program.as_str(), "zpool" | "zfs" | MOUNT_HELPER);
    let mut out = match is_pools_own && io::stdout().is_terminal() {
        true => {
            set_shown(true);
            SharedOutput::new(BufWriter::new(Escaping::new(io::stdout().lock())))
        }
        // The `millpond` commands escape names themselves, and one of them draws on the terminal.
        false => SharedOutput::new(BufWriter::new(io::stdout().lock())),
    };
    // Standard error stays unlocked: other threads draw progress there.
    let err: Box<dyn Write> = match io::stderr().is_terminal() {
        true => Box::new(Escaping::new(io::stderr())),
        false => Box::new(io::stderr()),
    };
    let mut err = ErrorOutput::new(out.clone(), err);
    let pools: Box<dyn OpenService> = match folders.is_empty() {
        true => Box::new(Imported::default()),
        false => Box::new(local(&folders)),
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
        MOUNT_HELPER => crate::zfs::run_mount_helper(&mut session, &words),
        "help" => help(&mut session, &words),
        _ => crate::verbs::run(&mut session, arguments),
    };
    let ended = ended.and_then(|status| out.flush().map(|()| status));
    if is_pools_own {
        tell_problems(&given, pools.as_ref());
    }
    match ended {
        Ok(status) => Err(status),
        // The reader closed the pipe. This needs no message.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(1),
        Err(error) => {
            eprintln!("millpond: cannot write: {}", words_of(&error));
            Err(1)
        }
    }
}

/// If there is no pool in the folders that were given, says what is wrong with these.
fn tell_problems(folders: &[PathBuf], pools: &dyn OpenService) {
    let problems = crate::search_paths::problems(folders);
    if problems.is_empty() {
        return;
    }
    let has_none = |pools: &dyn Service| pools.pools().is_ok_and(|names| names.is_empty());
    if pools.service().is_ok_and(has_none) {
        for problem in problems {
            eprintln!("millpond: {problem}");
        }
    }
}

/// Prints the help of everything, or of what the words name.
fn help(session: &mut Session, words: &[String]) -> io::Result<u8> {
    match words {
        [first, rest @ ..] if first == "zpool" => crate::zpool::FAMILY.describe(session, rest),
        [first, rest @ ..] if first == "zfs" => crate::zfs::FAMILY.describe(session, rest),
        [first] if first == "daemon" => {
            session.out.write_all(millpond_daemon::HELP.as_bytes())?;
            Ok(0)
        }
        _ => {
            let all = ["millpond", "help"].into_iter();
            let all = all.chain(words.iter().map(String::as_str));
            crate::verbs::run(session, &all.map(OsString::from).collect::<Vec<_>>())
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
struct Imported {
    service: OnceCell<Box<dyn Service>>,
}

impl Imported {
    /// The daemon; for an ordinary user without a folder for one, what answers in its place.
    fn open() -> Result<Box<dyn Service>, String> {
        let itself = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("millpond"));
        let dirs = millpond_daemon::StateDirs::own();
        match millpond_daemon::connect_or_start(&dirs, &itself) {
            Ok(client) => Ok(Box::new(Warned::new(client, |text| eprintln!("{text}")))),
            Err(error) if error.has_no_folder() && !rustix::process::geteuid().is_root() => {
                let reason = format!("{error}; set MILLPOND_DIR to a folder of yours");
                Ok(Box::new(NoDaemon::new(local(&[]), reason)))
            }
            Err(error) => Err(format!("millpond: {error}")),
        }
    }
}

/// Makes a path absolute, because the daemon runs in another directory.
pub(crate) fn absolute(path: &str) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    path.to_string_lossy().into_owned()
}

impl OpenService for Imported {
    fn service(&self) -> Result<&dyn Service, String> {
        if let Some(service) = self.service.get() {
            return Ok(service.as_ref());
        }
        let opened = Self::open()?;
        Ok(self.service.get_or_init(|| opened).as_ref())
    }

    fn daemon(&self) -> Result<&dyn Service, String> {
        self.service()
    }

    fn second(&self) -> Option<Box<dyn Service + Send>> {
        let client = millpond_daemon::connect(&millpond_daemon::StateDirs::own())?;
        Some(Box::new(client))
    }
}

/// The pools on devices and images in some directories. The first query searches the directories.
fn local(folders: &[PathBuf]) -> LocalService {
    let mut search = Search::new(folders);
    search.hostid = host::hostid();
    let user = rustix::process::getuid().as_raw();
    let changes = LocalChanges::new(search.clone(), host::hostname(), user.into());
    LocalService::new(
        LocalPools::search(&search),
        changes.with_system(host::system()),
    )
}

impl OpenService for LocalService {
    fn service(&self) -> Result<&dyn Service, String> {
        Ok(self)
    }
}

fn surroundings() -> Environment {
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| {
            let is_other = ["HOME", "MILLPOND_PROGRESS", getopt::IN_ORDER].contains(&name.as_str());
            name.starts_with("ZPOOL_") || name.starts_with("ZFS_") || is_other
        })
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
