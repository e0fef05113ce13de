//! The daemon process: socket, connections, signals, exit when idle.

use crate::cache_watch::{CacheWatch, bytes_of};
use crate::daemon::{Daemon, DaemonOptions, Log};
use crate::fuse::FuseMounter;
use crate::log::{self, Filter, Level, Line};
use crate::metrics::{self, MetricsListener, MetricsServer};
use crate::mounts::{Mounter, NoMounter};
use crate::permits::{ConnectionPermits, PermitLimits};
use crate::state_dirs::StateDirs;
use millpond_engine::{BlockCache, RequestDeadline};
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::{Env, Tunable, thread};
use millpond_rpc::{Access, Caller, serve, turn_away};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Limits on concurrent connections; more are refused. Half of them are reserved for root and the daemon's
/// own user.
pub const CONNECTIONS: PermitLimits = PermitLimits {
    all: 64,
    not_root: 60,
    strangers: 32,
    each: 8,
};
/// Timeout of a single read or write of a connection. The time limits are checked in between.
const WAIT: Duration = Duration::from_secs(1);
/// Seconds after which an idle daemon without pools exits.
const IDLE_S: u64 = 60;

/// A daemon's socket.
pub struct Listener {
    path: PathBuf,
    socket: UnixListener,
    connections: Arc<ConnectionPermits>,
}

