//! A daemon in this process, with its socket and simulated mounts.

use millpond_daemon::{Daemon, Line, Listener, PretendMounter, StateDirs};
use millpond_env::Env;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A daemon that serves requests until this is dropped.
pub struct Served {
    pub daemon: Arc<Daemon>,
    /// Simulated mounts, and the mount points that are busy.
    #[allow(dead_code)]
    pub mounter: PretendMounter,
    is_over: Arc<AtomicBool>,
}

impl Served {
    /// Starts a daemon with all its files in `folder`. `complain` receives its log messages.
    pub fn start(folder: &Path, complain: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let dirs = StateDirs::in_folder(folder);
        let mounter = PretendMounter::default();
        let pretended = Box::new(mounter.clone());
        let log = Box::new(move |line: &Line| complain(&line.to_string()));
        let daemon = Daemon::start(&Env::real(), &dirs, pretended, log);
        let daemon = daemon.expect("a daemon");
        let listener = Listener::bind(&dirs.socket()).expect("a socket");
        let is_over = Arc::new(AtomicBool::new(false));
        let (served, stopped) = (Arc::clone(&daemon), Arc::clone(&is_over));
        std::thread::spawn(move || listener.serve(&served, &stopped));
        Self {
            daemon,
            mounter,
            is_over,
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The listener checks for the end at the next connection.
        let _ = UnixStream::connect(self.daemon.dirs().socket());
        self.daemon.stop();
    }
}
