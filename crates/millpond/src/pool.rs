//! An open pool.

use crate::dataset::{Dataset, NewFileSystem, NewVolume, Property, PropertyValue};
use crate::pin::Pin;
use crate::{Error, ErrorKind, FileSystem, OpenOptions, Volume};
use millpond_check::CheckOptions;
use millpond_engine::{DestroyOptions, View};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open pool. Cheap to clone. Datasets, file systems, files and volumes keep it open too: it is closed when the
/// last of them is dropped.
#[derive(Debug, Clone)]
pub struct Pool {
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// Open for reading: one committed state.
    View(View),
    /// Open for writing.
    Open(millpond_engine::Pool),
}

/// The space of a pool, in bytes, as `zpool list` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolSpace {
    /// The size of all vdevs.
    pub size_bytes: u64,
    /// What is allocated, with parity and copies.
    pub allocated_bytes: u64,
    /// What is free.
    pub free_bytes: u64,
    /// Fragmentation of the free space in per cent, if it is known.
    pub fragmentation_percent: Option<u8>,
}

/// How far [`Pool::check`] or [`Pool::verify`] has come. Another thread may read it.
#[derive(Debug, Default)]
pub struct Progress(millpond_check::Progress);

impl Progress {
    /// Nothing is done yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
    /// The number of blocks that were visited.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    /// The allocated bytes of the blocks that were visited. [`PoolSpace::allocated_bytes`] is the whole.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.0.allocated_bytes()
    }
}

/// The result of [`Pool::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckSummary {
    /// The number of findings; each was passed on.
    pub findings: u64,
}

/// The result of [`Pool::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifySummary {
    /// The number of problems; each was passed on.
    pub problems: u64,
    /// The number of blocks that were verified.
    pub blocks: u64,
    /// The number of bytes that were read from the devices.
    pub read_bytes: u64,
    /// The files of which blocks are lost.
    pub lost: Vec<LostFile>,
}

/// A file of which blocks are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostFile {
    /// The dataset; `None` for metadata of the pool.
    pub dataset: Option<String>,
    /// The path in the dataset, if it is a file whose path is known.
    pub path: Option<PathBuf>,
    /// The object id, which is the inode number of a file.
    pub object: u64,
}

impl Pool {
    pub(crate) fn of_view(view: View) -> Self {
        let state = State::View(view);
        Self { state }
    }

    pub(crate) fn of_open(pool: millpond_engine::Pool) -> Self {
        let state = State::Open(pool);
        Self { state }
    }

    /// Finds a pool by name or guid in files, devices and directories, and opens it for reading. Nothing is
    /// written. [`OpenOptions`] has more ways.
    ///
    /// What is read is its last committed state, but that is not kept while another program changes the pool; see
    /// [`Pool::is_in_use`].
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(
        name: &str,
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
    ) -> Result<Self, Error> {
        let paths = paths.into_iter();
        let options = paths.fold(OpenOptions::new(), |options, path| options.search(path));
        options.open(name)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.state {
            State::View(view) => view.name().to_owned(),
            State::Open(pool) => pool.name(),
        }
    }

