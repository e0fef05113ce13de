//! Figures of the daemon for Prometheus: the page, and HTTP as far as it takes to fetch it.
//!
//! Whoever asks may be slow or hostile: a request has at most [`REQUEST_BYTES_MAX`] bytes and [`TIME_NS_MAX`]
//! from its first byte to the last one of the answer, and [`FETCHES`] says how many are answered at once; more are hung up on.
//! The page tells only what every user may ask for anyway.

mod figures;
mod page;

use crate::daemon::Daemon;
use crate::seats::{SeatLimits, Seats};
use millpond_env::sync::Arc;
use millpond_env::{Env, thread};
use millpond_rpc::Caller;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest request, in bytes; the rest of one is not looked at.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
/// So long may a fetch take, in nanoseconds.
pub const TIME_NS_MAX: u64 = 10_000_000_000;
/// So many fetches at once at a socket. On the network nobody is told from anybody: four there.
pub const FETCHES: SeatLimits = SeatLimits {
    all: 8,
    not_root: 7,
    strangers: 4,
    each: 2,
};
/// So many fetches at once at a network address.
pub const NET_FETCHES_MAX: usize = 4;
/// One read or write waits at most so long.
const WAIT: Duration = Duration::from_secs(2);
/// So much is written at once, in bytes: between two writes the time is looked at.
const PIECE_BYTES: usize = 16 << 10;

enum Socket {
    Local(UnixListener, PathBuf),
    Net(TcpListener),
}

/// Where the page is to be had.
pub struct MetricsListener {
    socket: Socket,
    fetches: Arc<Seats>,
}

impl MetricsListener {
    /// At a unix socket, open to all users. Whatever is at that path is taken away.
    ///
    /// # Errors
    /// If the path cannot be a socket.
    pub fn local(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Socket::Local(socket, path.to_owned()),
            fetches: Seats::new(FETCHES, rustix::process::geteuid().as_raw()),
        })
    }

    /// At an address of the network, `127.0.0.1:9134`.
    ///
    /// # Errors
    /// If the address is none or not to be had.
    pub fn net(address: &str) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Socket::Net(socket),
            fetches: Seats::new(
                SeatLimits {
                    each: NET_FETCHES_MAX,
                    ..FETCHES
                },
                0,
            ),
        })
    }

    /// Where it listens on the network; `None` for a unix socket.
    #[must_use]
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        match &self.socket {
            Socket::Local(..) => None,
            Socket::Net(socket) => socket.local_addr().ok(),
        }
    }

    /// To wait for somebody who asks.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Local(socket, _) => socket.as_fd(),
            Socket::Net(socket) => socket.as_fd(),
        }
    }

    /// Takes one connection, which a thread of its own answers. Never waits.
    ///
    /// # Errors
    /// If there is none.
    pub fn accept(&self, daemon: &Arc<Daemon>) -> io::Result<()> {
        match &self.socket {
            Socket::Local(socket, _) => {
                let (stream, _) = socket.accept()?;
                let user = Caller::of(&stream)?.user;
                self.hand_over(stream, Some(user), daemon, |stream: &UnixStream| {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(WAIT))?;
                    stream.set_write_timeout(Some(WAIT))
                })
            }
            Socket::Net(socket) => {
                let (stream, _) = socket.accept()?;
                self.hand_over(stream, None, daemon, |stream: &TcpStream| {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(WAIT))?;
                    stream.set_write_timeout(Some(WAIT))
                })
            }
        }
    }

    fn hand_over<S: Read + Write + Send + 'static>(
        &self,
        mut stream: S,
        user: Option<u32>,
        daemon: &Arc<Daemon>,
        bound: impl FnOnce(&S) -> io::Result<()>,
    ) -> io::Result<()> {
        let Ok(seat) = self.fetches.take(user) else {
            return Ok(());
        };
        bound(&stream)?;
        let daemon = Arc::clone(daemon);
        // Without a thread the connection is hung up on.
        let _ = thread::spawn("metrics", move || {
            // Who does not take the answer does not get it; there is nobody to tell.
            let _ = answer(&mut stream, &daemon.env, &|| figures::page(&daemon));
            drop(seat);
        });
        Ok(())
    }
}

impl Drop for MetricsListener {
    fn drop(&mut self) {
        if let Socket::Local(_, path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Reads a request, sends what it asks for. Public to be fuzzed and tested.
///
/// # Errors
/// If the other end is gone, too slow or says too much.
pub fn answer(
    stream: &mut (impl Read + Write),
    env: &Env,
    page: &dyn Fn() -> String,
) -> io::Result<()> {
    let began_ns = env.clock.monotonic_ns();
    let in_time = || {
        let taken_ns = env.clock.monotonic_ns().saturating_sub(began_ns);
        match taken_ns < TIME_NS_MAX {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    };
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !is_whole(&head) {
        in_time()?;
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend(piece.iter().take(count));
        if head.len() > REQUEST_BYTES_MAX {
            return stream.write_all(&reply("431 Request Header Fields Too Large", "", true));
        }
    }
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    let bytes = match (method, path) {
        ("GET" | "HEAD", "/metrics") => reply("200 OK", &page(), method == "GET"),
        ("GET" | "HEAD", _) => reply(
            "404 Not Found",
            "The figures are at /metrics.\n",
            method == "GET",
        ),
        _ => reply("405 Method Not Allowed", "", true),
    };
    for piece in bytes.chunks(PIECE_BYTES) {
        in_time()?;
        stream.write_all(piece)?;
    }
    stream.flush()
}

/// Whether a request's head has its empty line.
fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|four| four == b"\r\n\r\n") || head.windows(2).any(|two| two == b"\n\n")
}

fn reply(status: &str, body: &str, has_body: bool) -> Vec<u8> {
    let length = body.len();
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if has_body {
        text.push_str(body);
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests;
