//! Prometheus metrics of the daemon: the page, and a minimal HTTP server for it.
//!
//! Clients may be slow or hostile. A request has at most [`REQUEST_BYTES_MAX`] bytes, and may take at most
//! [`TIME_NS_MAX`] from its first byte to the end of the response. [`FETCHES`] limits concurrent requests;
//! further connections are closed. The page contains only what every user may query anyway.

mod figures;
mod page;

use crate::daemon::Daemon;
use crate::permits::{ConnectionPermits, PermitLimits};
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

/// The maximum size of a request in bytes. Anything after it is ignored.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The maximum duration of a request, in nanoseconds.
pub const TIME_NS_MAX: u64 = 10_000_000_000;
/// Limits on concurrent requests at a socket. On the network users cannot be distinguished, so the limit
/// there is four.
pub const FETCHES: PermitLimits = PermitLimits {
    all: 8,
    not_root: 7,
    strangers: 4,
    each: 2,
};
/// The maximum number of concurrent requests at a network address.
pub const NET_FETCHES_MAX: usize = 4;
/// Timeout of a single read or write.
const WAIT: Duration = Duration::from_secs(2);
/// Size of a single write in bytes. The duration is checked between writes.
const PIECE_BYTES: usize = 16 << 10;

enum Socket {
    Local(UnixListener, PathBuf),
    Net(TcpListener),
}

/// A listener for metrics requests.
pub struct MetricsListener {
    socket: Socket,
    fetches: Arc<ConnectionPermits>,
}

impl MetricsListener {
    /// Listens on a unix socket that all users can open. An existing file at that path is removed.
    ///
    /// # Errors
    /// If the socket cannot be created.
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
            fetches: ConnectionPermits::new(FETCHES, rustix::process::geteuid().as_raw()),
        })
    }

    /// Listens on a network address, such as `127.0.0.1:9134`.
    ///
    /// # Errors
    /// If the address is invalid or unavailable.
    pub fn net(address: &str) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Socket::Net(socket),
            fetches: ConnectionPermits::new(
                PermitLimits {
                    each: NET_FETCHES_MAX,
                    ..FETCHES
                },
                0,
            ),
        })
    }

    /// The network address it listens on; `None` for a unix socket.
    #[must_use]
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        match &self.socket {
            Socket::Local(..) => None,
            Socket::Net(socket) => socket.local_addr().ok(),
        }
    }

    /// The file descriptor to poll for connections.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Local(socket, _) => socket.as_fd(),
            Socket::Net(socket) => socket.as_fd(),
        }
    }

    /// Accepts one connection and answers it in a new thread. Never blocks.
    ///
    /// # Errors
    /// If no connection is waiting.
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
        // If no thread can be started, the connection is closed.
        let _ = thread::spawn("metrics", move || {
            // An error means that the client does not read the response, so it cannot be notified.
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

/// Reads a request and sends the response. Public for fuzzing and tests.
///
/// # Errors
/// If the client closed the connection, is too slow, or sends too much.
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

/// Whether a request's head is complete, that is, contains an empty line.
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
