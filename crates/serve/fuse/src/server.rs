//! The threads that serve all sessions of a process.

use crate::abi::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX, Reply, Request};
use crate::busy_poll::{BUSY_POLL, BusyPoll, IN_A_ROW_MAX};
use crate::error::FuseError;
use crate::rings::{Rings, ThreadBudget};
use crate::session::Session;
use crate::shares::{Share, Shares, THREADS_MAX};
use crate::transport::{Channel, Received};
use crate::write_back::KernelPages;
use millpond_env::Env;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, Weak};
use millpond_env::thread::{self, JoinHandle};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::OwnedFd;
use rustix::mount::UnmountFlags;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The token of the event that ends the threads.
const STOP: u64 = 0;
/// How long an added thread waits for a request before it ends.
const IDLE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};
const EIO: i32 = 5;

/// A bounded set of threads for all mounted file systems of this process.
///
/// Dropping it ends the threads and cuts off everything that is still mounted.
pub struct FuseServer {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>, rank::Leaf>,
}

pub(crate) struct Shared {
    poll: OwnedFd,
    pub(crate) stop: OwnedFd,
    connections: Mutex<HashMap<u64, Arc<Connection>>, rank::Leaf>,
    next_token: AtomicU64,
    env: Env,
    pub(crate) ring_threads: ThreadBudget,
    shares: Shares,
    /// The number of threads that wait for a request.
    idle: AtomicUsize,
    /// The number of threads.
    threads: Mutex<usize, rank::Leaf>,
    thread_ended: Condvar,
    /// The number of threads that stay when there is no work.
    threads_kept: usize,
    me: Weak<Shared>,
}

/// A mounted session and its connection.
pub(crate) struct Connection {
    token: u64,
    pub(crate) channel: Channel,
    pub(crate) session: Session,
    mountpoint: PathBuf,
    linger: BusyPoll,
    pub(crate) share: Arc<Share>,
    pub(crate) rings: Rings,
    /// Whether the features are negotiated with the kernel.
    has_begun: AtomicBool,
    is_over: Mutex<bool, rank::Leaf>,
    ended: Condvar,
}

impl std::fmt::Debug for FuseServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FuseServer").finish_non_exhaustive()
    }
}

impl FuseServer {
    /// Starts `threads` threads (2 to 256).
    ///
    /// The server adds threads while all are busy, up to 256. Added threads end when there is no work. Each
    /// pool has a share of the threads, so a pool whose requests all wait does not block the others. Each
    /// thread keeps two buffers of a little more than 1 MiB.
    ///
    /// # Errors
    /// [`FuseError::Start`] if threads or descriptors cannot be created.
    pub fn start(threads: usize) -> Result<Arc<Self>, FuseError> {
        let start = |error: rustix::io::Errno| FuseError::Start(error.to_string());
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(start)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(start)?;
        let data = epoll::EventData::new_u64(STOP);
        epoll::add(&poll, &stop, data, epoll::EventFlags::IN).map_err(start)?;
        let threads = threads.clamp(2, THREADS_MAX);
        let shared = Arc::new_cyclic(|me| Shared {
            poll,
            stop,
            connections: Mutex::default(),
            next_token: AtomicU64::new(STOP + 1),
            env: Env::real(),
            ring_threads: ThreadBudget::default(),
            shares: Shares::default(),
            idle: AtomicUsize::new(0),
            threads: Mutex::new(threads),
            thread_ended: Condvar::new(),
            threads_kept: threads,
            me: Weak::clone(me),
        });
        let server = Arc::new(Self {
            shared,
            threads: Mutex::default(),
        });
        for number in 0..threads {
            let shared = Arc::clone(&server.shared);
            let thread = thread::spawn(&format!("fuse-{number}"), move || shared.serve())
                .map_err(|error| FuseError::Start(error.to_string()))?;
            server.threads.lock().push(thread);
        }
        Ok(server)
    }

