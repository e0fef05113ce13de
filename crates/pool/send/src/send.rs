//! Sends one snapshot.

use crate::batch::{Entry, Fetcher, Writer, stream_bytes};
use crate::error::SendError;
use crate::features::features_of;
use crate::output::Output;
use crate::redaction::Lists;
use crate::walk::Walk;
use millpond_dataset::{Dataset, RedactionList};
use millpond_env::sync::{Arc, bounded};
use millpond_env::thread;
use millpond_nvlist::{NvList, NvValue};
use millpond_object::ObjectSetView;
use millpond_ondisk::{DnodeArrayShape, DslDatasetFlags, Guid, ObjectSetKind, Txg};
use millpond_stream::{Begin, BeginFlags, RawKeys, StreamFeatures, StreamWriter};
use std::io::Write;

/// Threads that read blocks.
const FETCHERS: usize = 2;
/// Batches between two threads.
const BATCHES_MAX: usize = 1;

/// How blocks are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags {
    /// Blocks of more than 128 KiB are not split.
    pub large_blocks: bool,
    /// Blocks that a pointer holds are sent as such.
    pub embedded: bool,
    /// Compressed blocks are sent compressed.
    pub compressed: bool,
    /// Blocks of encrypted datasets are sent as they are stored, without their key. The other flags must be set too.
    pub raw: bool,
}

/// The snapshot that the reader of the stream has already, or a bookmark of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Older {
    /// Its guid.
    pub guid: Guid,
    /// When it was created.
    pub created: Txg,
    /// The guid of its IV set; 0 if it has none.
    pub iv_set: u64,
    /// Whether it belongs to another dataset, of which this one is a clone.
    pub is_of_origin: bool,
}

/// What is sent, and how.
#[derive(Debug, Clone, Default)]
pub struct SendOptions {
    /// How blocks are sent.
    pub flags: SendFlags,
    /// From where an interrupted stream continues.
    pub resume: Option<ResumeFrom>,
    /// The blocks that are left out.
    pub redaction: Option<RedactionList>,
    /// The guids of the snapshots with respect to which the older one is redacted; empty if it is whole.
    pub redacted_from: Vec<u64>,
    /// The blocks that the reader of the stream lacks of the older one. They are sent.
    pub lacked: Option<RedactionList>,
    /// The snapshot that the dataset would become if its receive were completed. The stream has no end then, so that its
    /// reader also keeps a state to resume.
    pub unfinished: Option<Unfinished>,
}

/// A snapshot of which only a part was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Its guid.
    pub guid: Guid,
    /// Its full name at the first sender.
    pub name: String,
}

/// From where an interrupted stream continues. What comes before was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeFrom {
    /// The object.
    pub object: u64,
    /// The offset in it, in bytes.
    pub offset: u64,
}

impl ResumeFrom {
    fn put(self, list: &mut NvList) {
        list.push("resume_object", self.object);
        list.push("resume_offset", self.offset);
    }
}

/// The list at the beginning of the stream, empty if there is none.
fn payload(
    dataset: &Dataset,
    set: &ObjectSetView,
    features: StreamFeatures,
    older: Option<Older>,
    options: &SendOptions,
) -> Result<Vec<u8>, SendError> {
    let mut list = NvList::new();
    let redacted = match &options.redaction {
        Some(redaction) => Some(redaction.snapshots()),
        None => dataset.redacted_for()?,
    };
    if let Some(guids) = redacted {
        list.push("redact_snaps", NvValue::Uint64Array(guids));
    }
    if !options.redacted_from.is_empty() {
        let guids = options.redacted_from.clone();
        list.push("redact_from_snaps", NvValue::Uint64Array(guids));
    }
    if let Some(from) = options.resume {
        from.put(&mut list);
    }
    if features.contains(StreamFeatures::RAW) {
        raw_keys(dataset, set, older)?.put(&mut list);
    }
    if list.is_empty() {
        return Ok(vec![]);
    }
    let packed = list.encode_native();
    packed.map_err(|error| std::io::Error::other(error).into())
}

