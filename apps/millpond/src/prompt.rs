//! Prompts for a key at the terminal.
//!
//! Echo is restored however the prompt ends: an answer, an error, a panic or a signal.

use millpond_control::KEY_BYTES_MAX;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use zeroize::Zeroizing;

/// Signals that end the prompt or suspend the program.
const SIGNALS: [i32; 5] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP];

/// Prompts at the terminal and reads a line without echo.
///
/// # Errors
/// If there is no terminal, or it is closed.
pub fn ask(question: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    millpond_daemon::hide_memory();
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    let mut signals = Signals::catch()?;
    loop {
        write!(terminal, "{question}")?;
        let answer = read_silently(&terminal, &mut signals);
        let _ = writeln!(terminal);
        match answer? {
            Answer::Line(line) => {
                signals.release();
                return Ok(line);
            }
            Answer::Signal(signal) => {
                // Most signals end the process. After a suspension the prompt is repeated.
                emulate_default_handler(signal)?;
            }
        }
    }
}

enum Answer {
    Line(Zeroizing<Vec<u8>>),
    Signal(i32),
}

fn read_silently(terminal: &File, signals: &mut Signals) -> io::Result<Answer> {
    let _silent = Silent::begin(terminal)?;
    let mut line = Zeroizing::new(Vec::with_capacity(KEY_BYTES_MAX));
    loop {
        let mut waited: Vec<PollFd<'_>> = vec![PollFd::new(terminal, PollFlags::IN)];
        let sockets = signals.sockets.iter();
        waited.extend(
            sockets.map(|(socket, _)| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)),
        );
        match poll(&mut waited, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = waited.first().is_some_and(|fd| !fd.revents().is_empty());
        drop(waited);
        if let Some(signal) = signals.next() {
            return Ok(Answer::Signal(signal));
        }
        if !is_ready {
            continue;
        }
        let mut byte = Zeroizing::new([0]);
        match (&*terminal).read(byte.as_mut_slice()) {
            Ok(0) => return Ok(Answer::Line(line)),
            Ok(_) if *byte == *b"\n" => return Ok(Answer::Line(line)),
            Ok(_) if line.len() < KEY_BYTES_MAX => line.push(byte[0]),
            Ok(_) => return Err(io::Error::other("the line is too long for a key")),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A terminal with echo off. Dropping it restores echo.
struct Silent<'t> {
    terminal: &'t File,
    before: Termios,
}

impl<'t> Silent<'t> {
    fn begin(terminal: &'t File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// Signals delivered through sockets. Dropping it restores their previous behaviour.
struct Signals {
    sockets: Vec<(UnixStream, i32)>,
    is_over: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut sockets = vec![];
        for signal in SIGNALS {
            let (here, there) = UnixStream::pair()?;
            here.set_nonblocking(true)?;
            // Signal handlers cannot be removed. Once the prompt is over, the handler emulates the default
            // action.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&is_over))?;
            pipe::register(signal, there)?;
            sockets.push((here, signal));
        }
        Ok(Self { sockets, is_over })
    }

    fn next(&mut self) -> Option<i32> {
        let mut sockets = self.sockets.iter_mut();
        sockets
            .find_map(|(socket, signal)| matches!(socket.read(&mut [0]), Ok(1)).then_some(*signal))
    }

    fn release(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.release();
    }
}
