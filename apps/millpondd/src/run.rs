//! The process: socket, connections, signals, the idle minute.

use crate::daemon::{Daemon, Log};
use crate::fuse::FuseMounter;
use crate::log::{Level, Line};
use crate::metrics::MetricsListener;
use crate::mounts::{Mounter, NoMounter};
use crate::places::Places;
use crate::seats::{SeatLimits, Seats};
use millpond::live::RequestDeadline;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::{Env, thread};
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

/// So many are answered at once; more are turned away. Those who may only look leave half of them free.
pub const CONNECTIONS: SeatLimits = SeatLimits {
    all: 64,
    not_root: 60,
    strangers: 32,
    each: 8,
};
/// One read or write of a connection waits at most so long before the time limits are looked at.
const WAIT: Duration = Duration::from_secs(1);
/// Without a pool and without a question the daemon goes after so many seconds.
const IDLE_S: u64 = 60;

/// A daemon's socket.
pub struct Listener {
    path: PathBuf,
    socket: UnixListener,
    connections: Arc<Seats>,
}

impl Listener {
    /// Listens. Whatever is at that path is taken away: the state directory's lock says that no
    /// daemon has it.
    ///
    /// # Errors
    /// If the path cannot be a socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(path)?;
        // Open to all; who somebody is decides what may be done.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        Ok(Self {
            path: path.to_owned(),
            socket,
            connections: Seats::new(CONNECTIONS, rustix::process::geteuid().as_raw()),
        })
    }

    /// Takes one connection, whose calls are answered by a thread of their own.
    ///
    /// # Errors
    /// If there is no next connection.
    pub fn accept(&self, daemon: &Arc<Daemon>) -> io::Result<()> {
        let (stream, _) = self.socket.accept()?;
        let caller = Caller::of(&stream)?;
        self.answer(stream, caller, daemon);
        Ok(())
    }

    /// Answers a connection by a thread of its own, or says why not.
    pub fn answer(&self, stream: UnixStream, caller: Caller, daemon: &Arc<Daemon>) {
        let seat = match self.connections.take(Some(caller.user)) {
            Ok(seat) => seat,
            Err(why) => return turn_away(stream, &why),
        };
        let daemon = Arc::clone(daemon);
        // Without a thread the connection is hung up on.
        let _ = thread::spawn("rpc", move || {
            answer(stream, caller, &daemon);
            drop(seat);
        });
    }

    /// Takes connections until told to stop; `stopped` is looked at after each of them.
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

fn answer(stream: UnixStream, caller: Caller, daemon: &Daemon) {
    let access = Access::of(caller, rustix::process::geteuid().as_raw());
    let bounded = stream
        .set_read_timeout(Some(WAIT))
        .and_then(|()| stream.set_write_timeout(Some(WAIT)));
    if bounded.is_ok() {
        // Who breaks the protocol is hung up on; that is all that can be said.
        let _ = serve(stream, daemon, caller, access);
    }
}

const HELP: &str = "\
millpondd holds pools open, keeps file systems mounted and answers zpool and zfs.

Usage: millpondd [--foreground] [--stay] [--metrics ADDRESS:PORT] [--deadline SECONDS]

  --foreground  do not leave the terminal; what there is to say goes to standard error
  --stay        do not end when no pool is left (for a service manager)
  --metrics ADDRESS:PORT
                tell figures for Prometheus there too, to anybody who asks; else only at the
                unix socket metrics.sock. MILLPOND_METRICS in the environment says the same
  --deadline SECONDS
                how long a disk may take for a request before its pool goes on without it, where
                redundancy is left (30; 0 for any time). MILLPOND_DEADLINE says the same

State is kept in /var/lib/millpond and /run/millpond (root), the XDG state and runtime
directories (others), or in MILLPOND_DIR. Commands start the daemon by themselves.
";

