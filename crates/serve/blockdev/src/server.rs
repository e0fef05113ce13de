//! The threads that serve the file of one disk.
//!
//! Two threads hold the connection to the kernel, the *reader* and the *writer*, in a table of descriptors of their own.
//! They never wait for a disk. *Workers* do, and have no part in the connection. If the process is killed while one of
//! its threads waits inside the kernel for this very device (a pool on a volume of another pool), the two still end at
//! once. With them the connection ends, every request fails, and the process can end.
//!
//! Each disk has its own threads: requests to one pool never wait until those to another one are answered, however pools
//! lie on each other's volumes.

use crate::kernel::leave_table;
use crate::session::{BUFFER_BYTES, Session};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, Receiver, Sender, bounded};
use millpond_env::thread;
use millpond_fuse::abi::{Reply, Request};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The most workers of a disk.
const WORKERS_MAX: usize = 16;
/// How long a worker waits for work before it ends, if it is not the last one.
const IDLE: Duration = Duration::from_secs(10);
/// Requests that were read and that no worker has taken yet.
const QUEUE: usize = 64;
/// Buffers that are kept for later requests.
const BUFFERS_KEPT: usize = 4;
const EIO: i32 = 5;

/// What the threads of a disk share. It holds no descriptor.
struct Shared {
    session: Arc<Session>,
    name: String,
    buffers: Mutex<Vec<Vec<u8>>, rank::Leaf>,
    workers: AtomicUsize,
    idle: AtomicUsize,
    /// The number of threads.
    threads: Mutex<usize, rank::Leaf>,
    ended: Condvar,
}

/// A request in a buffer: its length.
type Work = (Vec<u8>, usize);

/// For the writer.
enum Message {
    Reply(Vec<u8>, usize),
    /// The file is open: the mount is no longer needed, and ends with the file.
    Opened,
}

/// Where the mount is: a descriptor in the table of another thread.
pub(crate) struct MountPlace {
    thread: i32,
    number: i32,
}

impl MountPlace {
    /// The path under which this process can open the file.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/task/{}/fd/{}", self.thread, self.number)
    }
}

/// The threads that serve a disk.
pub(crate) struct Server {
    shared: Arc<Shared>,
    /// `None` after the mount was given up.
    messages: Option<Sender<Message>>,
}

/// Counts a thread, however it ends.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        *shared.threads.lock() += 1;
        Self(Arc::clone(shared))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.threads.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl Server {
    /// Starts the threads and makes the mount. `name` is the source of the mount.
    pub(crate) fn start(session: &Arc<Session>, name: &str) -> Result<(Self, MountPlace), Errno> {
        let shared = Arc::new(Shared {
            session: Arc::clone(session),
            name: name.to_owned(),
            buffers: Mutex::default(),
            workers: AtomicUsize::new(1),
            idle: AtomicUsize::new(0),
            threads: Mutex::new(0),
            ended: Condvar::new(),
        });
        let (work, queue) = bounded(QUEUE);
        let (messages, outgoing) = bounded(QUEUE);
        let (ready, place) = bounded(1);
        let failed = |_| Errno::AGAIN;
        let worker = Worker {
            counted: Counted::new(&shared),
            queue,
            replies: messages.clone(),
        };
        thread::spawn("volume-worker", move || worker.serve()).map_err(failed)?;
        let counted = Counted::new(&shared);
        thread::spawn("volume-reader", move || {
            read(&counted.0, &outgoing, &work, &ready);
            drop((work, counted));
        })
        .map_err(failed)?;
        let place = place.recv().map_err(|_| Errno::IO)??;
        let server = Self {
            shared,
            messages: Some(messages),
        };
        Ok((server, place))
    }

    /// Lets the mount go: from now on it lives as long as its file is open.
    pub(crate) fn opened(&mut self) {
        if let Some(messages) = self.messages.take() {
            let _ = messages.send(Message::Opened);
        }
    }

    /// Waits until the threads have ended, because the file was closed. Returns false if that takes too long.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let mut threads = self.shared.threads.lock();
        while *threads > 0 {
            if self.shared.ended.wait_for(&mut threads, limit).timed_out() {
                return *threads == 0;
            }
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without it, the mount of a file that could not be opened would last.
        self.opened();
    }
}