impl Listener {
    /// Creates the socket. An existing file at that path is removed: the lock of the state directory
    /// guarantees that no daemon uses it.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(path)?;
        // Any user may connect. The peer's uid determines what it may do.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        Ok(Self {
            path: path.to_owned(),
            socket,
            connections: ConnectionPermits::new(CONNECTIONS, rustix::process::geteuid().as_raw()),
        })
    }

    /// Accepts one connection. A new thread answers its calls.
    ///
    /// # Errors
    /// If no connection can be accepted.
    pub fn accept(&self, daemon: &Arc<Daemon>) -> io::Result<()> {
        let (stream, _) = self.socket.accept()?;
        let caller = Caller::of(&stream)?;
        self.answer(stream, caller, daemon);
        Ok(())
    }

    /// Answers a connection in a new thread, or sends the reason for refusing it.
    pub fn answer(&self, stream: UnixStream, caller: Caller, daemon: &Arc<Daemon>) {
        let permit = match self.connections.take(Some(caller.user)) {
            Ok(permit) => permit,
            Err(why) => return turn_away(stream, &why),
        };
        let daemon = Arc::clone(daemon);
        // If no thread can be started, the connection is closed.
        let _ = thread::spawn("rpc", move || {
            answer(stream, &caller, &daemon);
            drop(permit);
        });
    }

    /// Accepts connections until `stopped` is set. The flag is checked after each connection.
    pub fn serve(&self, daemon: &Arc<Daemon>, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) {
            if self.accept(daemon).is_err() {
                return;
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(stream: UnixStream, caller: &Caller, daemon: &Daemon) {
    let access = Access::of(caller, rustix::process::geteuid().as_raw());
    let bounded = stream
        .set_read_timeout(Some(WAIT))
        .and_then(|()| stream.set_write_timeout(Some(WAIT)));
    if bounded.is_ok() {
        // A connection that violates the protocol is closed; there is nothing else to report.
        let _ = serve(stream, daemon, caller, access);
    }
}

/// The least that `--arc-max` takes, in bytes, as OpenZFS's `zfs_arc_max`.
const ARC_MAX_BYTES_MIN: u64 = 64 << 20;

/// What `--help` prints.
pub const HELP: &str = "\
millpondd keeps pools imported and file systems mounted, and answers zpool and zfs.

Usage: millpondd [--foreground] [--stay] [--metrics ADDRESS:PORT] [--deadline SECONDS]
                 [--arc-max SIZE] [--volumes on|off] [--log FILTER]

  --foreground  do not leave the terminal; log to standard error
  --stay        do not exit when no pool is imported (for a service manager)
  --metrics ADDRESS:PORT
                serve Prometheus metrics at this address too, without a password. Without this
                option they are at the unix socket metrics.sock only. Environment: MILLPOND_METRICS
  --deadline SECONDS
                time limit for a device request where redundancy is left; the pool then continues
                without the device (default 30; 0: no limit). Environment: MILLPOND_DEADLINE
  --arc-max SIZE
                the most memory for cached blocks of all pools together, at least 64M. Default: five
                eighths of the memory of the machine or control group, or all but 1G if that is more;
                below it the cache gives way to other programs. Environment: MILLPOND_ARC_MAX
  --volumes on|off
                whether volumes become block devices below /dev/zvol (default: on for root, unless
                MILLPOND_DIR is set). Environment: MILLPOND_VOLUMES
  --log FILTER  what to log: error, warn, info (default), debug or trace, for everything or for
                one crate (info,millpond_pool=debug). Environment: MILLPOND_LOG

MILLPOND_TUNABLES=NAME=VALUE,... sets what 'millpond tunable' shows, from the start.

State is kept in /var/lib/millpond and /run/millpond (root), the XDG state and runtime
directories (others), or in MILLPOND_DIR. Commands start the daemon when they need it.
";

/// Runs the process. Returns after a stop signal, or when idle.
#[must_use]
pub fn run(words: Vec<OsString>) -> ExitCode {
    let (mut in_foreground, mut stays) = (false, false);
    let mut metrics = std::env::var("MILLPOND_METRICS").ok();
    let mut deadline = std::env::var("MILLPOND_DEADLINE").ok();
    let mut arc_max = std::env::var("MILLPOND_ARC_MAX").unwrap_or_default();
    let mut filter = std::env::var("MILLPOND_LOG").unwrap_or_default();
    let mut volumes = std::env::var("MILLPOND_VOLUMES").unwrap_or_default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--metrics") => match words.next().and_then(|word| word.to_str()) {
                Some(address) => metrics = Some(address.to_owned()),
                None => {
                    complain("--metrics needs an address, 127.0.0.1:9134");
                    return ExitCode::from(2);
                }
            },
            Some("--deadline") => {
                deadline = words.next().map(|word| word.to_string_lossy().into_owned());
            }
            Some("--arc-max") => {
                let word = words.next().map(|word| word.to_string_lossy().into_owned());
                // An empty word would mean the default.
                arc_max = word.unwrap_or_else(|| "?".to_owned());
            }
            Some("--volumes") => {
                let word = words.next().map(|word| word.to_string_lossy().into_owned());
                volumes = word.unwrap_or_else(|| "?".to_owned());
            }
            Some("--log") => match words.next() {
                Some(word) => filter = word.to_string_lossy().into_owned(),
                None => {
                    complain("--log needs a filter, debug");
                    return ExitCode::from(2);
                }
            },
            Some("--foreground") => in_foreground = true,
            Some("--stay") => stays = true,
            Some("--help" | "-h") => {
                let _ = io::stdout().write_all(HELP.as_bytes());
                return ExitCode::SUCCESS;
            }
            Some("--version" | "-V") => {
                let _ = writeln!(io::stdout(), "millpondd {}", env!("CARGO_PKG_VERSION"));
                return ExitCode::SUCCESS;
            }
            _ => {
                complain(&format!("unknown option {}", word.to_string_lossy()));
                return ExitCode::from(2);
            }
        }
    }
    let Some(deadline) = deadline_of(deadline.as_deref()) else {
        complain("--deadline (or MILLPOND_DEADLINE) needs a number of seconds");
        return ExitCode::from(2);
    };
    let dirs = StateDirs::own();
    let Some(has_volume_devices) = volumes_of(&volumes, &dirs) else {
        complain("--volumes (or MILLPOND_VOLUMES) is on or off");
        return ExitCode::from(2);
    };
    if !set_arc_max(&arc_max) {
        complain("--arc-max (or MILLPOND_ARC_MAX) needs a size of at least 64M");
        return ExitCode::from(2);
    }
    match Filter::parse(&filter) {
        Ok(filter) => log::start(&filter),
        Err(error) => {
            complain(&format!("--log (or MILLPOND_LOG): {error}"));
            return ExitCode::from(2);
        }
    }
    if !in_foreground {
        close_inherited();
        // Fails only if this process already leads a process group. Then there is no terminal to leave.
        let _ = rustix::process::setsid();
    }
    hide_memory();
    let _ = std::env::set_current_dir("/");
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let metrics = metrics.filter(|address| !address.is_empty());
    let options = DaemonOptions {
        deadline,
        has_volume_devices,
    };
    match live(&dirs, stays, metrics.as_deref(), options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

/// Sets the greatest size of the cache. Nothing, and 0, stand for the default. Returns false if it is invalid.
fn set_arc_max(words: &str) -> bool {
    if words.is_empty() {
        return true;
    }
    match bytes_of(words) {
        Some(0) => true,
        Some(bytes) if bytes >= ARC_MAX_BYTES_MIN => {
            BlockCache::of_process().set_limit_bytes_max(bytes);
            true
        }
        _ => false,
    }
}

/// Sets the tunables of a list `NAME=VALUE,…`, as a module gets its parameters when it is loaded.
fn set_tunables(env: &Env, list: &str) -> Result<(), String> {
    for setting in list.split(',').filter(|setting| !setting.is_empty()) {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        let tunable = Tunable::named(name);
        let is_set = match (tunable, value.parse()) {
            (Some(tunable), Ok(value)) => env.tunables.set(tunable, value),
            _ => false,
        };
        if !is_set {
            return Err(format!(
                "MILLPOND_TUNABLES: '{setting}' is no setting; 'millpond tunable' lists their names"
            ));
        }
    }
    Ok(())
}

/// Whether volumes become block devices. Only in the system's own directories by default: daemons in others are for tests
/// and repairs, and `/dev/zvol` is the same for all.
fn volumes_of(word: &str, dirs: &StateDirs) -> Option<bool> {
    match word {
        "" => Some(rustix::process::geteuid().is_root() && *dirs == StateDirs::of_system()),
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// Parses the deadline; the default without one.
fn deadline_of(words: Option<&str>) -> Option<RequestDeadline> {
    let Some(words) = words.filter(|words| !words.is_empty()) else {
        return Some(RequestDeadline::default());
    };
    let seconds: u64 = words.parse().ok()?;
    Some(RequestDeadline(
        (seconds > 0).then(|| Duration::from_secs(seconds)),
    ))
}

/// Closes file descriptors inherited from the command that started this process. Otherwise a pipe would never
/// end, and a lock never be released. This process has opened nothing but the standard streams yet.
fn close_inherited() {
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers: Vec<i32> = names.filter_map(|name| name.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The descriptor of the listing itself is already closed.
        let _ = nix::unistd::close(number);
    }
}

/// Excludes the memory of this process from core files, and protects it from other processes of its user.
/// Called before a key can be in memory.
pub fn hide_memory() {
    // Where this is not permitted, keys have the protection of an ordinary process.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = rustix::process::setrlimit(Resource::Core, none);
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "millpondd: {text}");
}

/// The daemon's own lines join the events of all crates.
fn log() -> Log {
    Box::new(Line::emit)
}

fn mounter() -> Box<dyn Mounter> {
    match FuseMounter::start() {
        Ok(mounter) => Box::new(mounter),
        Err(why) => Box::new(NoMounter(why)),
    }
}

fn live(
    dirs: &StateDirs,
    stays: bool,
    address: Option<&str>,
    options: DaemonOptions,
) -> Result<(), String> {
    if options.has_volume_devices {
        // The kernel may write dirty pages of a volume's device back to get memory. This process must not wait for that.
        // Threads inherit it.
        let _ = rustix::process::configure_io_flusher_behavior(true);
    }
    // Handle signals first, so that one that arrives while pools are imported is not lost.
    let (mut woken, tell) = UnixStream::pair().map_err(|error| error.to_string())?;
    for signal in [SIGTERM, SIGINT] {
        let own = tell.try_clone().map_err(|error| error.to_string())?;
        signal_hook::low_level::pipe::register(signal, own).map_err(|error| error.to_string())?;
    }
    let env = Env::real();
    set_tunables(
        &env,
        &std::env::var("MILLPOND_TUNABLES").unwrap_or_default(),
    )?;
    let daemon = Daemon::start_with(&env, dirs, mounter(), log(), options);
    let daemon = daemon.map_err(|error| error.to_string())?;
    let path = dirs.socket();
    let listener = Listener::bind(&path)
        .map_err(|error| format!("cannot listen at {}: {error}", path.display()))?;
    let collected = Arc::clone(&daemon);
    let page = Arc::new(move || metrics::page(&collected));
    let metrics = match MetricsServer::start(metrics_listeners(dirs, address)?, page) {
        Ok(metrics) => Some(metrics),
        Err(error) if address.is_some() => return Err(format!("cannot serve metrics: {error}")),
        // No address was given, and pools are imported already.
        Err(error) => {
            tracing::warn!("no metrics: {error}");
            None
        }
    };
    notify("READY=1");
    let mut looked_ns = 0;
    let mut cache_watch = CacheWatch::new(BlockCache::of_process());
    loop {
        let mut waited = [
            PollFd::new(&listener.socket, PollFlags::IN),
            PollFd::new(&woken, PollFlags::IN),
        ];
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let outcome = poll(&mut waited, Some(&second));
        let now_ns = env.clock.monotonic_ns();
        if now_ns.saturating_sub(looked_ns) >= 1_000_000_000 {
            looked_ns = now_ns;
            daemon.look_out();
            cache_watch.tick();
        }
        let [has_caller, is_told] = waited.map(|fd| !fd.revents().is_empty());
        if outcome.is_err() {
            continue;
        }
        if is_told {
            let _ = woken.read(&mut [0; 8]);
            break;
        }
        if has_caller {
            // A client that already disconnected is no reason to stop.
            let _ = listener.accept(&daemon);
        }
        if !stays && daemon.idle_s().is_some_and(|idle_s| idle_s >= IDLE_S) {
            break;
        }
    }
    notify("STOPPING=1");
    // Close the sockets before stopping. The next command then waits for the lock and starts another daemon.
    drop((listener, metrics));
    daemon.stop();
    Ok(())
}

/// Creates the listeners for metrics. Failure to create the unix socket is only logged; failure to listen on
/// a requested address is an error.
fn metrics_listeners(
    dirs: &StateDirs,
    address: Option<&str>,
) -> Result<Vec<MetricsListener>, String> {
    let path = dirs.metrics();
    let mut listeners = vec![];
    match MetricsListener::local(&path) {
        Ok(listener) => listeners.push(listener),
        Err(error) => {
            let line = Line::new(Level::Warning, format!("no metrics: {error}"));
            log()(&line.file(&path.to_string_lossy()));
        }
    }
    if let Some(address) = address {
        let listener = MetricsListener::net(address)
            .map_err(|error| format!("cannot serve metrics at {address}: {error}"))?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Notifies the service manager, if one started this process.
fn notify(text: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.send_to(text.as_bytes(), PathBuf::from(address));
    }
}
