//! Makes the kernel write the changed pages of mappings.

use crate::abi::notify_invalidate_pages;
use crate::server::Connection;
use crate::session::WriteBack;
use millpond_env::mark;
use millpond_env::sync::Weak;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use std::ops::Range;

/// The kernel's pages of one connection.
pub(crate) struct KernelPages {
    connection: Weak<Connection>,
    /// A thread of this connection waits for the kernel.
    is_waiting: AtomicBool,
}

impl KernelPages {
    pub fn new(connection: Weak<Connection>) -> Self {
        Self {
            connection,
            is_waiting: AtomicBool::new(false),
        }
    }
}

impl WriteBack for KernelPages {
    fn write_back(&self, node: u64, bytes: Range<u64>) -> bool {
        let Some(connection) = self.connection.upgrade() else {
            return false;
        };
        // A queue of io_uring may have no more than two threads, so one must be left.
        if self.is_waiting.swap(true, Ordering::AcqRel) {
            return false;
        }
        let is_admitted = connection.share.begin_wait();
        if is_admitted {
            mark::hit("fuse-pages-written-back");
            // The kernel writes changed pages before it drops them. It fails if it does not know the file, or if the connection
            // is over: there is nothing to be written then.
            let notice = notify_invalidate_pages(node, bytes);
            let _ = connection.channel.send(&notice);
            connection.share.end_wait();
        }
        self.is_waiting.store(false, Ordering::Release);
        is_admitted
    }
}