/// What the reader of a raw stream must know beside the blocks.
fn raw_keys(
    dataset: &Dataset,
    set: &ObjectSetView,
    older: Option<Older>,
) -> Result<RawKeys, SendError> {
    let key = dataset.sent_key()?.ok_or(SendError::Locked)?;
    if key.version == 0 {
        return Err(SendError::OldKey);
    }
    let phys = set.phys();
    Ok(RawKeys {
        key,
        portable_mac: phys.portable_mac,
        array: DnodeArrayShape::of(&phys.meta_dnode),
        to_iv_set: dataset.iv_set()?.unwrap_or(0),
        from_iv_set: older.map_or(0, |older| older.iv_set),
    })
}

/// The beginning of a stream.
struct Beginning {
    begin: Begin,
    payload: Vec<u8>,
}

impl Beginning {
    fn of(
        dataset: &Dataset,
        set: &Arc<ObjectSetView>,
        version: Option<u64>,
        older: Option<Older>,
        options: &SendOptions,
    ) -> Result<Self, SendError> {
        let mut features = features_of(dataset, set, version, options.flags)?;
        if options.resume.is_some() {
            features |= StreamFeatures::RESUMING;
        }
        let is_redacted = dataset.redacted_for()?.is_some();
        if is_redacted && options.redaction.is_some() {
            return Err(SendError::NotRedactable);
        }
        if is_redacted || options.redaction.is_some() {
            features |= StreamFeatures::REDACTED;
        }
        let is_about_redaction =
            features.contains(StreamFeatures::REDACTED) || options.lacked.is_some();
        if is_about_redaction && features.contains(StreamFeatures::RAW) {
            return Err(SendError::NotRedactable);
        }
        let payload = payload(dataset, set, features, older, options)?;
        let phys = dataset.phys();
        let unfinished = options.unfinished.as_ref();
        let to_guid = unfinished.map_or(phys.guid, |snapshot| snapshot.guid).0;
        let mut begin_flags = BeginFlags::FREE_RECORDS | BeginFlags::SPILL_BLOCKS;
        if older.is_some_and(|older| older.is_of_origin) {
            begin_flags |= BeginFlags::CLONE;
        }
        if phys.flags.contains(DslDatasetFlags::CASE_INSENSITIVE) {
            begin_flags |= BeginFlags::CASE_INSENSITIVE;
        }
        let to_name = match unfinished {
            Some(snapshot) => snapshot.name.clone(),
            None if dataset.is_snapshot() => dataset.name().to_owned(),
            None => format!("{}@--head--", dataset.name()),
        };
        let begin = Begin {
            features,
            creation_s: phys.creation_time,
            object_set_type: match set.kind() {
                ObjectSetKind::FileSystem => 2,
                ObjectSetKind::Volume => 3,
                _ => 4,
            },
            flags: begin_flags,
            to_guid,
            from_guid: older.map_or(0, |older| older.guid.0),
            to_name: to_name.into_bytes(),
            ..Begin::default()
        };
        Ok(Self { begin, payload })
    }

    /// Makes the records between the beginning and the end, and passes them on.
    fn walk(
        &self,
        set: &Arc<ObjectSetView>,
        older: Option<Older>,
        options: &SendOptions,
        pass_on: &mut dyn FnMut(Vec<Entry>) -> bool,
    ) -> Result<(), SendError> {
        let from = older.map_or(Txg(0), |older| older.created);
        let resumed = options.resume.map(|from| (from.object, from.offset));
        let lists = Lists::new(options.redaction.as_ref(), options.lacked.as_ref());
        let output = Output::new(self.begin.to_guid, self.begin.features, pass_on);
        Walk::new(set, from, resumed, lists, output).run()
    }
}

/// Returns the length of the stream that [`send`] would write, in bytes. Blocks of data are not read.
///
/// # Errors
/// As [`send`].
pub fn measured_bytes(
    dataset: &Dataset,
    set: &Arc<ObjectSetView>,
    version: Option<u64>,
    older: Option<Older>,
    options: &SendOptions,
) -> Result<u64, SendError> {
    let beginning = Beginning::of(dataset, set, version, older, options)?;
    let mut bytes = stream_bytes(beginning.payload.len() as u64);
    let mut pass_on = |batch: Vec<Entry>| {
        for entry in batch {
            bytes = bytes.saturating_add(entry.stream_bytes());
        }
        true
    };
    beginning.walk(set, older, options, &mut pass_on)?;
    let end = if options.unfinished.is_none() {
        stream_bytes(0)
    } else {
        0
    };
    Ok(bytes.saturating_add(end))
}