/// The process. Returns when it is told to stop or has nothing to do.
#[must_use]
pub fn run(words: Vec<OsString>) -> ExitCode {
    let (mut in_foreground, mut stays) = (false, false);
    let mut metrics = std::env::var("MILLPOND_METRICS").ok();
    let mut deadline = std::env::var("MILLPOND_DEADLINE").ok();
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
            Some("--foreground") => in_foreground = true,
            Some("--stay") => stays = true,
            Some("--help" | "-h") => {
                let _ = io::stdout().write_all(HELP.as_bytes());
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
    if !in_foreground {
        close_inherited();
        // Fails only for who leads a group already, and then there is no terminal to leave.
        let _ = rustix::process::setsid();
    }
    hide_memory();
    let _ = std::env::set_current_dir("/");
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let metrics = metrics.filter(|address| !address.is_empty());
    match live(&Places::own(), stays, metrics.as_deref(), deadline) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

/// The deadline that words mean; the usual one without words.
fn deadline_of(words: Option<&str>) -> Option<RequestDeadline> {
    let Some(words) = words.filter(|words| !words.is_empty()) else {
        return Some(RequestDeadline::default());
    };
    let seconds: u64 = words.parse().ok()?;
    Some(RequestDeadline(
        (seconds > 0).then(|| Duration::from_secs(seconds)),
    ))
}

/// Closes what the command that started us had open and did not mean for us: a pipe would never end, a lock never be free.
/// Nothing of our own is open yet but the standard streams.
fn close_inherited() {
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers: Vec<i32> = names.filter_map(|name| name.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The listing's own is closed already.
        let _ = nix::unistd::close(number);
    }
}

/// Keeps the memory of this process out of core files and from other processes of its user. Called before a key can be in it.
pub fn hide_memory() {
    // Where it is not allowed the key is as safe as the process was.
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

/// Where lines go: with their severity where a service manager reads it off them.
fn log() -> Log {
    let is_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    Box::new(move |line| {
        let mut out = io::stderr();
        let _ = match is_journal {
            true => writeln!(out, "<{}>{line}", line.level().severity()),
            false => writeln!(out, "millpondd: {line}"),
        };
    })
}

fn mounter() -> Box<dyn Mounter> {
    match FuseMounter::start() {
        Ok(mounter) => Box::new(mounter),
        Err(why) => Box::new(NoMounter(why)),
    }
}

fn live(
    places: &Places,
    stays: bool,
    metrics: Option<&str>,
    deadline: RequestDeadline,
) -> Result<(), String> {
    // Signals first: one that comes while pools are imported must not be lost.
    let (mut told, tell) = UnixStream::pair().map_err(|error| error.to_string())?;
    for signal in [SIGTERM, SIGINT] {
        let own = tell.try_clone().map_err(|error| error.to_string())?;
        signal_hook::low_level::pipe::register(signal, own).map_err(|error| error.to_string())?;
    }
    let env = Env::real();
    let daemon = Daemon::start_with(&env, places, mounter(), log(), deadline);
    let daemon = daemon.map_err(|error| error.to_string())?;
    let path = places.socket();
    let listener = Listener::bind(&path)
        .map_err(|error| format!("cannot listen at {}: {error}", path.display()))?;
    let figures = metrics_listeners(places, metrics)?;
    notify("READY=1");
    let mut looked_ns = 0;
    loop {
        let mut waited = vec![
            PollFd::new(&listener.socket, PollFlags::IN),
            PollFd::new(&told, PollFlags::IN),
        ];
        let asked = figures.iter().map(MetricsListener::descriptor);
        waited.extend(asked.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let outcome = poll(&mut waited, Some(&second));
        let now_ns = env.clock.monotonic_ns();
        if now_ns.saturating_sub(looked_ns) >= 1_000_000_000 {
            looked_ns = now_ns;
            daemon.look_out();
        }
        let is_ready = |at: usize| waited.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (has_caller, is_told) = (is_ready(0), is_ready(1));
        let wanting: Vec<bool> = (2..waited.len()).map(is_ready).collect();
        if outcome.is_err() {
            continue;
        }
        for (figures, _) in figures.iter().zip(wanting).filter(|(_, wants)| *wants) {
            let _ = figures.accept(&daemon);
        }
        if is_told {
            let _ = told.read(&mut [0; 8]);
            break;
        }
        if has_caller {
            // One that has gone again is no reason to stop.
            let _ = listener.accept(&daemon);
        }
        if !stays && daemon.idle_s().is_some_and(|idle_s| idle_s >= IDLE_S) {
            break;
        }
    }
    notify("STOPPING=1");
    // Nobody connects to who is about to go: the next command waits for the lock and starts another.
    drop((listener, figures));
    daemon.stop();
    Ok(())
}

/// Where figures are told. A unix socket that cannot be had is no reason not to hold pools; an address
/// that was asked for is.
fn metrics_listeners(
    places: &Places,
    address: Option<&str>,
) -> Result<Vec<MetricsListener>, String> {
    let path = places.metrics();
    let mut listeners = vec![];
    match MetricsListener::local(&path) {
        Ok(listener) => listeners.push(listener),
        Err(error) => {
            let line = Line::new(Level::Warning, format!("no figures: {error}"));
            log()(&line.file(&path.to_string_lossy()));
        }
    }
    if let Some(address) = address {
        let listener = MetricsListener::net(address)
            .map_err(|error| format!("cannot tell figures at {address}: {error}"))?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Tells a service manager, if one started us.
fn notify(text: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.send_to(text.as_bytes(), PathBuf::from(address));
    }
}
