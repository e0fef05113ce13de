//! Sends snapshots as streams.

use crate::{Error, Pool, View};
use millpond_dataset::{Dataset, DatasetError, DatasetName, InUse, NameTail, PropertyValue};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::{BookmarkPhys, Guid, ObjectId, Txg};
use millpond_send::{
    Older, ResumeFrom, SendError, SendFlags, begin_package, end_package, estimated_bytes,
};
use std::collections::BTreeSet;
use std::io::Write;

/// What to send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SendRequest {
    /// The full name of a snapshot, or of a file system or volume. One that changes meanwhile cannot be sent to
    /// the end.
    pub name: String,
    /// The full name of the older snapshot or bookmark that the reader of the stream has already.
    pub from: Option<String>,
    /// Whether the snapshots between the older one and this are sent too, in a package.
    pub has_between: bool,
    /// How blocks are sent.
    pub flags: SendFlags,
    /// From where an interrupted stream continues.
    pub resume: Option<ResumeFrom>,
    /// The bytes of the interrupted streams, which the estimate leaves out.
    pub received_bytes: u64,
    /// The guids of the snapshot and of the older one (0 for none), if the names may have changed: `from` is not looked at.
    pub guids: Option<(u64, u64)>,
}

/// One of the streams that a request leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendStep {
    /// The full name of the snapshot.
    pub name: String,
    /// The full name of the older snapshot or bookmark.
    pub from: Option<String>,
    /// The length of the stream in bytes, roughly: the estimate that OpenZFS prints. `None` for a bookmark that does not
    /// say enough.
    pub bytes: Option<u64>,
}

/// A request whose names were looked up.
struct Found {
    dataset: Dataset,
    version: Option<u64>,
    older: Option<(Older, Earlier)>,
}

impl Found {
    /// The snapshots that must stay while it is sent.
    fn ids(&self) -> impl Iterator<Item = ObjectId> {
        let own = self.dataset.is_snapshot().then(|| self.dataset.id());
        let older = match &self.older {
            Some((_, Earlier::Snapshot(earlier))) => Some(earlier.id()),
            _ => None,
        };
        own.into_iter().chain(older)
    }
}

/// What the reader of a stream has already.
enum Earlier {
    Snapshot(Box<Dataset>),
    Bookmark(Box<BookmarkPhys>),
}

impl View {
    /// The streams that a request leads to, oldest first, by their names and those of the older snapshots.
    fn steps(&self, request: &SendRequest) -> Result<Vec<(String, Option<String>)>, Error> {
        let (name, from) = match request.guids {
            None => (request.name.clone(), request.from.clone()),
            Some(guids) => self.by_guids(&request.name, guids)?,
        };
        let Some(older) = from.clone().filter(|_| request.has_between) else {
            return Ok(vec![(name, from)]);
        };
        let first = Dataset::find(self.inner(), &older)?;
        let mut at = Dataset::find(self.inner(), &name)?;
        let mut steps = vec![];
        loop {
            let previous = at.phys().previous_snapshot.ok_or(SendError::NotEarlier)?;
            let previous = Dataset::by_id(self.inner(), previous)?;
            let is_first = previous.id() == first.id();
            // Each snapshot must be older than the next one; otherwise the chain is a cycle.
            let is_older = previous.phys().creation_txg < at.phys().creation_txg;
            if !is_older || previous.directory().id() != at.directory().id() && !is_first {
                return Err(SendError::NotEarlier.into());
            }
            steps.push((at.name().to_owned(), Some(previous.name().to_owned())));
            if is_first {
                steps.reverse();
                return Ok(steps);
            }
            at = previous;
        }
    }

    /// The names of a snapshot that was called `name`, and of the older one.
    fn by_guids(
        &self,
        name: &str,
        (to, from): (u64, u64),
    ) -> Result<(String, Option<String>), Error> {
        let head = name.split('@').next().unwrap_or(name);
        let head = Dataset::find(self.inner(), head)?;
        let has = |guid: u64| move |one: &Dataset| one.guid().0 == guid;
        let mut snapshots = head.snapshots()?.into_iter();
        let Some(snapshot) = snapshots.find(has(to)) else {
            return Err(match Dataset::find(self.inner(), name) {
                Ok(_) => SendError::Replaced.into(),
                Err(error) => error.into(),
            });
        };
        if from == 0 {
            return Ok((snapshot.name().to_owned(), None));
        }
        let mut at = Some(head.clone());
        while let Some(dataset) = at {
            if let Some(older) = dataset.snapshots()?.into_iter().find(has(from)) {
                return Ok((snapshot.name().to_owned(), Some(older.name().to_owned())));
            }
            let mut bookmarks = dataset.bookmarks()?.into_iter();
            if let Some(bookmark) = bookmarks.find(|bookmark| bookmark.phys.guid.0 == from) {
                let older = format!("{}#{}", dataset.name(), bookmark.name);
                return Ok((snapshot.name().to_owned(), Some(older)));
            }
            let owner = match dataset.origin()? {
                Some(origin) => origin.directory().head()?,
                None => None,
            };
            // An origin is older than its clones, so this ends.
            at = owner.filter(|owner| owner.id() != dataset.id());
        }
        Err(SendError::SourceGone(Guid(from)).into())
    }