    /// Whether it is open for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether it is open for reading while another program has it open for writing, as found when it was opened.
    /// That program may reuse blocks of the state that is read here: reads then fail as [`ErrorKind::Damaged`],
    /// though nothing is damaged.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(&self.state, State::View(view) if view.is_live())
    }

    pub(crate) fn writable(&self) -> Result<&millpond_engine::Pool, Error> {
        match &self.state {
            State::Open(pool) => Ok(pool),
            State::View(view) => {
                let error = Error::new(
                    ErrorKind::ReadOnly,
                    "the pool is open for reading only; see OpenOptions::write",
                );
                Err(error.about(view.name()))
            }
        }
    }

    /// The last committed state.
    pub(crate) fn view(&self) -> Result<View, Error> {
        match &self.state {
            State::View(view) => Ok(view.clone()),
            State::Open(pool) => Ok(pool.committed()?),
        }
    }

    /// Its space.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`].
    pub fn space(&self) -> Result<PoolSpace, Error> {
        let space = self.view()?.inner().space()?;
        let pool = space.pool();
        Ok(PoolSpace {
            size_bytes: pool.space_bytes,
            allocated_bytes: pool.allocated_bytes,
            free_bytes: pool.free_bytes(),
            fragmentation_percent: space.fragmentation_percent(),
        })
    }

    /// All its properties, as `zpool get all`.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`].
    pub fn properties(&self) -> Result<Vec<Property>, Error> {
        let all = self.view()?.literal_properties()?;
        Ok(all.into_iter().map(Property::of).collect())
    }

    /// All file systems and volumes, parents before children, in byte order of their names. One that cannot be
    /// read yields an error, and the iteration continues.
    ///
    /// # Errors
    /// If the last committed state cannot be read.
    pub fn datasets(&self) -> Result<impl Iterator<Item = Result<Dataset, Error>>, Error> {
        let pool = self.clone();
        let all = self.view()?.datasets();
        Ok(all.map(move |dataset| Ok(Dataset::new(pool.clone(), dataset?))))
    }

    /// A file system, volume or snapshot by its full name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Damaged`].
    pub fn dataset(&self, name: &str) -> Result<Dataset, Error> {
        Ok(Dataset::new(self.clone(), self.view()?.dataset(name)?))
    }

    /// Opens the files of a file system or snapshot: for writing, if the pool is open for writing and it is not
    /// a snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InvalidInput`] for a volume; [`ErrorKind::Locked`];
    /// [`ErrorKind::Damaged`].
    pub fn file_system(&self, name: &str) -> Result<FileSystem, Error> {
        if let State::Open(pool) = &self.state
            && !name.contains('@')
        {
            return Ok(FileSystem::new(
                name,
                pool.file_system(name)?,
                Pin::live(self),
            ));
        }
        let view = self.view()?;
        let files = view.dataset(name)?.file_system()?;
        Ok(FileSystem::new(name, files, Pin::committed(self, view)))
    }

    /// Opens a volume or a snapshot of one: for writing, if the pool is open for writing and it is not a
    /// snapshot.
    ///
    /// # Errors
    /// As [`Pool::file_system`].
    pub fn volume(&self, name: &str) -> Result<Volume, Error> {
        if let State::Open(pool) = &self.state
            && !name.contains('@')
        {
            return Ok(Volume::new(pool.volume(name)?, Pin::live(self)));
        }
        let view = self.view()?;
        let volume = view.dataset(name)?.volume()?;
        Ok(Volume::new(Arc::new(volume), Pin::committed(self, view)))
    }

    /// Loads the key of an encryption root: a passphrase, hexadecimal digits or raw bytes, as its key format
    /// says. It unlocks all datasets that share the encryption root.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if the key is wrong.
    pub fn load_key(&self, dataset: &str, key: &[u8]) -> Result<(), Error> {
        self.view()?.load_key(dataset, key)?;
        Ok(())
    }

    /// Begins the creation of a file system.
    pub fn create_file_system(&self, name: &str) -> NewFileSystem {
        NewFileSystem::new(self, name)
    }

    /// Begins the creation of a volume of this size in bytes.
    pub fn create_volume(&self, name: &str, size_bytes: u64) -> NewVolume {
        NewVolume::new(self, name, size_bytes)
    }

    /// Creates snapshots, all in one transaction group or none.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`]; [`ErrorKind::NotFound`]; [`ErrorKind::InvalidInput`] for a name.
    pub fn snapshot<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<(), Error> {
        let names: Vec<&str> = names.into_iter().collect();
        Ok(self.writable()?.datasets().snapshot(&names, &[])?)
    }

    /// Creates a clone of a snapshot.
    ///
    /// # Errors
    /// As [`NewFileSystem::create`].
    pub fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<(), Error> {
        let datasets = self.writable()?.datasets();
        Ok(datasets.clone_snapshot(snapshot, name, &[])?)
    }

    /// Destroys a file system or volume without children and snapshots, a snapshot, or a bookmark. Its space is
    /// freed in the background.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Busy`].
    pub fn destroy(&self, name: &str) -> Result<(), Error> {
        let datasets = self.writable()?.datasets();
        Ok(datasets.destroy(name, DestroyOptions::default())?)
    }

    /// Renames a file system, volume or snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::AlreadyExists`], [`ErrorKind::InvalidInput`].
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        Ok(self.writable()?.datasets().rename(from, to)?)
    }

    /// Discards everything that was written after the latest snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the file system is open; [`ErrorKind::InvalidInput`] for an older snapshot.
    pub fn rollback(&self, snapshot: &str) -> Result<(), Error> {
        Ok(self.writable()?.datasets().rollback(snapshot)?)
    }

    /// Sets a property of a dataset.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::InvalidInput`].
    pub fn set_property(
        &self,
        dataset: &str,
        name: &str,
        value: impl Into<PropertyValue>,
    ) -> Result<(), Error> {
        let change = (name.to_owned(), value.into().into_inner());
        let datasets = self.writable()?.datasets();
        Ok(datasets.set_properties(dataset, &[change])?)
    }

    /// Proves the metadata: each block has one owner, and space maps, sums and reference counts are right. Calls
    /// `on_finding` with a sentence about each contradiction, from several threads.
    ///
    /// What takes longer than an hour needs a pool that is open for reading: the committed state of one that is open
    /// for writing expires then, and nothing is returned.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if the pool's root directory cannot be read; [`ErrorKind::Expired`].
    pub fn check(
        &self,
        progress: &Progress,
        on_finding: &(dyn Fn(&str) + Sync),
    ) -> Result<CheckSummary, Error> {
        let count = AtomicU64::new(0);
        let options = CheckOptions::default();
        self.view()?.check(&options, &progress.0, &|finding| {
            count.fetch_add(1, Ordering::Relaxed);
            on_finding(&finding.to_string());
        })?;
        Ok(CheckSummary {
            findings: count.into_inner(),
        })
    }

    /// Reads every copy of every block, and parity. Calls `on_problem` with a sentence about each problem, from
    /// several threads.
    ///
    /// As with [`Pool::check`], what takes longer than an hour needs a pool that is open for reading.
    ///
    /// # Errors
    /// [`ErrorKind::Expired`]. What cannot be read is a problem.
    pub fn verify(
        &self,
        progress: &Progress,
        on_problem: &(dyn Fn(&str) + Sync),
    ) -> Result<VerifySummary, Error> {
        let count = AtomicU64::new(0);
        let report = self.view()?.verify(&progress.0, &|problem| {
            count.fetch_add(1, Ordering::Relaxed);
            on_problem(&problem.to_string());
        })?;
        let lost = report.damaged.into_iter().filter(|object| object.lost > 0);
        Ok(VerifySummary {
            problems: count.into_inner(),
            blocks: report.blocks,
            read_bytes: report.read_bytes,
            lost: lost
                .map(|object| LostFile {
                    dataset: object.dataset,
                    path: object.path.map(|path| OsString::from_vec(path).into()),
                    object: object.object,
                })
                .collect(),
        })
    }

    /// Waits until all changes so far are on stable storage. Without effect on a pool that is only read.
    ///
    /// # Errors
    /// [`ErrorKind::Suspended`].
    pub fn sync(&self) -> Result<(), Error> {
        match &self.state {
            State::Open(pool) => Ok(pool.sync()?),
            State::View(_) => Ok(()),
        }
    }

    /// Writes all changes and marks the pool as exported. Changes through file systems and volumes of it that are
    /// still open fail from then on; its devices stay locked until those are dropped. A pool that is only read is
    /// just closed.
    ///
    /// # Errors
    /// [`ErrorKind::Suspended`], [`ErrorKind::Device`].
    pub fn export(self) -> Result<(), Error> {
        match self.state {
            State::Open(pool) => Ok(pool.export()?),
            State::View(_) => Ok(()),
        }
    }
}
