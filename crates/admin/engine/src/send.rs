//! Sends snapshots as streams.

use crate::{Error, Pool, View};
use millpond_dataset::{Dataset, DatasetError, DatasetName, InUse, NameTail, PropertyValue};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::{BookmarkPhys, Txg};
use millpond_send::{Older, SendError, SendFlags, SendProgress, estimated_bytes};
use std::io::Write;

/// What to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendRequest {
    /// The full name of a snapshot, or of a file system or volume that nobody changes.
    pub name: String,
    /// The full name of the older snapshot or bookmark that the reader of the stream has already.
    pub from: Option<String>,
    /// How blocks are sent.
    pub flags: SendFlags,
}

/// A request whose names were looked up.
struct Found {
    dataset: Dataset,
    version: Option<u64>,
    older: Option<(Older, Earlier)>,
}

/// What the reader of a stream has already.
enum Earlier {
    Snapshot(Box<Dataset>),
    Bookmark(Box<BookmarkPhys>),
}

impl View {
    fn look_up(&self, request: &SendRequest) -> Result<Found, Error> {
        let dataset = Dataset::find(self.inner(), &request.name)?;
        let opened = self.dataset_by_id(dataset.id())?;
        if opened.is_locked()? {
            return Err(SendError::Locked.into());
        }
        let version = match opened.has_files()? {
            true => Some(opened.file_system()?.version()),
            false => None,
        };
        let from = request.from.as_ref();
        let older = from.map(|from| self.older(&dataset, from)).transpose()?;
        Ok(Found {
            dataset,
            version,
            older,
        })
    }

    /// Looks up what the reader of a stream has already.
    fn older(&self, dataset: &Dataset, from: &str) -> Result<(Older, Earlier), Error> {
        let parsed = DatasetName::parse(from)?;
        let missing = || DatasetError::NotFound {
            name: from.to_owned(),
        };
        let owner = Dataset::find(self.inner(), parsed.path)?;
        let (guid, created, earlier) = match parsed.tail {
            NameTail::Bookmark(name) => {
                let mut bookmarks = owner.bookmarks()?.into_iter();
                let bookmark = bookmarks.find(|bookmark| bookmark.name == name);
                let phys = bookmark.ok_or_else(missing)?.phys;
                let earlier = Earlier::Bookmark(Box::new(phys));
                (phys.guid, phys.creation_txg, earlier)
            }
            NameTail::Snapshot(name) => {
                let older = owner.snapshot(name)?;
                let (guid, created) = (older.phys().guid, older.phys().creation_txg);
                (guid, created, Earlier::Snapshot(Box::new(older)))
            }
            NameTail::Head => return Err(SendError::NotEarlier.into()),
        };
        let is_of_origin = owner.directory().id() != dataset.directory().id();
        if !is_earlier(dataset, &owner, created)? {
            return Err(SendError::NotEarlier.into());
        }
        let older = Older {
            guid,
            created,
            is_of_origin,
        };
        Ok((older, earlier))
    }

    /// Writes a stream, and returns its length in bytes.
    ///
    /// # Errors
    /// [`Error::Send`]; [`Error::Dataset`] if there is no such dataset.
    pub fn send(
        &self,
        request: &SendRequest,
        progress: &SendProgress,
        output: impl Write + Send,
    ) -> Result<u64, Error> {
        let found = self.look_up(request)?;
        let key = self.key_of(found.dataset.directory())?;
        let set = found.dataset.object_set(key)?;
        sent(&found, &set, request.flags, progress, output)
    }

    /// The length of a stream in bytes, roughly: the estimate that OpenZFS prints. `None` for a bookmark that does not say
    /// enough.
    ///
    /// # Errors
    /// As [`View::send`].
    pub fn send_estimate(&self, request: &SendRequest) -> Result<Option<u64>, Error> {
        let found = self.look_up(request)?;
        let dataset = &found.dataset;
        let sizes = match &found.older {
            None => Some(dataset.sizes()),
            Some((_, Earlier::Snapshot(earlier))) => dataset.sizes_since(earlier)?,
            Some((_, Earlier::Bookmark(earlier))) => dataset.sizes_since_bookmark(earlier)?,
        };
        let Some(sizes) = sizes else {
            return Ok(None);
        };
        let referenced = match request.flags.compressed {
            true => sizes.compressed,
            false => sizes.uncompressed,
        };
        let (name, default, is_inheritable) = match found.version {
            Some(_) => ("recordsize", 128 << 10, true),
            None => ("volblocksize", 16 << 10, false),
        };
        let block_bytes = match dataset.directory().property(name, is_inheritable)? {
            Some((PropertyValue::Number(bytes), _)) => bytes,
            _ => default,
        };
        let bytes = estimated_bytes(referenced, sizes.uncompressed, block_bytes);
        Ok(Some(bytes))
    }
}

impl Pool {
    /// Writes a stream, and returns its length in bytes. Snapshots that are sent, or sent from, cannot be destroyed
    /// meanwhile. The pool is changed freely.
    ///
    /// # Errors
    /// As [`View::send`].
    pub fn send(
        &self,
        request: &SendRequest,
        progress: &SendProgress,
        output: impl Write + Send,
    ) -> Result<u64, Error> {
        let ids = self.read_committed(|view| {
            let found = view.look_up(request)?;
            let mut ids = vec![];
            if found.dataset.is_snapshot() {
                ids.push(found.dataset.id());
            }
            if let Some((_, Earlier::Snapshot(earlier))) = &found.older {
                ids.push(earlier.id());
            }
            Ok(ids)
        })?;
        let mut in_use: Vec<InUse> = vec![];
        for id in ids {
            let used = self.datasets().use_snapshot(id)?;
            in_use.push(used.ok_or(SendError::Expired)?);
        }
        let view = self.committed()?;
        let found = view.look_up(request)?;
        let key = view.key_of(found.dataset.directory())?;
        if !found.dataset.is_snapshot() {
            let set = found.dataset.object_set(key)?;
            return sent(&found, &set, request.flags, progress, output);
        }
        // The view may expire. The blocks of a snapshot in use stay.
        let store = Arc::clone(self.inner().store());
        let (id, root) = (found.dataset.id().0, found.dataset.phys().block_pointer);
        let set = ObjectSetView::open(store, id, root, key);
        let set = set.map_err(SendError::from)?;
        let length = sent(&found, &set, request.flags, progress, output);
        drop(in_use);
        length
    }
}

fn sent(
    found: &Found,
    set: &Arc<ObjectSetView>,
    flags: SendFlags,
    progress: &SendProgress,
    output: impl Write + Send,
) -> Result<u64, Error> {
    let (dataset, version) = (&found.dataset, found.version);
    let older = found.older.as_ref().map(|(older, _)| *older);
    let length = millpond_send::send(dataset, set, version, older, flags, progress, output)?;
    Ok(length)
}

/// Whether a dataset contains the state that `owner` had in a txg.
fn is_earlier(dataset: &Dataset, owner: &Dataset, txg: Txg) -> Result<bool, Error> {
    let mut at = dataset.clone();
    let mut newest = dataset.phys().creation_txg;
    if !dataset.is_snapshot() {
        newest = Txg(u64::MAX);
    }
    loop {
        if at.directory().id() == owner.directory().id() {
            return Ok(txg < newest);
        }
        match at.origin()? {
            // An origin is older than its clones, so this ends.
            Some(origin) if origin.phys().creation_txg < newest => {
                newest = Txg(origin.phys().creation_txg.0.saturating_add(1));
                at = origin;
            }
            _ => return Ok(false),
        }
    }
}