    fn look_up_all(&self, request: &SendRequest) -> Result<Vec<Found>, Error> {
        let steps = self.steps(request)?;
        let found = steps
            .iter()
            .map(|(name, from)| self.look_up(name, from.as_deref()));
        found.collect()
    }

    fn look_up(&self, name: &str, from: Option<&str>) -> Result<Found, Error> {
        let dataset = Dataset::find(self.inner(), name)?;
        let opened = self.dataset_by_id(dataset.id())?;
        if opened.is_locked()? {
            return Err(SendError::Locked.into());
        }
        let version = match opened.has_files()? {
            true => Some(opened.file_system()?.version()),
            false => None,
        };
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
    pub fn send(&self, request: &SendRequest, output: impl Write + Send) -> Result<u64, Error> {
        let found = self.look_up_all(request)?;
        let open = |found: &Found| {
            let key = self.key_of(found.dataset.directory())?;
            Ok(found.dataset.object_set(key)?)
        };
        sent(&found, request, &open, output)
    }

    /// The streams that a request leads to, and how long they are.
    ///
    /// # Errors
    /// As [`View::send`].
    pub fn send_steps(&self, request: &SendRequest) -> Result<Vec<SendStep>, Error> {
        let steps = self.steps(request)?.into_iter().map(|(name, from)| {
            let found = self.look_up(&name, from.as_deref())?;
            let bytes = estimate(&found, request.flags)?;
            let bytes = bytes.map(|bytes| bytes.saturating_sub(request.received_bytes));
            Ok(SendStep { name, from, bytes })
        });
        steps.collect()
    }
}

fn estimate(found: &Found, flags: SendFlags) -> Result<Option<u64>, Error> {
    let dataset = &found.dataset;
    let sizes = match &found.older {
        None => Some(dataset.sizes()),
        Some((_, Earlier::Snapshot(earlier))) => dataset.sizes_since(earlier)?,
        Some((_, Earlier::Bookmark(earlier))) => dataset.sizes_since_bookmark(earlier)?,
    };
    let Some(sizes) = sizes else {
        return Ok(None);
    };
    let referenced = match flags.compressed {
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

impl Pool {
    /// Writes a stream, and returns its length in bytes. Snapshots that are sent, or sent from, cannot be destroyed
    /// meanwhile. The pool is changed freely.
    ///
    /// # Errors
    /// As [`View::send`].
    pub fn send(&self, request: &SendRequest, output: impl Write + Send) -> Result<u64, Error> {
        let ids: BTreeSet<ObjectId> = self.read_committed(|view| {
            let found = view.look_up_all(request)?;
            Ok(found.iter().flat_map(Found::ids).collect())
        })?;
        let mut in_use: Vec<InUse> = vec![];
        for id in &ids {
            let used = self.datasets().use_snapshot(*id)?;
            in_use.push(used.ok_or(SendError::Expired)?);
        }
        let view = self.committed()?;
        let found = view.look_up_all(request)?;
        // Another snapshot may have got a name meanwhile.
        let is_same = found
            .iter()
            .flat_map(Found::ids)
            .all(|id| ids.contains(&id));
        if !is_same {
            return Err(SendError::Expired.into());
        }
        let open = |found: &Found| {
            let key = view.key_of(found.dataset.directory())?;
            if !found.dataset.is_snapshot() {
                return Ok(found.dataset.object_set(key)?);
            }
            // The view may expire. The blocks of a snapshot in use stay.
            let store = Arc::clone(self.inner().store());
            let (id, root) = (found.dataset.id().0, found.dataset.phys().block_pointer);
            Ok(ObjectSetView::open(store, id, root, key).map_err(SendError::from)?)
        };
        let length = sent(&found, request, &open, output);
        drop(in_use);
        length
    }
}

/// Writes the streams, in a package if there may be several.
fn sent(
    found: &[Found],
    request: &SendRequest,
    open: &dyn Fn(&Found) -> Result<Arc<ObjectSetView>, Error>,
    mut output: impl Write + Send,
) -> Result<u64, Error> {
    let mut length = 0;
    if request.has_between {
        length += begin_package(&request.name, &mut output).map_err(SendError::from)?;
    }
    for found in found {
        let set = open(found)?;
        let (dataset, version) = (&found.dataset, found.version);
        let older = found.older.as_ref().map(|(older, _)| *older);
        let (flags, resume, output) = (request.flags, request.resume, &mut output);
        length += millpond_send::send(dataset, &set, version, older, flags, resume, output)?;
    }
    if request.has_between {
        length += end_package(&mut output).map_err(SendError::from)?;
    }
    Ok(length)
}

/// Whether a dataset contains the state that `owner` had in a txg.
pub(crate) fn is_earlier(dataset: &Dataset, owner: &Dataset, txg: Txg) -> Result<bool, Error> {
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
