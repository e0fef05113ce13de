//! Sends snapshots as streams.

mod package;
mod redact;
pub(crate) mod steps;

pub use package::PackageOptions;

use crate::{Error, Pool, View};
use millpond_dataset::{Dataset, DatasetKey, InUse, PropertyValue, RedactionList};
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_object::ObjectSetView;
use millpond_ondisk::{BookmarkPhys, ObjectId};
use millpond_send::{
    Older, ResumeFrom, SendError, SendFlags, SendOptions, Unfinished, begin_package, end_package,
    estimated_bytes, measured_bytes,
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
    /// What a package has beside its streams.
    pub package: PackageOptions,
    /// Whether what an interrupted receive into the file system or volume left is sent. Its stream says how blocks are sent.
    pub is_unfinished: bool,
    /// How blocks are sent.
    pub flags: SendFlags,
    /// The full name of the redaction bookmark of the snapshot whose blocks are left out.
    pub redaction: Option<String>,
    /// From where an interrupted stream continues.
    pub resume: Option<ResumeFrom>,
    /// The bytes of the interrupted streams, which the estimate leaves out.
    pub received_bytes: u64,
    /// The guids of the snapshot and of the older one (0 for none), if the names may have changed: `from` is not looked at.
    pub guids: Option<(u64, u64)>,
    /// The guids of the snapshots with respect to which an interrupted stream is redacted: it continues with the redaction
    /// bookmark for them.
    pub redacted: Vec<u64>,
    /// The guids of those with respect to which its older snapshot is redacted at its reader.
    pub redacted_from: Vec<u64>,
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

/// The streams that a request leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SendPlan {
    /// The streams in order.
    pub steps: Vec<SendStep>,
    /// The full names of datasets that are left out, with those below them, because they lack the snapshot.
    pub skipped: Vec<String>,
}

/// The full names of a snapshot to send, and of the older snapshot or bookmark.
type StreamNames = (String, Option<String>);

/// A planned request.
struct Planned {
    streams: Vec<StreamNames>,
    /// The list at the beginning of the package.
    list: Option<NvList>,
    skipped: Vec<String>,
}

/// A request whose names were looked up.
struct Lookup {
    list: Option<NvList>,
    found: Vec<Found>,
}

/// A stream whose names were looked up.
struct Found {
    dataset: Dataset,
    version: Option<u64>,
    older: Option<(Older, Earlier)>,
    redaction: Option<RedactionList>,
    /// The guids of the snapshots with respect to which the older one is redacted.
    redacted_from: Vec<u64>,
    /// The blocks that the reader lacks of the older snapshot.
    lacked: Option<RedactionList>,
    flags: SendFlags,
    unfinished: Option<Unfinished>,
}

impl Found {
    fn options(&self, request: &SendRequest) -> SendOptions {
        SendOptions {
            flags: self.flags,
            resume: request.resume,
            redaction: self.redaction.clone(),
            redacted_from: self.redacted_from.clone(),
            lacked: self.lacked.clone(),
            unfinished: self.unfinished.clone(),
        }
    }

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
    fn plan(&self, request: &SendRequest) -> Result<Planned, Error> {
        match request.package.has_list() {
            true => self.plan_package(request),
            false => Ok(Planned {
                streams: self.steps(request)?,
                list: None,
                skipped: vec![],
            }),
        }
    }

    /// The key with which a dataset is read. A raw stream has what is stored.
    fn key_for_sending(
        &self,
        found: &Found,
        request: &SendRequest,
    ) -> Result<Option<Arc<DatasetKey>>, Error> {
        match request.flags.raw {
            true => Ok(None),
            false => self.key_of(found.dataset.directory()),
        }
    }

    fn look_up_all(&self, request: &SendRequest) -> Result<Lookup, Error> {
        let planned = self.plan(request)?;
        let found = planned
            .streams
            .iter()
            .map(|(name, from)| self.look_up(name, from.as_deref(), request));
        Ok(Lookup {
            found: found.collect::<Result<_, Error>>()?,
            list: planned.list,
        })
    }

    /// The length of a stream that depends on what is redacted, in bytes: it is made, without reading data.
    fn measure(&self, found: &Found, request: &SendRequest) -> Result<u64, Error> {
        let key = self.key_for_sending(found, request)?;
        let set = found.dataset.object_set(key)?;
        let older = found.older.as_ref().map(|(older, _)| *older);
        let (dataset, options) = (&found.dataset, found.options(request));
        Ok(measured_bytes(
            dataset,
            &set,
            found.version,
            older,
            &options,
        )?)
    }

    /// Writes a stream, and returns its length in bytes.
    ///
    /// # Errors
    /// [`Error::Send`]; [`Error::Dataset`] if there is no such dataset.
    pub fn send(&self, request: &SendRequest, output: impl Write + Send) -> Result<u64, Error> {
        let found = self.look_up_all(request)?;
        let open = |found: &Found| {
            let key = self.key_for_sending(found, request)?;
            Ok(found.dataset.object_set(key)?)
        };
        sent(&found, request, &open, output)
    }

    /// The streams that a request leads to, and how long they are.
    ///
    /// # Errors
    /// As [`View::send`].
    pub fn send_plan(&self, request: &SendRequest) -> Result<SendPlan, Error> {
        let planned = self.plan(request)?;
        let steps = planned.streams.into_iter().map(|(name, from)| {
            let found = self.look_up(&name, from.as_deref(), request)?;
            let bytes = match found.redaction.is_some() || found.lacked.is_some() {
                true => Some(self.measure(&found, request)?),
                false => estimate(&found, request.flags)?
                    .map(|bytes| bytes.saturating_sub(request.received_bytes)),
            };
            Ok(SendStep { name, from, bytes })
        });
        Ok(SendPlan {
            steps: steps.collect::<Result<_, Error>>()?,
            skipped: planned.skipped,
        })
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
            Ok(found.found.iter().flat_map(Found::ids).collect())
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
            .found
            .iter()
            .flat_map(Found::ids)
            .all(|id| ids.contains(&id));
        if !is_same {
            return Err(SendError::Expired.into());
        }
        let open = |found: &Found| {
            let key = view.key_for_sending(found, request)?;
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

/// Writes the streams, in a package if there may be several, or if more than streams is sent.
fn sent(
    lookup: &Lookup,
    request: &SendRequest,
    open: &dyn Fn(&Found) -> Result<Arc<ObjectSetView>, Error>,
    mut output: impl Write + Send,
) -> Result<u64, Error> {
    let mut length = 0;
    let is_package = request.has_between || lookup.list.is_some();
    if is_package {
        let has_holds = request.package.has_holds;
        length += begin_package(&request.name, lookup.list.as_ref(), has_holds, &mut output)?;
    }
    for found in &lookup.found {
        let set = open(found)?;
        let (dataset, version) = (&found.dataset, found.version);
        let older = found.older.as_ref().map(|(older, _)| *older);
        let options = found.options(request);
        let output = &mut output;
        length += millpond_send::send(dataset, &set, version, older, &options, output)?;
    }
    if is_package {
        length += end_package(&mut output).map_err(SendError::from)?;
    }
    Ok(length)
}
