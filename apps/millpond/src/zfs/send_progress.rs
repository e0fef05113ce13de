//! Passes a stream on, and says how much of it was sent: every second with `zfs send -v`, and whenever `SIGUSR1` asks for it.

use crate::session::{Failure, Session};
use crate::text::number::bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::{Env, thread};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

/// How much is passed on at once.
const PIECE_BYTES: usize = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// How progress is shown.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Every second, not only when it is asked for.
    pub each_second: bool,
    pub is_parsable: bool,
}

/// What the lines say.
struct Report<'a> {
    name: &'a str,
    zone: TimeZone,
    style: Style,
    sent: AtomicU64,
}

impl Report<'_> {
    fn tell(&self) {
        let (name, sent) = (self.name, self.sent.load(Ordering::Relaxed));
        let now = Timestamp::now().to_zoned(self.zone.clone());
        let now = now.strftime("%H:%M:%S");
        let line = match self.style.is_parsable {
            true => format!("{now}\t{sent}\t{name}\n"),
            false => format!("{now}   {:>5}   {name}\n", bytes(sent)),
        };
        // A line that cannot be shown does not end the stream.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Calls `send` with a pipe, and passes on to `output` what comes from it.
pub fn pass_on<R>(
    session: &mut Session,
    name: &str,
    output: OwnedFd,
    style: Style,
    send: impl FnOnce(&Session, OwnedFd) -> Result<R, Failure>,
) -> Result<R, Failure> {
    if style.each_second && !style.is_parsable {
        writeln!(session.err, "TIME        SENT   SNAPSHOT {name}")?;
    }
    session.err.flush()?;
    let (from, to) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    // A system may allow less.
    let _ = fcntl_setpipe_size(&to, PIECE_BYTES);
    let report = Report {
        name,
        zone: session.environment.zone.clone(),
        style,
        sent: AtomicU64::new(0),
    };
    // From here on the signal does not end the program any more.
    let mut signals = Signals::new([SIGUSR1])?;
    let asked = signals.handle();
    thread::scope(|scope| {
        let report = &report;
        scope.spawn(move || signals.forever().for_each(|_| report.tell()));
        let passing = scope.spawn(move || copy(File::from(from), File::from(output), report));
        let sent = send(session, to);
        // It ends at the end of the stream, which is when `send` has closed its side.
        let _ = passing.join();
        asked.close();
        sent
    })
}

/// Copies the stream until one end is closed. The sender then gets an error at its next write.
fn copy(mut from: File, mut to: File, report: &Report<'_>) {
    let clock = Env::real().clock;
    let mut last_ns = clock.monotonic_ns();
    let mut buffer = vec![];
    loop {
        let moved = match buffer.is_empty() {
            true => splice(&from, None, &to, None, PIECE_BYTES, SpliceFlags::MOVE),
            false => copy_piece(&mut from, &mut to, &mut buffer),
        };
        match moved {
            Ok(0) => return,
            Ok(moved) => {
                let moved = u64::try_from(moved).unwrap_or(0);
                report.sent.fetch_add(moved, Ordering::Relaxed);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&to, PollFlags::OUT)], None);
            }
            // Not everything takes pages: a file that is appended to.
            Err(Errno::INVAL) if buffer.is_empty() => buffer = vec![0; PIECE_BYTES],
            Err(_) => return,
        }
        let now_ns = clock.monotonic_ns();
        if report.style.each_second && now_ns.saturating_sub(last_ns) >= SECOND_NS {
            last_ns = now_ns;
            report.tell();
        }
    }
}

fn copy_piece(from: &mut File, to: &mut File, buffer: &mut [u8]) -> Result<usize, Errno> {
    let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let read = from.read(buffer).map_err(failed)?;
    let mut left = buffer.get(..read).unwrap_or_default();
    while !left.is_empty() {
        match to.write(left) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => left = left.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(&*to, PollFlags::OUT)], None);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(read)
}
