//! Passes a stream on, and says how much of it was sent: every second with `zfs send -v` and `-V`, in a bar on a terminal, and
//! whenever `SIGUSR1` asks for it.

use crate::progress::{self, Done, Progress};
use crate::session::{Failure, Session};
use crate::text::number::bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How much is passed on at once.
const PIECE_BYTES: usize = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);
/// The name of this process, of which the kernel keeps 15 bytes. Programs that show command lines do not show it.
const OWN_NAME: &str = "/proc/self/comm";

/// How progress is shown.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// In lines every second, not only when it is asked for.
    pub each_second: bool,
    /// In the name of the process every second.
    pub in_name: bool,
    /// In a bar on the terminal.
    pub in_bar: bool,
    pub is_parsable: bool,
    /// About how many bytes the stream has, if that is known.
    pub total_bytes: Option<u64>,
}

/// What the lines say.
struct Report<'a> {
    name: &'a str,
    zone: TimeZone,
    style: Style,
    sent: Arc<AtomicU64>,
    has_ended: Mutex<bool>,
    ended: Condvar,
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

    /// Until the stream ends, also while its reader waits.
    fn tell_each_second(&self) {
        let mut has_ended = self.has_ended.lock();
        while !*has_ended {
            if !self.ended.wait_for(&mut has_ended, SECOND).timed_out() {
                continue;
            }
            if self.style.each_second {
                self.tell();
            }
            if self.style.in_name {
                let name = name_of(self.sent.load(Ordering::Relaxed), self.style.total_bytes);
                // Without /proc the stream is sent all the same.
                let _ = std::fs::write(OWN_NAME, name);
            }
        }
    }

    fn end(&self) {
        *self.has_ended.lock() = true;
        self.ended.notify_all();
    }

    fn bar(&self) -> Progress {
        let style = match self.style.in_bar {
            true => progress::Style::Bar,
            false => progress::Style::Hidden,
        };
        let (sent, total_bytes) = (Arc::clone(&self.sent), self.style.total_bytes);
        Progress::start(style, move || Done {
            bytes: sent.load(Ordering::Relaxed),
            total_bytes,
            verb: "sent",
            ..Done::default()
        })
    }
}

/// The name of a process that has sent so much.
fn name_of(sent: u64, total_bytes: Option<u64>) -> String {
    let done = bytes(sent);
    match total_bytes.filter(|total| *total >= sent && *total > 0) {
        Some(total) => {
            let per_cent = u128::from(sent) * 100 / u128::from(total);
            format!("send {per_cent}% {done}")
        }
        None => format!("send {done}"),
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
        sent: Arc::default(),
        has_ended: Mutex::new(false),
        ended: Condvar::new(),
    };
    let mut bar = report.bar();
    // From here on the signal does not end the program any more.
    let mut signals = Signals::new([SIGUSR1])?;
    let asked = signals.handle();
    thread::scope(|scope| {
        let report = &report;
        scope.spawn(move || signals.forever().for_each(|_| report.tell()));
        scope.spawn(move || report.tell_each_second());
        let passing = scope.spawn(move || copy(File::from(from), File::from(output), report));
        let sent = send(session, to);
        // It ends at the end of the stream, which is when `send` has closed its side.
        let _ = passing.join();
        bar.finish();
        report.end();
        asked.close();
        sent
    })
}

/// Copies the stream until one end is closed. The sender then gets an error at its next write.
fn copy(mut from: File, mut to: File, report: &Report<'_>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_processes_have_fifteen_bytes_at_most() {
        assert_eq!(name_of(1 << 30, Some(4 << 30)), "send 25% 1G");
        assert_eq!(name_of(1 << 30, None), "send 1G");
        // The estimate was too small.
        assert_eq!(name_of(1 << 30, Some(1)), "send 1G");
        assert_eq!(name_of(0, Some(0)), "send 0B");
        for sent in [1023 << 20, (123 << 30) + (45 << 20), u64::MAX] {
            let name = name_of(sent, Some(sent));
            assert!(name.len() <= 15, "{name}");
        }
    }
}