    /// Starts serving a session.
    pub(crate) fn add(
        &self,
        channel: Channel,
        mut session: Session,
        source: &str,
        mountpoint: &Path,
    ) -> Result<Arc<Connection>, FuseError> {
        let shared = &self.shared;
        let token = shared.next_token.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new_cyclic(|me| {
            session.set_write_back(Arc::new(KernelPages::new(Weak::clone(me))));
            Connection {
                token,
                channel,
                session,
                mountpoint: mountpoint.to_owned(),
                linger: BusyPoll::default(),
                share: shared.shares.of(source),
                rings: Rings::default(),
                has_begun: AtomicBool::new(false),
                is_over: Mutex::new(false),
                ended: Condvar::new(),
            }
        });
        shared
            .connections
            .lock()
            .insert(token, Arc::clone(&connection));
        if Rings::prepare(shared, &connection) {
            connection.session.allow_rings();
        }
        let added = epoll::add(
            &shared.poll,
            connection.channel.fd(),
            epoll::EventData::new_u64(token),
            INTEREST,
        );
        if let Err(error) = added {
            shared.connections.lock().remove(&token);
            connection.rings.decide(false);
            return Err(FuseError::Start(error.to_string()));
        }
        Ok(connection)
    }

    /// Stops serving a connection. The kernel cuts its mounts off when the last handle of it is dropped.
    pub(crate) fn end(&self, connection: &Connection) {
        self.shared.finish(connection);
    }
}

/// A connection wakes one thread at a time, which arms the connection again as soon as it has its request.
const INTEREST: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);
/// No thread is woken, because one is polling for the next request.
const NO_INTEREST: epoll::EventFlags = epoll::EventFlags::ONESHOT;

impl Shared {
    /// The main function of each thread.
    fn serve(&self) {
        if self.serve_until_idle() {
            return;
        }
        *self.threads.lock() -= 1;
        self.thread_ended.notify_all();
    }

    /// Serves requests.
    ///
    /// Returns true if the thread is surplus and already uncounted, false when the server ends.
    fn serve_until_idle(&self) -> bool {
        let mut request = vec![0; REQUEST_BYTES_MAX];
        let mut reply = vec![0; REPLY_BYTES_MAX];
        loop {
            let mut events = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(STOP),
            }];
            self.idle.fetch_add(1, Ordering::SeqCst);
            let waited = epoll::wait(&self.poll, &mut events, Some(&IDLE));
            self.idle.fetch_sub(1, Ordering::SeqCst);
            match waited {
                Ok(0) if self.may_end() => return true,
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                // The poll descriptor failed, so nothing more can be served.
                Err(_) => return false,
            }
            let token = { events[0].data }.u64();
            if token == STOP {
                return false;
            }
            let connection = self.connections.lock().get(&token).map(Arc::clone);
            if let Some(connection) = connection {
                self.serve_one(&connection, &mut request, &mut reply);
            }
        }
    }

    /// Serves the next request of a connection, and those that follow immediately.
    fn serve_one(&self, connection: &Connection, request: &mut [u8], reply: &mut [u8]) {
        let mut received = connection.channel.receive(request);
        for number in 0.. {
            if received == Received::Over {
                self.finish(connection);
                return;
            }
            let Received::Request(count) = received else {
                self.arm_within_share(connection);
                return;
            };
            // Arm the connection before serving the request, so that other threads take the next ones.
            connection.share.begin();
            self.arm_within_share(connection);
            self.keep_one_idle();
            let message = request.get(..count).unwrap_or_default();
            let answer = Self::answer(connection, message, reply);
            self.end_in_share(connection);
            // The program may send its next request as soon as it has this reply. If this thread polls for
            // it, no other thread needs to wake up.
            let lingers = number < IN_A_ROW_MAX && connection.linger.begin();
            if lingers {
                self.arm(connection, NO_INTEREST);
            }
            if let Some(answer) = answer {
                let _ = connection.channel.send(answer);
                connection.begin_rings();
            }
            if !lingers {
                return;
            }
            received = self.next(connection, request);
            connection.linger.end(received != Received::Nothing);
        }
    }

    /// Polls for the next request for a short time.
    fn next(&self, connection: &Connection, request: &mut [u8]) -> Received {
        let clock = &self.env.clock;
        let limit = u64::try_from(BUSY_POLL.as_nanos()).unwrap_or(u64::MAX);
        let end = clock.monotonic_ns().saturating_add(limit);
        loop {
            let received = connection.channel.receive(request);
            if received != Received::Nothing || clock.monotonic_ns() >= end {
                return received;
            }
            std::hint::spin_loop();
        }
    }

    /// Lets the connection's next request wake a thread, unless its pool has used up its share of the
    /// threads. In that case the connection is armed when one of the pool's requests ends.
    fn arm_within_share(&self, connection: &Connection) {
        if connection.share.admits(connection.token) {
            self.arm(connection, INTEREST);
        }
    }

    fn end_in_share(&self, connection: &Connection) {
        if let Some(token) = connection.share.end() {
            let parked = self.connections.lock().get(&token).map(Arc::clone);
            if let Some(parked) = parked {
                self.arm(&parked, INTEREST);
            }
        }
    }

    /// Starts a thread if no thread is waiting for requests.
    fn keep_one_idle(&self) {
        if self.idle.load(Ordering::SeqCst) > 0 {
            return;
        }
        let Some(shared) = self.me.upgrade() else {
            return;
        };
        let mut threads = self.threads.lock();
        if *threads >= THREADS_MAX {
            return;
        }
        mark::hit("fuse-thread-added");
        let name = format!("fuse-{}", *threads);
        // If the system refuses another thread, the existing ones continue.
        if thread::spawn(&name, move || shared.serve()).is_ok() {
            *threads += 1;
        }
    }

    /// Whether the calling thread, which has no work, may end. If so, it is no longer counted.
    fn may_end(&self) -> bool {
        let mut threads = self.threads.lock();
        let may_end = *threads > self.threads_kept;
        if may_end {
            *threads -= 1;
        }
        may_end
    }

    fn arm(&self, connection: &Connection, interest: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(connection.token);
        let armed = epoll::modify(&self.poll, connection.channel.fd(), data, interest);
        if armed.is_err() && !connection.is_over() {
            self.finish(connection);
        }
    }

    /// Computes the reply to a request; `None` if the request needs no reply.
    ///
    /// A request without a reply would hang its program forever. After a panic the reply is therefore `EIO`,
    /// and the thread continues with other requests.
    pub(crate) fn answer<'b>(
        connection: &Connection,
        message: &[u8],
        reply: &'b mut [u8],
    ) -> Option<&'b [u8]> {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            connection.session.answer(message, reply).map(<[u8]>::len)
        }));
        match outcome {
            Ok(length) => reply.get(..length?),
            Err(_) => {
                let unique = Request::unique_of(message)?;
                Some(Reply::new(reply).finish(unique, EIO))
            }
        }
    }

    pub(crate) fn finish(&self, connection: &Connection) {
        let known = self.connections.lock().remove(&connection.token);
        if known.is_none() {
            return;
        }
        let _ = epoll::delete(&self.poll, connection.channel.fd());
        connection.rings.decide(false);
        connection.session.close();
        *connection.is_over.lock() = true;
        connection.ended.notify_all();
    }
}

