//! The HTTP server for metrics: axum on one thread.
//!
//! Clients may be slow or hostile, so a request, a connection's duration and the number of connections are
//! limited; connections above the limit are closed. The page contains only what every user may query anyway.
//!
//! The runtime's thread waits for sockets only. Collecting a page may wait for a pool, so each request has a
//! thread of its own for it, and keeps its connection's permit until that thread ends. This bounds the number
//! of threads also when clients leave while a pool does not respond.

use crate::permits::{ConnectionPermit, ConnectionPermits, PermitLimits};
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use millpond_env::sync::Arc;
use millpond_env::thread;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// The maximum size of a request's head in bytes. A body is not read.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The maximum time until a request's head is complete.
pub const HEADER_TIME: Duration = Duration::from_secs(2);
/// The maximum duration of a connection.
pub const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Limits on concurrent connections at a socket. On the network users cannot be distinguished, so the limit
/// there is [`NET_CONNECTIONS_MAX`].
pub const CONNECTIONS: PermitLimits = PermitLimits {
    all: 8,
    not_root: 7,
    strangers: 4,
    each: 2,
};
/// The maximum number of concurrent connections at a network address.
pub const NET_CONNECTIONS_MAX: usize = 4;
/// Pause after a failed accept, for instance without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the text of the page.
pub type PageSource = Arc<dyn Fn() -> String + Send + Sync>;

enum Socket {
    Local(std::os::unix::net::UnixListener, SocketFile),
    Net(std::net::TcpListener),
}

/// The path of a unix socket; removed on drop.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A listening socket. Connections wait in its queue until [`MetricsServer::start`] takes it.
pub struct MetricsListener {
    socket: Socket,
    permits: Arc<ConnectionPermits>,
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
        let socket = std::os::unix::net::UnixListener::bind(path)?;
        let file = SocketFile(path.to_owned());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        socket.set_nonblocking(true)?;
        let own_user = rustix::process::geteuid().as_raw();
        Ok(Self {
            socket: Socket::Local(socket, file),
            permits: ConnectionPermits::new(CONNECTIONS, own_user),
        })
    }

    /// Listens on a network address, such as `127.0.0.1:9134`.
    ///
    /// # Errors
    /// If the address is invalid or unavailable.
    pub fn net(address: &str) -> io::Result<Self> {
        let socket = std::net::TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let limits = PermitLimits {
            each: NET_CONNECTIONS_MAX,
            ..CONNECTIONS
        };
        Ok(Self {
            socket: Socket::Net(socket),
            permits: ConnectionPermits::new(limits, 0),
        })
    }

    /// The network address it listens on; `None` for a unix socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Local(..) => None,
            Socket::Net(socket) => socket.local_addr().ok(),
        }
    }
}

/// A running server. On drop it closes its sockets and connections, and its thread ends.
pub struct MetricsServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl MetricsServer {
    /// Serves the page at all `listeners`, with one thread.
    ///
    /// # Errors
    /// If the runtime or its thread cannot be started.
    pub fn start(listeners: Vec<MetricsListener>, page: PageSource) -> io::Result<Self> {
        let runtime = runtime()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn("metrics", move || {
            for listener in listeners {
                runtime.spawn(accept_all(listener, Arc::clone(&page)));
            }
            // The sender sends nothing; it is dropped to stop.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A runtime that runs all its tasks in the thread that blocks on it.
fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
}

/// Accepts connections until the runtime is dropped.
async fn accept_all(listener: MetricsListener, page: PageSource) {
    let MetricsListener { socket, permits } = listener;
    match socket {
        Socket::Local(socket, _file) => {
            let Ok(socket) = tokio::net::UnixListener::from_std(socket) else {
                return;
            };
            loop {
                match socket.accept().await {
                    Ok((stream, _)) => match stream.peer_cred() {
                        Ok(peer) => start_serving(stream, Some(peer.uid()), &permits, &page),
                        Err(_) => drop(stream),
                    },
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        }
        Socket::Net(socket) => {
            let Ok(socket) = tokio::net::TcpListener::from_std(socket) else {
                return;
            };
            loop {
                match socket.accept().await {
                    Ok((stream, _)) => start_serving(stream, None, &permits, &page),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        }
    }
}

/// Serves a connection in a task of its own, or closes it when no permit is available.
fn start_serving(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    user: Option<u32>,
    permits: &Arc<ConnectionPermits>,
    page: &PageSource,
) {
    if let Ok(permit) = permits.take(user) {
        tokio::spawn(serve(stream, router(Arc::clone(page), Arc::new(permit))));
    }
}

/// The pages of a connection.
fn router(page: PageSource, permit: Arc<ConnectionPermit>) -> Router {
    let metrics = move || async move { collected(page, permit).await };
    Router::new()
        .route("/metrics", get(metrics))
        .fallback(|| async { (StatusCode::NOT_FOUND, "The metrics are at /metrics.\n") })
}

/// Collects the page in a thread of its own.
async fn collected(page: PageSource, permit: Arc<ConnectionPermit>) -> Response {
    let (send, receive) = oneshot::channel();
    let collecting = thread::spawn("metrics-page", move || {
        // The client may have left; then nothing receives the text.
        let _ = send.send(page());
        drop(permit);
    });
    if collecting.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    match receive.await {
        Ok(text) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        // The thread panicked.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Reads one request and sends the response, within the limits.
pub(super) async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, pages: Router) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        // A client that has sent its request may close its side and still get the response.
        .half_close(true)
        .max_buf_size(REQUEST_BYTES_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
    // An error means that the client sent no request, was too slow, or left: there is no one to notify.
    let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
}

/// What a client gets that sends `request` through a buffer of `buffer_bytes` and then nothing more. For the
/// fuzzer.
///
/// # Errors
/// If no runtime can be started, or serving panics.
pub fn answer(request: &[u8], buffer_bytes: usize, page: PageSource) -> io::Result<Vec<u8>> {
    let permits = ConnectionPermits::new(CONNECTIONS, 0);
    let permit = permits.take(None).map_err(io::Error::other)?;
    let request = request.to_vec();
    runtime()?.block_on(async {
        let (client, stream) = tokio::io::duplex(buffer_bytes);
        let served = tokio::spawn(serve(stream, router(page, Arc::new(permit))));
        let (mut responses, mut requests) = tokio::io::split(client);
        tokio::spawn(async move {
            // Fails when the server closes the connection before it has read everything.
            let _ = requests.write_all(&request).await;
            let _ = requests.shutdown().await;
        });
        let mut response = vec![];
        let _ = responses.read_to_end(&mut response).await;
        served.await.map_err(io::Error::other)?;
        Ok(response)
    })
}
