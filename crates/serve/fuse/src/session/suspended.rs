//! Replaces the files of a session while programs use them.

use super::Session;
use super::known_names::{ChangedNames, KnownNames};
use crate::abi::MINOR_OF_EPOCHS;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_posix::FileError;
use millpond_posix::vfs::{InodeNumber, OpenSnapshots, Vfs};
use std::time::Duration;

/// How long the requests under way may take.
const REQUESTS_END: Duration = Duration::from_secs(10);

/// A session whose files are closed. Requests wait.
pub(crate) struct Suspended {
    names: KnownNames,
    snapshots: OpenSnapshots,
    has_exact_names: bool,
}

/// What the kernel must be told after the files were replaced.
pub(crate) struct Replaced {
    pub(crate) names: ChangedNames,
    /// The files with cached attributes and content.
    pub(crate) files: Vec<InodeNumber>,
}

impl Session {
    /// Keeps requests waiting, and closes all files. `None` if the requests under way take too long, or if the session is
    /// suspended already or over: all is then as before.
    pub(crate) fn suspend(&self) -> Option<Suspended> {
        if !self.gate.close(REQUESTS_END) {
            return None;
        }
        let vfs = self.gate.take()?;
        // Without replacement the files continue with all that was acknowledged.
        let _ = vfs.sync();
        let knows_epochs = self.minor.load(Ordering::Acquire) >= MINOR_OF_EPOCHS;
        let suspended = Suspended {
            names: KnownNames::read(&self.inodes, &*vfs, knows_epochs),
            snapshots: vfs.take_snapshots(),
            has_exact_names: vfs.has_exact_names(),
        };
        self.inodes.release_all();
        Some(suspended)
    }

    /// Serves these files from now on. Those that are the same as before, by number and generation, stay open; requests for
    /// others fail with `ESTALE`. With `is_replaced`, changed pages of mappings that the kernel still has are dropped.
    ///
    /// # Errors
    /// If the root directory cannot be opened. The session is then over.
    pub(crate) fn resume(
        &self,
        suspended: Suspended,
        vfs: Arc<dyn Vfs>,
        is_replaced: bool,
    ) -> Result<Replaced, FileError> {
        let Suspended {
            mut names,
            snapshots,
            has_exact_names,
        } = suspended;
        let root = match vfs.root() {
            Ok(root) => root,
            Err(error) => {
                self.gate.end();
                return Err(error);
            }
        };
        vfs.keep_snapshots(snapshots);
        // Names that did not exist may match now.
        if has_exact_names && !vfs.has_exact_names() {
            names.forget();
        }
        let old_root = self.root();
        self.root.store(root.number().0, Ordering::Release);
        if old_root != root.number() {
            self.inodes.forget(old_root, u64::MAX);
        }
        self.inodes.replace(&root);
        let changeable = |number: &InodeNumber| number.tag() == 0;
        let files: Vec<_> = self
            .inodes
            .numbers()
            .into_iter()
            .filter(changeable)
            .collect();
        if is_replaced {
            self.stale_pages.add(files.iter().copied());
        }
        if !self.gate.open(Arc::clone(&vfs)) {
            self.inodes.clear();
        }
        drop(root);
        let names = names.changed(&self.inodes, &*vfs);
        Ok(Replaced { names, files })
    }

    /// Whether it has ended or is ending. Its files may still be open until [`Session::close`] returns.
    pub(crate) fn is_over(&self) -> bool {
        self.gate.is_over()
    }

    /// Lets all requests fail, because the files of a suspended session do not come back.
    pub(crate) fn abandon(&self) {
        self.gate.end();
    }

    /// The kernel has dropped the cached pages of a file that was replaced.
    pub(crate) fn pages_dropped(&self, number: InodeNumber) {
        self.stale_pages.dropped(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::{Pool, PoolBuilder};

    fn tank(folder: &tempfile::TempDir) -> Pool {
        let image = folder.path().join("disk.img");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        PoolBuilder::new("tank").single(&image).create().unwrap()
    }

    fn session(pool: &Pool) -> Session {
        Session::new(pool.served("tank").unwrap() as Arc<dyn Vfs>).unwrap()
    }

    #[test]
    fn a_session_that_has_ended_keeps_no_files_and_is_not_suspended() {
        let folder = tempfile::tempdir().unwrap();
        let pool = tank(&folder);
        let files = pool.served("tank").unwrap() as Arc<dyn Vfs>;
        let session = Session::new(Arc::clone(&files)).unwrap();
        assert!(!session.is_over());
        session.close();
        assert!(session.suspend().is_none() && session.is_over());
        assert_eq!(Arc::strong_count(&files), 1);
    }

    #[test]
    fn a_session_that_ends_while_it_is_suspended_opens_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let pool = tank(&folder);
        let session = session(&pool);
        let suspended = session.suspend().unwrap();
        assert!(session.suspend().is_none() && !session.is_over());
        session.close();
        let files = pool.served("tank").unwrap() as Arc<dyn Vfs>;
        session
            .resume(suspended, Arc::clone(&files), true)
            .map(drop)
            .unwrap();
        assert_eq!(session.known_files(), 0);
        assert_eq!(Arc::strong_count(&files), 1);
    }
}