impl Connection {
    /// Ends the connection from this side, when requests were to come through io_uring but cannot be
    /// received.
    ///
    /// Only root can do that. For other users, programs wait until the file system is unmounted.
    pub(crate) fn cut_off(&self) {
        let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
        if !self.is_over() {
            let _ = rustix::mount::unmount(&*self.mountpoint, flags);
        }
    }
    /// Lets the io_uring threads start or end, as soon as the negotiation has decided which.
    fn begin_rings(&self) {
        if !self.has_begun.load(Ordering::Relaxed)
            && let Some(begins) = self.session.uses_rings()
        {
            self.has_begun.store(true, Ordering::Relaxed);
            self.rings.decide(begins);
        }
    }
    pub fn is_over(&self) -> bool {
        *self.is_over.lock()
    }
    /// Waits until the session is over.
    pub fn wait(&self) {
        let mut is_over = self.is_over.lock();
        while !*is_over {
            self.ended.wait(&mut is_over);
        }
    }
    /// Waits until the session is over or `limit` has passed. Returns whether it is over.
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let mut is_over = self.is_over.lock();
        if !*is_over {
            let _ = self.ended.wait_for(&mut is_over, limit);
        }
        *is_over
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        for thread in std::mem::take(self.threads.get_mut()) {
            let _ = thread.join();
        }
        // Added threads are counted, not joined individually.
        let mut left = self.shared.threads.lock();
        while *left > 0 {
            self.shared.thread_ended.wait(&mut left);
        }
        drop(left);
        let connections: Vec<_> = self.shared.connections.lock().drain().collect();
        for (_, connection) in connections {
            connection.rings.decide(false);
            connection.rings.join();
            connection.session.close();
            *connection.is_over.lock() = true;
            connection.ended.notify_all();
        }
    }
}