/// Walks on this thread, reads on some others and writes on one more: the disk, the checksums of blocks and that of the
/// stream do not wait for each other. Batches take turns, so that their order stays.
fn in_parallel<W: Write + Send>(
    fetcher: Fetcher<'_>,
    writer: &mut Writer<'_, W>,
    walk: impl FnOnce(&mut dyn FnMut(Vec<Entry>) -> bool) -> Result<(), SendError>,
) -> Result<(), SendError> {
    thread::scope(|scope| {
        let (mut senders, mut receivers, mut fetching) = (vec![], vec![], vec![]);
        for _ in 0..FETCHERS {
            let (sender, unread) = bounded::<Vec<Entry>>(BATCHES_MAX);
            let (fetched, receiver) = bounded(BATCHES_MAX);
            senders.push(sender);
            receivers.push(receiver);
            fetching.push(scope.spawn(move || {
                while let Ok(batch) = unread.recv()
                    && fetched.send(fetcher.fetch(batch)).is_ok()
                {}
            }));
        }
        let writing = scope.spawn(move || {
            for receiver in receivers.iter().cycle() {
                match receiver.recv() {
                    Ok(batch) => writer.write(batch)?,
                    Err(_) => break,
                }
            }
            Ok(())
        });
        let mut turns = (0..FETCHERS).cycle();
        let mut pass_on = |batch: Vec<Entry>| {
            let sender = turns.next().and_then(|turn| senders.get(turn));
            sender.is_some_and(|sender| sender.send(batch).is_ok())
        };
        let walked = walk(&mut pass_on);
        // Ends the other threads.
        drop(senders);
        for fetching in fetching {
            // One that panicked would look like the end of the stream.
            if let Err(panic) = fetching.join() {
                std::panic::resume_unwind(panic);
            }
        }
        let written = writing.join();
        let written: Result<(), SendError> =
            written.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The walk stops where the writing failed, without an error of its own.
        written.and(walked)
    })
}

/// Writes the change from `older`, or from nothing, to a snapshot. Returns the length of the stream in bytes.
///
/// `set` is the dataset's object set, opened with the key of an encrypted dataset: the stream is not encrypted. For a raw
/// stream it is opened without. `version` is the version of the file system, `None` for a volume. A head is sent like a snapshot that is called `--head--`.
///
/// # Errors
/// [`SendError`]. What was written then has no end, which its reader notices.
pub fn send(
    dataset: &Dataset,
    set: &Arc<ObjectSetView>,
    version: Option<u64>,
    older: Option<Older>,
    options: &SendOptions,
    output: impl Write + Send,
) -> Result<u64, SendError> {
    let beginning = Beginning::of(dataset, set, version, older, options)?;
    let to_guid = beginning.begin.to_guid;
    let mut stream = StreamWriter::new(output);
    stream.begin(beginning.begin.clone(), &beginning.payload)?;
    let fetcher = Fetcher {
        store: set.store(),
        key: set.key(),
    };
    let mut writer = Writer { fetcher, stream };
    if thread::is_alone() {
        let mut outcome = Ok(());
        let mut pass_on = |batch: Vec<_>| {
            outcome = writer.write(fetcher.fetch(batch));
            outcome.is_ok()
        };
        let walked = beginning.walk(set, older, options, &mut pass_on);
        outcome.and(walked)?;
    } else {
        let walk = |pass_on: &mut dyn FnMut(Vec<Entry>) -> bool| {
            beginning.walk(set, older, options, pass_on)
        };
        in_parallel(fetcher, &mut writer, walk)?;
    }
    let mut stream = writer.stream;
    if options.unfinished.is_none() {
        stream.end(to_guid)?;
    }
    stream.flush()?;
    Ok(stream.written_bytes())
}