/// The main function of the reader. What it opens is in its own table.
fn read(
    shared: &Arc<Shared>,
    outgoing: &Receiver<Message>,
    work: &Sender<Work>,
    ready: &Sender<Result<MountPlace, Errno>>,
) {
    let mounted = leave_table().and_then(|()| mount(&shared.name));
    let (device, mount) = match mounted {
        Ok((device, mount)) => (Arc::new(device), mount),
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let place = MountPlace {
        thread: rustix::thread::gettid().as_raw_nonzero().get(),
        number: mount.as_raw_fd(),
    };
    let (counted, own) = (Counted::new(shared), Arc::clone(&device));
    let outgoing = outgoing.clone();
    // A thread has the table of the one that starts it.
    let writer = thread::spawn("volume-writer", move || {
        write(&counted.0, &own, mount, &outgoing);
        drop((own, counted));
    });
    if writer.is_err() {
        let _ = ready.send(Err(Errno::AGAIN));
        return;
    }
    let _ = ready.send(Ok(place));
    while let Some(request) = receive(shared, &device) {
        if work.send(request).is_err() {
            return;
        }
    }
}

/// Makes a mount whose root is a regular file, at no path. Returns the connection and the mount.
fn mount(name: &str) -> Result<(OwnedFd, OwnedFd), Errno> {
    use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let number = device.as_raw_fd().to_string();
    let settings = [
        ("source", name),
        ("subtype", "millpond-volume"),
        ("fd", &number),
        ("rootmode", "100600"),
        ("user_id", "0"),
        ("group_id", "0"),
    ];
    for (key, value) in settings {
        fsconfig_set_string(fs.as_fd(), key, value)?;
    }
    fsconfig_create(fs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok((device, mount))
}

/// Reads the next request. `None` when the connection is over.
fn receive(shared: &Shared, device: &OwnedFd) -> Option<Work> {
    let mut buffer = shared.buffer();
    loop {
        match rustix::io::read(device, &mut buffer) {
            Ok(0) => return None,
            Ok(length) => return Some((buffer, length)),
            // "No entry": the request was cancelled before it could be read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(_) => return None,
        }
    }
}

/// The main function of the writer.
fn write(shared: &Shared, device: &OwnedFd, mount: OwnedFd, outgoing: &Receiver<Message>) {
    let mut mount = Some(mount);
    while let Ok(message) = outgoing.recv() {
        match message {
            Message::Opened => drop(mount.take()),
            Message::Reply(buffer, length) => {
                let reply = buffer.get(..length).unwrap_or_default();
                // It fails only if the request was cancelled or the connection is over.
                while rustix::io::write(device, reply) == Err(Errno::INTR) {}
                shared.keep(buffer);
            }
        }
    }
}

impl Shared {
    fn buffer(&self) -> Vec<u8> {
        let kept = self.buffers.lock().pop();
        kept.unwrap_or_else(|| vec![0; BUFFER_BYTES])
    }
    fn keep(&self, buffer: Vec<u8>) {
        let mut kept = self.buffers.lock();
        if kept.len() < BUFFERS_KEPT {
            kept.push(buffer);
        }
    }
}

/// A thread that answers requests.
struct Worker {
    counted: Counted,
    queue: Receiver<Work>,
    replies: Sender<Message>,
}

impl Worker {
    fn serve(self) {
        let shared = &self.counted.0;
        loop {
            shared.idle.fetch_add(1, Ordering::SeqCst);
            let next = self.queue.recv_timeout(IDLE);
            let was_idle = shared.idle.fetch_sub(1, Ordering::SeqCst);
            let (request, length) = match next {
                Ok(work) => work,
                Err(error) if error.is_timeout() => match self.may_end() {
                    true => return,
                    false => continue,
                },
                Err(_) => return,
            };
            if was_idle == 1 {
                self.help();
            }
            let mut reply = shared.buffer();
            let message = request.get(..length).unwrap_or_default();
            let answer = answer(&shared.session, message, &mut reply);
            shared.keep(request);
            if let Some(length) = answer
                && self.replies.send(Message::Reply(reply, length)).is_err()
            {
                return;
            }
        }
    }

    /// Starts another worker, because all are at work. If the system refuses another thread, these continue.
    fn help(&self) {
        let shared = &self.counted.0;
        if shared.workers.fetch_add(1, Ordering::SeqCst) >= WORKERS_MAX {
            shared.workers.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let worker = Self {
            counted: Counted::new(shared),
            queue: self.queue.clone(),
            replies: self.replies.clone(),
        };
        if thread::spawn("volume-worker", move || worker.serve()).is_err() {
            shared.workers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether this worker, which has nothing to do, may end. It is then no longer counted.
    fn may_end(&self) -> bool {
        let workers = &self.counted.0.workers;
        let fewer = |count: usize| (count > 1).then(|| count - 1);
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        workers.fetch_update(order.0, order.1, fewer).is_ok()
    }
}

/// Answers a request. A request without a reply would hang its device for ever, so the reply after a panic is `EIO`.
fn answer(session: &Session, message: &[u8], reply: &mut [u8]) -> Option<usize> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        session.answer(message, reply).map(<[u8]>::len)
    }));
    outcome.unwrap_or_else(|_| {
        let unique = Request::unique_of(message)?;
        Some(Reply::new(reply).finish(unique, EIO).len())
    })
}
